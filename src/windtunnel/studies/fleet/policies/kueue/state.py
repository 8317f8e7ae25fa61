"""What Kueue's policy remembers between decisions, and the lines of jobs that wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from windtunnel.studies.fleet.board import Board
from windtunnel.studies.fleet.policies.kueue.books import Books
from windtunnel.studies.fleet.policies.kueue.pace import Pace
from windtunnel.studies.fleet.running import Rank, Running


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
class State:
    """The books, and the jobs that run by queue; `pace` where writes have a limit."""

    books: Books
    pace: Pace | None = None
    running: dict[str, dict[int, Running]] = field(default_factory=dict)
    keys: tuple[int, tuple[Hashable, ...]] = (0, ())  # lines that there were, and those of them without a queue

    def take(self, job: Running) -> None:
        """A job runs."""
        self.books.queues[job.queue].add(job.gpus)
        self.running.setdefault(job.queue, {})[job.index] = job

    def give(self, job: Running) -> None:
        """A job runs no longer; nothing happens where it is known."""
        if self.running.get(job.queue, {}).pop(job.index, None) is not None:
            self.books.queues[job.queue].add(-job.gpus)

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
