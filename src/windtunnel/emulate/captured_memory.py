"""Memory of a captured program: its storages through the caching allocator, the peak by category, and the op there.

The step is run twice, so that the allocator is as a second step finds it: what the first leaves behind takes the place
of what it found (gradients that are made anew, for one), matched by size and category. On a CPU bytes count as asked
for, and nothing is kept back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.capture.script.program import MemoryEvent, Op, RankProgram
from windtunnel.graph.allocator import replay_allocator

CATEGORIES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "activation": "activations",
    "communication": "communication",
}
OTHERS = "workspace"  # temporaries, and what has no name


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
        return words_of(program.ops[index]) if 0 <= index < len(program.ops) else "the beginning of the step"


def words_of(op: Op) -> str:
    """`aten.mm of layers.3.mlp in the backward pass`."""
    again = "its recomputation in " if op.recompute else ""
    return f"{op.name}{f' of {op.module}' if op.module else ''} in {again}the {op.phase} phase"


def memory_of_program(
    program: RankProgram,
    *,
    capacity_bytes: int | None = None,
    exact: bool = False,
    expandable_segments: bool = False,
) -> CapturedMemory:
    """Replay a program's storages. `exact`: no allocator between, as on a CPU.

    `capacity_bytes`: what the allocator may reserve.
    """
    first, then = _two_steps(program)
    events = [*program.resident, *first, *then]
    blocks = np.array([event.storage for event in events], np.int64)
    deltas = np.array([event.bytes for event in events], np.int64)
    begin = len(program.resident) + len(first)
    if exact:
        allocated = np.cumsum(deltas)
        reserved = np.maximum.accumulate(allocated) if len(events) else allocated
        failed = None
    else:
        streams = np.array([_stream(event, program.ops) for event in events], np.int64)
        found = replay_allocator(
            blocks, deltas, stream=streams, capacity_bytes=capacity_bytes, expandable_segments=expandable_segments
        )  # fmt: skip
        allocated, reserved, failed = found.allocated_bytes, found.reserved_bytes, found.oom_event
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


def _two_steps(program: RankProgram) -> tuple[list[MemoryEvent], list[MemoryEvent]]:
    """The step's events, made consistent, and those of the step after it under names of its own."""
    live = {event.storage: event for event in program.resident}
    found = dict(live)
    step: list[MemoryEvent] = []
    for event in program.memory:
        if event.bytes > 0 and event.storage not in live:
            live[event.storage] = event
            step.append(event)
        elif event.bytes < 0 and event.storage in live:
            step.append(event._replace(bytes=-live.pop(event.storage).bytes))
    left = [event for storage, event in live.items() if storage not in found]
    gone = [event for storage, event in found.items() if storage not in live]
    stands_for: dict[int, int] = {}  # what the second step finds where the first found what is gone
    pool: dict[tuple[int, str], list[int]] = {}
    for event in left:
        pool.setdefault((event.bytes, event.category), []).append(event.storage)
    for event in gone:
        same = pool.get((event.bytes, event.category))
        if not same:
            return step, []  # no steady state: one step says all there is
        stands_for[event.storage] = same.pop(0)
    if any(pool.values()):
        return step, []
    base = 1 + max((event.storage for event in (*program.resident, *program.memory)), default=0)
    for storage in found:
        stands_for.setdefault(storage, storage)
    seen: set[int] = set()
    again = []
    for event in step:
        # The first event of a storage that was found is its end; from then on it is new.
        old = event.storage in found and event.storage not in seen
        seen.add(event.storage)
        name = stands_for[event.storage] if old else base + event.storage
        again.append(event._replace(storage=name))
    return step, again
