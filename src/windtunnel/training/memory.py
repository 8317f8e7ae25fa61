"""Peak memory of each rank class: state that stays, activations by their lifetimes in the schedule, and workspace.

A rank works through its actions one after the other, so its activations rise by what a piece's forward pass leaves and
fall with the backward (with the weight gradient, where that is split off). The allocated peak is the largest sum over
actions of what is held before and the most that the action adds; the optimizer step has its own peak.

    reserved = what PyTorch's allocator holds for that: replayed, tensor by tensor (`training/allocations.py`), for the
               fullest rank class and the first one where the framework does not use expandable segments; else
               allocated, and a little for pages
    device   = reserved (with headroom where segments do not expand), CUDA context, and the buffers of each communicator

Plain PyTorch makes gradients anew in every step, so there the sum includes those that have been made so far, and the
optimizer's peak all of them. A CPU's allocator hands out what is asked for: reserved and device equal allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.allocator import AllocatorResult, replay_allocator
from windtunnel.result import StageMemory
from windtunnel.training.allocations import Passes, Resident, two_steps
from windtunnel.training.keeping import keeping, memory_document
from windtunnel.training.layout import Layout
from windtunnel.training.lower import Step
from windtunnel.training.pieces import Piece, tensors_of
from windtunnel.training.pipelined_shards import gathered_chunks, summed_chunks
from windtunnel.training.pricing import GRADIENT_BYTES
from windtunnel.training.schedules import Kind, Schedule
from windtunnel.training.state import State, state_bytes

MIB = 1 << 20
BUCKET_BYTES = 25 * MIB  # DistributedDataParallel's default
POINTS = 400  # of the drawn timeline


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of each piece's passes, [virtual stages]."""

    saved: NDArray[np.float64]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    gradients: NDArray[np.float64]
    peak_gradients: NDArray[np.float64]
    later: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Walk:
    at: int  # action of the peak
    held: float  # activations at the peak
    workspace: float
    levels: NDArray[np.float64]  # held during each action, workspace included
    gradients: float = 0.0  # at the peak, where they come and go
    parameters: float = 0.0  # at the peak, beyond those that stay

    @property
    def peak(self) -> float:
        return self.held + self.workspace + self.gradients + self.parameters


def memory_of(
    layout: Layout, pieces: tuple[Piece, ...], step: Step, end_ns: NDArray[np.int64]
) -> tuple[StageMemory, ...]:  # fmt: skip
    """Memory of every pipeline rank."""
    schedule = step.schedule
    outside = outside_bytes(layout)
    exact = _exact(layout) or keeping(layout.plan.framework).expandable
    headroom = 0.0 if exact else float(memory_document()["headroom"])
    capacity = layout.cluster.gpu.usable_memory_bytes - outside
    sizes = _Sizes(
        *(
            np.array([getattr(piece.passes, name) for piece in pieces], np.float64)
            for name in (
                *("saved_bytes", "forward_workspace_bytes", "backward_workspace_bytes"),
                *("gradient_bytes", "peak_gradient_bytes", "later_workspace_bytes"),
            )
        )
    )
    drafts = [_draft(layout, pieces, schedule, rank, sizes) for rank in range(schedule.stages)]
    allocated = [sum(categories.values()) for categories, _ in drafts]
    reserved = _reserved(layout, pieces, schedule, allocated, [walk.at for _, walk in drafts], capacity)
    found = []
    for rank, (categories, walk) in enumerate(drafts):
        first, last = int(schedule.rank_offset[rank]), int(schedule.rank_offset[rank + 1])
        times = end_ns[step.action_last[first:last]]
        static = allocated[rank] - walk.peak
        found.append(
            StageMemory(
                stage=rank,
                ranks=layout.cluster.n_gpus // schedule.stages,
                categories=categories,
                peak_allocated_bytes=allocated[rank],
                peak_reserved_bytes=reserved[rank],
                device_bytes=int(reserved[rank] * (1.0 + headroom)) + outside,
                peak_time_ns=int(times[walk.at]),
                timeline=_thinned(times, walk.levels + static),
            )
        )
    return tuple(found)


def outside_bytes(layout: Layout) -> int:
    """What is on the device outside of the allocator."""
    if _exact(layout):
        return 0
    document = memory_document()
    communicators = sum(layout.group(name).size > 1 for name in ("tp", "cp", "dp", "ep", "pp"))
    return int((document["context_mib"] + document["communicator_mib"] * communicators) * MIB)


def _draft(
    layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, rank: int, sizes: _Sizes
) -> tuple[dict[str, int], _Walk]:
    """Allocated bytes at the peak, by category."""
    held = [pieces[v] for v in schedule.virtual_stage[rank]]
    state = _state(layout, held)
    walk = _walk(layout, pieces, rank, sizes, schedule)
    root = sum(piece.root_bytes for piece in held)
    buckets = float(sum(_buckets(layout, held)))
    updating = float(sum(_updated(layout, held)))
    if layout.habits.pure_precision:
        return _plain_draft(state, walk, buckets, updating)
    activations, workspace = walk.held, walk.workspace + root
    if updating > activations + workspace:  # the peak is in the optimizer step
        activations, workspace = 0.0, updating
    categories = {
        "parameters": state.parameters + walk.parameters,
        "gradients": state.gradients + walk.gradients + buckets,
        "optimizer": state.optimizer,
        "activations": activations,
        "workspace": workspace,
    }
    return {name: int(value) for name, value in categories.items()}, walk


