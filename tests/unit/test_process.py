"""No process outlives the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.process import state_of

STARTER = """
import subprocess, sys, time
from windtunnel.process import dying_with_parent
children = [
    subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(9)"], start_new_session=True,
                     preexec_fn=dying_with_parent())
    for _ in range(3)
]
print(*(child.pid for child in children), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children that their parent is gone")
def test_children_that_are_still_starting_end_with_their_parent() -> None:
    source = str(Path(__file__).parents[2] / "src")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source}, text=True
    )
    assert starter.stdout is not None
    children = [int(pid) for pid in starter.stdout.readline().split()]
    assert len(children) == 3
    starter.send_signal(signal.SIGKILL)  # at once: they have hardly begun
    starter.wait()
    starter.stdout.close()
    until = time.monotonic() + 1.0
    while time.monotonic() < until and any(state_of(pid)[0] not in ("", "Z") for pid in children):
        time.sleep(0.01)
    assert [state_of(pid)[0] for pid in children if state_of(pid)[0] not in ("", "Z")] == []


AT_A_FORK = """
import os, signal, subprocess, sys
from windtunnel.process import dying_with_parent, signals_after_a_fork, terminated_is_an_end
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.{name}))  # it comes while the kernel forks
with terminated_is_an_end(), signals_after_a_fork():
    child = subprocess.Popen([sys.executable, "-c", ""], preexec_fn=dying_with_parent())
print("nobody heard it")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there a child asks to end with its parent")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_comes_while_a_process_forks_is_heard(name: str) -> None:
    source = str(Path(__file__).parents[2] / "src")
    words = [sys.executable, "-c", AT_A_FORK.format(name=name)]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONPATH": source}, text=True, timeout=60)
    assert done.returncode == {"SIGINT": -signal.SIGINT, "SIGTERM": 128 + signal.SIGTERM}[name]
    assert "nobody heard it" not in done.stdout
