"""Tiresias: two-dimensional least attained service, in discrete queues.

Attained service = GPUs requested x seconds held. A job starts in the first queue and moves down when its service
reaches that queue's threshold; higher queues come first, inside one the order of entry. Walking that order, whatever
fits runs, and a running job that no longer fits stops. A threshold crossing is an event (`wake_s`). Source: J. Gu et
al., "Tiresias", NSDI 2019; queue threshold of the default: adaptdl, simulator/tiresias.py (16 GPU-h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from windtunnel.studies.fleet.clock.board import Board, Move, by_rank
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import NS, Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits

NEVER = 2**62


@dataclass(frozen=True)
class Tiresias(QueuePolicy):
    """Thresholds between the queues, ascending."""

    thresholds_gpu_s: tuple[float, ...] = (57_600.0,)
    unit: int = 1  # in which GPUs are counted, of a GPU

    def rank(self, job: Running) -> Rank:
        """(queue, when it entered it, job); one that ran before stays where it was."""
        return job.rank if job.executed_ns else (0, job.submit_ns, job.index)

    def choose(self, board: Board) -> Iterator[Move]:
        """Walk the queues."""
        now_ns = board.moment.ns
        for job in board.running.values():
            if job.turn_ns <= now_ns:
                self._look(job, now_ns)
        if board.waiting:
            for job, placement in board.whatever_fits(sorted(board.running.values(), key=by_rank)):
                yield job, placement
                if placement is not None:
                    self._look(job, now_ns)
        next_ns = min((job.turn_ns for job in board.running.values()), default=NEVER)
        board.wake_ns = None if next_ns == NEVER else next_ns

    def _look(self, job: Running, now_ns: int) -> None:
        """Move a job down where it has reached its queue's threshold, and note when it reaches the next."""
        level = int(job.rank[0])
        if job.placement and level < len(self.thresholds_gpu_s):
            level += job.executed_ns * job.gpus >= self.thresholds_gpu_s[level] * self.unit * NS
        if level > job.rank[0]:
            job.rank = (level, now_ns, job.index)
        last = level == len(self.thresholds_gpu_s)
        threshold_ns = NEVER if last else self.thresholds_gpu_s[level] * self.unit * NS
        job.turn_ns = NEVER if last else now_ns + ceil(threshold_ns / job.gpus) - job.executed_ns


POLICY = Traits(
    name="tiresias",
    asks="lines",
    make=lambda site, options: Tiresias(unit=site.unit),
    measured="each",
    capacity=FAILING,
    parts=True,
)