def _plain_draft(state: State, walk: _Walk, buckets: float, updating: float) -> tuple[dict[str, int], _Walk]:
    """As `_draft`, where gradients come and go. The optimizer's step is told as part of the last action."""
    in_step = state.gradients + updating
    if in_step > walk.peak:
        levels = walk.levels.copy()
        levels[-1] = max(levels[-1], in_step)
        walk = _Walk(len(levels) - 1, 0.0, updating, levels, state.gradients)
    categories = {
        "parameters": state.parameters,
        "gradients": walk.gradients + buckets,
        "optimizer": state.optimizer,
        "activations": walk.held,
        "workspace": walk.workspace,
    }
    return {name: int(value) for name, value in categories.items()}, walk


def _exact(layout: Layout) -> bool:
    """Whether the device's allocator keeps nothing back."""
    return layout.cluster.gpu.generation == "cpu"


def _state(layout: Layout, held: list[Piece]) -> State:
    state = state_bytes(layout, sum(p.dense_parameters for p in held), sum(p.expert_parameters for p in held))
    # Sharded gradients take the place of whole ones when the step is nearly over.
    return replace(state, gradients=0.0) if layout.shares_once else state


def _walk(
    layout: Layout, pieces: tuple[Piece, ...], rank: int, sizes: _Sizes, schedule: Schedule
) -> _Walk:  # fmt: skip
    window = slice(int(schedule.rank_offset[rank]), int(schedule.rank_offset[rank + 1]))
    kind, stage = schedule.kind[window], schedule.stage_of[window]
    saved = sizes.saved[stage]
    forward = kind == Kind.FORWARD
    after = np.cumsum(np.where(forward, saved, np.where(kind != Kind.BACKWARD_INPUT, -saved, 0.0)))
    most = after.copy()
    most[1:] = np.maximum(after[1:], after[:-1])
    workspace = np.where(forward, sizes.forward[stage], sizes.backward[stage])
    if layout.shares_once:
        held = [pieces[v] for v in schedule.virtual_stage[rank]]
        whole = gathered_chunks(schedule, rank) @ np.array([piece.whole_bytes for piece in held])
        summed = summed_chunks(schedule, rank) @ np.array([piece.summed_bytes for piece in held])
        during = most + workspace + whole + summed
        at = int(np.argmax(during))
        return _Walk(at, float(most[at]), float(workspace[at]), during, float(summed[at]), float(whole[at]))
    if not sizes.gradients.any():
        during = most + workspace
        at = int(np.argmax(during))
        return _Walk(at, float(most[at]), float(workspace[at]), during)
    makes = np.zeros(len(kind), bool)
    backward = np.flatnonzero((kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_WEIGHT))
    makes[backward[np.unique(stage[backward], return_index=True)[1]]] = True
    made = np.where(makes, sizes.gradients[stage], 0.0)
    there = np.cumsum(made) - made
    workspace = np.where(forward | makes, workspace, sizes.later[stage])
    during = most + workspace + there
    at = int(np.argmax(during))
    own = float(sizes.peak_gradients[stage[at]]) if makes[at] else 0.0
    return _Walk(at, float(most[at]), float(workspace[at]) - own, during, float(there[at]) + own)


def _reserved(
    layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, allocated: list[int], peaks: list[int], capacity: int
) -> list[int]:  # fmt: skip
    """Reserved bytes of every rank class."""
    slack = memory_document()["slack"]
    if _exact(layout):
        return allocated
    if keeping(layout.plan.framework).expandable:
        return [int(value * (1.0 + float(slack["expandable"]))) for value in allocated]
    shown = {0, int(np.argmax(allocated))}
    replayed = {rank: _replay(layout, pieces, schedule, rank, peaks[rank], capacity) for rank in sorted(shown)}
    ratio = max(result.peak_reserved_bytes / max(1, allocated[rank]) for rank, result in replayed.items())
    whole = [
        replayed[rank].peak_reserved_bytes if rank in replayed else int(value * max(1.0, ratio))
        for rank, value in enumerate(allocated)
    ]
    more = 1.0 + float(slack["segments"])
    return [int(max(value, least) * more) for value, least in zip(whole, allocated, strict=True)]


def _replay(
    layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, rank: int, peak: int, capacity: int
) -> AllocatorResult:  # fmt: skip
    """Two steps of a rank class; beyond `capacity` only when nothing that the allocator can give back is enough."""
    held = [pieces[v] for v in schedule.virtual_stage[rank]]
    events = two_steps(_actions(pieces, schedule, rank, peak), _resident(layout, held))
    result = replay_allocator(events[:, 0], events[:, 1], capacity_bytes=capacity)
    return result if result.oom_event is None else replay_allocator(events[:, 0], events[:, 1])


