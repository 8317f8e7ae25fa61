"""Kueue: quotas of queues that borrow from their cohort, and preemption to get them back.

A cycle: the first job of every queue; those that need not borrow first, then by priority and time; each is admitted if
its queue's quota, with what the cohort lends, holds it. Then the next of every queue, until none is left; a job that is
not admitted waits (and blocks its queue under StrictFIFO). One that finds no quota may stop others, as its queue says:
jobs of lower priority in the queue, and, while it stays in its nominal quota, jobs of queues that borrow. The fewest
are stopped: queues that borrow first, lower priority first, newest first, and each without whom there is room is kept.

    available = (guaranteed - used)+ + min(lent by all - borrowed by all, nominal - guaranteed - used of that + limit)

`fair_sharing` (a setting of Kueue's, a parameter here): the first job of the queue that would borrow the smallest share
of its cohort by its weight comes first, and of the queue with the largest share jobs are stopped while the shares stay
in that order. `borrowWithinCohort`: a job whose queue borrows may stop lower priorities up to a threshold.

A job of no queue is none of Kueue's and starts where it fits. A stopped job goes on where it was, `--restart` later.
Quotas are the ClusterQueues of the file. Source: Kueue v1beta1
and v1beta2, its concepts and KEP 168, 1337, 1714. Not here: cohorts of cohorts, flavors, topology, admission checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move
from windtunnel.studies.fleet.jobs.trace import Quota
from windtunnel.studies.fleet.running import Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits

LOWER = ("LowerPriority", "LowerOrNewerEqualPriority")


class Books:
    """GPUs that each queue uses, and what it may have beside them."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self.quotas = quotas
        self.used = dict.fromkeys(quotas, 0)
        self.lent: dict[str, int] = {}  # by all of a cohort
        self.lendable: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        for quota in quotas.values():
            pool = self.pool(quota)
            self.lent[pool] = self.lent.get(pool, 0) + quota.nominal - quota.guaranteed
            limit = quota.nominal if quota.lending_limit is None else quota.lending_limit
            self.lendable[pool] = self.lendable.get(pool, 0) + min(quota.nominal, limit)
            self.taken[pool] = 0

    @staticmethod
    def pool(quota: Quota) -> str:
        """The name of those that share: a cohort, or a queue alone."""
        return f"cohort {quota.cohort}" if quota.cohort else f"queue {quota.name}"

    def add(self, queue: str, gpus: int) -> None:
        """A queue uses more, or less."""
        quota, before = self.quotas[queue], self.used[queue]
        self.used[queue] = before + gpus
        own = quota.guaranteed
        self.taken[self.pool(quota)] += max(before + gpus - own, 0) - max(before - own, 0)

    def available(self, queue: str) -> int:
        """GPUs that a job of this queue may get."""
        quota, used, pool = self.quotas[queue], self.used[queue], self.pool(self.quotas[queue])
        most = self.lent[pool] - self.taken[pool]
        if quota.borrowing_limit is not None or not quota.cohort:
            own = quota.nominal - quota.guaranteed - max(used - quota.guaranteed, 0)
            most = min(most, own + (quota.borrowing_limit or 0))
        return max(quota.guaranteed - used, 0) + max(most, 0)

    def share(self, queue: str, more: int = 0) -> float:
        """What it borrows of what its cohort lends, by its weight (dominant resource share)."""
        quota = self.quotas[queue]
        borrowed = self.used[queue] + more - quota.nominal
        if borrowed <= 0 or not quota.cohort:
            return 0.0
        return borrowed / self.lendable[self.pool(quota)] / quota.weight if quota.weight else math.inf


