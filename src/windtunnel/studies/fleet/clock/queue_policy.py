"""A policy whose jobs wait in lines on a board; it answers a snapshot of all jobs too, as other policies do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from windtunnel.studies.fleet.clock.board import Board, Move
from windtunnel.studies.fleet.clock.decision import EMPTY, Decision, JobView, Placement, Snapshot
from windtunnel.studies.fleet.clock.running import NS, Moment, Rank, Running
from windtunnel.studies.fleet.clock.work import Rigid, Unknown
from windtunnel.studies.fleet.parts.devices import BoardOfParts


class QueuePolicy:
    """A policy whose jobs wait in lines, in the order of `rank`, and that moves some of them at a time."""

    def rank(self, job: Running) -> Rank:
        """Where a job stands in the queue."""
        raise NotImplementedError

    def line(self, job: Running) -> Hashable:
        """In which line it waits: with those that find room where it does."""
        return job.gpus if job.part is None else (job.gpus, job.part)

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts and stops now."""
        raise NotImplementedError

    def keeps_progress(self, job: Running) -> bool:
        """Whether a job that it stops goes on where it was."""
        return True

    def delay_ns(self, job: Running, board: Board) -> int:
        """How long a job that it starts now holds its GPUs before it begins."""
        return 0

    def run_whole(self, jobs: list[Running], nodes: list[int]) -> bool:
        """Run all jobs at once on nodes that stay; False: the clock is to run them."""
        return False

    def further(self, board: Board, jobs: Sequence[Running]) -> dict[str, object]:
        """Further aggregates of a run that has ended."""
        return {}

    def restore(self, board: Board, memory: object) -> None:
        """Take up at another snapshot what the policy remembered."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """Answer a snapshot as other policies do. `Decision.memory`: ranks of jobs, and what the policy remembers."""
        moment = Moment(round(snapshot.now_s * NS))
        remembered: tuple[dict[int, Rank], object] = snapshot.memory or ({}, None)
        ranks, own = remembered
        jobs = [_job_of(job, moment) for job in snapshot.jobs]
        board = board_for(jobs, snapshot.nodes, moment, self.line)
        for job in jobs:
            job.rank = ranks[job.index] if job.index in ranks else self.rank(job)
            if job.placement:
                board.take(job, job.placement)
            else:
                board.wait(job)
        if own is not None:
            self.restore(board, own)
        rejected = []
        for job, placement in self.choose(board):
            carry_out(board, job, placement)
            if placement == EMPTY:
                rejected.append(job.index)
            job.placement = placement or EMPTY
            job.counts = tuple(count for _, count in job.placement)
        running = [job for job in jobs if job.placement]
        return Decision(
            {job.index: job.held_gpus for job in running},
            {job.index: job.placement for job in running},
            reject=tuple(rejected),
            wake_s=None if board.wake_ns is None else board.wake_ns / NS,
            memory=({job.index: job.rank for job in jobs}, board.memory),
            spots={job.index: job.spots for job in running if job.part is not None},
        )


def board_for(
    jobs: Sequence[Running], nodes: Sequence[int], moment: Moment, line: Callable[[Running], Hashable]
) -> Board:
    """A board on which these jobs can be placed. `nodes`: in units where one may ask for parts or GPUs are cut."""
    if all(job.part is None for job in jobs) and max(nodes, default=0) < BoardOfParts.unit:
        return Board(nodes, moment, line)
    return BoardOfParts(nodes, moment, line)


def carry_out(board: Board, job: Running, placement: Placement | None) -> None:
    """Carry a move out on the board: jobs leave and join lines, GPUs are taken and given back."""
    if placement is None:
        board.give(job, job.placement)
        board.wait(job)
        return
    if not placement and job.placement:
        board.give(job, job.placement)
        return
    board.leave(job)
    if placement:
        board.take(job, placement)


def _job_of(view: JobView, moment: Moment) -> Running:
    """A job of a snapshot as the board has it."""
    is_rigid = view.remaining_s is not None
    left_ns = round((view.remaining_s or 0.0) * NS)
    job = Running(view.index, round(view.submit_s * NS), view.gpus, Rigid(left_ns / NS) if is_rigid else Unknown())
    job.moment = moment
    job.limit_s, job.priority, job.queue, job.owner = view.limit_s, view.priority, view.queue, view.owner
    job.part, job.spots = view.part, view.spots
    job.placement, job.counts = view.placement, tuple(count for _, count in view.placement)
    job.held_ns, job.gpu_ns = round(view.executed_s * NS), round(view.gpu_seconds * NS)
    job.held_since_ns = job.since_ns = moment.ns
    job.placed_ns = moment.ns - job.held_ns  # a job that nobody stops has one placement
    job.due_ns = moment.ns + left_ns
    return job
