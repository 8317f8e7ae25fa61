"""Two jobs in turns of seconds, on the same cores, each turn begun when these are as they usually are.

Others slow a core of a shared machine by 20 to 90 % for seconds to hours, and nothing else shows it; what makes it
slower for an hour is then in both jobs. A job that is not its turn is stopped (SIGSTOP). A step counts that lies in one
turn, with both cores as usual, neither slower nor quicker, before and after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

Started = list[subprocess.Popen[bytes]]
FIRST_LOOKS, BETWEEN_LOOKS_S = 20, 0.5


class Pace:
    """How fast the two cores are, against what they usually are: the median of all looks at them."""

    def __init__(self) -> None:
        self._one = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
        self._out = np.empty_like(self._one)
        self._looks: list[float] = []  # at either core
        for _ in range(FIRST_LOOKS):
            self.off()
            time.sleep(BETWEEN_LOOKS_S)

    def off(self) -> float:
        """By how much of the usual time the core is off now that is off most."""
        mine, now = os.sched_getaffinity(0), []
        for core in (0, 1):
            os.sched_setaffinity(0, {core})
            seconds = []
            for _ in range(9):
                begun = time.perf_counter()
                for _ in range(20):
                    np.exp(self._one, out=self._out)  # one thread, no new pages
                seconds.append(time.perf_counter() - begun)
            now.append(median(seconds))
        os.sched_setaffinity(0, mine)
        self._looks += now
        return max(abs(one / median(self._looks) - 1) for one in now)


@dataclass
class Job:
    """Something that starts processes, waits for them, and gives back what they found."""

    run: Callable[[Started], Any]
    started: Started = field(default_factory=list)
    turns: list[tuple[float, float]] = field(default_factory=list)  # those that count, by time.perf_counter
    had_s: float = 0.0  # in turns so far
    result: Any = None
    error: BaseException | None = None

    def begin(self) -> threading.Thread:
        """In a thread of its own."""

        def body() -> None:
            try:
                self.result = self.run(self.started)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def signal(self, number: int) -> None:
        """To all its processes and theirs."""
        for pid in descendants([one.pid for one in self.started if one.poll() is None]):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def counts(self, begun: Sequence[float], seconds: Sequence[float], skip: int) -> list[int]:
        """Which steps after the first `skip` lie in a turn that counts."""
        spans = list(zip(begun, seconds, strict=True))
        return [
            number
            for number in range(skip, len(spans))
            if any(low <= spans[number][0] and sum(spans[number]) <= high for low, high in self.turns)
        ]


def descendants(pids: Sequence[int]) -> list[int]:
    """These processes and all that they started, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry.name))
    found = list(pids)
    for pid in found:
        found += children.get(pid, [])
    return found


def in_turns(jobs: Sequence[Job], pace: Pace, *, limit: float, turn_s: float, start_s: float, patience_s: float) -> int:
    """Run both to their ends; raises what one of them raised. How many turns were waited for in vain.

    Args:
        jobs: Whose turn it is goes round.
        pace: Of the cores.
        limit: How far off the usual the cores may be in a turn that counts, as a share of it.
        turn_s: Seconds of a turn.
        start_s: Seconds of its turns in which a job starts: nothing is waited for.
        patience_s: How long to wait for a usual machine before a turn; then it goes on, and the turn does not count.
    """
    threads = [job.begin() for job in jobs]
    in_vain = 0
    try:
        while any(thread.is_alive() for thread in threads):
            for job, thread in zip(jobs, threads, strict=True):
                for other in jobs:
                    other.signal(signal.SIGSTOP)
                if not thread.is_alive():
                    continue
                starts = job.had_s < start_s
                usual = _usual(pace, limit, 0.0 if starts else patience_s)
                in_vain += not (usual or starts)
                begun = time.perf_counter()
                job.signal(signal.SIGCONT)
                thread.join(turn_s)
                job.signal(signal.SIGSTOP)
                ended = time.perf_counter()
                job.had_s += ended - begun
                if usual and pace.off() <= limit:
                    job.turns.append((begun, ended))
    finally:
        for job in jobs:
            job.signal(signal.SIGCONT)
            for process in job.started:
                process.terminate()
    for job in jobs:
        if job.error is not None:
            raise job.error
    return in_vain


def _usual(pace: Pace, limit: float, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while pace.off() > limit:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True
