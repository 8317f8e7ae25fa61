"""Forks of one process run a script as a fresh Python does, and neither they nor the server outlive who needs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windtunnel.process import adopting_orphans
from windtunnel.real.survive.live import fork_server
from windtunnel.real.survive.live.fork_server import REFUSED, ForkHandle, ForkServer, runs_script

TELLS = """
import json, os, random, sys
import numpy.random
import beside
told = {"argv": sys.argv, "name": __name__, "file": __file__, "beside": beside.VALUE, "word": os.environ["WORD"]}
told |= {"parent": os.getppid(), "own_group": os.getpgid(0) == os.getpid(), "stdin": sys.stdin.read()}
told |= {"environment": dict(os.environ), "random": [random.random(), numpy.random.rand()]}
open(sys.argv[1] + os.environ["WORD"], "w").write(json.dumps(told))
sys.exit(int(os.environ["WORD"]))
"""
STAYS = "import time\nwhile True: time.sleep(0.01)"
Begin = Callable[..., ForkServer]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a server of a script with this text."""
    servers: list[ForkServer] = []

    def begin(
        text: str, *arguments: str, imported: tuple[str, ...] = ("decimal",), patience_s: float = 60
    ) -> ForkServer:
        script = tmp_path / "script.py"
        script.write_text(text)
        servers.append(ForkServer([str(script), *arguments], imported, patience_s))
        return servers[-1]

    with adopting_orphans() as adopts:
        if not adopts:
            pytest.skip("this system does not let a process adopt orphans, and nothing is forked there")
        yield begin
        for server in servers:
            server.close()


def there(forked: ForkHandle) -> int:
    """The pid of a fork, once it has one."""
    while forked.pid is None:
        assert forked.poll() is None
        time.sleep(0.01)
    return forked.pid


def test_a_fork_runs_the_script_as_a_fresh_python_does(tmp_path: Path, begin: Begin) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    server = begin(TELLS, str(tmp_path / "told"), imported=("numpy.random", "beside"))
    numbers = set()
    for status in (0, 7):
        assert server.start({"WORD": str(status)}).wait() == status
        document = json.loads((tmp_path / f"told{status}").read_text())
        numbers |= set(document.pop("random"))
        assert document.pop("environment").items() >= os.environ.items()
        script = str(tmp_path / "script.py")
        assert document == {
            "argv": [script, str(tmp_path / "told")], "name": "__main__", "file": script, "beside": 5,
            "word": str(status), "parent": os.getpid(), "own_group": True, "stdin": "",
        }  # fmt: skip
    assert len(numbers) == 4


def test_an_error_and_a_signal_are_told_as_popen_tells_them(begin: Begin) -> None:
    assert begin("raise ValueError('no')").start({}).wait() == 1
    server = begin(STAYS)
    one, two = (server.start({}) for _ in range(2))
    there(one)
    one.kill()
    assert (one.wait(), one.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
    one.kill()  # nothing of that number is touched any more
    os.kill(there(two), signal.SIGTERM)  # by somebody else
    assert two.wait() == -signal.SIGTERM


def test_a_fork_lives_on_without_its_server_and_a_new_server_begins(begin: Begin) -> None:
    server = begin(STAYS)
    forked = server.start({})
    there(forked)
    before = server.pid
    os.kill(before, signal.SIGKILL)
    while server.pid == before:
        assert server.look() == 0
        time.sleep(0.01)
    again = server.start({})
    there(again)
    assert forked.poll() is None
    for one in (forked, again):
        one.kill()
        assert one.wait() == -signal.SIGKILL


def test_what_a_dead_server_was_asked_for_counts_as_dead(begin: Begin) -> None:
    server = begin(STAYS, imported=("decimal", "fractions"))
    os.kill(server.pid, signal.SIGSTOP)
    forked = server.start({})
    assert forked.poll() is None
    os.kill(server.pid, signal.SIGKILL)
    assert forked.wait() == -signal.SIGKILL
    assert forked.pid is None


def test_a_server_that_does_not_answer_is_replaced(begin: Begin) -> None:
    server = begin(STAYS, patience_s=0.5)
    first = server.start({})
    there(first)
    before = server.pid
    os.kill(before, signal.SIGSTOP)
    forked = server.start({})
    while server.pid == before:
        assert server.look() == 0
        time.sleep(0.01)
    assert forked.wait() == -signal.SIGKILL
    assert first.poll() is None
    first.kill()
    first.wait()


def test_a_server_that_is_starved_of_a_processor_is_left_alone(monkeypatch: pytest.MonkeyPatch, begin: Begin) -> None:
    """It wants to run and gets no core for longer than the patience: that is a busy machine, not a dead server."""
    server = begin(STAYS, patience_s=0.2)
    first = server.start({})
    there(first)
    before = server.pid
    monkeypatch.setattr(fork_server, "_waits", lambda pid: (False, 0))
    os.kill(before, signal.SIGSTOP)
    forked = server.start({})
    while time.monotonic() < forked.asked_s + 1.0:
        assert server.look() == 0
        time.sleep(0.01)
    assert server.pid == before
    os.kill(before, signal.SIGCONT)
    there(forked)
    for one in (first, forked):
        one.kill()
        one.wait()


def test_who_has_a_processor_or_wants_one_does_not_wait() -> None:
    spins = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    while fork_server._waits(spins.pid)[1] == 0 or fork_server._waits(spins.pid)[0]:
        time.sleep(0.01)
    os.kill(spins.pid, signal.SIGSTOP)
    while not fork_server._waits(spins.pid)[0]:
        time.sleep(0.01)
    spins.kill()
    spins.wait()
    assert fork_server._waits(spins.pid) == (False, 0)  # it is gone


def test_modules_that_no_fork_survives_are_refused(
    tmp_path: Path, begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True, name='pump').start()"
    )
    server = begin(STAYS, imported=("threaded",))
    forked = server.start({})
    assert forked.wait() == -signal.SIGKILL
    assert server.start({}).wait() == -signal.SIGKILL
    while server.look() == 0:
        time.sleep(0.01)
    assert server.look() == REFUSED
    assert "start threads (pump)" in capfd.readouterr().err


def test_a_module_that_is_not_there_is_named(begin: Begin, capfd: pytest.CaptureFixture[str]) -> None:
    server = begin(STAYS, imported=("no_such_module",))
    while server.look() == 0:
        time.sleep(0.01)
    assert server.look() == REFUSED
    err = capfd.readouterr().err
    assert "--preload: no_such_module cannot be imported" in err
    assert len(err.splitlines()) == 1


def test_when_the_launcher_is_killed_nothing_is_left(tmp_path: Path) -> None:
    stays, pids = tmp_path / "stays.py", tmp_path / "pids"
    stays.write_text(STAYS)
    launcher = f"""
import time
from pathlib import Path
from windtunnel.process import adopting_orphans
from windtunnel.real.survive.live import fork_server
from windtunnel.real.survive.live.fork_server import ForkServer
with adopting_orphans():
    server = ForkServer([{str(stays)!r}], imported=())
    forked = server.start({{}})
    while forked.poll() is None and forked.pid is None:
        time.sleep(0.01)
    Path({str(pids)!r} + ".new").write_text(f"{{server.pid}} {{forked.pid}}")
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
