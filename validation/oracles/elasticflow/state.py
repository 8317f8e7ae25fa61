"""A job in ElasticFlow's clock, and the list of events that this clock works through.

Times are seconds of the trace. An event holds jobs that arrive and jobs whose planned end it is; there is one event per
time when it is made, and events closer together than a slot are merged into the slot's end. A job's end event moves
when its plan changes, found by the time of its old end: where the event was moved meanwhile, the job stays in both,
as in the released simulator. Source: pkusys/ElasticFlow, ElasticFlow/scheduler (Apache-2.0), as rules.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.errors import UserError

SMALL_CLUSTER = 256  # GPUs from which the published overheads are larger


@dataclass(eq=False)
class EfJob:
    """One job: what the trace says, and how far it is."""

    index: int
    submit_s: float
    duration_s: float  # on `requested` GPUs; what rigid policies run
    requested: int
    deadline_s: float
    rates: Mapping[int, float]  # iterations/s by number of GPUs, the levels at which it runs, ascending
    largest: int  # level beyond which it is never scaled
    iterations_left: float
    gpus: int = 0
    start_s: float = math.inf
    end_s: float = 0
    real_end_s: float | None = None  # estimated without rounding to slots and without overheads
    old_end_s: float | None = None
    overhead_s: float = 0
    allocations: dict[float, int] = field(default_factory=dict)  # GPUs from each time on
    restarts: int = 0
    gpu_seconds: float = 0.0
    state: str = "waiting"
    scored_late: bool = False
    placed: bool = False
    in_cache: bool = False
    executed_s: float = 0

    def rate(self, gpus: int) -> float:
        """Iterations per second. UserError where the table has no such level."""
        try:
            return self.rates[gpus]
        except KeyError:
            known = ", ".join(map(str, self.rates))
            raise UserError(
                f"job {self.index} was not measured on {gpus} GPUs (measured: {known}): complete the throughput tables"
            ) from None


@dataclass(eq=False)
class Event:
    """What happens at one time."""

    time_s: float
    starts: list[EfJob] = field(default_factory=list)
    ends: list[EfJob] = field(default_factory=list)


class Events:
    """The list of events, in order of time, one for each time."""

    def __init__(self, jobs: Sequence[EfJob]) -> None:
        self.list: list[Event] = []
        self.times: list[float] = []  # of the list
        self.by_time: dict[float, Event] = {}
        for job in sorted(jobs, key=lambda job: job.submit_s):
            if job.submit_s not in self.by_time:
                self._add(Event(job.submit_s))
            self.by_time[job.submit_s].starts.append(job)

    def at(self, time_s: float) -> Event | None:
        """The event of this time."""
        return self.by_time.get(time_s)

    def next_start_s(self) -> float:
        """When the next jobs arrive."""
        return next((event.time_s for event in self.list if event.starts), math.inf)

    def _add(self, event: Event) -> None:
        self.by_time[event.time_s] = event
        at = bisect_left(self.times, event.time_s)
        self.list.insert(at, event)
        self.times.insert(at, event.time_s)

    def remove(self, event: Event) -> None:
        """Take an event off the list."""
        at = bisect_left(self.times, event.time_s)
        assert self.list[at] is event, "an event is not where its time says"
        del self.list[at], self.times[at], self.by_time[event.time_s]

    def note(self, time_s: float) -> None:
        """Something may change at this time."""
        if time_s not in self.by_time:
            self._add(Event(time_s))

    def add_end(self, job: EfJob) -> None:
        """The job's planned end."""
        self.note(job.end_s)
        event = self.by_time[job.end_s]
        if job not in event.ends:
            event.ends.append(job)

    def move_end(self, job: EfJob) -> None:
        """The job's planned end was `old_end_s` and is `end_s`."""
        before_s, end_s = job.old_end_s, job.end_s
        if before_s == end_s:
            return
        event = None if before_s is None else self.by_time.get(before_s)
        if event is not None:
            if job in event.ends:
                event.ends.remove(job)
            if not event.ends and not event.starts:
                self.remove(event)
        job.old_end_s = None
        event = self.by_time.get(end_s)
        if event is None:
            self._add(Event(end_s, [], [job]))
        elif job not in event.ends:
            event.ends.append(job)

    def merge(self, now_s: float, slot_s: float) -> float:
        """Merge what happens within a slot from now into its end; returns the time of the next event."""
        first = self.list[0]
        next_s, count = first.time_s, 1
        del self.by_time[first.time_s]
        while int(next_s - now_s) <= slot_s and count < len(self.list):
            first.time_s = now_s + slot_s
            second = self.list[count]
            if second.time_s - now_s > slot_s:
                break
            next_s = second.time_s
            first.starts.extend(second.starts)
            first.ends.extend(second.ends)
            del self.by_time[second.time_s]
            count += 1
        del self.list[1:count], self.times[1:count]
        self.times[0] = first.time_s
        self.by_time[first.time_s] = first
        return first.time_s


def aligned(start_s: float, time_s: float, slot_s: float) -> float:
    """The first whole slot from `start_s` that is not before `time_s`."""
    slots = (time_s - start_s) // slot_s
    return start_s + (slots + ((time_s - start_s) % slot_s > 0)) * slot_s


def overhead_s(gpus: int, cluster_gpus: int, *, restart: bool, cached: bool = False) -> float:
    """What a decision costs a running job: 2 s, a start by the log of its size, and 27 s where all trainers restart."""
    large = cluster_gpus >= SMALL_CLUSTER
    seconds: float = 7 if large else 2
    if cached:
        return seconds
    if restart:
        seconds += 47 if large else 27
    return seconds + (math.log(gpus, 2) + 1) * 2


def advance(jobs: Sequence[EfJob], seconds: float, now_s: float, events: Events) -> None:
    """Let all jobs that hold GPUs run for `seconds` until `now_s`, after their overheads."""
    for job in jobs:
        if job.gpus == 0:
            continue
        planned_s = job.end_s if job.real_end_s is None else job.real_end_s
        run_s = seconds - max(now_s - planned_s, 0)
        job.gpu_seconds += job.gpus * run_s
        run_s = 0 if run_s < job.overhead_s else run_s - job.overhead_s
        rate = job.rate(job.gpus)
        done = run_s * rate
        if job.iterations_left <= done and job.end_s > now_s:
            job.old_end_s = job.end_s
            real_s = now_s - seconds + math.ceil(job.iterations_left / rate)
            done = (job.end_s - now_s + seconds) * rate
            job.end_s = now_s
            events.move_end(job)
            job.end_s = real_s
        job.iterations_left -= done
        job.overhead_s = 0
