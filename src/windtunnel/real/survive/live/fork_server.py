"""Processes of a job without importing PyTorch for each: one process has imported it, and the others are its forks.

It does nothing else: no computation (no pool of threads is up), no group, no thread of Python, no CUDA context, so
that a fork of it is as good as a fresh process. A fork is the launcher's child, not the server's: its parent in
between ends at once, and the launcher adopts it. So the launcher sees how it ended, it dies with the launcher, and it
lives on when the server dies; then another server is started. A request is a message on a socket: variables for the
environment, and the descriptor of a pipe, into which the fork writes its pid. A pipe that ends without one says that
there is no such process.

Forks of a process that has not touched CUDA may use it; that path has not yet run on a GPU.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from windtunnel.process import die_with_parent

MODULE = "windtunnel.real.survive.live.fork_server"
# `torch._dynamo` is what an optimizer of torch imports when it is made.
IMPORTED = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "windtunnel.real.emulate.tape.tape",
    "windtunnel.real.survive.live.train",
    "windtunnel.real.survive.loop.standby",
)
POLL_S = 0.002
MESSAGE_BYTES = 1 << 16
REFUSED = 2  # exit status: the modules are not fit to be imported once for all
LOST_S = 5.0  # by then the launcher has seen a death that closed a connection
IMPORT_IDLE_S = 60.0  # without CPU time, while importing


def runs_script(command: Sequence[str]) -> bool:
    """Whether a command is this Python with a script, which a fork can run as well."""
    return len(command) > 1 and command[0] == sys.executable and Path(command[1]).is_file()


class ForkHandle:
    """One fork, with those methods of `subprocess.Popen` that a launcher needs."""

    def __init__(self, answer: int) -> None:
        os.set_blocking(answer, False)
        self.pid: int | None = None  # until the fork has told it
        self.returncode: int | None = None
        self.asked_s = time.monotonic()
        self._answer = answer

    def poll(self) -> int | None:
        """Its exit status; None while it runs or is to come. One that never came counts as killed."""
        if self.pid is None and self.returncode is None:
            self._hear()
        if self.pid is not None and self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _hear(self) -> None:
        try:
            reply = os.read(self._answer, 32)
        except BlockingIOError:
            return
        if reply:
            self.pid = int(reply)
        else:
            self.returncode = -signal.SIGKILL
        os.close(self._answer)

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        while (status := self.poll()) is None:
            time.sleep(POLL_S)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The launcher's end of the server for one script; another server is started where one has died.

    The caller adopts orphans (`process.adopting_orphans`). A server that has imported everything and answers no
    request for `patience_s` is killed, unless it only waits for its turn on a processor.
    """

    def __init__(self, script: Sequence[str], imported: Sequence[str] = IMPORTED, patience_s: float = 10.0) -> None:
        self._script, self._imported, self._patience_s = list(script), list(imported), patience_s
        self._asked: list[ForkHandle] = []
        self._begin()

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"socket": theirs.fileno(), "launcher": os.getpid()}
        words = json.dumps({**settings, "script": self._script, "imported": self._imported})
        self._ready_s: float | None = None
        self._cpu_ns, self._moved_s = 0, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, words],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Of the server that is there now."""
        return self._process.pid

    def start(self, environment: Mapping[str, str]) -> ForkHandle:
        """A process that runs the script with these variables beside the launcher's. Returns before it is there."""
        if (self._process.poll() or 0) < 0:  # one that failed by an error of its own would fail again: `look` tells
            self._again()
        read, write = os.pipe()
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead: the pipe ends
            socket.send_fds(self._socket, [json.dumps(dict(environment)).encode()], [write])
        os.close(write)
        self._asked.append(ForkHandle(read))
        return self._asked[-1]

    def look(self) -> int:
        """See to it that it is there and answers; its exit status where it ended by an error of its own, else 0."""
        now = time.monotonic()
        if self._ready_s is None:
            with suppress(BlockingIOError, ConnectionResetError):
                self._ready_s = now if self._socket.recv(16, socket.MSG_DONTWAIT) else None
        status = self._process.poll()
        if status is not None and status > 0:
            return status
        if status is not None:
            if self._ready_s is not None:  # one that dies while it imports is started again when it is asked
                self._again()
            return 0
        self._asked = [fork for fork in self._asked if fork.poll() is None and fork.pid is None]
        if self._ready_s is None or self._asked:
            self._see_to_it_that_it_moves(now)
        return 0

    def _see_to_it_that_it_moves(self, now: float) -> None:
        waits, cpu_ns = _waits(self._process.pid)
        if not waits or cpu_ns != self._cpu_ns:
            self._cpu_ns, self._moved_s = cpu_ns, now
        limit_s, since_s, what = IMPORT_IDLE_S, self._moved_s, "has come no further with its imports"
        if self._ready_s is not None:
            limit_s, what = self._patience_s, "has been silent"
            since_s = max(since_s, self._ready_s, min(fork.asked_s for fork in self._asked))
        if now - since_s > limit_s:
            print(f"windtunnel: the fork server {what} for {now - since_s:.1f} s: killed", file=sys.stderr)
            self._process.kill()

    def _again(self) -> None:
        self._socket.close()
        self._begin()

    def close(self) -> None:
        """End the server. Its forks go on; what has not been forked will not be."""
        self._process.kill()
        self._process.wait()
        self._socket.close()