@dataclass(frozen=True)
class Kueue(Lines):
    """`per_node` 0: GPUs are a count. `quotas` by queue."""

    per_node: int
    quotas: Mapping[str, Quota]
    fair_sharing: bool = False

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
        if not waiting:
            return
        for jobs in waiting.values():
            jobs.reverse()  # the first at the end
        books = Books(self.quotas)
        for job in board.running.values():
            if job.queue in self.quotas:
                books.add(job.queue, job.held_gpus)
        full: set[tuple[str, int, float]] = set()  # what has found no room, and nobody to stop, since the last start
        while waiting:
            heads = [jobs.pop() for jobs in waiting.values()]
            heads.sort(key=lambda job: self._turn(job, books))
            while heads:
                at = min(range(len(heads)), key=lambda at: self._turn(heads[at], books)) if self.fair_sharing else 0
                job = heads.pop(at)
                key = job.queue, job.gpus, job.priority
                placement = None
                if key not in full:
                    for victim in self._victims(job, board, books):
                        books.add(victim.queue, -victim.held_gpus)
                        yield victim, None
                    if job.gpus <= books.available(job.queue):
                        placement = board.gang(job.gpus, self.per_node)
                if placement is not None:
                    books.add(job.queue, job.gpus)
                    yield job, placement
                elif self.quotas[job.queue].strict:
                    waiting[job.queue].clear()
                else:
                    full.add(key)
            waiting = {queue: jobs for queue, jobs in waiting.items() if jobs}

    def _turn(self, job: Running, books: Books) -> tuple[float, Rank]:
        """By which first jobs of queues come."""
        if self.fair_sharing:
            return books.share(job.queue, job.gpus), self.rank(job)
        return float(books.used[job.queue] + job.gpus > self.quotas[job.queue].nominal), self.rank(job)

    def _victims(self, job: Running, board: Board, books: Books) -> list[Running]:
        """The jobs that are stopped for this one; none where it fits, or where stopping all would not do."""
        quota = self.quotas[job.queue]
        if job.gpus <= books.available(job.queue) or (quota.within not in LOWER and quota.reclaim == "Never"):
            return []
        candidates = [other for other in board.running.values() if self._may_stop(job, other, books)]
        candidates.sort(key=lambda other: (other.queue == job.queue, other.priority, -other.placed_ns, -other.index))
        if not candidates:
            return []
        if self.fair_sharing:
            return self._fair(job, candidates, books)
        within = books.used[job.queue] + job.gpus <= quota.nominal
        others = any(other.queue != job.queue for other in candidates)
        forbidden = quota.borrow_within != "LowerPriority"
        if not others or (forbidden and books.used[job.queue] >= quota.nominal):
            attempts: tuple[bool, ...] = (True,)
        else:
            attempts = (False, True) if forbidden and not within else (True, False)
        for borrows in attempts:
            allowed = [
                other
                for other in candidates
                if other.queue == job.queue or within or not borrows or self._while_borrowing(job, other)
            ]
            stopped = self._until_it_fits(job, allowed, books, borrows=borrows)
            if stopped:
                return stopped
        return []

    def _may_stop(self, job: Running, other: Running, books: Books) -> bool:
        """Whether policies and priorities let it."""
        if other.queue not in self.quotas:
            return False
        quota, theirs, lower = self.quotas[job.queue], self.quotas[other.queue], other.priority < job.priority
        if other.queue == job.queue:
            newer = other.priority == job.priority and other.submit_ns > job.submit_ns
            return quota.within in LOWER and (lower or (newer and quota.within == LOWER[1]))
        if theirs.cohort != quota.cohort or not quota.cohort or books.used[other.queue] <= theirs.nominal:
            return False
        return quota.reclaim == "object" or (quota.reclaim == "LowerPriority" and lower)

    def _while_borrowing(self, job: Running, other: Running) -> bool:
        """Whether one of another queue may be stopped by a job whose queue borrows then."""
        quota = self.quotas[job.queue]
        most = quota.borrow_priority
        return (
            quota.borrow_within == "LowerPriority"
            and other.priority < job.priority
            and (most is None or other.priority <= most)
        )

    def _fits(self, job: Running, books: Books, *, borrows: bool) -> bool:
        room = job.gpus <= books.available(job.queue)
        return room and (borrows or books.used[job.queue] + job.gpus <= self.quotas[job.queue].nominal)

    def _until_it_fits(
        self, job: Running, candidates: Sequence[Running], books: Books, *, borrows: bool
    ) -> list[Running]:
        """Candidates in order, those of queues that still borrow, until it fits; less those without need."""
        stopped: list[Running] = []
        for other in candidates:
            if other.queue != job.queue and books.used[other.queue] <= self.quotas[other.queue].nominal:
                continue  # it no longer borrows
            books.add(other.queue, -other.held_gpus)
            stopped.append(other)
            if self._fits(job, books, borrows=borrows):
                return self._needed(job, stopped, books, borrows=borrows)
        _restore(stopped, books)
        return []

    def _needed(self, job: Running, stopped: Sequence[Running], books: Books, *, borrows: bool) -> list[Running]:
        """Those without whom there is no room. The books are as before then."""
        needed = [stopped[-1]]
        for other in reversed(stopped[:-1]):
            books.add(other.queue, other.held_gpus)
            if not self._fits(job, books, borrows=borrows):
                books.add(other.queue, -other.held_gpus)
                needed.append(other)
        _restore(needed, books)
        return needed[::-1]

    def _fair(self, job: Running, candidates: Sequence[Running], books: Books) -> list[Running]:
        """Of the queue with the largest share first, while shares say so: LessThanOrEqualToFinalShare, then
        LessThanInitialShare.
        """
        queues: dict[str, list[Running]] = {}
        for other in candidates:
            queues.setdefault(other.queue, []).append(other)
        stopped: list[Running] = []
        again: dict[str, list[Running]] = {}

        def stop(other: Running) -> bool:
            books.add(other.queue, -other.held_gpus)
            stopped.append(other)
            return self._fits(job, books, borrows=True)

        while queues:
            queue = max(queues, key=lambda name: (name != job.queue, books.share(name)))
            if queue != job.queue and not books.share(queue):
                del queues[queue]
                continue
            other = queues[queue].pop(0)
            if not queues[queue]:
                del queues[queue]
            ours = books.share(job.queue, job.gpus)
            if queue != job.queue and ours > books.share(queue, -other.held_gpus):
                again.setdefault(queue, []).append(other)
            elif stop(other):
                return self._needed(job, stopped, books, borrows=True)
        while again:
            queue = max(again, key=books.share)
            other = again.pop(queue)[0]
            if books.share(job.queue, job.gpus) < books.share(queue) and stop(other):
                return self._needed(job, stopped, books, borrows=True)
        _restore(stopped, books)
        return []


def _restore(stopped: Sequence[Running], books: Books) -> None:
    for other in stopped:
        books.add(other.queue, other.held_gpus)


POLICY = Traits(
    name="kueue",
    asks="lines",
    priorities=True,
    make=lambda site, options: Kueue(
        0 if options.pool else site.per_node, {quota.name: quota for quota in options.quotas}
    ),
    needs=frozenset({"duration", "quota"}),
    capacity=FAILING,
    source="Kueue, kueue.sigs.k8s.io",
)
