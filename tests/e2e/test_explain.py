"""`windtunnel explain` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from in_this_process import command_line
from tables import job, write


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up job of 2 replicas and 4 stages."""
    return write(job(4, 2, 6), tmp_path_factory.mktemp("trace") / "ops.parquet")


def run(*words: str) -> CompletedProcess[str]:
    return command_line("explain", *words)


def test_the_screen_and_the_document_say_the_same(trace: Path) -> None:
    screen, document = run(str(trace)), run(str(trace), "--json")
    assert screen.returncode == document.returncode == 0, screen.stderr + document.stderr
    found = json.loads(document.stdout)
    assert f"{found['slowdown']:.3f}" in screen.stdout
    assert found["verdict"][:40] in screen.stdout
    for words in ("By stage", "By replica", "By kind of op", "Slowest workers", "gives back"):
        assert words in screen.stdout
    assert max(map(len, screen.stdout.splitlines())) <= 100
    assert run(str(trace), "--json").stdout == document.stdout


def test_a_recording_that_is_explained_as_one_is_not_called_a_step(tmp_path: Path, trace: Path) -> None:
    assert ", 2 steps\n" in run(str(trace)).stdout
    one = write(job(4, 2, 6, (7,)), tmp_path / "ops.parquet")
    done = run(str(one), "--report", str(tmp_path / "page.html"))
    for told in (done.stdout, (tmp_path / "page.html").read_text()):
        assert "as measured, the whole recording" in told
    assert "1 step" not in done.stdout


def test_mistakes_are_one_line(tmp_path: Path, trace: Path) -> None:
    cut = tmp_path / "ops.parquet"
    cut.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    text = tmp_path / "trace.json"
    text.write_text("{}")
    for words in (
        (),
        (str(tmp_path / "none.json"),),
        (str(tmp_path),),
        (str(cut),),
        (str(text),),
        (str(text), str(cut)),
    ):
        done = run(*words)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("windtunnel: error: ")


def test_a_page_and_a_question(tmp_path: Path, trace: Path) -> None:
    page = tmp_path / "out" / "why.html"
    done = run(str(trace), "--report", str(page), "--without", "stage=3", "--without", "op=optimizer", "--json")
    assert done.returncode == 0, done.stderr
    assert f"wrote {page}" in done.stderr
    document = json.loads(done.stdout)
    assert document["asked"]["parts"] == ["stage=3", "op=optimizer"]
    text = page.read_text(encoding="utf-8")
    assert "stage=3" in text
    assert f"{document['slowdown']:.3f}" in text
    screen = run(str(trace), "--without", "stage=3")
    assert "If stage=3 were ideal" in screen.stdout
    wrong = run(str(trace), "--without", "stage=9")
    assert wrong.returncode == 2
    assert "unknown stage '9'" in wrong.stderr
    assert wrong.stdout == ""
