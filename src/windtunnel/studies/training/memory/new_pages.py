"""On a CPU: how much of what a step writes lies on pages that the system hands out anew, in each step again.

Activations and gradients come and go. Tensors above 32 MiB have pages of their own each time, and the heap may give its
end back to the system: what is written there next is on new pages, and it is those faults, not the arithmetic, that
much of an element-wise op's time goes to. `graph/heap.py` says which bytes.

The step after the first two is counted, when the optimizer's state is where it will stay. Where the passes end, a heap
was seen to have hundreds of MB free but next to none of it at its end (`mallinfo2`): it is taken to be pinned. AdamW
makes two tensors for each parameter, of its size: whether they fit where the last ones were depends on whether small
objects got in between (`Heap(crowded=True)`), which was seen to go either way with the same program, so the mean of
both is taken.
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.physics.graph.heap import Heap
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.model_chunks import Piece, tensors_of
from windtunnel.studies.training.memory.allocations import Events
from windtunnel.studies.training.schedules import Kind, Schedule

STEPS = 3
MICRO_BATCHES = 6  # that are walked through; of more, all but the first are taken to be like these


class NewBytes(NamedTuple):
    """Bytes on new pages in one step, by what writes them, and the most that the process holds meanwhile."""

    forward: int
    backward: int
    optimizer: int
    peak: int


NONE = NewBytes(0, 0, 0, 0)


def new_bytes(layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, rank: int) -> NewBytes:
    """Of one rank of plain PyTorch in a steady step; none elsewhere."""
    if not layout.habits.pure_precision:
        return NONE
    pinned, usual, crowded = (
        _Rank(layout, pieces, schedule, rank, heap).steady() for heap in (Heap(pinned=True), Heap(), Heap(crowded=True))
    )
    return pinned._replace(optimizer=(usual.optimizer + crowded.optimizer) // 2)


class _Rank:
    def __init__(self, layout: Layout, pieces: tuple[Piece, ...], schedule: Schedule, rank: int, heap: Heap) -> None:
        self.pieces, self.heap = pieces, heap
        self.counted = [0, 0, 0]
        width = layout.gradient_bytes
        own_pieces = [pieces[int(v)] for v in schedule.virtual_stage[rank]]
        self.weights = [int(width * value) for value in tensors_of(own_pieces)]
        self.moments = 2 if layout.plan.optimizer == "adam" else 1
        window = schedule.of_rank(rank)
        kind, stage, micro = schedule.kind[window], schedule.stage_of[window], schedule.micro_batch[window]
        wanted = (kind != Kind.BACKWARD_INPUT) & (micro < MICRO_BATCHES)
        self.actions = list(zip(stage[wanted].tolist(), kind[wanted].tolist(), micro[wanted].tolist(), strict=True))
        self.more = max(0, int(schedule.micro_batches) - MICRO_BATCHES)

    def steady(self) -> NewBytes:
        for size in self.weights:
            self.heap.allocate(size)
        for number in range(STEPS):
            self.counted = [0, 0, 0]
            self._step(first=number == 0)
        forward, backward, optimizer = self.counted
        return NewBytes(forward, backward, optimizer, self.heap.most_bytes)

    def _step(self, first: bool) -> None:
        chunks: dict[tuple[int, int, int], int] = {}  # (piece, micro-batch, slot) -> chunk
        gradients: list[int] = []
        learned: set[int] = set()
        by_micro: dict[tuple[int, int], int] = {}
        for stage, kind, micro in self.actions:
            passes = self.pieces[stage].passes
            forward = kind == Kind.FORWARD
            if forward:
                events = passes.forward
            elif stage in learned and passes.later_backward is not None:
                events = passes.later_backward
            else:
                learned.add(stage)
                first_gradient = len(passes.backward) - passes.gradients
                self._walk(passes.backward[:first_gradient], chunks, stage, micro)
                self._count(1, by_micro, micro)
                gradients += [chunks.pop((stage, micro, int(slot))) for slot in passes.backward[first_gradient:, 0]]
                continue
            self._walk(events, chunks, stage, micro)
            self._count(0 if forward else 1, by_micro, micro)
        for phase in (0, 1):
            usual = [value for (which, micro), value in by_micro.items() if which == phase and micro > 0]
            if self.more and usual:
                self.counted[phase] += self.more * sum(usual) // len(usual)
        self._update(first)
        for chunk in gradients:  # zero_grad(set_to_none=True)
            self.heap.free(chunk)
        self.heap.settle()

    def _count(self, phase: int, by_micro: dict[tuple[int, int], int], micro: int) -> None:
        by_micro[phase, micro] = by_micro.get((phase, micro), 0) + self.heap.fresh_bytes
        self.counted[phase] += self.heap.fresh_bytes
        self.heap.fresh_bytes = 0

    def _walk(self, events: Events, chunks: dict[tuple[int, int, int], int], stage: int, micro: int) -> None:
        for slot, size in events.tolist():
            if size > 0:
                chunks[stage, micro, slot] = self.heap.allocate(size)
            elif size < 0:
                self.heap.free(chunks.pop((stage, micro, slot)))

    def _update(self, first: bool) -> None:
        """AdamW, tensor by tensor: the second moment's root, and that divided; the divisor before lives until then."""
        heap = self.heap
        if first:
            for size in self.weights:
                for _ in range(self.moments):
                    heap.allocate(size)
        before: int | None = None
        for size in self.weights:
            root = heap.allocate(size)
            divisor = heap.allocate(size)
            heap.free(root)
            if before is not None:
                heap.free(before)
            before = divisor
        if before is not None:
            heap.free(before)
        self.counted[2] += heap.fresh_bytes
        heap.fresh_bytes = 0
