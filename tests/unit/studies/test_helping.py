"""Which techniques help a launch file's job: predicted as `predict` does, the best first, each with a line to add."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.questions.asked.sweep import Techniques
from windtunnel.studies.helping import LINES, answer
from windtunnel.studies.techniques.registry import TECHNIQUES

LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8"
    " --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --bf16"
    " --tensor-model-parallel-size 2 --vocab-size 32000\n"
)


def test_each_is_predicted_or_says_why_not_and_the_best_stands_first(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(LAUNCH)
    found = answer(Techniques(launch=str(path), cluster="h100-sxm:8"))["techniques"]
    assert {one["name"] for one in found} == {one.name for one in TECHNIQUES} == set(LINES)
    assert all(("gain" in one) != ("cannot" in one) for one in found)
    gains = [one["gain"] for one in found if "gain" in one]
    assert gains
    assert gains == sorted(gains, reverse=True)
    assert "cannot" in next(one for one in found if one["name"] == "prioritised_all_to_all")  # it has no experts


@pytest.mark.parametrize("asked", [Techniques(launch="train.sh"), Techniques(cluster="h100-sxm:8")])
def test_half_a_question_is_one_error(asked: Techniques) -> None:
    with pytest.raises(SpecError, match="--cluster"):
        answer(asked)
