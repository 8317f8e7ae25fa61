"""A traced step by class of op: every instant of a rank belongs to one class, so that the classes sum to the step.

    compute       the op that began first; gemm, attention, memory-bound, optimizer, other kernels, copies
    communication what no compute hides: all-reduce ..., send and receive
    data loader   nothing runs, and the host is in the loader (without a GPU: whatever runs inside it)
    host          nothing runs, and what runs next was not launched yet: the queue was empty
    idle          nothing runs though it was launched: it waits for another stream

A step lasts from its first op on the device to the first one of the next step; the last one to its last op.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.traces.kernel_kinds import kernel_kind
from windtunnel.studies.traces.rank_ops import RankOps

Times = NDArray[np.int64]
COMMUNICATION = (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV)
OF_KIND = {
    "convolution": "gemm", "norm": "memory-bound", "reduction": "memory-bound", "elementwise": "memory-bound",
    "memory sets": "copies", "memory copies": "copies",
}  # fmt: skip
OF_OPERATOR = (
    ("gemm", re.compile(r"mm|linear|conv|matmul|einsum", re.I)),
    ("optimizer", re.compile(r"_foreach|_fused_|optimizer", re.I)),
    (
        "memory-bound",
        re.compile(r"norm|relu|gelu|silu|add|mul|div|sub|pow|mean|sum|copy|fill|zero|cat|loss|embedding", re.I),
    ),
)
SENDS = ("send", "receive")
LOADER, HOST, IDLE = "data loader", "host", "idle"


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of one rank: `seconds` by class sum to its length."""

    rank: int
    step: int
    seconds: Mapping[str, float]
    calls: Mapping[str, int]
    longest: Mapping[str, str]  # of each class the op that took most, by name

    @property
    def length_s(self) -> float:
        """All classes together."""
        return sum(self.seconds.values())


def class_of(category: str, label: str, *, on_host: bool) -> str:
    """The class of a compute op."""
    if on_host:
        return next((name for name, pattern in OF_OPERATOR if pattern.search(category)), "other kernels")
    kind = category if category in OF_KIND else kernel_kind(label)
    return OF_KIND.get(kind, kind)


def step_times(ops: RankOps, loading: Sequence[tuple[int, int]] = ()) -> list[StepTime]:
    """Each step of one rank; `loading`: when its host was in the data loader."""
    on_host = not any(name.startswith("gpu ") for name in ops.stream_names)
    kind = np.array([int(op_kind) for op_kind in ops.kind], np.int64)
    streams = np.array([ops.stream_names[at].startswith("host") for at in ops.stream], bool)
    start = np.array(ops.start_ns, np.int64)
    end = start + np.array(ops.duration_ns, np.int64)
    step = np.array(ops.step, np.int64)
    communicates = np.isin(kind, [int(op_kind) for op_kind in COMMUNICATION])
    computes = (kind == int(OpKind.COMPUTE)) & (streams if on_host else ~streams)
    used = (communicates | computes) & (step >= 0) & (end > start)
    if not used.any():
        return []
    # Asynchronous work of a step may run into the next one: steps begin with their first op.
    numbers = sorted(set(step[used].tolist()))
    begins = [int(start[used & (step == number)].min()) for number in numbers]
    ends = [*begins[1:], int(end[used].max())]
    classes = [
        (f"{ops.category[at]}" if communicates[at] else class_of(ops.category[at], ops.label[at], on_host=on_host))
        if used[at]
        else ""
        for at in range(len(ops.kind))
    ]
    launched = np.full(len(kind), np.iinfo(np.int64).min, np.int64)
    for work, call in ops.waits:
        if ops.kind[call] == OpKind.HOST and not on_host:
            launched[work] = max(launched[work], ops.start_ns[call] + ops.duration_ns[call])
    times, masks = (start, end, launched), (used & computes, used & communicates)
    return [
        _step(ops, number, (low, high), times, masks, classes, loading, on_host=on_host)
        for number, low, high in zip(numbers, begins, ends, strict=True)
        if high > low
    ]