def _actions(pieces: tuple[Piece, ...], schedule: Schedule, rank: int, peak: int) -> list[tuple[Passes, bool, int]]:
    """The rank's passes of the micro-batches that have begun by its peak, and of the next: then everything repeats."""
    window = slice(int(schedule.rank_offset[rank]), int(schedule.rank_offset[rank + 1]))
    kind, stage, micro = schedule.kind[window], schedule.stage_of[window], schedule.micro_batch[window]
    key = stage.astype(np.int64) * int(schedule.micro_batches) + micro
    begins = np.flatnonzero(kind == Kind.FORWARD)
    begun = key[begins[: int(np.searchsorted(begins, peak, side="right")) + 1]]
    wanted = np.isin(key, begun) & (kind != Kind.BACKWARD_INPUT)
    rows = zip(stage[wanted].tolist(), kind[wanted].tolist(), key[wanted].tolist(), strict=True)
    return [(pieces[v].passes, k == Kind.FORWARD, name) for v, k, name in rows]


def _weights(held: Sequence[Piece]) -> list[float]:
    """Parameters of each weight matrix on the rank (norms are too small to matter to the allocator)."""
    if any(op.reads for piece in held for block in piece.blocks for op in block.operations):
        return tensors_of(held)
    found: list[float] = []
    for block in (block for piece in held for block in piece.blocks):
        if block.is_end:
            found += [block.dense_parameters] if block.dense_parameters >= 1 else []
        else:
            found += [op.weight_elements for op in block.operations if op.weight_elements]
    return found


def _resident(layout: Layout, held: list[Piece]) -> Resident:
    """Tensors outside of passes."""
    plan, stage = layout.plan, layout.plan.zero_stage or 0
    state = _state(layout, held)
    weights = _weights(held)
    whole = sum(weights) or 1.0
    root = int(sum(piece.root_bytes for piece in held))
    moments = 2 if plan.optimizer == "adam" else 1
    master = 0.0 if layout.habits.parameter_dtype == "fp32" else 4.0
    share = 1.0 - master / (master + moments * (4.0 if plan.optimizer_dtype == "fp32" else 2.0))
    made_later = state.optimizer * share / moments
    units = [sum(_weights([piece])) for piece in held] if stage == 3 else weights
    first = [int(state.parameters * one / whole) for one in units]
    transient = _updated(layout, held)
    if layout.habits.pure_precision:
        share, made_later = 1.0, state.optimizer / moments
        transient = [*(int(state.gradients * one / whole) for one in weights), *transient]
        state = replace(state, gradients=0.0)
    first += [int(size) for piece in held for size in (piece.whole_bytes, piece.summed_bytes)]
    first += [int(state.gradients), int(state.optimizer * (1.0 - share)), root, *_buckets(layout, held)]
    return Resident(
        first=tuple(size for size in first if size > 0),
        optimizer=tuple(size for one in weights for _ in range(moments) if (size := int(made_later * one / whole)) > 0),
        transient=tuple(size for size in transient if size > 0),
    )


def _buckets(layout: Layout, held: list[Piece]) -> list[int]:
    """Flat gradient buckets of DistributedDataParallel."""
    if not keeping(layout.plan.framework).buckets or layout.plan.zero_stage or layout.dp * layout.plan.cp == 1:
        return []
    width = GRADIENT_BYTES[layout.plan.gradient_dtype or "bf16"] if layout.habits.pure_precision else 2
    size = width * sum(p.dense_parameters + p.expert_parameters for p in held)
    return [BUCKET_BYTES] * int(size // BUCKET_BYTES)


def _updated(layout: Layout, held: list[Piece]) -> list[int]:
    """Copies through which updated parameters are gathered: the shard, every rank's part, and all of them flat.

    In plain PyTorch what AdamW computes: the roots of all second moments; or on a CPU, which updates tensor by tensor,
    roots and divisor of one tensor while the divisor of the one before is still there.
    """
    if layout.habits.pure_precision and layout.plan.optimizer == "adam":
        width = GRADIENT_BYTES[layout.plan.gradient_dtype or "bf16"]
        sizes = [int(width * one) for one in tensors_of(held)]
        if not _exact(layout):
            return sizes
        return list(max(zip([0, *sizes], sizes, sizes, strict=False), key=sum, default=()))
    if not keeping(layout.plan.framework).updated_copy or layout.plan.zero_stage != 1 or layout.shard_group == 1:
        return []
    size = int(2 * sum(p.dense_parameters + p.expert_parameters for p in held))
    part = max(1, size // layout.shard_group)
    return [part] * (1 + layout.shard_group) + [size]


def _thinned(times: NDArray[np.int64], levels: NDArray[np.float64]) -> tuple[tuple[int, int], ...]:
    """At most POINTS points; within each stretch the highest one is kept, so the peak survives."""
    n = len(times)
    if n <= POINTS:
        keep = np.arange(n)
    else:
        edges = np.linspace(0, n, POINTS + 1).astype(int)
        keep = np.array([a + int(np.argmax(levels[a:b])) for a, b in pairwise(edges)])
    return tuple((int(t), int(b)) for t, b in zip(times[keep], levels[keep], strict=True))
