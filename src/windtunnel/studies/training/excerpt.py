"""The part of a step's timeline that a result keeps: how the pipeline fills, and its steady state.

A small step is kept whole. Of a large one, the first ops in order of time, which reach into the steady state; where
the pipeline takes longer to fill than that, half of the ops show the beginning and half the moment from which every
rank runs backwards too. One interval per rank says how much lies between, and one how much follows. One pass of each
kind is opened (`inside_passes.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Timeline
from windtunnel.physics.step.result import Interval
from windtunnel.studies.training.inside_passes import inside_passes
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.step import STREAMS, LoweredStep
from windtunnel.studies.training.schedules import Kind

EXCERPT_OPS = 1200  # per result: enough to draw, small enough to keep
STEADY_SHARE = 0.15  # of the excerpt that must be left when the steady state begins


def excerpt_of(step: LoweredStep, timeline: Timeline, layout: Layout) -> tuple[Interval, ...]:
    """Ops by rank class and time. Categories do not say "exposed": whether an op is depends on what runs beside it."""
    start = timeline.start_ns
    order = np.flatnonzero(timeline.end_ns > start)
    order = order[np.argsort(start[order], kind="stable")]
    first, second = _windows(step, start, order)
    shown = np.concatenate([first, second])
    found = _intervals(step, timeline, shown[np.argsort(step.graph.program[shown], kind="stable")])
    found += _gaps(step, timeline, order, first, second)
    found += inside_passes(step, timeline, layout, shown)
    return tuple(sorted(found, key=lambda op: (op.stage, op.start_ns)))


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


def _intervals(step: LoweredStep, timeline: Timeline, shown: NDArray[np.int64]) -> list[Interval]:
    graph = step.graph
    categories = [
        "compute" if name.startswith("segment ") else name.removeprefix("exposed ") for name in graph.categories
    ]
    columns = zip(
        graph.program[shown].tolist(),
        (graph.stream[shown] % len(STREAMS)).tolist(),
        _labels(step, shown),
        graph.category[shown].tolist(),
        timeline.start_ns[shown].tolist(),
        timeline.end_ns[shown].tolist(),
        strict=True,
    )
    return [
        Interval(rank, STREAMS[stream], label, categories[category], start, end)
        for rank, stream, label, category, start, end in columns
    ]


def _labels(step: LoweredStep, shown: NDArray[np.int64]) -> list[str]:
    """Names of ops: a pass by direction, micro-batch and chunk, a transfer by the pass whose output it carries."""
    graph = step.graph
    names = [graph.labels[number] for number in graph.label[shown].tolist()]
    action = np.searchsorted(step.action_first, shown, side="right") - 1
    part = (action >= 0) & (shown <= step.action_last[np.maximum(action, 0)])  # of a pass
    for place in np.flatnonzero(~part).tolist():
        if names[place] == "receive":  # its one dependency is the sender's pass; a send stands right behind its own
            action[place] = np.searchsorted(step.action_first, graph.dep_idx[graph.dep_ptr[shown[place]]], "right") - 1
    passes = _pass_labels(step, np.maximum(action, 0))
    sources = step.schedule.rank[np.maximum(action, 0)].tolist()
    for place, (own, source) in enumerate(zip(part.tolist(), sources, strict=True)):
        if own:
            names[place] = passes[place]
        elif names[place] == "send":
            names[place] = f"send {passes[place]}"
        elif names[place] == "receive":
            names[place] = f"receive {passes[place]} from stage {source}"
    return names


def _pass_labels(step: LoweredStep, actions: NDArray[np.int64]) -> list[str]:
    schedule = step.schedule
    kinds = [Kind(kind).words.replace("-", " ") for kind in schedule.kind[actions].tolist()]
    micro_batches = schedule.micro_batch[actions].tolist()
    if schedule.chunks == 1:
        return [f"{kind} mb {number}" for kind, number in zip(kinds, micro_batches, strict=True)]
    chunks = schedule.chunk[actions].tolist()
    return [f"{k} mb {number} chunk {chunk}" for k, number, chunk in zip(kinds, micro_batches, chunks, strict=True)]


def _gaps(
    step: LoweredStep, timeline: Timeline, order: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> list[Interval]:
    program = step.graph.program
    windows = [first, second] if len(second) else [first]
    found = []
    for number, window in enumerate(windows):
        begins = int(np.flatnonzero(order == window[0])[0]) + len(window) if len(window) else 0
        following = windows[number + 1] if number + 1 < len(windows) else order[:0]
        ends = int(np.flatnonzero(order == following[0])[0]) if len(following) else len(order)
        between = order[begins:ends]
        for rank in range(step.graph.n_programs):
            missing = between[program[between] == rank]
            stopped = int(timeline.end_ns[window[program[window] == rank]].max(initial=0))
            resumed = (
                int(timeline.start_ns[following[0]]) if len(following) else int(timeline.end_ns[missing].max(initial=0))
            )
            if len(missing) and stopped < resumed:
                text = f"{len(missing)} ops not shown"
                found.append(Interval(rank, "compute", text, "not shown", stopped, resumed))
    return found
