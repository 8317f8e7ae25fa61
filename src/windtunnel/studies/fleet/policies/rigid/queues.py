"""Rigid gangs in one queue: FIFO, SJF, both with skipping, and EASY backfill, for traces of any length.

    fifo        (submit, row); the head blocks                 fifo-skip   pass the queue in order, start all that fits
    sjf         (duration, submit, row); the head blocks       sjf-skip    the same in that order
    easy        fifo with the head reserved and others backfilled around the reservation

No preemption and no estimates: durations are known. The loops are `engine/compiled/fleet/queue_kernels.py`.

`Waiting` is the same as policies of lines, for clusters whose nodes come and go. What runs keeps running; `block`
ends at the first that does not fit, `skip` passes it, `easy` reserves it and backfills around the reservation. A gang
up to a node goes to the fitting node with least free GPUs, a larger one to free nodes and its remainder to another;
ties to the lowest number. A job that a failure stopped stands where its submission puts it. With nothing failing the
starts are those of the compiled queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.clock.board import Board, Move, next_in_queue
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits

Array = NDArray[np.int64]
NAMES = ("fifo", "fifo-skip", "sjf", "sjf-skip", "easy")


def run_queue(
    name: str,
    submit_ns: Array,
    duration_ns: Array,
    gpus: Array,
    *,
    nodes: int,
    per_node: int,
    pool: bool,
    kernel: Callable[..., object] | None = None,
) -> tuple[Array, Array]:
    """(start in ns, nodes as (first whole node, node of the rest)) of each job. All must be possible.

    `pool`: GPUs are a count, not on nodes. `kernel`: another `run`, e.g. the uncompiled one.
    """
    from windtunnel.physics.engine.compiled.fleet.queue_kernels import BLOCK, EASY, SKIP, empty_nodes
    from windtunnel.physics.engine.compiled.fleet.queue_kernels import run as compiled

    assert name in NAMES
    jobs = len(submit_ns)
    row = np.arange(jobs)
    arrival = np.lexsort((row, submit_ns))
    queue = np.lexsort((row, submit_ns, duration_ns)) if name.startswith("sjf") else arrival
    order = np.empty(jobs, np.int64)
    order[queue] = row
    sizes, size_of = np.unique(gpus, return_inverse=True)
    by_size = np.lexsort((order, size_of))
    counts = np.bincount(size_of, minlength=len(sizes))
    job_base = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    leaf_of = np.empty(jobs, np.int64)
    leaf_of[by_size] = row - job_base[size_of[by_size]]
    leaves = np.array([1 << max(int(count - 1).bit_length(), 0) for count in counts], np.int64)
    base = np.concatenate([[0], np.cumsum(2 * leaves)]).astype(np.int64)
    start = np.full(jobs, -1, np.int64)
    placed = np.full((jobs, 2), -1, np.int64)
    mode = EASY if name == "easy" else SKIP if name.endswith("-skip") else BLOCK
    (kernel or compiled)(
        np.ascontiguousarray(submit_ns),
        np.ascontiguousarray(duration_ns),
        np.ascontiguousarray(gpus),
        arrival.astype(np.int64),
        order,
        size_of.astype(np.int64),
        leaf_of,
        by_size.astype(np.int64),
        base,
        leaves,
        job_base,
        sizes.astype(np.int64),
        empty_nodes(nodes, per_node),
        0 if pool else per_node,
        nodes * per_node,
        mode,
        start,
        placed,
    )
    return start, placed


def _queue(name: str) -> Traits:
    rule = "easy" if name == "easy" else "skip" if name.endswith("-skip") else "block"
    return Traits(
        name=name,
        asks="lines",
        make=lambda site, options: Waiting(name.startswith("sjf"), rule, 0 if options.pool else site.per_node),
        measured="whole",
        capacity=FAILING,
        compiled=True,
        parts=True,
        compatible=True,
        other_names=("backfill",) if name == "easy" else (),
    )


POLICIES = tuple(_queue(name) for name in NAMES)


NEVER = 2**62


@dataclass(frozen=True)
class Waiting(QueuePolicy):
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
                job = next_in_queue(queue)
                continue
            placement = board.room(job, self.per_node)
            if placement is not None:
                spare -= job.gpus if late else 0
                yield job, placement
            elif self.rule == "block":
                return
            elif self.rule == "easy" and not reserved:
                reserved = True
                until_ns, spare = _reservation(job.gpus, board)
            job = next_in_queue(queue, size=placement is None)


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
