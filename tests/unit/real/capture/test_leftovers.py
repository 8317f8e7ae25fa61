"""What a killed command leaves is ended and removed at once, by nobody's next start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from windtunnel.real.capture.processes import leftovers

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")

OWNER = f"""
import os, subprocess, sys, time
from pathlib import Path
from {leftovers.__name__} import Keeper, FOLDER_VARIABLE
folder = Path(sys.argv[1])
keeper = Keeper(folder)
(folder / "work" / "work").mkdir(parents=True, mode=0)
marked = {{**os.environ, FOLDER_VARIABLE: str(folder)}}
for _ in range(3):
    subprocess.Popen(["sleep", "300"], env=marked, start_new_session=True)
if sys.argv[2] == "closes":
    keeper.close()
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("ending", ["killed", "closes"])
def test_the_keeper_ends_what_a_killed_owner_started_and_nothing_of_one_that_is_done(
    ending: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [sys.executable, "-c", OWNER, str(folder), ending]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        until = time.monotonic() + 5.0  # a program that is being started shows no environment for a moment
        while len(leftovers._started_in(folder)) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(leftovers._started_in(folder)) == 3
        owner.kill()
        owner.wait()
    until = time.monotonic() + 20.0
    while folder.exists() and time.monotonic() < until and ending == "killed":
        time.sleep(0.02)
    left = leftovers._started_in(folder)
    assert (len(left), folder.exists()) == ((0, False) if ending == "killed" else (3, True))
    leftovers.end_all(folder)
    assert not leftovers._started_in(folder)


def test_a_folder_that_nobody_may_look_into_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a" / "closed").mkdir(parents=True)
    os.chmod(tmp_path / "a" / "closed", 0)
    leftovers.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_parts_of_a_folder_are_removed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine took 3 s for the files of five ranks, one after the other."""
    for part in ("x", "y"):
        (tmp_path / "a" / "copies" / part).mkdir(parents=True)
    both, remove = threading.Barrier(2), shutil.rmtree

    def rmtree(path: str, **how: Any) -> None:
        if Path(path).name in ("x", "y"):
            both.wait(10.0)
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    leftovers.remove(tmp_path / "a")
    assert not (tmp_path / "a").exists()
