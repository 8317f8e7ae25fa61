"""`python -m windtunnel.survive`: starts the processes of a job, watches them, and replaces those that die.

It holds the store, so the job's rendezvous outlives every rank. Decisions are `resilience/membership.py`; this file
does what it asks for. A process that ends by a signal is replaced; one that ends with an error of its own takes the
job with it, since its replacement would meet the same error. A process whose beat stops (SIGSTOP, a dead host's
remains) is killed after `patience_s`, and all goes on as after a death. Nothing that it started outlives it.

Scripts run in forks of one process that has imported PyTorch (`fork_server.py`), so that a second rank to die waits
for a fork and not for an import; or each is started afresh, where the system or the script does not bear forks.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.process import adopting_orphans
from windtunnel.real.survive.live.fork_server import IMPORTED, REFUSED, ForkHandle, ForkServer, runs_script
from windtunnel.real.survive.live.host import Host, RemoteProcess
from windtunnel.real.survive.live.place import Place
from windtunnel.real.survive.live.report import JobReport, Replacement
from windtunnel.real.survive.watch.log import RankLog
from windtunnel.studies.resilience.membership import GIVE_UP_S, Abandon, Action, Finish, Membership, Publish, Start

if TYPE_CHECKING:
    import torch.distributed as dist

POLL_S = 0.01
BROKEN_S = 2.0  # by then a death that broke a group has been seen
END_S = 300.0  # to end by itself after the last step; torchrun waits as long at its exit barrier


Watching = Callable[[dict[str, int], tuple[str, ...], tuple[str, ...]], None]


@dataclass
class _Process:
    popen: subprocess.Popen[bytes] | ForkHandle | RemoteProcess
    log: Path
    warm: bool = False


def launch(
    command: Sequence[str],
    size: int,
    standbys: int = 1,
    *,
    patience_s: float = 10.0,
    timeout_s: float = 300.0,
    end_s: float = END_S,
    give_up_s: float = GIVE_UP_S,
    afresh: bool = False,
    preload: Sequence[str] = (),
    replace: Sequence[tuple[int, int]] = (),
    hosts: Sequence[str] = (),
    address: str = "127.0.0.1",
    watching: Watching | None = None,
) -> JobReport:
    """Run `command` as `size` ranks with so many standbys, until all steps are done.

    A command of this Python and a script runs in forks of a server, which imports `preload` too; with `afresh`, and for
    any other command, each process is started by itself.

    `replace`: (rank, step) pairs; once so many steps are done and a standby is warm, the process of that rank is
    replaced as planned, between two steps. After the last step the script may go on for `end_s`.
    `hosts`: what to put before an agent's command for each host ("" for here, "ip netns exec a"); the processes are
    spread over them, and they reach the launcher's store at `address`.
    `watching(pids, members, warm standbys)` is called at each look at the processes, of which one may be the "server":
    tests kill some of them there.
    """
    seconds = {"--patience": patience_s, "--timeout": timeout_s, "--end-timeout": end_s, "--give-up": give_up_s}
    _require(size, standbys, replace, seconds)
    with tempfile.TemporaryDirectory(prefix="windtunnel-survive-") as folder, adopting_orphans() as adopts:
        forks = adopts and runs_script(command) and not afresh
        if preload and not forks:
            why = "with --afresh" if afresh else "on this system, or for this command,"
            raise SpecError("--preload", ", ".join(preload), f"leave it out: {why} each process is started by itself")
        membership, to_replace = Membership(size, standbys, give_up_s=give_up_s), dict.fromkeys(replace, "")
        run = _Run(list(command), membership, Path(folder), patience_s, timeout_s, end_s, to_replace, address)
        if hosts and not forks:
            raise SpecError("--nnodes", len(hosts), "hosts run a Python script in forks: leave --afresh out")
        imported = (*IMPORTED, *preload)
        try:
            run.begin(ForkServer(command[1:], imported, patience_s) if forks and not hosts else None, hosts, imported)
            report = run.until_done(watching)
            run.let_end()
            return report
        finally:
            run.end_all()


def _require(size: int, standbys: int, replace: Sequence[tuple[int, int]], seconds: Mapping[str, float]) -> None:
    if size < 1:
        raise SpecError("--nproc-per-node", size, "give at least one rank")
    if standbys < 0:
        raise SpecError("--standby", standbys, "give 0 or more")
    for name, value in seconds.items():
        if not 0 < value < math.inf:
            raise SpecError(name, value, "give seconds above 0")
    for rank, step in replace:
        if not 0 <= rank < size or step < 0:
            raise SpecError("--replace", f"{rank}@{step}", f"give a rank from 0 to {size - 1} and a step from 0 on")
        if size < 2 or standbys < 1:
            raise SpecError("--replace", f"{rank}@{step}", "it takes two ranks, one to hand over state, and a standby")


def _listening(address: str, for_hosts: bool) -> tuple[int, int]:
    """Port and descriptor of the store's socket: for this machine alone, or for other hosts too.

    Of one family. On a socket of torch's own, which is of two, the store would ask a name server for each client, and
    all of the job would wait where that answers late.
    """
    try:
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        bound = socket.create_server(("" if for_hosts else address, 0), family=family, backlog=1024)
    except OSError as error:
        remedy = f"give an address of this machine that all hosts reach ({error})"
        raise SpecError("--address", address, remedy) from None
    return bound.getsockname()[1], bound.detach()


@dataclass
class _Run:
    """A launched job."""

    command: list[str]
    membership: Membership
    folder: Path
    patience_s: float
    timeout_s: float
    end_s: float
    to_replace: dict[tuple[int, int], str]  # (rank, step) -> who is to go, once it has said so
    address: str = "127.0.0.1"
    hosts: list[Host] = field(default_factory=list)
    store: dist.Store = None
    server: ForkServer | None = None
    processes: dict[str, _Process] = field(default_factory=dict)
    left_groups: set[int] = field(default_factory=set)  # of processes that have ended: what they started ends too
    outcome: JobReport = field(default_factory=JobReport)
    began: float = field(default_factory=time.time)
    struck_at: float | None = None
    broken: tuple[int, float] | None = None  # a generation whose group came apart, and since when
    dead: list[str] = field(default_factory=list)
    waiting_first: list[tuple[Replacement, float]] = field(default_factory=list)
    over: bool = False
    attempt: int = 0  # how often the job was begun anew

    def __post_init__(self) -> None:
        self.replace = tuple(self.to_replace)

    def begin(self, server: ForkServer | None, hosts: Sequence[str] = (), imported: Sequence[str] = ()) -> None:
        """Start the processes. The server imports torch while this process does, which needs it for the store."""
        self.server = server
        from torch.distributed import TCPStore

        timeout, (port, descriptor) = timedelta(seconds=30), _listening(self.address, bool(hosts))
        self.store = TCPStore(
            self.address, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=descriptor
        )
        for number, prefix in enumerate(hosts):
            self.hosts.append(Host(number, prefix, self.address, self.store, self.command[1:], imported))
        self.membership.hosts = len(hosts)
        self._perform(self.membership.start())

    def until_done(self, watching: Watching | None) -> JobReport:
        """The main loop: look at processes and store, hand what is new to the membership, do what it asks for."""
        while not self.over:
            self._look_at_server()
            self._look_for_warm()
            self._look_for_first_steps()
            self._look_for_leaving()
            self._look_for_done()
            self._kill_stopped()
            self._look_for_dead()
            self._look_for_lost()
            self._look_for_broken()
            self._reap_left()
            if watching is not None and not self.over:
                pids = {
                    name: process.popen.pid for name, process in self.processes.items() if process.popen.pid is not None
                }
                if self.server is not None:
                    pids["server"] = self.server.pid
                pids |= {f"host {host.number}": host.pid for host in self.hosts if host.alive()}
                members = tuple(name or "" for name in self.membership.members)
                watching(pids, members, tuple(self.membership.warm))
            time.sleep(POLL_S)
        self._look_for_first_steps()  # a short job has ended before they were seen
        return self.outcome

    def let_end(self) -> None:
        """Wait for the script to end after the last step, and see how. Nobody waits for standbys."""
        if self.outcome.status:
            return
        self.outcome.not_replaced = list(self.to_replace)
        idle = (*self.membership.warm, *self.membership.starting)
        played = {name: process.popen for name, process in self.processes.items() if name not in idle}
        deadline = time.time() + self.end_s
        while (running := [name for name, popen in played.items() if popen.poll() is None]) and time.time() < deadline:
            time.sleep(POLL_S)
        if running:
            self.outcome.status = 1
            limit = f"{self.end_s:g} s after the last step: --end-timeout gives it longer"
            self.outcome.reason = f"the script still ran in {', '.join(running)} {limit}"
            return
        for name, popen in played.items():
            status = popen.poll() or 0
            if status and not self.outcome.status:
                self.outcome.status = status if status > 0 else 128 - status
                how = f"with exit status {status}" if status > 0 else f"by signal {-status}"
                self.outcome.reason = f"process {name} ended {how} after the last step"

    def end_all(self) -> None:
        """Kill what is there, and wait for it. The server first: then no process comes any more."""
        if self.server is not None:
            self.server.close()
        for host in self.hosts:
            host.close()
        for process in self.processes.values():
            while process.popen.poll() is None:
                process.popen.kill()
                time.sleep(POLL_S)
            self._end_group(process)
        while self.left_groups:
            self._reap_left()
            time.sleep(POLL_S)

    def _end_group(self, process: _Process) -> None:
        """A process has ended: its own children, such as those that load data, end too."""
        if process.popen.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.popen.pid, signal.SIGKILL)
            self.left_groups.add(process.popen.pid)

    def _reap_left(self) -> None:
        for group in list(self.left_groups):
            try:
                while os.waitpid(-group, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:  # none is left
                self.left_groups.remove(group)

    def _look_at_server(self) -> None:
        status = self.server.look() if self.server is not None else 0
        if status and not self.over:
            self.outcome.status, self.over = status, True
            remedy = "leave the module out of --preload" if status == REFUSED else "--afresh does without it"
            self.outcome.reason = f"the fork server ended with exit status {status}: {remedy}"

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    self._start(name)
                case Publish(view):
                    fields = {"generation": view.generation, "members": view.members, "planned": view.planned}
                    fields |= {"attempt": self.attempt, "began": self.membership.began}
                    self.store.set("view", json.dumps(fields))
                    if view.members:
                        began = time.time() if self.struck_at is None else self.struck_at
                        replacement = Replacement(view.generation, self.dead, view.planned)
                        self.waiting_first.append((replacement, began))
                        self.dead = []
                case Finish():
                    self.over = True
                case Abandon(reason):
                    self.outcome.status, self.outcome.reason, self.over = 1, reason, True

    def _start(self, name: str) -> None:
        place = Place(
            self.address, self.store.port, name, self.membership.size, self.folder, self.timeout_s, self.replace
        )
        popen: subprocess.Popen[bytes] | ForkHandle | RemoteProcess
        if self.hosts:
            host = min((host for host in self.hosts if host.alive()), key=lambda host: len(host.names), default=None)
            if host is None:
                self.outcome.status, self.outcome.reason, self.over = 1, "no host is left", True
                return
            popen = RemoteProcess(host, name, place.environment())
            self.membership.host_of[name] = host.number
        elif self.server is not None:
            popen = self.server.start(place.environment())
        else:
            environment = {**os.environ, **place.environment()}
            module = ["-m", "windtunnel.real.survive.loop"] if runs_script(self.command) else []
            command = [self.command[0], *module, *self.command[1:]]
            popen = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
        self.processes[name] = _Process(popen, self.folder / f"{name}.log")

    def _look_for_warm(self) -> None:
        for name, process in self.processes.items():
            if not process.warm and self.store.check([f"warm/{name}"]):
                process.warm = True
                self._perform(self.membership.is_warm(name))

    def _look_for_first_steps(self) -> None:
        for replacement, began in list(self.waiting_first):
            key = f"first/{replacement.generation}"
            if not self.store.check([key]):
                continue
            # Views before it came to nothing: their members died while they met.
            before = [view for view, _ in self.waiting_first if view.generation < replacement.generation]
            replacement.dead = [name for view in (*before, replacement) for name in view.dead]
            self.waiting_first = [pair for pair in self.waiting_first if pair[0].generation > replacement.generation]
            when = float(self.store.get(key).decode())
            if replacement.planned:
                self._perform(self.membership.on_swap())
                replacement.downtime_s = float(self.store.get(f"swapped/{replacement.generation}").decode())
            elif replacement.generation == 0 or self.outcome.start_s is None:
                self.outcome.start_s = when - self.began
            else:
                replacement.downtime_s = when - began
            if replacement.generation:
                self.outcome.replacements.append(replacement)
            if replacement.generation == self.membership.generation:
                self.struck_at = None
            self._perform(self.membership.progressed())

    def _look_for_leaving(self) -> None:
        """Ranks that are to be replaced as planned and have come to their step; again where that came to nothing."""
        for (rank, step), name in list(self.to_replace.items()):
            key = f"leave/{rank}@{step}"
            if not name and self.store.check([key]):  # the one that takes its place says so as well, but is not meant
                self.to_replace[rank, step] = name = self.store.get(key).decode()
            if not name or self.waiting_first:
                continue
            if self.membership.members[rank] != name:  # it is replaced, in whatever way
                del self.to_replace[rank, step]
            else:
                self._perform(self.membership.leave(rank))

    def _look_for_done(self) -> None:
        if any(self.store.check([f"done/{name}"]) for name in self.membership.members if name):
            self._perform(self.membership.on_member_done())

    def _look_for_dead(self) -> None:
        if self.over:
            return
        dead = []
        for name, process in list(self.processes.items()):
            status = process.popen.poll()
            if status is None:
                continue
            if self.store.check([f"done/{name}"]):
                self._perform(self.membership.on_member_done())
                return
            needed = name in self.membership.members or name in (*self.membership.warm, *self.membership.starting)
            if status > 0:
                self.outcome.status, self.over = status, True
                self.outcome.reason = f"process {name} ended with exit status {status}"
                return
            if status == 0 and name in self.membership.starting and not self.store.check([f"warm/{name}"]):
                self.outcome.status, self.over = 1, True
                self.outcome.reason = f"process {name} ended and never asked for its rank, nor made a process group"
                return
            if status == 0 and name in self.membership.members and self.membership.preparing:
                needed = False
                self._perform(self.membership.on_process_left(name))
            del self.processes[name]
            self._end_group(process)
            if needed:
                dead.append(name)
        if dead:
            playing = (*self.membership.members, *(self.membership.preparing or ()))
            if self.struck_at is None and any(name in playing for name in dead):
                self.struck_at = time.time()
            self.dead += dead
            if any(name in self.membership.members for name in dead) and self._nobody_goes_on():
                why = "before three steps of `windtunnel.survive.standby` were done"
                print(f"windtunnel: {', '.join(dead)} died {why}: all begin again", file=sys.stderr)
                self._start_anew(dead)
            else:
                self._perform(self.membership.died(dead, time.time()))

    def _nobody_goes_on(self) -> bool:
        """In the user's own loop a rank is replaced once two calls of their step are done; before, all begin again."""
        return self.store.check(["loop"]) and not self.store.check([f"loop/{self.attempt}/goes on"])

    def _look_for_lost(self) -> None:
        if not self.over and self.store.check([f"loop/{self.attempt}/lost"]):
            print("windtunnel: nobody is left who has the state of a rank: all begin again", file=sys.stderr)
            self._start_anew([])

    def _start_anew(self, dead: Sequence[str]) -> None:
        """End all ranks and let other processes begin; the job reads its own checkpoint, as after a relaunch."""
        self.attempt += 1
        self.outcome.begun_again += 1
        if self.struck_at is None:
            self.struck_at = time.time()
        for name in filter(None, self.membership.members):
            process = self.processes.pop(name, None)
            if process is not None:
                process.popen.kill()
                process.popen.wait()
                self._end_group(process)
        self._perform(self.membership.start_anew(dead, time.time()))

    def _look_for_broken(self) -> None:
        """A group that comes apart though nobody dies, as where a step takes longer than a collective may."""
        generation = self.membership.generation - (self.membership.preparing is not None)
        if self.over or generation < 0 or not self.store.check([f"broken/{generation}"]):
            self.broken = None
        elif self.broken is None or self.broken[0] != generation:
            self.broken = (generation, time.time())
        elif time.time() - self.broken[1] > BROKEN_S:
            if self.struck_at is None:
                self.struck_at = self.broken[1]
            self._perform(self.membership.broken(time.time()))

    def _kill_stopped(self) -> None:
        """A member whose beat has stopped holds up all others, and a standby is none: they cannot be asked to go."""
        now = time.time()
        for name in (*self.membership.members, *self.membership.warm, *self.membership.starting):
            process = self.processes.get(name or "")
            if process is None or process.popen.poll() is not None or not process.log.exists():
                continue
            beat = RankLog.last_beat(process.log)
            if beat and now - beat > self.patience_s:
                print(f"windtunnel: {name} has been silent for {now - beat:.1f} s: killed", file=sys.stderr)
                process.popen.kill()
                process.popen.wait()
