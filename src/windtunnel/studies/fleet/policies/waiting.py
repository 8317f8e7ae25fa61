"""The queues of `queues.py` as policies of lines, for clusters whose nodes come and go.

Same rules: what runs keeps running; the queue is passed in order of (submission, row), or of (time left, submission,
row); `block` ends at the first that does not fit, `skip` passes it, `easy` reserves it and backfills around the
reservation. A gang up to a node goes to the fitting node with least free GPUs, a larger one to free nodes and its
remainder to another; ties to the lowest number. A job that a failure stopped stands where its submission puts it.
With nothing failing the starts are those of the compiled queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move, pass_on
from windtunnel.studies.fleet.running import Rank, Running

NEVER = 2**62


@dataclass(frozen=True)
class Waiting(Lines):
    """`shortest`: order by time left. `rule`: block, skip or easy. `per_node` 0: GPUs are a count."""

    shortest: bool
    rule: str
    per_node: int

    def rank(self, job: Running) -> Rank:
        """The order of the queue."""
        return job.left_ns if self.shortest else 0, job.submit_ns, job.index

    def choose(self, board: Board) -> Iterator[Move]:
        """Jobs need `remaining_s`."""
        if not board.waiting or not board.free_gpus:
            return
        now_ns = board.moment.ns
        until_ns = spare = NEVER
        reserved = False
        queue = board.queue()
        job = next(queue, None)
        while job is not None:
            late = reserved and now_ns + job.left_ns > until_ns
            if late and job.gpus > spare:
                job = pass_on(queue)
                continue
            placement = board.gang(job.gpus, self.per_node)
            if placement is not None:
                spare -= job.gpus if late else 0
                yield job, placement
            elif self.rule == "block":
                return
            elif self.rule == "easy" and not reserved:
                reserved = True
                until_ns, spare = _reservation(job.gpus, board)
            job = pass_on(queue, size=placement is None)


def _reservation(need: int, board: Board) -> tuple[int, int]:
    """(when `need` GPUs are free if nothing else starts, GPUs free then beyond these)."""
    free, now_ns = board.free_gpus, board.moment.ns
    until_ns = NEVER  # of GPUs that are enough but scattered nobody knows when they fit: backfill is free then
    for end_ns, _, gpus in sorted((now_ns + job.left_ns, job.index, job.held_gpus) for job in board.running.values()):
        if free >= need:
            break
        until_ns = end_ns
        free += gpus
    return until_ns if free >= need else NEVER, free - need
