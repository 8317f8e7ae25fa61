"""A sweep that is killed leaves no process, and goes on to the same file, whatever runs its points."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from windtunnel.studies.sweeps import sweep
from windtunnel.studies.sweeps.journal import read_journal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes do not end with their parent")
POINTS = 500


def until(holds: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(holds())


@pytest.mark.parametrize(
    "executor",
    [
        "processes",
        pytest.param("ray", marks=[pytest.mark.extras, pytest.mark.skipif(not find_spec("ray"), reason="no Ray")]),
    ],
)
def test_nothing_is_left_and_the_file_is_the_same(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[[], list[str]]
) -> None:
    told, out = tmp_path / "told", tmp_path / "killed.parquet"
    monkeypatch.setenv("SWEPT_TELLS", str(told))
    study = {"grid": {"a": list(range(POINTS))}}
    call = f"sweep({study!r}, out={str(out)!r}, jobs=2, executor={executor!r}, function='swept_functions:slow')"
    script = tmp_path / "asks.py"
    script.write_text(f"from windtunnel.studies.sweeps import sweep\nif __name__ == '__main__':\n    {call}\n")
    journal = out.with_name("killed.parquet.journal")
    begun = (lambda: read_journal(journal), told.exists)  # and, later, when points run on Ray
    for there in begun if executor == "ray" else begun[:1]:
        process = subprocess.Popen([sys.executable, str(script)])
        assert until(there, 60.0)
        process.kill()
        process.wait()
        assert until(lambda: not started(), 20.0), started()
    before = len(read_journal(journal))
    assert 0 < before < POINTS
    monkeypatch.setenv("SWEPT_FAST", "1")
    whole = sweep(study, out=tmp_path / "whole.parquet", executor="serial", function="swept_functions:slow").path
    outcome = sweep(study, out=out, executor="serial", function="swept_functions:slow")
    assert outcome.ran == POINTS - before
    assert out.read_bytes() == whole.read_bytes()
