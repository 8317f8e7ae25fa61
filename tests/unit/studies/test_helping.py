"""Which techniques help a launch file's job: predicted as `predict` does, the best first, each with a line to add."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.errors import SpecError
from windtunnel.faces.report.techniques import techniques_document
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.asked.sweep import Techniques
from windtunnel.studies import predict
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


def test_the_gain_is_that_of_the_line_where_it_is_a_part_of_the_technique(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(LAUNCH.replace("--global-batch-size 16", "--global-batch-size 64"))
    found = answer(Techniques(name="centauri", launch=str(path), cluster="h100-sxm:16"))["techniques"][0]
    job = predict.of_launch_file(ModelPart(base=str(path)), ClusterPart(base="h100-sxm:16"), {})
    plain_s, whole_s, line_s = (
        predict.answer(replace(job, technique=technique)).step_time_s
        for technique in ((), ("centauri",), ("centauri:pieces=1,late_weights=false,overlap=false",))
    )
    assert found["gain"] == pytest.approx(plain_s / line_s)
    assert found["gain_of_all"] == pytest.approx(plain_s / whole_s)
    assert line_s > whole_s
    shown = techniques_document([found]).views[0].lines[0]
    assert shown.endswith(f"all of the technique, of which the line is a part: {plain_s / whole_s:.3f} x")


def test_where_memory_is_short_what_fits_stands_first(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(LAUNCH.replace("--num-layers 4 --hidden-size 1024", "--num-layers 80 --hidden-size 5120"))
    found = answer(Techniques(launch=str(path), cluster="h100-sxm:8"))["techniques"]
    assert found[0]["name"] == "offload"
    assert (found[0]["fits"], found[0]["fits_without"]) == (True, False)
    assert float(found[0]["gain"]) < float(found[1]["gain"])
    shown = techniques_document(found).views
    assert shown[0].lines[0].endswith("; fits with it, out of memory without")
    assert shown[1].lines[0].endswith("; out of memory with it, out of memory without")


@pytest.mark.parametrize("name", sorted(LINES))
def test_a_line_calls_what_there_is(name: str) -> None:
    package = importlib.import_module(f"windtunnel.real.techniques.{name}")
    assert re.search(rf"\b{name}\.(\w+)\(", LINES[name]).group(1) in package.__all__


@pytest.mark.parametrize("asked", [Techniques(launch="train.sh"), Techniques(cluster="h100-sxm:8")])
def test_half_a_question_is_one_error(asked: Techniques) -> None:
    with pytest.raises(SpecError, match="--cluster"):
        answer(asked)
