"""`predict --tokens`: a whole training at the predicted step; and an answer is printed though it cannot be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windtunnel.faces.cli import main
from windtunnel.faces.report.prediction.document import from_bytes

WORDS = ["predict", "llama-3.2-1b", "--cluster", "h100-sxm:8", "--global-batch", "16", "--seq", "1024", "--no-advice"]


def test_days_gpu_hours_and_cost_follow_from_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--no-save", "--json", "--tokens", "1B", "--price", "2.5"]) == 0
    text = capsys.readouterr().out
    answer = json.loads(text)
    whole = answer["training_run"]
    assert whole["steps"] == -(-1_000_000_000 // answer["tokens_per_step"])
    assert whole["gpu_hours"] == pytest.approx(8 * whole["steps"] * answer["step_time_s"] / 3600)
    assert whole["days"] == pytest.approx(whole["gpu_hours"] / 8 / 24)
    assert whole["cost"] == pytest.approx(2.5 * whole["gpu_hours"])
    assert whole["cost_p5"] < whole["cost"] < whole["cost_p95"]
    assert from_bytes(text.encode()).content_hash == answer["content_hash"]
    assert main([*WORDS, "--no-save", "--tokens", "1B", "--price", "2.5"]) == 0
    said = capsys.readouterr().out.partition("Whole training\n")[2]
    said = " ".join(said.split())
    assert f"1.000B tokens in {whole['steps']:,} steps" in said
    assert "GPU-hours" in said
    assert f"${whole['cost']:,.2f}" in said
    assert main([*WORDS, "--no-save", "--price", "2.5"]) == 2
    assert main([*WORDS, "--no-save", "--tokens", "many"]) == 2


def test_an_answer_that_cannot_be_kept_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert main([*WORDS, "--json", "--out", str(blocker)]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "ok"
    assert "cannot be written" in said.err


def test_the_answer_comes_before_its_advice(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in WORDS if word != "--no-advice"]
    assert main([*words, "--tp", "8", "--no-save"]) == 0
    said = capsys.readouterr().out
    assert said.index("step time") < said.index("Where the step goes") < said.index("What would make it faster")
    assert "--tp " in said[said.index("What would make it faster") :]


@pytest.mark.parametrize("other", ["--trace", "--ops"])
def test_two_outputs_are_not_one_file(tmp_path: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inner").mkdir()
    path = tmp_path / "x.parquet"
    twice = ["--report", str(path), other, str(tmp_path / "inner" / ".." / path.name)]
    assert main([*WORDS, "--no-save", *twice]) == 2
    assert "is the file of --report too" in capsys.readouterr().err
    assert not path.exists()
