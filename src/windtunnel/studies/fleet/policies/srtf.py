"""SRTF: shortest remaining time first, with preemption. Ties: submission, then order of the trace.

Walking that order, whatever fits runs. The best mean JCT on one server (Schrage, 1968); it knows all durations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move, by_rank, whatever_fits
from windtunnel.studies.fleet.running import Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Srtf(Lines):
    """No parameter."""

    def rank(self, job: Running) -> Rank:
        """Rank jobs by time left."""
        return job.left_ns, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """Jobs need `remaining_s`."""
        if not board.waiting:
            return
        for job in board.running.values():
            job.rank = self.rank(job)
        yield from whatever_fits(board, sorted(board.running.values(), key=by_rank))


POLICY = Traits(
    name="srtf",
    asks="lines",
    make=lambda site, options: Srtf(),
    measured="each",
    capacity=FAILING,
    source="Schrage, 1968",
)