def _step(
    ops: RankOps,
    number: int,
    window: tuple[int, int],
    times: tuple[Times, Times, Times],
    masks: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    classes: Sequence[str],
    loading: Sequence[tuple[int, int]],
    *,
    on_host: bool,
) -> StepTime:
    low, high = window
    start, end, launched = times
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    longest: dict[str, tuple[int, str]] = {}
    inside = (end > low) & (start < high)
    covered = _Covered()
    if on_host:
        spans = [(max(a, low), min(b, high)) for a, b in loading if b > low and a < high]
        seconds[LOADER] = covered.add(spans) * 1e-9
    for mask in masks:
        order = np.flatnonzero(mask & inside)
        order = order[np.argsort(start[order], kind="stable")]
        own = covered.own(np.clip(start[order], low, high), np.clip(end[order], low, high))
        for at, own_ns in zip(order.tolist(), own.tolist(), strict=True):
            name = classes[at]
            seconds[name] = seconds.get(name, 0.0) + own_ns * 1e-9
            calls[name] = calls.get(name, 0) + 1
            length = int(end[at] - start[at])
            if length > longest.get(name, (0, ""))[0]:
                longest[name] = (length, ops.label[at])
    gaps = covered.gaps(low, high)
    work = np.flatnonzero((masks[0] | masks[1]) & (start >= low))
    work = work[np.argsort(start[work], kind="stable")]
    following = np.searchsorted(start[work], [stop for _, stop in gaps])
    unlaunched, launched_late = [], []
    for (begin, stop), at in zip(gaps, following.tolist(), strict=True):
        until = stop if on_host or at >= len(work) else min(stop, max(begin, int(launched[work[at]])))
        unlaunched.append((begin, until))
        launched_late.append((until, stop))
    spans = [] if on_host else [(max(a, low), min(b, high)) for a, b in loading if b > low and a < high]
    for name, parts in ((HOST, unlaunched), (IDLE, launched_late)):
        in_loader = _overlap(parts, spans)
        seconds[LOADER] = seconds.get(LOADER, 0.0) + in_loader * 1e-9
        seconds[name] = (sum(stop - begin for begin, stop in parts) - in_loader) * 1e-9
    nonzero = {name: value for name, value in seconds.items() if value > 0.0}
    return StepTime(ops.rank, number, nonzero, calls, {name: label for name, (_, label) in longest.items()})


class _Covered:
    """A growing union of intervals."""

    def __init__(self) -> None:
        self.begin, self.end = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def own(self, begin: Times, end: Times) -> Times:
        """What each interval, in order of begin, adds to the union and to those before it; they join the union."""
        if not len(begin):
            return begin
        before = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])
        first = np.maximum(begin, before)
        alone = np.maximum(end - first, 0)
        hidden = np.maximum(self.up_to(np.maximum(end, first)) - self.up_to(first), 0)
        self._join(begin, end)
        return np.asarray(alone - hidden, np.int64)

    def add(self, spans: Sequence[tuple[int, int]]) -> int:
        """Intervals join the union; how much they add."""
        ordered = sorted(spans)
        if not ordered:
            return 0
        return int(self.own(np.array([a for a, _ in ordered]), np.array([b for _, b in ordered])).sum())

    def gaps(self, low: int, high: int) -> list[tuple[int, int]]:
        """What of a window is in no interval."""
        edges = [
            low,
            *(number for pair in zip(self.begin.tolist(), self.end.tolist(), strict=True) for number in pair),
            high,
        ]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(max(a, low), min(b, high)) for a, b in pairs if min(b, high) > max(a, low)]

    def up_to(self, when: Times) -> Times:
        """How much of the union lies before each time."""
        if not len(self.begin):
            return np.zeros(len(when), np.int64)
        total = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        at = np.searchsorted(self.begin, when, side="right") - 1
        inside = np.clip(np.minimum(when, self.end[at]) - self.begin[at], 0, None)
        return np.asarray(np.where(at >= 0, total[at] + inside, 0), np.int64)

    def _join(self, begin: Times, end: Times) -> None:
        begin, end = np.concatenate([self.begin, begin]), np.concatenate([self.end, end])
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate(end[order])
        fresh = np.concatenate([[True], begin[1:] > end[:-1]])
        first = np.flatnonzero(fresh)
        self.begin, self.end = begin[first], end[np.concatenate([first[1:] - 1, [len(end) - 1]])]


def _overlap(parts: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> int:
    """How much of parts, which do not overlap, lies in spans."""
    union = _Covered()
    union.add(spans)
    low, high = np.array([a for a, _ in parts], np.int64), np.array([b for _, b in parts], np.int64)
    return int((union.up_to(high) - union.up_to(low)).sum())


def typical(steps: Sequence[StepTime]) -> dict[str, float]:
    """Seconds by class of the steps of one rank: of each class the median, the first step left out where others are."""
    behind = [step for step in steps if step.step != min(each.step for each in steps)] or list(steps)
    names = sorted({name for step_time in behind for name in step_time.seconds})
    return {name: median([step_time.seconds.get(name, 0.0) for step_time in behind]) for name in names}
