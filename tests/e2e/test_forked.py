"""What the other tests start commands with: nothing that a command forked outlives its time."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from forked import windtunnel

pytest.importorskip("torch")

STAYS = """
import os, pathlib, time
other = os.fork()
if other:
    pathlib.Path("other").write_text(str(other))
time.sleep(100)
"""


def test_what_a_command_forked_ends_with_its_time(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text(STAYS)
    with pytest.raises(subprocess.TimeoutExpired):
        windtunnel(cwd=tmp_path, env={**os.environ}, timeout=2, module=str(script))
    other = Path("/proc") / (tmp_path / "other").read_text() / "stat"
    until = time.monotonic() + 10
    while other.exists() and other.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not other.exists() or other.read_text().rpartition(")")[2].split()[0] == "Z"
