"""What Kueue's policy remembers between decisions, and the lines of jobs that wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.running import NS, Rank, Running
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books

RETRY_NS = 1 * NS  # requeueBatchPeriod
ANYWHERE = ""  # in place of a root: whatever ends, or a node that joins, may make room


@dataclass
class Line:
    """Jobs of one size in one queue. Once the first finds no room, and nobody to stop, no other does: it is `full`."""

    queue: str
    jobs: list[tuple[Rank, Running]]
    stopped: set[int]  # jobs that come back in this decision, and wait for the next
    full: bool = False

    @property
    def head(self) -> Running | None:
        """The first that may start in this decision."""
        if self.full:
            return None
        return next((job for _, job in self.jobs if job.index not in self.stopped), None)


@dataclass
class Pace:
    """What Kueue remembers beside its books; jobs by their index, times in nanoseconds."""

    gap_ns: int  # between two writes
    rest_ns: int  # that fills the bucket
    capacity: int = 0  # GPUs that are up
    full_ns: int = 0  # when the bucket would be full again
    busy_ns: int = 0  # the cycle's end
    parked: dict[str, set[Hashable]] = field(default_factory=dict)  # by root; under ANYWHERE for want of GPUs
    retry_ns: dict[str, int] = field(default_factory=dict)  # by root
    stops_ns: dict[int, int] = field(default_factory=dict)  # of victims whose write waits
    awaited: dict[int, set[int]] = field(default_factory=dict)  # victims of each job that stops others
    ahead: dict[str, int] = field(default_factory=dict)  # by queue: the job that stops others is its first
    written: dict[int, int] = field(default_factory=dict)  # GPUs that a job was said to lack
    begins_ns: dict[int, int] = field(default_factory=dict)
    chosen: dict[int, str] = field(default_factory=dict)  # the flavor's queue of a job that waits for its victims
    tried: dict[int, int] = field(default_factory=dict)  # flavors in whose topology a job found no room: the last

    def write(self, now_ns: int) -> int:
        """When a write that is asked for now has passed."""
        self.full_ns = max(self.full_ns, now_ns) + self.gap_ns
        return max(now_ns, self.full_ns - self.rest_ns)

    def freed(self, root: str, now_ns: int) -> None:
        """GPUs of a tree are free again."""
        self.retry_ns.setdefault(root, now_ns + RETRY_NS)
        if self.parked.get(ANYWHERE):
            self.retry_ns.setdefault(ANYWHERE, now_ns + RETRY_NS)

    def ended(self, index: int, root: str, now_ns: int) -> None:
        """A job of a tree runs no longer, and nobody stopped it."""
        self.stops_ns.pop(index, None)
        self.freed(root, now_ns)

    def look_again(self, now_ns: int) -> None:
        """Trees whose time has come: nothing of theirs is parked any more."""
        for root in [root for root, time_ns in self.retry_ns.items() if time_ns <= now_ns]:
            del self.retry_ns[root]
            self.parked.pop(root, None)


@dataclass
class State:
    """The books, and the jobs that run by queue; `pace` where writes have a limit."""

    books: Books
    pace: Pace | None = None
    running: dict[str, dict[int, Running]] = field(default_factory=dict)
    flavors: dict[int, str] = field(default_factory=dict)  # on which jobs ran last
    keys: tuple[int, tuple[Hashable, ...]] = (0, ())  # lines that there were, and those of them without a queue

    def take(self, job: Running) -> None:
        """A job runs."""
        self.books.queues[job.queue].add(job.gpus)
        self.running.setdefault(job.queue, {})[job.index] = job
        if MARK in job.queue:
            self.flavors[job.index] = job.queue.partition(MARK)[2]

    def give(self, job: Running) -> None:
        """A job runs no longer, and is of no flavor; nothing happens where it is known."""
        if self.running.get(job.queue, {}).pop(job.index, None) is not None:
            self.books.queues[job.queue].add(-job.gpus)
            job.queue = job.queue.partition(MARK)[0]

    def without_queue(self, board: Board) -> list[Line]:
        """Lines of jobs of no queue."""
        if self.keys[0] != len(board.lines):
            self.keys = len(board.lines), tuple(key for key in board.lines if not (isinstance(key, tuple) and key[0]))
        return [Line("", board.lines[key], set()) for key in self.keys[1]]

    def lines(self, board: Board, stopped: set[int]) -> Iterator[Line]:
        """Those in which jobs wait; of jobs without a quota the queue is empty."""
        for key, jobs in board.lines.items():
            if jobs:
                queue = jobs[0][1].queue if isinstance(key, tuple) and key[0] else ""
                yield Line(queue, jobs, stopped)
