"""The parent's side of `fork_server.py`: which ranks are played when, what became of them, and that nothing is left.

As many ranks run at a time as there are cores; one that waits for another's control message does not count. A rank
that is waited for and was not asked for is started too: pipelines assemble themselves, one stage asking for the next,
and no order of starting can make them wait for ever. What can: two ranks that wait for each other, or a rank that ended
without sending what another waits for. Both are found by looking at who waits, and are errors that name the line of the
script.

A *helper* is a rank that was not asked for itself: only its messages are wanted. It runs while somebody waits for one,
and stands still otherwise: what it would do beyond them is no use, unless it is asked for itself later; then it goes on
from there. A pipeline needs a little of each of its stages, one after the other; where a core is idle, the next in line
is started ahead.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from windtunnel.process import state_of
from windtunnel.real.capture.processes import file_mailbox
from windtunnel.real.capture.processes.rank_server import RankServer, ScriptError, death_of
from windtunnel.studies.programs.rank_classes.findings import CRASH, Finding

START_S = 120.0  # for importing PyTorch, on a slow disk; not counting what it waits for a core
STUCK_S = 2.0  # all ranks wait for each other for so long: they always will
_COMPUTES = 0.1  # of that time on a core: a main thread that works, where another of its threads waits
MOST_KEPT = 8  # helpers that stand still between two runs: each takes memory
_LOOK_S = 0.02

Outcome = Mapping[str, Any]
Report = Callable[[int, int, str], None]  # ranks done, ranks known to be needed, what is going on


@dataclass
class _Running:
    """A rank that runs, and how long it has. While others have the core it wants, its time stands still."""

    pid: int = 0
    stopped: bool = False  # it stands still
    ahead: bool = False  # a helper that somebody may wait for soon; until somebody does
    spent_s: float = 0.0
    cpu_s: float = 0.0
    looked: float = field(default_factory=time.monotonic)
    cut_s: float | None = None  # when it was told that rank 0 was cut short

    def seconds_spent(self, now: float) -> float:
        """Seconds on a core, or asleep; not those that it was stopped. Looks once a second."""
        passed = now - self.looked
        if passed < 1.0:
            return self.spent_s
        self.looked = now
        state, cpu_s = state_of(self.pid)
        self.spent_s += cpu_s - self.cpu_s if state in ("R", "T") else passed
        self.cpu_s = cpu_s
        return self.spent_s


class Workers:
    """A fork server and the ranks it forked. A context: leaving it ends every process and removes every file."""

    def __init__(
        self,
        settings: Mapping[str, object],
        *,
        cores: int | None = None,
        timeout_s: float = 600.0,
        report: Report | None = None,
        hash_seed: str = "",
    ) -> None:
        self.settings, self.timeout_s = settings, timeout_s
        self._hash_seed = hash_seed  # of the interpreter; "": as everywhere
        self.cores = cores or len(
            os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        )
        self.report = report or (lambda done, total, text: None)
        self.outcomes: dict[int, Outcome] = {}
        self._folder: Path | None = None
        self._server: RankServer | None = None
        self._running: dict[int, _Running] = {}
        self._kept: dict[int, _Running] = {}  # helpers of earlier runs of this task, standing still
        self._task: Mapping[str, object] = {}
        self._blocked_since: float | None = None
        self._blocked_cpu_s: dict[int, float] = {}
        self._steps: dict[int, int] = {}  # of each that was called up: how far it is from who did so

    @property
    def folder(self) -> Path:
        """Where ranks leave what became of them."""
        assert self._folder is not None
        return self._folder

    def __enter__(self) -> Workers:
        self._server = RankServer()
        try:
            self._server.start(self._hash_seed)
            self._server.say({**self.settings, "folder": str(self._server.place), "hash_seed": self._hash_seed})
            loading = _Running(self._server.pid)
            while self._folder is None:
                self.report(0, 1, "loading PyTorch")
                for answer in self._server.answers(0.2):
                    if "failed" in answer:
                        raise ScriptError(
                            f"this needs PyTorch, and importing {answer['module'] or 'it'} fails: {answer['failed']};"
                            " install windtunnel[torch], or run windtunnel in the script's environment"
                        )
                    self._folder = Path(answer["ready"])
                if self._folder is None and loading.seconds_spent(time.monotonic()) > START_S:
                    raise ScriptError(f"importing PyTorch takes more than {START_S:.0f} s here; try again")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, ranks: Sequence[int], task: Mapping[str, object], *, helpers_end: bool = False) -> None:
        """Play these ranks, and those that they wait for. Raises ScriptError; then `close` is due.

        `helpers_end`: of those that were not asked for, only the messages are wanted; they end, or stand still, with
        the last of those that were.
        """
        if task != self._task:
            self._running, self._kept, self._task = self._kept, {}, task
            self._end_helpers()
        queue = deque(rank for rank in dict.fromkeys(ranks) if rank not in self.outcomes)
        needed, wanted = len(queue), set(queue)
        server = self._server
        assert server is not None
        self._steps.clear()
        while queue or self._running:
            if helpers_end and wanted <= self.outcomes.keys():
                self._keep_helpers()
                return
            waiting = {rank: key for rank in self._running if (key := self._wait_of(rank)) is not None}
            for rank, key in waiting.items():
                needed += self._call_up(rank, key, queue)
            self._let_run(wanted if helpers_end else self._running, waiting)
            while self._busy(waiting) < self.cores:
                ahead = None if queue or not helpers_end else self._next_in_line(task)
                if ahead is None and not queue:
                    break
                rank = queue.popleft() if ahead is None else ahead
                needed += ahead is not None
                if rank in self._kept:
                    self._running[rank] = replace(self._kept.pop(rank), looked=time.monotonic())
                else:
                    (self.folder / f"outcome_{rank}.json").unlink(missing_ok=True)  # of another task
                    server.say({**task, "rank": rank})
                    self._running[rank] = _Running(ahead=ahead is not None)
                waiting.pop(rank, None)
            done = needed - len(queue) - len(self._running)
            self.report(done, needed, f"{len(self._running)} running")
            for answer in server.answers(_LOOK_S):
                if "started" in answer:
                    self._running[answer["started"]].pid = answer["pid"]
                elif "ended" in answer:
                    self._take(answer["ended"], answer["status"])
            self._look_for_hangs(waiting, bool(queue))

    def again(self, rank: int, task: Mapping[str, object]) -> Outcome:
        """What becomes of a rank under another task, if only that it hangs. What became of it before stays known."""
        before, reason = self.outcomes.pop(rank), ""
        try:
            self.run([rank], task, helpers_end=True)
        except ScriptError as error:
            reason = str(error)
        self._end_helpers()
        after = self.outcomes.pop(rank, {"status": "hangs", "message": reason})
        self.outcomes[rank] = before
        return after

    def run_whatever_comes(self, ranks: Sequence[int], task: Mapping[str, object]) -> None:
        """Play these ranks too, each by itself: for what they call, however they and those that still run end."""
        for rank in ranks:
            self._running, self._kept = self._kept | self._running, {}
            self._end_helpers()
            with suppress(ScriptError):
                self.run([rank], task, helpers_end=True)

    def close(self) -> None:
        """End everything. An interrupt meanwhile waits until that is done."""
        if self._server is not None:
            self._server.close()

    def _keep_helpers(self) -> None:
        """Have some stand still, and end the others."""
        for rank in [rank for rank, helper in self._running.items() if helper.pid][: MOST_KEPT - len(self._kept)]:
            helper = self._kept[rank] = self._running.pop(rank)
            helper.stopped, helper.ahead = True, False
            with suppress(ProcessLookupError, PermissionError):
                os.kill(helper.pid, signal.SIGSTOP)
        self._end_helpers()

    def _end_helpers(self) -> None:
        """Kill what still runs, and hear that it ended."""
        for helper in self._running.values():
            if helper.pid:  # else it is only being started, see below
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(helper.pid, signal.SIGKILL)
        assert self._server is not None
        while self._running:
            for answer in self._server.answers(_LOOK_S):
                if "ended" in answer:
                    self._running.pop(answer["ended"], None)
                    self._kept.pop(answer["ended"], None)
                elif "started" in answer:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(answer["pid"], signal.SIGKILL)

    # Helpers

    def _busy(self, waiting: Mapping[int, str]) -> int:
        return sum(not helper.stopped and rank not in waiting for rank, helper in self._running.items())

    def _let_run(self, wanted: Collection[int], waiting: Mapping[int, str]) -> None:
        """As many as there are cores go on: those that are waited for, then those that were begun first, then, as
        long as one of those that are wanted waits, those that were begun ahead. All others stand still.
        """
        waited: dict[int, None] = {}
        ahead = [rank for rank in self._running if rank in wanted]
        while ahead:
            key = waiting.get(ahead.pop())
            sender = file_mailbox.sender_of(key) if key is not None else None
            if sender in self._running and sender not in waited:
                waited[sender] = None
                ahead.append(sender)
        needed = [*waited, *(rank for rank in self._running if rank in wanted and rank not in waited)]
        going = [rank for rank in needed if rank not in waiting]
        for rank, helper in self._running.items():
            helper.ahead = helper.ahead and rank not in self._steps
        if any(rank in waiting for rank in wanted):
            going += [rank for rank, helper in self._running.items() if helper.ahead and rank not in waiting]
        going = going[: self.cores]
        for rank, helper in self._running.items():
            stop = rank not in going and rank not in waiting
            if helper.pid and stop != helper.stopped:
                helper.stopped = stop
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(helper.pid, signal.SIGSTOP if stop else signal.SIGCONT)

    def _next_in_line(self, task: Mapping[str, Any]) -> int | None:
        """Whom a helper that was called up is likely to wait for: as far from it as it is from who called it up."""
        world = task.get("launch", {}).get("world_size", 0)
        if sum(helper.ahead for helper in self._running.values()) >= self.cores:
            return None
        for rank, step in self._steps.items():
            at = rank + step
            while at in self._running:
                at += step
            if rank in self._running and 0 <= at < world and at not in self.outcomes:
                return at
        return None

    # What the ranks do

    def _wait_of(self, rank: int) -> str | None:
        return file_mailbox.waits(self.folder, rank)

    def _main_waits(self, rank: int) -> bool:
        return file_mailbox.waits(self.folder, rank, main=True) is not None

    def _call_up(self, rank: int, key: str, queue: deque[int]) -> int:
        """Have the sender of what `rank` waits for run next; how many ranks that adds."""
        sender = file_mailbox.sender_of(key)
        if sender is None:
            return 0
        if sender in self._running:
            if self._running[sender].ahead:
                self._steps.setdefault(sender, sender - rank)
            return 0
        if sender in self.outcomes:
            # It ended, so its messages are all there; is this one among them? Beside a thread that waits, the main one
            # goes on, and may come to its end: that is for `_look_for_hangs`.
            is_there = self._wait_of(rank) != key
            goes_on = is_there or self._let_pass([key]) or self._let_go([rank])
            if not goes_on and self._main_waits(rank) and not self._is_cut(rank):
                self._fail_waiting(rank, f"{file_mailbox.thing_of(key)} that rank {sender} ended without sending")
            return 0
        self._steps.setdefault(sender, sender - rank)
        fresh = sender not in queue
        if not fresh:
            queue.remove(sender)
        queue.appendleft(sender)
        return int(fresh)

    def _let_pass(self, keys: Iterable[str]) -> bool:
        """Have those go on that wait at a barrier that nobody else comes to; whether there are any.

        What they call is compared with what others call in the end.
        """
        barriers = [key for key in keys if key.startswith(file_mailbox.BARRIER)]
        for key in barriers:
            file_mailbox.post(self.folder, key, b"")
        return bool(barriers)

    def _is_cut(self, rank: int) -> bool:
        """Have a rank end that waits behind the last step, where rank 0 was cut short; whether it may yet do so."""
        helper = self._running[rank]
        if not self.outcomes.get(0, {}).get("is_cut"):
            return False
        if helper.cut_s is None:
            helper.cut_s = time.monotonic()
            os.kill(helper.pid, signal.SIGPROF)
        return time.monotonic() - helper.cut_s < STUCK_S

    def _let_go(self, ranks: Iterable[int]) -> bool:
        """Have those end that only a thread beside their main one keeps from it; whether there are any."""
        return sum(file_mailbox.let_go(self.folder, rank) for rank in ranks) > 0

    def _take(self, rank: int, status: int) -> None:
        self._running.pop(rank, None)
        self._kept.pop(rank, None)
        self._blocked_since = None
        path = self.folder / f"outcome_{rank}.json"
        try:
            outcome = json.loads(path.read_bytes())
        except FileNotFoundError:
            outcome = {"status": "died", "message": death_of(status)}
        self.outcomes[rank] = outcome
        if outcome["status"] != "ok":
            details, missing = outcome.get("details") or self._log(rank), outcome.get("missing", "")
            raise ScriptError(f"rank {rank}: {outcome['message']}", details, self.exception(rank), missing=missing)

    def exception(self, rank: int) -> Finding | None:
        """What it says of the job that a rank raised: something where another runs through, or nothing would."""
        outcome = self.outcomes[rank]
        text = f"rank {rank}: {outcome['message']}"
        others = [number for number, of in self.outcomes.items() if of["status"] == "ok"]
        if not outcome.get("contradicts") and not (others and outcome["status"] == "error"):
            return None
        text = text if not others else f"{text}; rank {others[0]} runs through it"
        return Finding("exception", (rank,), "", outcome.get("line", ""), text, CRASH)

    def _look_for_hangs(self, waiting: Mapping[int, str], more: bool) -> None:
        now = time.monotonic()
        if not self._running or self._busy(waiting) or more:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since, self._blocked_cpu_s = now, {rank: self._cpu_s(rank) for rank in waiting}
        elif now - self._blocked_since > STUCK_S and all(self._wait_of(rank) for rank in waiting):
            computes = any(
                self._cpu_s(rank) - cpu_s > _COMPUTES * STUCK_S
                for rank, cpu_s in self._blocked_cpu_s.items()
                if not self._main_waits(rank)
            )
            if computes or self._let_pass(waiting.values()) or self._let_go(waiting):
                self._blocked_since = None
                return
            over = {rank for rank, key in waiting.items() if key.startswith(file_mailbox.STEPS)}
            rank = min(waiting.keys() - over, default=min(waiting))
            sender = file_mailbox.sender_of(waiting[rank])
            if sender in over or sender in self.outcomes:
                self._fail_waiting(
                    rank, f"{file_mailbox.thing_of(waiting[rank])} that rank {sender} ended without sending"
                )
            others = ", ".join(str(other) for other in sorted(waiting.keys() - over) if other != rank)
            self._fail_waiting(
                rank, f"a message of {file_mailbox.name_of(waiting[rank])}, while rank {others} waits too"
            )
        for rank, helper in self._running.items():
            if rank not in waiting and helper.seconds_spent(now) > self.timeout_s:
                where = self._where(rank)
                raise ScriptError(
                    f"rank {rank} has not come to the end of the step within {self.timeout_s:.0f} s{where};"
                    " if it only needs longer, give --timeout SECONDS",
                    self._log(rank),
                )

    def _cpu_s(self, rank: int) -> float:
        return state_of(self._running[rank].pid)[1] if rank in self._running else 0.0

    def _fail_waiting(self, rank: int, what: str) -> None:
        where = self._where(rank)
        for other in self._running:
            if other != rank:
                self._where(other)  # so that it leaves the log of its calls
        text = (
            f"rank {rank} waits for {what}{where}; the script would hang on a cluster too, unless the two ranks take"
            " different branches here: check who sends to whom"
        )
        raise ScriptError(text, self._log(rank), Finding("waits", (rank,), "", where.removeprefix(", at "), text))

    def _where(self, rank: int) -> str:
        """Where in the script a rank is now: it writes that down when it is sent SIGUSR1."""
        pid = self._running[rank].pid if rank in self._running else 0
        place = self.folder / f"where_{rank}"
        if pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1)
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                time.sleep(0.05)
                with suppress(FileNotFoundError):
                    if text := place.read_text().strip():
                        return f", at {text}"
        return ""

    def _log(self, rank: int, lines: int = 25) -> str:
        with suppress(FileNotFoundError):
            text = (self.folder / f"rank_{rank}.log").read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""
