"""SRTF: shortest remaining time first, with preemption. Ties: submission, then order of the trace.

Walking that order, whatever fits runs. The best mean JCT on one server (Schrage, 1968); it knows all durations.

Of jobs that run the order stays, and against those that wait they only come forward. So nothing changes ahead of the
first waiting job that fits, and where all that fit do so in free GPUs, none that runs is looked at.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from windtunnel.studies.fleet.clock.board import Board, Move, by_rank, next_in_queue
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Srtf(QueuePolicy):
    """No parameter."""

    def rank(self, job: Running) -> Rank:
        """Rank jobs by time left."""
        return job.left_ns, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """Jobs need `remaining_s`."""
        if not board.waiting:
            return
        if board.unit > 1:
            for each in board.running.values():
                each.rank = self.rank(each)
            yield from board.whatever_fits(sorted(board.running.values(), key=by_rank))
            board.released.clear()
            return
        order = board.order
        if not isinstance(order, Order):
            order = board.order = Order(list(board.running.values()))
            board.released.clear()
        order.follow(board)
        running, behind = order.from_the_last(self, board.moment.ns), Behind()
        start, free = [], board.free_gpus
        queue = board.queue()
        head = next(queue, None)
        while head is not None:
            fits = head.gpus <= free
            if not fits and free + behind.gpus_after(head.rank, head.gpus - free, running) >= head.gpus:
                break  # by what one that runs gives up
            if fits:
                start.append(head)
                free -= head.gpus
            head = next_in_queue(queue, size=not fits)
        moves: Iterator[Move] = ((job, board.anywhere(job)) for job in start)
        if head is not None:
            first = (start[0] if start else head).rank
            free = board.free_gpus + behind.gpus_after(first, board.capacity, running)
            moves = board.whatever_fits([job for job in reversed(behind.jobs) if job.rank > first], free)
        for job, placement in moves:
            yield job, placement
            if placement:
                order.started.append(job)


@dataclass
class Behind:
    """Jobs that run by falling rank, as far as anybody has looked."""

    jobs: list[Running] = field(default_factory=list)

    def gpus_after(self, rank: Rank, enough: int, more: Iterator[Running]) -> int:
        """GPUs of jobs behind a rank, or of the last of them that hold `enough`; `more`: those not looked at yet."""
        gpus, at = 0, 0
        while gpus < enough:
            if at == len(self.jobs):
                job = next(more, None)
                if job is None:
                    break
                self.jobs.append(job)
            if self.jobs[at].rank < rank:
                break
            gpus += self.jobs[at].gpus
            at += 1
        return gpus


@dataclass
class Order:
    """Jobs that run, by the instant at which they end: as long as they run that is the order of their time left."""

    started: list[Running]  # since it was looked at last
    ends: list[Rank] = field(default_factory=list)  # (instant, submission, job), rising
    jobs: dict[int, tuple[Rank, Running]] = field(default_factory=dict)  # those in `ends`
    still: list[Running] = field(default_factory=list)  # whose time left stays: they restart, or nobody knows it

    def follow(self, board: Board) -> None:
        """Take in what has begun and ended on the board."""
        ended = {job.index for job, _ in board.released}
        board.released.clear()
        for index in ended & self.jobs.keys():
            del self.ends[bisect_left(self.ends, self.jobs.pop(index)[0])]
        new, self.started = [*(job for job in self.still if job.index not in ended), *self.started], []
        self.still = []
        for job in new:
            if job.index not in board.running:
                continue
            if job.since_ns > board.moment.ns or not hasattr(job.work, "duration_s"):
                self.still.append(job)
                continue
            key = (job.due_ns, job.submit_ns, job.index)
            self.jobs[job.index] = key, job
            insort(self.ends, key)

    def from_the_last(self, policy: Srtf, now_ns: int) -> Iterator[Running]:
        """Jobs by falling rank, each with its rank."""
        for job in self.still:
            job.rank = policy.rank(job)
        still = sorted(self.still, key=by_rank)
        for end_ns, submit_ns, index in reversed(self.ends):
            job = self.jobs[index][1]
            job.rank = (end_ns - now_ns, submit_ns, index)
            while still and still[-1].rank > job.rank:
                yield still.pop()
            yield job
        yield from reversed(still)


POLICY = Traits(
    name="srtf", asks="lines", make=lambda site, options: Srtf(), measured="each", capacity=FAILING, parts=True
)
