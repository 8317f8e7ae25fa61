"""Slurm: jobs by priority, and conservative backfill planned by time limits.

    main loop   at each event: jobs in order, until the first that does not fit
    backfill    every `backfill_interval_s`: jobs in order, up to `depth`; each that cannot start gets a reservation on
                a plan of free GPUs (running jobs and reservations hold theirs until their limits end); one further back
                starts only where it delays none of these

Order: priority where the log tells it, submission, row. The policy sees limits, the clock the truth: a job that ends
early is news at its end. A job without a limit is planned for a year; in a trace without any limit, for what it takes.
Nodes are free a while after a job ends: that is `--restart` (Slurm completes jobs in about 1 s). Free GPUs are planned
as a count, and a job starts where its gang fits. Source: slurm.conf(5) of Slurm 22.05 (bf_interval, bf_resolution,
bf_window, bf_max_job_test), whose defaults these are. Not here: partitions' tiers, QOS limits, preemption.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move
from windtunnel.studies.fleet.running import NS, Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits

YEAR_S = 365 * 86_400.0


class Plan:
    """Free GPUs from now on, as steps."""

    def __init__(self, now_ns: int, free: int) -> None:
        self.times, self.free = [now_ns], [free]

    def _cut(self, time_ns: int) -> int:
        """The step that begins then; there is one afterwards."""
        at = bisect_right(self.times, time_ns) - 1
        if self.times[at] == time_ns:
            return at
        self.times.insert(at + 1, time_ns)
        self.free.insert(at + 1, self.free[at])
        return at + 1

    def take(self, begin_ns: int, end_ns: int, gpus: int) -> None:
        """GPUs are held from one time to another; negative gives them back."""
        first = self._cut(begin_ns)
        for at in range(first, self._cut(end_ns)):
            self.free[at] -= gpus

    def earliest(self, gpus: int, lasts_ns: int) -> int | None:
        """When so many are free for so long; None: never."""
        begin: int | None = None
        for time_ns, free in zip(self.times, self.free, strict=True):
            if begin is not None and time_ns >= begin + lasts_ns:
                return begin
            if free < gpus:
                begin = None
            elif begin is None:
                begin = time_ns
        return begin


@dataclass(frozen=True)
class Slurm(Lines):
    """`per_node` 0: GPUs are a count."""

    per_node: int
    backfill_interval_s: float = 30.0
    resolution_s: float = 60.0
    window_s: float = 86_400.0
    depth: int = 500

    def rank(self, job: Running) -> Rank:
        """The order of the queue."""
        return -job.priority, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts now."""
        for job in board.queue():
            placement = board.gang(job.gpus, self.per_node)
            if placement is None:
                break
            yield job, placement
        board.wake_ns = None
        if not board.waiting or not board.capacity:
            return
        now_ns, interval_ns = board.moment.ns, round(self.backfill_interval_s * NS)
        if now_ns % interval_ns:
            board.wake_ns = now_ns - now_ns % interval_ns + interval_ns
            return
        next_ns = None
        plan = self._plan(board)
        for number, job in enumerate(board.queue()):
            if number >= self.depth:
                break
            lasts_ns = self._rounded(_limit_ns(job))
            begin_ns = plan.earliest(job.gpus, lasts_ns)
            if begin_ns is None or begin_ns > now_ns + self.window_s * NS:
                continue
            if begin_ns == now_ns:
                placement = board.gang(job.gpus, self.per_node)
                if placement is None:
                    continue  # enough, but scattered
                yield job, placement
            else:
                next_ns = begin_ns if next_ns is None else min(next_ns, begin_ns)
            plan.take(begin_ns, begin_ns + lasts_ns, job.gpus)
        if next_ns is not None:  # before the next reservation nothing changes but by an event
            board.wake_ns = max(-(-next_ns // interval_ns) * interval_ns, now_ns + interval_ns)

    def _plan(self, board: Board) -> Plan:
        """Free GPUs as the limits of what runs say."""
        now_ns = board.moment.ns
        plan = Plan(now_ns, board.capacity)
        for job in board.running.values():
            end_ns = now_ns + self._rounded(max(job.placed_ns + _limit_ns(job) - now_ns, 1))
            plan.take(now_ns, end_ns, job.held_gpus)
        return plan

    def _rounded(self, time_ns: int) -> int:
        step_ns = round(self.resolution_s * NS)
        return -(-time_ns // step_ns) * step_ns


def _limit_ns(job: Running) -> int:
    """For how long it is planned from its start."""
    if job.limit_s is not None:
        return round(min(job.limit_s, YEAR_S) * NS)
    return job.left_ns + (job.moment.ns - job.placed_ns if job.placement else 0)


POLICY = Traits(
    name="slurm",
    asks="lines",
    make=lambda site, options: Slurm(0 if options.pool else site.per_node),
    capacity=FAILING,
    source="Slurm 22.05, slurm.conf(5)",
)
