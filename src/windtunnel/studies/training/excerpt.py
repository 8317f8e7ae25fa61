"""The part of a step's timeline that a result keeps: how the pipeline fills, and its steady state.

A small step is kept whole. Of a large one, the first ops in order of time, which reach into the steady state; where
the pipeline takes longer to fill than that, half of the ops show the beginning and half the moment from which every
rank runs backwards too. One interval per rank says how much lies between, and one how much follows. One pass of each
kind is opened (`inside_passes.py`).

Which ops are shown is settled at once, as a few small arrays, so that no result keeps its step; their words are made
when the excerpt is read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Timeline
from windtunnel.physics.step.result import Interval
from windtunnel.studies.training.inside_passes import inside_passes
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.step import STREAMS, LoweredStep
from windtunnel.studies.training.schedules import Kind, Schedule

EXCERPT_OPS = 1200  # per result: enough to draw, small enough to keep
STEADY_SHARE = 0.15  # of the excerpt that must be left when the steady state begins


def excerpt_of(step: LoweredStep, timeline: Timeline, layout: Layout) -> Callable[[], tuple[Interval, ...]]:
    """Ops by rank class and time. Categories do not say "exposed": whether an op is depends on what runs beside it."""
    start = timeline.start_ns
    order = np.flatnonzero(timeline.end_ns > start)
    order = order[np.argsort(start[order], kind="stable")]
    first, second = _windows(step, start, order)
    shown = np.concatenate([first, second])
    intervals = _intervals(step, timeline, shown[np.argsort(step.graph.program[shown], kind="stable")])
    gaps = _gaps(step, timeline, order, first, second)
    inside = inside_passes(step, timeline, layout, shown)
    return lambda: tuple(sorted([*intervals(), *gaps, *inside()], key=lambda op: (op.stage, op.start_ns)))


def _windows(
    step: LoweredStep, start: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ops to show: one window from the beginning, or two."""
    none = order[:0]
    if len(order) <= EXCERPT_OPS:
        return order, none
    schedule = step.schedule
    turning = np.flatnonzero(schedule.kind != Kind.FORWARD)[::-1]
    backward = np.zeros(schedule.stages, np.int64)
    backward[schedule.rank[turning]] = start[step.action_first[turning]]
    steady = int(np.searchsorted(start[order], backward.max()))
    if steady <= EXCERPT_OPS * (1.0 - STEADY_SHARE):
        return order[:EXCERPT_OPS], none
    half = EXCERPT_OPS // 2
    return order[:half], order[steady : steady + half]


def _intervals(step: LoweredStep, timeline: Timeline, shown: NDArray[np.int64]) -> Callable[[], list[Interval]]:
    graph = step.graph
    names, categories, labels = graph.labels, graph.categories, _labels(step, shown)
    program, stream = graph.program[shown], graph.stream[shown] % len(STREAMS)
    label, category = graph.label[shown], graph.category[shown]
    start, end = timeline.start_ns[shown], timeline.end_ns[shown]

    def intervals() -> list[Interval]:
        category_names = [
            "compute" if name.startswith("segment ") else name.removeprefix("exposed ") for name in categories
        ]
        columns = zip(
            program.tolist(),
            stream.tolist(),
            labels([names[number] for number in label.tolist()]),
            category.tolist(),
            start.tolist(),
            end.tolist(),
            strict=True,
        )
        return [
            Interval(rank, STREAMS[stream], label, category_names[category], start, end)
            for rank, stream, label, category, start, end in columns
        ]

    return intervals


def _labels(step: LoweredStep, shown: NDArray[np.int64]) -> Callable[[list[str]], list[str]]:
    """Names of ops: a pass by direction, micro-batch and chunk, a transfer by the pass whose output it carries."""
    graph, schedule = step.graph, step.schedule
    action = np.searchsorted(step.action_first, shown, side="right") - 1
    part = (action >= 0) & (shown <= step.action_last[np.maximum(action, 0)])  # of a pass
    # A receive's one dependency is the sender's pass; a send stands right behind its own.
    receives = ~part & (graph.label[shown] == (graph.labels.index("receive") if "receive" in graph.labels else -1))
    senders = graph.dep_idx[graph.dep_ptr[shown[receives]]]
    action[receives] = np.searchsorted(step.action_first, senders, "right") - 1
    passes = _pass_labels(schedule, np.maximum(action, 0))
    sources = schedule.rank[np.maximum(action, 0)]

    def labels_of(names: list[str]) -> list[str]:
        labels = []
        for name, is_pass, own, source in zip(names, part.tolist(), passes(), sources.tolist(), strict=True):
            text = own if is_pass else name
            if not is_pass and name == "send":
                text = f"send {own}"
            elif not is_pass and name == "receive":
                text = f"receive {own} from stage {source}"
            labels.append(text)
        return labels

    return labels_of


def _pass_labels(schedule: Schedule, actions: NDArray[np.int64]) -> Callable[[], list[str]]:
    kind, micro_batch, chunk = schedule.kind[actions], schedule.micro_batch[actions], schedule.chunk[actions]
    several = schedule.chunks > 1

    def labels() -> list[str]:
        words = {int(direction): direction.words.replace("-", " ") for direction in Kind}
        columns = zip(kind.tolist(), micro_batch.tolist(), chunk.tolist(), strict=True)
        return [f"{words[k]} mb {number}" + (f" chunk {piece}" if several else "") for k, number, piece in columns]

    return labels


def _gaps(
    step: LoweredStep, timeline: Timeline, order: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> list[Interval]:
    program, ranks = step.graph.program, step.graph.n_programs
    windows = [first, second] if len(second) else [first]
    gaps = []
    for number, window in enumerate(windows):
        begins = int(np.flatnonzero(order == window[0])[0]) + len(window) if len(window) else 0
        following = windows[number + 1] if number + 1 < len(windows) else order[:0]
        ends = int(np.flatnonzero(order == following[0])[0]) if len(following) else len(order)
        between = order[begins:ends]
        missing = np.bincount(program[between], minlength=ranks)
        stopped, resumed = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        np.maximum.at(stopped, program[window], timeline.end_ns[window])
        if len(following):
            resumed[:] = timeline.start_ns[following[0]]
        else:
            np.maximum.at(resumed, program[between], timeline.end_ns[between])
        for rank in np.flatnonzero((missing > 0) & (stopped < resumed)).tolist():
            text = f"{missing[rank]} ops not shown"
            gaps.append(Interval(rank, "compute", text, "not shown", int(stopped[rank]), int(resumed[rank])))
    return gaps
