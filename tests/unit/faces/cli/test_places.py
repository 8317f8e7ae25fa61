"""Where an answer cannot be written: one line that names the place, not a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.faces.cli.app import main

STUDY = """\
fixed: {model: llama-3.2-1b, cluster: "h100-sxm:8", plan.global_batch: 8, plan.seq_len: 512}
list: [{plan.tp: 1}]
"""
SMALL = ("llama-3.2-1b", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "512")
SERVED = "id,model,gpu,engine,isl,osl,concurrency\na,llama-3.1-8b,h100_sxm,vllm,100,10,1\n"


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "study.yaml", "--out"),
        ("plan", *SMALL, "--tried"),
        ("fleet", "jobs.csv", "--cluster", "t4:8", "--jobs-out"),
        ("fleet", "flows", "flows.txt", "--rows"),
        ("validate", "served.csv", "--rows"),
        ("validate", "served.csv", "--page"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_a_place_that_cannot_be_written_is_one_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    Path("jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,1,10\n")
    Path("flows.txt").write_text("2 1\n1 0 1 0 1 1:10\n")
    Path("served.csv").write_text(SERVED)
    Path("file").write_text("")
    assert main([*words, "file/below"]) == 2
    assert "file/below" in capsys.readouterr().err


def test_a_folder_is_no_table_and_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(STUDY)
    Path("folder").mkdir()
    assert main(["sweep", "study.yaml", "--out", "folder"]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert not Path("folder.journal").exists()


def test_a_folder_that_is_not_there_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flows.txt").write_text("2 1\n1 0 1 0 1 1:10\n")
    assert main(["fleet", "flows", "flows.txt", "--rows", "new/flows.csv"]) == 0
    assert Path("new/flows.csv").is_file()
