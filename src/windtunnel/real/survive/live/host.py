"""A host of a job: an agent with a fork server of its own, that does what the launcher asks of it through the store.

    python -m windtunnel.real.survive.live.host WORDS      started by the launcher, by itself or behind `--host COMMAND`

Keys of the store: `host/H/ask/N` (a process to start, or one to kill), `pid/NAME`, `ended/NAME` (its exit status). When
the agent goes, all its processes go with it: that is what the death of a host looks like to the others. Logs of ranks
are files in one folder, so hosts that are machines need one file system.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from windtunnel.process import adopt_orphans, die_with_parent
from windtunnel.real.survive.live.fork_server import ForkHandle, ForkServer

if TYPE_CHECKING:
    import torch.distributed as dist

POLL_S = 0.01
MODULE = "windtunnel.real.survive.live.host"


class Host:
    """The launcher's end of an agent."""

    def __init__(
        self, number: int, prefix: str, address: str, store: dist.Store, script: Sequence[str], imported: Sequence[str]
    ) -> None:
        words = {"number": number, "address": address, "port": store.port, "script": list(script)}
        text = json.dumps(words | {"imported": list(imported), "launcher": os.getpid()})
        self.number, self.store, self.asked, self.names = number, store, 0, set[str]()
        command = [*shlex.split(prefix), sys.executable, "-m", MODULE, text]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    @property
    def pid(self) -> int:
        """Of the agent."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the agent is there."""
        return self._process.poll() is None

    def ask(self, **words: object) -> None:
        """For one thing more."""
        self.store.set(f"host/{self.number}/ask/{self.asked}", json.dumps(words))
        self.asked += 1

    def close(self) -> None:
        """End the agent, and with it all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class RemoteProcess:
    """A process on a host, with those methods of `subprocess.Popen` that a launcher needs."""

    def __init__(self, host: Host, name: str, environment: dict[str, str]) -> None:
        self.host, self.name, self._pid, self._status = host, name, None, None
        host.names.add(name)
        host.ask(start=name, environment=environment)

    _pid: int | None
    _status: int | None

    @property
    def pid(self) -> int | None:
        """Once it is known."""
        if self._pid is None and self.host.store.check([f"pid/{self.name}"]):
            self._pid = int(self.host.store.get(f"pid/{self.name}"))
        return self._pid

    def poll(self) -> int | None:
        """Its exit status; None while it runs. What was on a host that is gone counts as killed."""
        if self._status is None:
            if self.host.store.check([f"ended/{self.name}"]):
                self._status = int(self.host.store.get(f"ended/{self.name}"))
            elif not self.host.alive():
                self._status = -signal.SIGKILL
            if self._status is not None:
                self.host.names.discard(self.name)
        return self._status

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        while (status := self.poll()) is None:
            time.sleep(POLL_S)
        return status

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.poll() is None:
            self.host.ask(kill=self.name)


def main() -> None:
    """Do what is asked until the launcher goes."""
    words = json.loads(sys.argv[1])
    if os.getppid() == words["launcher"]:
        die_with_parent(words["launcher"])
    adopt_orphans()
    from torch.distributed import TCPStore

    server = ForkServer(words["script"], words["imported"])
    store = TCPStore(words["address"], words["port"], is_master=False, timeout=timedelta(seconds=60))
    processes: dict[str, ForkHandle] = {}
    warned: set[str] = set()
    done = 0
    while True:
        server.look()
        if store.check([f"host/{words['number']}/ask/{done}"]):
            request = json.loads(store.get(f"host/{words['number']}/ask/{done}"))
            done += 1
            if "start" in request:
                processes[request["start"]] = server.start(request["environment"])
            elif request["kill"] in processes:
                processes[request["kill"]].kill()
        for name, process in list(processes.items()):
            status = process.poll()
            if process.pid is not None and name not in warned:
                warned.add(name)
                store.set(f"pid/{name}", str(process.pid))
            if status is not None:
                if process.pid is not None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                store.set(f"ended/{name}", str(status))
                del processes[name]
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
