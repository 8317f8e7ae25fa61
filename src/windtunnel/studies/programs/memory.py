"""Memory of a captured program: its storages through the caching allocator, the peak by category, and the op there.

The allocator gets its whole history, since where something lies decides what else fits beside it: what is there before
the first step, a first step that makes the optimizer's state when it first steps, and steps as captured. What a step
leaves behind takes the place of what the next one finds (gradients that are made anew, for one), matched by size. On a
CPU bytes count as asked for, and nothing is kept back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.allocator import replay_allocator
from windtunnel.physics.graph.allocator_settings import AllocatorSettings
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram

CATEGORIES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "activations",
    "communication": "communication",
}
OTHERS = "workspace"  # temporaries, and what has no name
STEPS = 4  # a first one, and until what is reserved stays; later ones reserve no more


@dataclass(frozen=True, eq=False)
class CapturedMemory:
    """Peaks of one program in its steady step."""

    categories: Mapping[str, int]  # at the allocated peak; sums to it
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    op_at_peak: int  # index into the program's ops; -1: before the first
    oom_op: int | None  # where memory ran out, None: it did not
    event_op: NDArray[np.int64]  # [events] of the second step
    allocated_bytes: NDArray[np.int64]  # [events] after each

    def where(self, program: RankProgram, op: int | None = None) -> str:
        """The op at the peak (or another) in words."""
        index = self.op_at_peak if op is None else op
        return op_text(program.ops[index]) if 0 <= index < len(program.ops) else "the beginning of the step"


def op_text(op: Op) -> str:
    """`aten.mm of layers.3.mlp in the backward pass`."""
    again = "its recomputation in " if op.recompute else ""
    return f"{op.name}{f' of {op.module}' if op.module else ''} in {again}the {op.phase} phase"


def memory_of_program(
    program: RankProgram,
    *,
    capacity_bytes: int | None = None,
    exact: bool = False,
    settings: AllocatorSettings = AllocatorSettings(),
) -> CapturedMemory:
    """Replay a program's storages. `exact`: no allocator between, as on a CPU.

    `capacity_bytes`: what the allocator may reserve.
    """
    events, begin = _history(program)
    blocks = np.array([event.storage for event in events], np.int64)
    deltas = np.array([event.bytes for event in events], np.int64)
    if exact:
        allocated = np.cumsum(deltas)
        reserved = np.maximum.accumulate(allocated) if len(events) else allocated
        failed = None
    else:
        streams = np.array([_stream(event, program.ops) for event in events], np.int64)
        allocator_result = replay_allocator(
            blocks,
            deltas,
            stream=streams,
            capacity_bytes=capacity_bytes,
            expandable_segments=settings.expandable_segments,
            max_split_bytes=settings.max_split_bytes,
        )
        allocated, reserved, failed = (
            allocator_result.allocated_bytes,
            allocator_result.reserved_bytes,
            allocator_result.oom_event,
        )
    if not len(allocated):
        return CapturedMemory(dict.fromkeys((*CATEGORIES.values(), OTHERS), 0), 0, 0, -1, None, blocks, blocks)
    start = begin if failed is None and begin < len(allocated) else 0
    at = start + int(np.argmax(allocated[start:]))
    categories = _by_category(events[: at + 1])
    top = int(allocated[at])
    categories[OTHERS] += top - sum(categories.values())  # rounding up to blocks
    return CapturedMemory(
        categories=categories,
        peak_allocated_bytes=top,
        peak_reserved_bytes=int(reserved.max()),
        op_at_peak=events[at].op,
        oom_op=None if failed is None else events[failed].op,
        event_op=np.array([event.op for event in events[start : len(allocated)]], np.int64),
        allocated_bytes=allocated[start:],
    )


def _stream(event: MemoryEvent, ops: Sequence[Op]) -> int:
    """Storages are made for the op that comes next, on its stream: each stream has blocks of its own."""
    return ops[event.op].stream if 0 <= event.op < len(ops) else 0


def _by_category(events: Iterable[MemoryEvent]) -> dict[str, int]:
    sums = dict.fromkeys((*CATEGORIES.values(), OTHERS), 0)
    born: dict[int, str] = {}
    for event in events:
        # A storage keeps the name it was made with, whatever it is called when it goes.
        name = born.setdefault(event.storage, CATEGORIES.get(event.category, OTHERS))
        sums[name] += event.bytes
    return sums


def _history(program: RankProgram) -> tuple[list[MemoryEvent], int]:
    """Events from the beginning of the job, storages under names of their own, and where the last step begins."""
    step, heirs, lost = _whole_step(program)
    storages = {event.storage for event in program.resident}
    freed = {*heirs, *lost}
    state = [event for event in program.resident if event.category == "optimizer" and event.storage not in freed]
    later = {*heirs, *(event.storage for event in state)}  # not there before the first step
    events = [event for event in program.resident if event.storage not in later]
    base = 1 + max((event.storage for event in (*program.resident, *program.memory)), default=0)
    name = {storage: storage for storage in storages}  # of what a step finds
    begin = len(events)
    for number in range(1, STEPS + 1):
        begin, seen = len(events), set[int]()
        absent = set(heirs) if number == 1 else lost
        for event in _with_state(program, step, state) if number == 1 else step:
            storage = event.storage
            if event.op >= 0 and (storage not in storages or storage in seen):
                events.append(event._replace(storage=number * base + storage))
            elif storage not in absent:  # the end of what was found; from here on it is new
                events.append(event._replace(storage=name[storage]))
            seen.add(storage)
        name |= {storage: number * base + heir for storage, heir in heirs.items()}
    return events, begin


def _with_state(
    program: RankProgram, step: Sequence[MemoryEvent], state: Sequence[MemoryEvent]
) -> Iterator[MemoryEvent]:
    """The first step makes the optimizer's state."""
    steps_at = next((at for at, op in enumerate(program.ops) if op.phase == "optimizer"), len(program.ops))
    before = sum(event.op < steps_at for event in step)
    yield from step[:before]
    yield from state
    yield from step[before:]


def _whole_step(program: RankProgram) -> tuple[list[MemoryEvent], dict[int, int], set[int]]:
    """The step's events, made consistent; which storage it leaves for each that it finds and frees; and those of
    which it leaves none: they are there once. What it leaves for nobody goes with its end.
    """
    live = {event.storage: event for event in program.resident}
    at_begin = dict(live)
    step: list[MemoryEvent] = []
    freed: set[int] = set()  # of those that were found: what has their name later is new
    for event in program.memory:
        if event.bytes > 0 and event.storage not in live:
            live[event.storage] = event
            step.append(event)
        elif event.bytes < 0 and event.storage in live:
            step.append(event._replace(bytes=-live.pop(event.storage).bytes))
            freed |= {event.storage} & at_begin.keys()
    left: dict[int, list[MemoryEvent]] = {}  # by size
    for storage, event in live.items():
        if storage not in at_begin or storage in freed:
            left.setdefault(event.bytes, []).append(event)
    heirs: dict[int, int] = {}
    for storage in sorted(freed):
        same = left.get(at_begin[storage].bytes)
        if same:
            alike = (at for at, event in enumerate(same) if event.category == at_begin[storage].category)
            heirs[storage] = same.pop(next(alike, 0)).storage
    end = len(program.ops) - 1
    step += [event._replace(op=end, bytes=-event.bytes) for events in left.values() for event in events]
    return step, heirs, freed - heirs.keys()
