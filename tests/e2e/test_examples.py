"""Every script in examples/ runs wherever a reader may be, and ends by saying what it promises.

The first runs in an interpreter of its own; the others in this one, which has all imported.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
PROMISED = {
    "01_predict.py": r"15\.6 T tokens \d+ days without interruption, \d+\.\d M GPU-hours",
    "02_compare_layouts.py": r"take tp \d.*: \d\.\d times as fast as the slowest that fits",
    "03_read_a_result.py": r"worth it\? \d\.\d\d times the speed",
    "05_techniques.py": r"together: 1\.\d{3} x",
    "04_disturb.py": r"mending gpu=1037:1\.15 alone 0\.\d\d s, \d\.\d% of it",
}


def test_every_script_has_a_promise() -> None:
    assert [script.name for script in SCRIPTS] == sorted(PROMISED)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs_anywhere_and_leaves_nothing_behind(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if script == SCRIPTS[0]:
        subprocess.run([sys.executable, script], timeout=300, check=True)
    else:
        monkeypatch.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script), run_name="__main__")
    out, err = capfd.readouterr()
    assert err == ""
    assert re.search(PROMISED[script.name], out), out
    assert "nan" not in out.lower().split()
    assert list(tmp_path.iterdir()) == []


def test_each_opens_with_how_to_run_it() -> None:
    for script in SCRIPTS:
        assert f"python examples/{script.name}" in script.read_text(encoding="utf-8").split('"""')[1]
