"""Forks of one process run a script as a fresh Python does: arguments, folder, environment, end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.survive.live.fork_server import ForkServer, runs_script

TELLS = """
import json, os, random, sys
import beside
told = {"argv": sys.argv, "name": __name__, "file": __file__, "beside": beside.VALUE, "word": os.environ["WORD"]}
told |= {"environment": len(os.environ), "random": random.random()}
open(sys.argv[1], "w").write(json.dumps(told))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(imported=("decimal",))
    yield made
    made.close()


def test_a_fork_runs_the_script_as_a_fresh_python_does(tmp_path: Path, server: ForkServer) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    numbers = set()
    for status in (0, 7):
        out = tmp_path / f"{status}.json"
        environment = {**os.environ, "WORD": str(status)}
        forked = server.start([str(script), str(out), str(status)], environment)
        assert forked.wait() == status
        told = json.loads(out.read_text())
        numbers.add(told.pop("random"))
        assert told == {
            "argv": [str(script), str(out), str(status)], "name": "__main__", "file": str(script), "beside": 5,
            "word": str(status), "environment": len(environment),
        }  # fmt: skip
    assert len(numbers) == 2


def test_an_error_and_a_signal_are_told_as_popen_tells_them(tmp_path: Path, server: ForkServer) -> None:
    fails, stays = tmp_path / "fails.py", tmp_path / "stays.py"
    fails.write_text("raise ValueError('no')")
    stays.write_text("import time\nwhile True: time.sleep(0.01)")
    assert server.start([str(fails)], os.environ).wait() == 1
    one, two = (server.start([str(stays)], os.environ) for _ in range(2))
    assert one.poll() is None
    one.kill()
    assert (one.wait(), one.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
    one.kill()  # nothing of that number is touched any more
    os.kill(two.pid, signal.SIGTERM)  # by somebody else
    assert two.wait() == -signal.SIGTERM


def test_without_its_server_a_fork_goes_and_a_new_server_begins(tmp_path: Path, server: ForkServer) -> None:
    stays = tmp_path / "stays.py"
    stays.write_text("import time\nwhile True: time.sleep(0.01)")
    forked = server.start([str(stays)], os.environ)
    assert server._process is not None
    server._process.kill()
    assert forked.wait() == -signal.SIGKILL
    again = server.start([str(stays)], os.environ)
    assert again.poll() is None
    again.kill()
    assert again.wait() == -signal.SIGKILL


def test_when_the_launcher_is_killed_nothing_is_left(tmp_path: Path) -> None:
    stays, pids = tmp_path / "stays.py", tmp_path / "pids"
    stays.write_text("import time\nwhile True: time.sleep(0.01)")
    launcher = f"""
import os, time
from pathlib import Path
from windtunnel.survive.live.fork_server import ForkServer
server = ForkServer(imported=())
forked = server.start([{str(stays)!r}], os.environ)
Path({str(pids)!r} + ".new").write_text(f"{{server._process.pid}} {{forked.pid}}")
Path({str(pids)!r} + ".new").rename({str(pids)!r})
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", launcher])
    while not pids.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    for pid in map(int, pids.read_text().split()):
        while _runs(pid):
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process is there that has not ended; whoever adopted it may not have looked at it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_what_a_fork_can_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    assert runs_script([sys.executable, str(script), "--steps", "5"])
    assert not runs_script([sys.executable, "-m", "json"])
    assert not runs_script(["/bin/true", str(script)])
    assert not runs_script([sys.executable])
