"""Processes of a job without importing PyTorch for each: one process has imported it, and the others are its forks.

Starting Python, PyTorch and what an optimizer imports takes seconds of CPU. A replacement for which no standby is
warm waits for just that, and so does the start of a job, once for each rank. So one process imports all of it, once,
and does nothing else: no computation, no group, no thread of Python, so that a fork of it is as good as a fresh
process. A fork runs the script as `__main__`, from its own folder, with random numbers of its own, and ends as Python
ends.

    requests   {"command": [script, arguments ...], "environment": {...}}, or {"pid": ..., "signal": ...}
    answers    {"pid": ...} for a fork; {"pid": ..., "status": ...} once it has ended (-9: by signal 9, as Popen has it)

The server alone sends signals, since it alone knows which of its children are not reaped yet. It goes with the
launcher, and its forks with it.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from windtunnel.process import die_with_parent

MODULE = "windtunnel.survive.live.fork_server"
# `torch._dynamo` is what an optimizer of torch imports when it is made.
IMPORTED = ("torch", "torch.distributed", "torch._dynamo", "windtunnel.survive.live.train")


def runs_script(command: Sequence[str]) -> bool:
    """Whether a command is this Python with a script, which a fork can run as well."""
    return len(command) > 1 and command[0] == sys.executable and Path(command[1]).is_file()


class Forked:
    """One fork, with those methods of `subprocess.Popen` that a launcher needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        self._server.listen(block=False)
        return self.returncode

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        while self.returncode is None:
            self._server.listen(block=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            self._server.ask({"pid": self.pid, "signal": int(number)})

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The launcher's end of one server process, which begins with the first script that is asked for."""

    def __init__(self, imported: Sequence[str] = IMPORTED) -> None:
        self._imported = imported
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1
        self._heard = b""
        self._forked: dict[int, Forked] = {}
        self._new: list[Forked] = []

    def start(self, script: Sequence[str], environment: Mapping[str, str]) -> Forked:
        """A process that runs `script` (its path, then its arguments) in this environment.

        Raises RuntimeError where the server ended instead.
        """
        if self._process is None:
            self._begin()
        self.ask({"command": list(script), "environment": dict(environment)})
        while not self._new:
            if self._process is None:
                raise RuntimeError("the process that forks the job's processes has ended")
            self.listen(block=True)
        return self._new.pop()

    def ask(self, request: Mapping[str, Any]) -> None:
        """Hand a request to the server, if there is one."""
        with suppress(BrokenPipeError, OSError):
            os.write(self._requests, json.dumps(request).encode() + b"\n")

    def listen(self, *, block: bool) -> None:
        """Take in what the server has said."""
        while self._process is not None:
            if not block and not select.select([self._answers], [], [], 0)[0]:
                return
            block = False
            data = os.read(self._answers, 1 << 16)
            if not data:
                self._lost()
                return
            *lines, self._heard = (self._heard + data).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "status" in told:
                    self._forked.pop(told["pid"]).returncode = told["status"]
                else:
                    self._new.append(Forked(self, told["pid"]))
                    self._forked[told["pid"]] = self._new[-1]

    def close(self) -> None:
        """End the server; its forks have ended before, or go with it."""
        if self._process is None:
            return
        process = self._process
        os.close(self._requests)
        process.wait()
        self.listen(block=True)
        if self._process is not None:
            self._lost()

    def _begin(self) -> None:
        (theirs_in, self._requests), (self._answers, theirs_out) = os.pipe(), os.pipe()
        words = [sys.executable, "-P", "-m", MODULE, *map(str, (theirs_in, theirs_out, os.getpid())), *self._imported]
        self._process = subprocess.Popen(words, pass_fds=(theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)

    def _lost(self) -> None:
        """The server is gone, and with it all that it forked."""
        process, self._process = self._process, None
        with suppress(OSError):
            os.close(self._requests)
        os.close(self._answers)
        if process is not None:
            process.wait()
        for one in self._forked.values():
            one.returncode = -signal.SIGKILL
        self._forked, self._new, self._heard = {}, [], b""


def _serve(requests: int, answers: int) -> dict[str, Any]:
    """Fork for each request; returns in the forks only, with what each is to run. Ends with the launcher's end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    heard = b""

    def say(told: Mapping[str, int]) -> None:
        os.write(answers, json.dumps(told).encode() + b"\n")

    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            children.remove(pid)
            say({"pid": pid, "status": os.waitstatus_to_exitcode(status)})
        if requests not in ready:
            continue
        data = os.read(requests, 1 << 16)
        if not data:
            sys.exit(0)
        *lines, heard = (heard + data).split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            if "signal" in request:
                if request["pid"] in children:
                    os.kill(request["pid"], request["signal"])
                continue
            server = os.getpid()
            pid = os.fork()
            if not pid:
                die_with_parent(server)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (requests, answers, woken, wake):
                    os.close(one)
                return request
            children.add(pid)
            say({"pid": pid})


def main() -> None:
    """Import what every process of a job needs, then serve; a fork goes on from here to its script."""
    requests, answers, launcher = map(int, sys.argv[1:4])
    die_with_parent(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher ends its job

    import numpy as np

    for name in sys.argv[4:]:
        import_module(name)
    gc.freeze()  # what is here already is shared, and stays
    request = _serve(requests, answers)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script, *arguments = request["command"]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    random.seed()
    np.random.seed()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
