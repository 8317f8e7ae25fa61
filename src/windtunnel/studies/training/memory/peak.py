"""Peak memory of each rank class: state that stays, activations by their lifetimes in the schedule, and workspace.

A rank works through its actions one after the other, so its activations rise by what a piece's forward pass leaves and
fall with the backward; where that is split (`split_backward`) its first half adds what the second one reads. The peak
is the largest sum of what is held before an action and the most that it adds; the optimizer step has its own.

    reserved = what PyTorch's allocator holds for that: replayed, tensor by tensor (`allocations.py`), for the
               fullest rank class, and the first one where segments do not expand; allocated, and a little for pages,
               where they do and nothing has a stream of its own, or where that is more than there is already and a
               replay would take long
    device   = reserved (with headroom where segments do not expand), CUDA context (as measured, if it was), and the
               buffers of each communicator; just full where that is more than there is, but the allocator, giving back
               what it only caches, gets through with the headroom to spare

Where gradients are made anew in every step (plain PyTorch, FSDP) the sum includes those that have been made so far, and
the optimizer's peak all of them. A CPU's allocator hands out what is asked for: reserved and device equal allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.device_memory import MIB, memory_document, outside_of_allocator
from windtunnel.physics.graph.allocator import AllocatorResult, replay_allocator
from windtunnel.physics.step.result import StageMemory
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece, fresh_gradients, tensors_of
from windtunnel.studies.training.lowering.shards.pipelined_shards import (
    gathered_chunks,
    summed_chunks,
    unmerged_chunks,
)
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.memory.allocations import Action, Load, Resident, two_steps
from windtunnel.studies.training.memory.model_state import MOMENT_BYTES, State, state_bytes
from windtunnel.studies.training.memory.saved_tensors import expands, keeping
from windtunnel.studies.training.schedules import TRAITS, Kind, Schedule

BUCKET_BYTES = 25 * MIB  # DistributedDataParallel's default
POINTS = 400  # of the drawn timeline
EVENTS_MOST = 500_000  # that an allocator is replayed through where the answer can only be that it does not fit


@dataclass(frozen=True, slots=True)
class _Walk:
    at: int  # action of the peak
    activations: float  # activations at the peak
    workspace: float
    levels: NDArray[np.float64]  # held during each action, workspace included
    gradients: float = 0.0  # at the peak, where they come and go
    parameters: float = 0.0  # at the peak, beyond those that stay
    of_passes: int | None = None  # action of the peak without the optimizer's step, where that is another

    @property
    def peak(self) -> float:
        return self.activations + self.workspace + self.gradients + self.parameters


def memory_of(
    layout: Layout,
    pieces: tuple[Piece, ...],
    step: LoweredStep,
    end_ns: NDArray[np.int64],
    ranks: Sequence[int] | None = None,
) -> tuple[StageMemory, ...]:
    """Memory of every pipeline rank, or of those that lie on this type of GPU."""
    all_ranks, schedule = _Ranks(layout, pieces, step.schedule), step.schedule
    reserved, device = all_ranks.reserved, all_ranks.device
    usable, full = layout.cluster.gpu.usable_memory_bytes, False
    here = range(schedule.stages) if ranks is None else ranks
    if max(device[rank] for rank in here) > usable and all_ranks.get_through(here):
        room = usable - outside_bytes(layout)
        reserved, device, full = (
            [min(number, room) for number in reserved],
            [min(number, usable) for number in device],
            True,
        )
    stage_memories = []
    for rank in here:
        categories, walk = all_ranks.drafts[rank]
        times = end_ns[step.action_last[schedule.of_rank(rank)]]
        allocated = all_ranks.allocated[rank]
        stage_memories.append(
            StageMemory(
                stage=rank,
                ranks=layout.cluster.n_gpus // schedule.stages,
                categories=categories,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved[rank],
                device_bytes=device[rank],
                peak_time_ns=int(times[walk.at]),
                timeline=partial(_thinned, times, walk.levels + (allocated - walk.peak)),  # type: ignore[arg-type]
                gives_back=full,
            )
        )
    return tuple(stage_memories)


def peak_bytes(
    layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, capacity: int | None = None
) -> int:  # fmt: skip
    """What the fullest rank class needs on the device without giving cached memory back to the driver.

    Memory follows from the order of the passes, not from their times. Where what is allocated is more than `capacity`
    already, no allocator is replayed: the answer is then what is needed at least.
    """
    ranks = _Ranks(layout, pieces, schedule)
    least = max(ranks.least)
    return least if capacity is not None and least > capacity else max(ranks.device)


def least_bytes(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule) -> int:
    """The same if the allocator left no gaps between tensors: never more, and none is replayed."""
    return max(_Ranks(layout, pieces, schedule).least)


def ranks_peak_bytes(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule) -> list[int]:
    """The same of every rank class."""
    return _Ranks(layout, pieces, schedule).device


def least_reserved(layout: Layout) -> float:
    """So many times what is allocated is reserved on the device at least, with its headroom."""
    return _slack(layout) * (1.0 + _headroom(layout))


def _slack(layout: Layout) -> float:
    """So many times what is allocated is reserved at least."""
    if _exact(layout) or keeping(layout.plan.framework).fsdp2:  # FSDP2 records no streams
        return 1.0
    return 1.0 + float(memory_document()["slack"]["expandable" if expands(layout.plan) else "segments"])


def outside_bytes(layout: Layout) -> int:
    """What is on the device outside of the allocator."""
    communicators = sum(layout.group(name).size > 1 for name in ("tp", "cp", "dp", "ep", "pp"))
    return outside_of_allocator(layout.cluster, communicators)


def _exact(layout: Layout) -> bool:
    """Whether the device's allocator keeps nothing back."""
    return layout.cluster.gpu.generation == "cpu"


