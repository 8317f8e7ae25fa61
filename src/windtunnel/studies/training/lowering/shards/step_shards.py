"""What data-parallel ranks do about parameters and gradients that they share: gathers before passes, reductions behind.

The first forward and the last backward of a piece are cut into buckets, so that parameters gathered and gradients
reduced bucket by bucket overlap them as far as they really can. What passes gather and reduce themselves (ZeRO-2, -3)
is inside them: `segments`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece
from windtunnel.studies.training.lowering.shards.pipelined_shards import fetches
from windtunnel.studies.training.lowering.step_actions import Actions
from windtunnel.studies.training.lowering.step_builder import Collective, StepBuilder
from windtunnel.studies.training.memory.saved_tensors import keeping
from windtunnel.studies.training.pricing import parameter_bytes
from windtunnel.studies.training.schedules import TRAITS

BUCKETS_MOST = 8


@dataclass(frozen=True, eq=False)
class Buckets:
    """Of each piece of each rank, int64[ranks, chunks]."""

    count: NDArray[np.int64]
    first: NDArray[np.int64]  # its first forward action
    last: NDArray[np.int64]  # its last backward action

    def parts(self, actions: int) -> NDArray[np.int64]:
        """int64[actions]: in how many parts each action runs."""
        parts = np.ones(actions, np.int64)
        parts[self.first.ravel()] = self.count.ravel()
        parts[self.last.ravel()] = self.count.ravel()
        return parts


def gathers_first(layout: Layout) -> bool:
    """Whether parameters that the last step updated in shards are gathered at the start of this one."""
    return layout.plan.zero_stage in (1, 2) and _replicated(layout) and not layout.shares_once


def reduces_last(layout: Layout) -> bool:
    """Whether gradients are reduced behind the last backward of each piece."""
    return layout.zero_stage < 2 and _replicated(layout)


def shares_once(layout: Layout) -> bool:
    """Whether anything is shared once in a step (`pipelined_shards`)."""
    return layout.shares_once and _replicated(layout)


def _replicated(layout: Layout) -> bool:
    return layout.dp * layout.plan.cp > 1 or layout.group("edp").size > 1


def buckets_of(build: StepBuilder) -> Buckets:
    """How many buckets each piece's parameters come in, and the actions that they overlap."""
    schedule, layout = build.schedule, build.layout
    stages, chunks = schedule.stages, schedule.chunks
    parameters = np.array([[sum(piece.learning) for piece in build.pieces_of(rank)] for rank in range(stages)])
    # With several chunks only the last one's reduction is exposed, so fewer buckets each say as much.
    most = max(2, BUCKETS_MOST // chunks)
    count = np.clip(np.ceil(parameters / layout.message_parameters), 1, most).astype(np.int64)
    if shares_once(layout) and not TRAITS[schedule.name].has_runtime:
        units = np.array([[_units(piece) for piece in build.pieces_of(rank)] for rank in range(stages)])
        count = np.clip(units, 1, most).astype(np.int64)
    elif not (gathers_first(layout) or reduces_last(layout)):
        count[:] = 1
    return Buckets(count, schedule.first_forward, schedule.last_backward)


def add_gathers(build: StepBuilder, buckets: Buckets) -> dict[tuple[int, int], list[int]]:
    """Parameters gathered at the start of the step: the last op of each bucket, by rank and chunk."""
    if not gathers_first(build.layout):
        return {}
    width = parameter_bytes(build.plan)
    gathers: dict[tuple[int, int], list[int]] = {}
    for rank in range(build.schedule.stages):
        for chunk, piece in enumerate(build.pieces_of(rank)):
            count = int(buckets.count[rank, chunk])
            gathers[rank, chunk] = _buckets(build, "gather parameters", "all_gather", piece, count, width, rank)
    return gathers


def wait_for_gathers(
    build: StepBuilder, gathers: dict[tuple[int, int], list[int]], buckets: Buckets, actions: Actions
) -> None:  # fmt: skip
    """A piece's first forward pass waits bucket by bucket, or everything for all of them."""
    for (rank, chunk), bucket_ops in gathers.items():
        start = int(actions.first[buckets.first[rank, chunk]])
        if build.plan.overlap_param_gather:
            for number, op in enumerate(bucket_ops):
                if op >= 0:
                    build.ops.wait(start + number, op)
        else:
            earliest = int(actions.first[build.schedule.rank_offset[rank]])
            done = [op for op in bucket_ops if op >= 0]
            if done:
                build.ops.wait(earliest, done[-1])


def add_shared_once(build: StepBuilder, buckets: Buckets, actions: Actions) -> dict[int, int]:
    """Gathers and reductions of sharded data parallelism in a pipeline. Returns each rank's last reduction.

    torch.distributed.pipelining waits for a reduction, and drops a chunk's parameters to gather them again. Elsewhere
    reductions overlap as the plan says, and where only gradients are sharded parameters stay.
    """
    if not shares_once(build.layout):
        return {}
    by_torch = keeping(build.plan.framework).torch_pipelining
    waits = by_torch or not build.plan.overlap_grad_reduce
    schedule, pointer, needs = build.schedule, *build.schedule.depends()
    layer_by_layer = not TRAITS[schedule.name].has_runtime
    widths = {"all_gather": parameter_bytes(build.plan), "reduce_scatter": build.layout.gradient_bytes}
    ends: dict[int, int] = {}
    for rank in range(schedule.stages):
        begin, end = (int(offset) for offset in schedule.rank_offset[rank : rank + 2])
        # What a chunk's last backward leaves is reduced before the next chunks are fetched.
        todo = [(int(buckets.last[rank, chunk]) + 1, "", chunk, 0) for chunk in range(schedule.chunks)]
        fetched = fetches(schedule, rank)
        if not by_torch:
            fetched = list({fetch.chunk: fetch for fetch in reversed(fetched)}.values())
        todo += [(begin + fetch.before, "gather", fetch.chunk, begin + fetch.used) for fetch in fetched]
        for place, gather, chunk, used in sorted(todo, key=lambda task: (task[0], task[1], task[3])):
            piece = build.piece(rank, chunk)
            name, kind = ("gather parameters", "all_gather") if gather else ("reduce gradients", "reduce_scatter")
            count = int(buckets.count[rank, chunk]) if gather and layer_by_layer else 1
            begins = [int(actions.last[place - 1])] if place > begin else []
            if gather and layer_by_layer:  # not before its input has come
                begins = [int(actions.arrival[need]) for need in needs[pointer[used] : pointer[used + 1]]]
            if not gather and build.layout.sums_norms:
                begins = build.sum_norms(rank, [piece], begins)
            for number in range(count):
                following = build.ops.n
                (op,) = _buckets(build, name, kind, piece, count, widths[kind], rank, times=1)
                if op < 0:
                    continue
                for earlier in begins if number == 0 else ():
                    build.ops.wait(following, earlier)
                if gather:
                    build.ops.wait(int(actions.first[used]) + number, op)
                elif place < end and waits:
                    build.ops.wait(int(actions.first[place]), op)
                if not gather:
                    ends[rank] = op
    return ends


def add_reductions(build: StepBuilder, buckets: Buckets, actions: Actions, rank: int, final: int) -> int:
    """A rank's gradients reduced behind its last backwards, or all behind `final`. Returns the last op, else -1."""
    if not reduces_last(build.layout):
        return -1
    kind = "all_reduce" if build.layout.zero_stage == 0 else "reduce_scatter"
    done = -1
    for chunk in sorted(range(build.schedule.chunks), key=lambda c: int(buckets.last[rank, c])):
        piece, count = build.piece(rank, chunk), int(buckets.count[rank, chunk])
        first, width = int(actions.first[buckets.last[rank, chunk]]), build.layout.gradient_bytes
        before = build.ops.n
        for number, op in enumerate(_buckets(build, "reduce gradients", kind, piece, count, width, rank)):
            if op >= 0:
                build.ops.wait(before, first + number if build.plan.overlap_grad_reduce else final)
                done, before = op, op + 1
    return done


def _buckets(
    build: StepBuilder, name: str, kind: str, piece: Piece, count: int, width: float, rank: int, times: int = 0
) -> list[int]:
    """A piece's `count` buckets, or `times` of them; the last collective of each, -1 where a bucket has none."""
    key, last = (id(piece), kind, count), -1
    own = build.bucket(key, lambda: _bucket(build, name, kind, piece, count, width))
    buckets = []
    for _ in range(times or count):
        for collective in own:
            last = build.add(collective, rank)
        buckets.append(last)
    return buckets


def _bucket(build: StepBuilder, name: str, kind: str, piece: Piece, count: int, width: float) -> list[Collective]:
    """One bucket's collectives: dense and expert parameters have their own groups."""
    layout, collectives = build.layout, []
    # Where shards are gathered for every step all are, the frozen ones too.
    everything = kind == "all_gather" and layout.shares_once
    dense, experts = (piece.dense_parameters, piece.expert_parameters) if everything else piece.learning
    for parameters, group in ((dense, "dp"), (experts, "edp")):
        if parameters and group == "dp" and layout.shard_group == 1 and layout.replicas > 1:
            if kind != "all_gather":  # every rank shards with itself alone: whole gradients are summed
                collectives.append(
                    build.collective(name, Transfer("all_reduce", "replica", parameters * width / count))
                )
        elif parameters and layout.group(group).size > 1:
            whole = _units(piece) if layout.shares_once else parameters / layout.message_parameters
            messages = max(1, round(whole / count))
            collectives.append(
                build.collective(name, Transfer(kind, group, parameters * width / count), messages=messages)
            )
            if kind == "reduce_scatter" and group == "dp" and layout.replicas > 1:
                own = parameters * width / count / layout.shard_group
                collectives.append(build.collective("reduce replicas", Transfer("all_reduce", "replica", own)))
    return collectives


def _units(piece: Piece) -> int:
    """Units in which FSDP2 shards a piece: its layers, and what is left as one."""
    return piece.n_layers + any(block.is_end for block in piece.blocks)
