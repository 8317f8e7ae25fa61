"""A launch file in the place of a model: what each verb takes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.faces.cli import main
from windtunnel.questions import ask

TRAIN = """torchrun pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --swiglu --bf16 \\
  --num-attention-heads 32 --seq-length 1024 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --use-distributed-optimizer
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(TRAIN)
    return path


def test_plan_seeks_the_layout_of_a_launch_file_anew(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(train), "--cluster", "h100-sxm:4", "--json"]) == 0
    said = capsys.readouterr()
    best = json.loads(said.out)["plans"][0]["plan"]
    assert "sought anew" in said.err
    assert best.get("recompute", "none") == "none"  # the file recomputes all, and there is room
    assert (best["global_batch"], best["seq_len"]) == (16, 1024)
    assert main(["plan", str(train), "--cluster", "h100-sxm:4", "--recompute", "full", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["plan"]["recompute"] == "full"


def test_predict_takes_the_plan_of_a_launch_file_by_every_face(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(train), "--cluster", "h100-sxm:8", "--no-save", "--no-advice", "--json"]) == 0
    by_line = json.loads(capsys.readouterr().out)
    asked = ask({"question": "predict", "model": str(train), "cluster": "h100-sxm:8"})
    assert asked.step_time_ns == by_line["step_time_ns"]
    assert asked.spec["plan"]["recompute"] == "full"


def test_decide_takes_the_work_of_a_launch_file(train: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--clusters", "h100-sxm:2,h200-sxm:2", "--tokens", "1T", "--within", "5", "--json"]
    assert main(["decide", str(train), *words]) == 0
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert {(one["plan"]["global_batch"], one["plan"]["seq_len"]) for one in answer["options"]} == {(16, 1024)}
    assert not any("give --seq-len" in one or "give --global-batch" in one for one in answer["notes"])
    assert main(["decide", "llama-3.2-1b", "--plan", str(train), *words]) == 2
    assert "states another model" in capsys.readouterr().err


def test_a_model_that_is_none_is_told_before_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "lama-3-70b", "--cluster", "h100-sxm:8"]) == 2
    assert "did you mean llama-3-70b" in capsys.readouterr().err
