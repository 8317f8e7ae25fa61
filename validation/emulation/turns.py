"""Two jobs in turns of seconds, on the same cores, each turn begun when these are as quick as they ever were.

Others slow a core of a shared machine by 40 to 90 % for seconds to minutes, and nothing else shows it; what makes it
slower for an hour is then in both jobs. A job that is not its turn is stopped (SIGSTOP). A step counts that lies in one
turn, with both cores quick before and after it.
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


class Pace:
    """How fast the two cores are, against the fastest that they were seen."""

    def __init__(self) -> None:
        self._one = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
        self._out = np.empty_like(self._one)
        self._best = float("inf")

    def slower(self) -> float:
        """How many times longer than ever it takes now on the slower core, less one."""
        mine, slowest = os.sched_getaffinity(0), 0.0
        for core in (0, 1):
            os.sched_setaffinity(0, {core})
            seconds = []
            for _ in range(9):
                begun = time.perf_counter()
                for _ in range(20):
                    np.exp(self._one, out=self._out)  # one thread, no new pages
                seconds.append(time.perf_counter() - begun)
            slowest = max(slowest, median(seconds))
            self._best = min(self._best, median(seconds))
        os.sched_setaffinity(0, mine)
        return slowest / self._best - 1


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
        limit: How much longer than ever the cores may take in a turn that counts.
        turn_s: Seconds of a turn.
        start_s: Seconds of its turns in which a job starts: nothing is waited for.
        patience_s: How long to wait for a calm machine before a turn; then it goes on, and the turn does not count.
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
                calm = _calm(pace, limit, 0.0 if starts else patience_s)
                in_vain += not (calm or starts)
                begun = time.perf_counter()
                job.signal(signal.SIGCONT)
                thread.join(turn_s)
                job.signal(signal.SIGSTOP)
                ended = time.perf_counter()
                job.had_s += ended - begun
                if calm and pace.slower() <= limit:
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


def _calm(pace: Pace, limit: float, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while pace.slower() > limit:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True