def _headroom(layout: Layout) -> float:
    """0 where the allocator has nothing that it could give back: a CPU's, or one whose segments expand."""
    return 0.0 if _exact(layout) or expands(layout.plan) else float(memory_document()["headroom"])


class _Ranks:
    """Memory of all rank classes of a job."""

    def __init__(self, layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule) -> None:
        self.layout, self.pieces, self.schedule = layout, pieces, schedule
        self.keep = keeping(layout.plan.framework)
        self.expandable = expands(layout.plan)
        self.width, self.forward_only = layout.gradient_bytes, layout.plan.task == "forward"
        self.pieces_of = [[pieces[v] for v in row] for row in schedule.virtual_stage]
        self.loads = self._loads_of_actions()
        self.drafts = [self._draft(rank) for rank in range(schedule.stages)]
        self.allocated = [sum(categories.values()) for categories, _ in self.drafts]

    @cached_property
    def least(self) -> list[int]:
        """On the device of each, if the allocator left no gaps between tensors."""
        return self._on_device(self._with_slack(self.allocated))

    @cached_property
    def device(self) -> list[int]:
        """On the device of each."""
        return self._on_device(self.reserved)

    def _on_device(self, reserved: Sequence[int]) -> list[int]:
        headroom, outside = _headroom(self.layout), outside_bytes(self.layout)
        return [int(value * (1.0 + headroom)) + outside for value in reserved]

    def _with_slack(self, allocated: Sequence[int]) -> list[int]:
        return [int(value * _slack(self.layout)) for value in allocated]

    def get_through(self, here: Sequence[int]) -> bool:
        """Whether all requests of these ranks find place, with headroom, once what is only cached was given back."""
        if _exact(self.layout) or self.expandable or self.forward_only:
            return False
        usable = self.layout.cluster.gpu.usable_memory_bytes
        most = (usable - outside_bytes(self.layout)) / (1.0 + _headroom(self.layout))
        room = int(most / _slack(self.layout))
        return max(self.allocated[rank] for rank in here) <= room and all(
            self._replay(rank, room).oom_event is None for rank in self._shown(here)
        )

    def _draft(self, rank: int) -> tuple[dict[str, int], _Walk]:
        """Allocated bytes at the peak, by category. The optimizer's step is told as part of the last action."""
        pieces = self.pieces_of[rank]
        state = self._state(pieces)
        fresh = fresh_gradients(self.layout)
        walk = self._walk(rank)
        updating = float(sum(self._updated(pieces)))
        in_step = updating + (state.gradients if fresh else 0.0)
        if in_step > walk.peak:
            levels = walk.levels.copy()
            levels[-1] = max(levels[-1], in_step)
            walk = _Walk(len(levels) - 1, 0.0, updating, levels, in_step - updating, of_passes=walk.at)
        standing = 0.0 if fresh else state.gradients
        categories = {
            "parameters": state.parameters + walk.parameters,
            "gradients": standing + walk.gradients + float(sum(self._buckets(pieces))),
            "optimizer": state.optimizer,
            "activations": walk.activations,
            "workspace": walk.workspace,
        }
        return {name: int(value) for name, value in categories.items()}, walk

    def _state(self, pieces: list[Piece]) -> State:
        state = self._held_state(pieces)
        # Sharded gradients take the place of whole ones when the step is nearly over.
        return replace(state, gradients=0.0) if self.layout.shares_once else state

    def _held_state(self, pieces: list[Piece]) -> State:
        dense, experts = (sum(piece.learning[kind] for piece in pieces) for kind in (0, 1))
        frozen, frozen_experts = (sum(piece.frozen[kind] for piece in pieces) for kind in (0, 1))
        if self.layout.plan.freezes_text:
            return state_bytes(self.layout, frozen, frozen_experts, dense)
        return state_bytes(self.layout, dense, experts, frozen=frozen)

    def _loads(self) -> NDArray[np.int64]:
        """int64[first or later, kinds, virtual stages, fields of `Load`]."""
        table = np.zeros((2, len(Kind), len(self.pieces), len(Load._fields)), np.int64)
        for kind in self.schedule.kinds:
            for stage, piece in enumerate(self.pieces):
                for later in (False, True):
                    table[int(later), kind, stage] = piece.passes.load(kind, later=later)
        return table

    def _loads_of_actions(self) -> NDArray[np.float64]:
        """float64[fields of `Load`, actions]: of every rank's actions, the first that make gradients told apart."""
        schedule = self.schedule
        kind, stage = schedule.kind, schedule.stage_of
        loads = self._loads()[self._later.astype(np.intp), kind, stage].astype(np.float64).T.copy()
        if self.forward_only:  # nothing stays for a backward pass, and there is none
            adds, most, learned, learns = loads
            adds[:] = learned[:] = learns[:] = 0.0
            most[kind != Kind.FORWARD] = 0.0
        return loads

    @cached_property
    def _later(self) -> NDArray[np.bool_]:
        """Of every action, whether gradients are there when it begins or it makes none."""
        later = np.ones(len(self.schedule.kind), np.bool_)
        later[self.schedule.first_backward[self.schedule.first_backward >= 0]] = False
        return later

    def _walk(self, rank: int) -> _Walk:
        """Through the rank's actions, to the one that holds the most."""
        schedule, pieces = self.schedule, self.pieces_of[rank]
        adds, most, learned, learns = self.loads[:, schedule.of_rank(rank)]
        before = np.cumsum(adds) - adds
        gradients = np.cumsum(learns) - learns
        parameters = np.zeros(len(adds))
        if self.layout.shares_once:
            sizes = np.array(
                [(piece.gathered_bytes, piece.unsharded_gradient_bytes, piece.unmerged_bytes) for piece in pieces]
            ).T
            parameters = gathered_chunks(schedule, rank) @ sizes[0]
            gradients = (
                gradients + summed_chunks(schedule, rank) @ sizes[1] + unmerged_chunks(schedule, rank) @ sizes[2]
            )
        root = float(sum(piece.root_bytes for piece in pieces)) + self._buffers(rank)
        during = before + most + gradients + parameters + root
        at = int(np.argmax(during))
        # What a pass leaves may come after its peak: no more of it is there than the peak holds besides gradients.
        own = float(most[at] - learned[at])  # below zero: the pass has freed more than it holds besides gradients
        stays = min(float(adds[at]), own) if adds[at] > 0.0 or own < 0.0 else 0.0
        return _Walk(
            at,
            activations=float(before[at]) + stays,
            workspace=own - stays + root,
            levels=during,
            gradients=float(gradients[at] + learned[at]),
            parameters=float(parameters[at]),
        )

    def _buffers(self, rank: int) -> float:
        """Where every micro-batch's tensors from other ranks have buffers of their own."""
        places = {int(v) for v in self.schedule.virtual_stage[rank]}
        ends = [(v, v - 1) for v in places if v > 0] + [(v, v + 1) for v in places if v < len(self.pieces) - 1]
        return self.schedule.micro_batches * sum(
            self.pieces[v].buffer_bytes for v, other in ends if other not in places
        )

    @cached_property
    def reserved(self) -> list[int]:
        """Reserved bytes of every rank class."""
        if _exact(self.layout) or (self.expandable and not self.keep.fsdp2) or self.forward_only:
            return self._with_slack(self.allocated)  # one stream, and pages that can be anywhere
        capacity = self.layout.cluster.gpu.usable_memory_bytes - outside_bytes(self.layout)
        shown = self._shown(range(self.schedule.stages))
        if max(self.allocated) > capacity and max(self._events(rank) for rank in shown) > EVENTS_MOST:
            return self._with_slack(self.allocated)
        replayed = {rank: self._replay(rank, capacity, beyond=True) for rank in shown}
        ratio = max(result.peak_reserved_bytes / max(1, self.allocated[rank]) for rank, result in replayed.items())
        whole = [
            replayed[rank].peak_reserved_bytes if rank in replayed else int(value * max(1.0, ratio))
            for rank, value in enumerate(self.allocated)
        ]
        return self._with_slack([max(value, least) for value, least in zip(whole, self.allocated, strict=True)])

    def _shown(self, here: Sequence[int]) -> list[int]:
        """The rank classes that are replayed: the fullest, and perhaps the first."""
        fullest = max(here, key=self.allocated.__getitem__)
        return sorted({fullest} if self.expandable else {min(here), fullest})

    def _replay(self, rank: int, capacity: int, *, beyond: bool = False) -> AllocatorResult:
        """Two steps of a rank class whose allocator may reserve `capacity` bytes.

        `beyond`: and more, where nothing that it can give back is enough.
        """
        events, stream = two_steps(self._actions(rank), self._resident(rank))
        if not beyond or int(np.cumsum(events[:, 1]).max(initial=0)) <= capacity:
            bounded = replay_allocator(
                events[:, 0], events[:, 1], stream=stream, capacity_bytes=capacity, expandable_segments=self.expandable
            )
            if not beyond or bounded.oom_event is None:
                return bounded
        return replay_allocator(events[:, 0], events[:, 1], stream=stream, expandable_segments=self.expandable)

    def _events(self, rank: int) -> int:
        """Of two steps, without what is outside of passes."""
        return 2 * sum(len(action.passes.events(action.kind)[0]) for action in self._actions(rank))

    def _actions(self, rank: int) -> list[Action]:
        """The rank's passes of the micro-batches that have begun by its peak, and of the next: then all repeats.

        And those that make the gradients.
        """
        schedule, walk = self.schedule, self.drafts[rank][1]
        peak = walk.at if walk.of_passes is None else walk.of_passes  # the optimizer's step follows in any case
        window = schedule.of_rank(rank)
        kind, stage, micro = schedule.kind[window], schedule.stage_of[window], schedule.micro_batch[window]
        key = stage.astype(np.int64) * int(schedule.micro_batches) + micro
        begins = np.flatnonzero(kind == Kind.FORWARD)
        later = self._later[window]
        keys = key[begins[: int(np.searchsorted(begins, peak, side="right")) + 1]]
        wanted = np.isin(key, keys) | np.isin(key, key[~later])
        rows = zip(*(values[wanted].tolist() for values in (stage, kind, key, later)), strict=True)
        return [Action(self.pieces[v].passes, Kind(k), name, after) for v, k, name, after in rows]

    def _resident(self, rank: int) -> Resident:
        """Tensors outside of passes."""
        layout, pieces = self.layout, self.pieces_of[rank]
        plan, stage = layout.plan, layout.zero_stage
        state = self._state(pieces)
        weights = _weights(pieces)
        whole = sum(weights) or 1.0
        root = int(sum(piece.root_bytes for piece in pieces))
        moments = 2 if plan.optimizer == "adam" else 1
        master = 0.0 if plan.master_dtype == "bf16" or layout.habits.parameter_dtype == "fp32" else 4.0
        share = 1.0 - master / (master + moments * MOMENT_BYTES[plan.moments_dtype])
        made_later = state.optimizer * share / moments
        units = [sum(_weights([piece])) for piece in pieces] if stage == 3 else weights
        first = [int(state.parameters * unit / whole) for unit in units]
        if layout.habits.pure_precision:
            share, made_later = 1.0, state.optimizer / moments
        first += [int(size) for piece in pieces for size in (piece.gathered_bytes, piece.unsharded_gradient_bytes)]
        gradients = 0 if fresh_gradients(layout) else int(state.gradients)  # where fresh, the passes make them
        first += [gradients, int(state.optimizer * (1.0 - share)), root, *self._buckets(pieces)]
        first += [int(self._buffers(rank)), *self._pools(pieces)]
        return Resident(
            first=tuple(size for size in first if size > 0),
            optimizer=tuple(
                size for weight in weights for _ in range(moments) if (size := int(made_later * weight / whole)) > 0
            ),
            transient=tuple(size for size in self._updated(pieces) if size > 0),
        )

    def _pools(self, pieces: list[Piece]) -> list[int]:
        """FSDP2 in a pipeline, whose passes gather and reduce nothing: what its streams for that hold on to.

        The shards of the gradients; and, where layers are gathered one by one, the flat buffers of two units.
        """
        if not self.layout.shares_once:
            return []
        pools = [int(self._held_state(pieces).gradients)]
        if not TRAITS[self.layout.schedule].has_runtime and self.keep.fsdp2:
            sizes = [block.dense_parameters + block.expert_parameters for piece in pieces for block in piece.blocks]
            whole = sum(piece.gathered_bytes for piece in pieces) / max(1.0, sum(sizes))
            pools.append(int(whole * sum(sorted(sizes)[-2:])))
        return pools

    def _buckets(self, pieces: list[Piece]) -> list[int]:
        """Flat gradient buckets of DistributedDataParallel."""
        layout = self.layout
        most = 1 if self.keep.autograd_keeps else 0  # gradients are whole on each rank up to this stage
        in_buckets = self.keep.buckets and layout.zero_stage <= most
        if self.forward_only or not in_buckets or layout.dp * layout.plan.cp == 1:
            return []
        size = (self.width if fresh_gradients(layout) else 2) * sum(sum(piece.learning) for piece in pieces)
        return [BUCKET_BYTES] * int(size // BUCKET_BYTES)

    def _updated(self, pieces: list[Piece]) -> list[int]:
        """Copies through which updated parameters are gathered: the shard, every rank's part, and all of them flat.

        Of PyTorch's AdamW over lists of tensors what it computes: the roots of all second moments; or on a CPU, which
        updates tensor by tensor, roots and divisor of one tensor while the divisor of the one before is still there.
        """
        layout = self.layout
        if self.forward_only:
            return []
        if self.keep.foreach_releases and (layout.plan.release or "").startswith(self.keep.foreach_releases):
            weights, learned = _weights(pieces), self._held_state(pieces).gradients
            return [int(learned * weight / sum(weights)) for weight in weights]
        if layout.habits.pure_precision and layout.plan.optimizer == "adam":
            sizes = [int(self.width * value) for value in tensors_of(pieces)]
            if not _exact(layout):
                return sizes
            return list(max(zip([0, *sizes], sizes, sizes, strict=False), key=sum, default=()))
        if not self.keep.updated_copy or layout.plan.zero_stage != 1 or layout.shard_group == 1:
            return []
        size = int(2 * sum(sum(p.learning) for p in pieces))
        part = max(1, size // layout.shard_group)
        return [part] * (1 + layout.shard_group) + [size]


def _weights(pieces: Sequence[Piece]) -> list[float]:
    """Parameters of each weight matrix on the rank (norms are too small to matter to the allocator)."""
    if any(op.reads for piece in pieces for block in piece.blocks for op in block.operations):
        return tensors_of(pieces)
    weights: list[float] = []
    for block in (block for piece in pieces for block in piece.blocks):
        if block.is_end:
            weights += [block.dense_parameters] if block.dense_parameters >= 1 else []
        else:
            weights += [op.weight_elements for op in block.operations if op.weight_elements]
    return weights


def _thinned(times: NDArray[np.int64], levels: NDArray[np.float64]) -> tuple[tuple[int, int], ...]:
    """At most POINTS points; within each stretch the highest one is kept, so the peak survives."""
    n = len(times)
    if n <= POINTS:
        keep = np.arange(n)
    else:
        edges = np.linspace(0, n, POINTS + 1).astype(int)
        highest = np.maximum.reduceat(levels, edges[:-1])
        there = np.flatnonzero(levels == np.repeat(highest, np.diff(edges)))
        keep = there[np.searchsorted(there, edges[:-1])]  # the first of each stretch
    return tuple(zip(times[keep].tolist(), levels[keep].astype(np.int64).tolist(), strict=True))