def _waits(pid: int) -> tuple[bool, int]:
    """Whether a process waits for something other than a processor or a disk, and the CPU time that it has had."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "RD", int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:
        return False, 0


def main() -> None:
    """Import what every process of a job needs, then fork for each request; a fork returns, to run its script."""
    settings = json.loads(sys.argv[1])
    die_with_parent(settings["launcher"])
    sys.argv = settings["script"]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    for name in settings["imported"]:
        try:
            import_module(name)
        except Exception as error:
            _refuse(f"{name} cannot be imported ({' '.join(str(error).split())}): install it or leave it out")
    _require_forkable()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # so that collections in the forks do not touch, and copy, what is shared
    requests = socket.socket(fileno=settings["socket"])
    requests.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 1)
        if not message:  # the launcher is gone
            os._exit(0)
        if _forked(settings["launcher"]):
            requests.close()
            _settle(json.loads(message), descriptors[0])
            return
        os.close(descriptors[0])


def _require_forkable() -> None:
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    cuda = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
    if threads or cuda:
        what = "use CUDA" if cuda else f"start threads ({', '.join(threads)})"
        _refuse(f"these modules {what} on import, which no fork survives: leave them out")


def _refuse(why: str) -> None:
    print(f"windtunnel: error: --preload: {why}", file=sys.stderr, flush=True)
    sys.exit(REFUSED)


def _forked(launcher: int) -> bool:
    """Fork twice; True in the process that the launcher adopts."""
    try:
        between = os.fork()
    except OSError as error:  # the pipe ends without a pid, and the launcher asks again
        print(f"windtunnel: no process could be started: {error}", file=sys.stderr, flush=True)
        return False
    if between:
        os.waitpid(between, 0)
        return False
    here = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == here:
        time.sleep(POLL_S / 4)
    die_with_parent(launcher)
    return True


def _settle(environment: Mapping[str, str], answer: int) -> None:
    """What a fresh process would have of its own: group, environment, random numbers. Then tell the pid."""
    os.setpgid(0, 0)
    os.environ.update(environment)
    if "numpy.random" in sys.modules:  # Python's own does it by itself, and torch's has the same seed in every process
        sys.modules["numpy.random"].seed()
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)


def run_script() -> None:
    """The script, which asks the launcher who it is; without PyTorch it has no groups that could be replaced."""
    if find_spec("torch") is None:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    from windtunnel.real.survive.loop.groups import is_lost_connection
    from windtunnel.real.survive.loop.identity import ENDS, finished, prepare

    prepare()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        finished()
    except SystemExit as ended:
        if not ended.code:
            finished()
        raise
    except Exception as error:
        if is_lost_connection(error):  # the launcher is about to end this process too, where all begin anew
            time.sleep(LOST_S)
        raise
    finally:
        for end in ENDS:
            end()


if __name__ == "__main__":
    main()
    run_script()
