"""Kueue: quotas of queues that borrow from their cohort, and preemption to get them back.

A cycle: the first job of every queue; those that need not borrow first, then by priority and time; each is admitted if
its queue's quota, with what the cohort lends, holds it. Then the next of every queue, until none is left; a job that is
not admitted waits (and blocks its queue under StrictFIFO). One that finds no quota may stop others, as its queue says:
jobs of lower priority in the queue, and, while it stays in its nominal quota, jobs of queues that borrow. The fewest
are stopped: queues that borrow first, lower priority first, newest first, and each without whom there is room is kept.

    available = (guaranteed - used)+ + min(lent by all - borrowed by all, nominal - guaranteed - used of that + limit)

A job of no queue is none of Kueue's and starts where it fits. A stopped job goes on where it was, `--restart` later.
Quotas are the ClusterQueues of the file. Source: Kueue v1beta1
and v1beta2, its concepts and KEP 168, 1337. Not here: fair sharing, flavors, topology, admission checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move
from windtunnel.studies.fleet.jobs.trace import Quota
from windtunnel.studies.fleet.running import Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits

LOWER = ("LowerPriority", "LowerOrNewerEqualPriority")


@dataclass(frozen=True)
class Kueue(Lines):
    """`per_node` 0: GPUs are a count. `quotas` by queue."""

    per_node: int
    quotas: Mapping[str, Quota]

    def rank(self, job: Running) -> Rank:
        """The order of each queue."""
        return -job.priority, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts and stops now."""
        waiting: dict[str, list[Running]] = {}
        for job in board.queue():
            if job.queue in self.quotas:
                waiting.setdefault(job.queue, []).append(job)
            elif (placement := board.gang(job.gpus, self.per_node)) is not None:
                yield job, placement
        for jobs in waiting.values():
            jobs.reverse()  # the first at the end
        used = dict.fromkeys(self.quotas, 0)
        for job in board.running.values():
            if job.queue in used:
                used[job.queue] += job.held_gpus
        full: set[tuple[str, int, float]] = set()  # what has found no room, and nobody to stop, since the last start
        while waiting:
            heads = sorted(
                (jobs.pop() for jobs in waiting.values()),
                key=lambda job: (used[job.queue] + job.gpus > self.quotas[job.queue].nominal, self.rank(job)),
            )
            for job in heads:
                key = job.queue, job.gpus, job.priority
                placement = None
                if key not in full:
                    for victim in self._victims(job, board, used):
                        used[victim.queue] -= victim.held_gpus
                        yield victim, None
                    if job.gpus <= self.available(job.queue, used):
                        placement = board.gang(job.gpus, self.per_node)
                if placement is not None:
                    used[job.queue] += job.gpus
                    yield job, placement
                elif self.quotas[job.queue].strict:
                    waiting[job.queue].clear()
                else:
                    full.add(key)
            waiting = {queue: jobs for queue, jobs in waiting.items() if jobs}

    def available(self, queue: str, used: Mapping[str, int]) -> int:
        """GPUs that a job of this queue may get."""
        quota = self.quotas[queue]
        here = max(quota.guaranteed - used[queue], 0)
        members = [each for each in self.quotas.values() if each.cohort == quota.cohort] if quota.cohort else [quota]
        lent = sum(each.nominal - each.guaranteed for each in members)
        taken = sum(max(used[each.name] - each.guaranteed, 0) for each in members)
        most = lent - taken
        if quota.borrowing_limit is not None or not quota.cohort:
            own = quota.nominal - quota.guaranteed - max(used[queue] - quota.guaranteed, 0)
            most = min(most, own + (quota.borrowing_limit or 0))
        return here + max(most, 0)

    def _victims(self, job: Running, board: Board, used: Mapping[str, int]) -> list[Running]:
        """The jobs that are stopped for this one; none where it fits, or where stopping all would not do."""
        if job.gpus <= self.available(job.queue, used):
            return []
        quota, after = self.quotas[job.queue], dict(used)
        reclaims = used[job.queue] + job.gpus <= quota.nominal and quota.reclaim != "Never"

        def may_stop(other: Running) -> bool:
            if other.queue not in self.quotas:
                return False
            lower = other.priority < job.priority
            if other.queue == job.queue:
                newer = other.priority == job.priority and other.submit_ns > job.submit_ns
                return quota.within in LOWER and (lower or (newer and quota.within == LOWER[1]))
            theirs = self.quotas[other.queue]
            return reclaims and theirs.cohort == quota.cohort != "" and (lower or quota.reclaim == "Any")

        candidates = [other for other in board.running.values() if may_stop(other)]
        candidates.sort(key=lambda other: (other.queue == job.queue, other.priority, -other.placed_ns, -other.index))
        stopped = []
        for other in candidates:
            if other.queue != job.queue and after[other.queue] <= self.quotas[other.queue].nominal:
                continue  # it no longer borrows
            after[other.queue] -= other.held_gpus
            stopped.append(other)
            if job.gpus <= self.available(job.queue, after):
                return self._needed(job, stopped, after)
        return []

    def _needed(self, job: Running, stopped: Sequence[Running], after: dict[str, int]) -> list[Running]:
        """Those without whom there is no room."""
        needed = [stopped[-1]]
        for other in reversed(stopped[:-1]):
            after[other.queue] += other.held_gpus
            if job.gpus > self.available(job.queue, after):
                after[other.queue] -= other.held_gpus
                needed.append(other)
        return needed[::-1]


POLICY = Traits(
    name="kueue",
    asks="lines",
    make=lambda site, options: Kueue(
        0 if options.pool else site.per_node, {quota.name: quota for quota in options.quotas}
    ),
    needs=frozenset({"duration", "quota"}),
    capacity=FAILING,
    source="Kueue, kueue.sigs.k8s.io",
)
