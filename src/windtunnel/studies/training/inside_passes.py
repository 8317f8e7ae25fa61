"""What happens inside the passes that an excerpt shows: layers, collectives of tensor and expert groups, gathers.

Passes that are alike are lowered and replayed once (`lowering/pass_lowering.py`), so each kind is opened once, where it
first occurs: its layers on the lane `layers`, what it sends on the lanes of its groups. Where the pass runs longer in
the step than alone, its inside is stretched with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Timeline
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.result import Interval
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.pass_builder import Segment
from windtunnel.studies.training.lowering.step import LoweredStep

INSIDE_OPS = 1000  # per result, over all passes that are opened
LAYERS = "layers"


def inside_passes(
    step: LoweredStep, timeline: Timeline, layout: Layout, shown: NDArray[np.int64]
) -> Callable[[], list[Interval]]:
    """Intervals inside the first pass of each kind among the ops `shown`, in the order of time, while there is room."""
    graph, schedule = step.graph, step.schedule
    inside = np.array([name.startswith("segment ") for name in graph.categories])
    passes = shown[inside[graph.category[shown]]]
    passes = passes[np.argsort(timeline.start_ns[passes], kind="stable")]
    kinds, first = np.unique(graph.category[passes], return_index=True)
    places = np.argsort(first, kind="stable")
    ops = passes[first[places]]
    actions = np.searchsorted(step.action_first, ops, side="right") - 1
    start, end = timeline.start_ns[step.action_first[actions]], timeline.end_ns[step.action_last[actions]]
    segments = [step.segments[kind] for kind in kinds[places].tolist()]
    columns = (graph.program[ops].tolist(), schedule.stage_of[actions].tolist(), start.tolist(), end.tolist())

    def intervals_inside() -> list[Interval]:
        intervals: list[Interval] = []
        for segment, rank, stage, begins, ends in zip(segments, *columns, strict=True):
            names = _names(layout, stage, segment)
            rows = [
                Interval(rank, stream, label, category, *_moved(segment, begins, ends, a, b))
                for stream, label, category, a, b in _rows(segment, names)
            ]
            rows = [row for row in rows if row.end_ns > row.start_ns]
            if len(intervals) + len(rows) > INSIDE_OPS:
                break
            intervals += rows
        return intervals

    return intervals_inside


def _moved(segment: Segment, start: int, end: int, a: int, b: int) -> tuple[int, int]:
    whole = max(1, segment.duration_ns)
    return start + a * (end - start) // whole, start + b * (end - start) // whole


def _names(layout: Layout, stage: int, segment: Segment) -> list[str]:
    layers = [f"layer {number}" for number in layout.virtual_layers[stage]]
    embedding = ["embedding"] if stage == 0 else []
    head = ["head"] if stage == len(layout.virtual_layers) - 1 else []
    names = [*embedding, *layers, *head]
    return names + [f"block {number}" for number in range(len(names), int(segment.block.max(initial=-1)) + 1)]


def _rows(segment: Segment, names: Sequence[str]) -> Iterator[tuple[str, str, str, int, int]]:
    graph, start, end = segment.graph, segment.start_ns, segment.end_ns
    compute = np.flatnonzero(graph.kind == OpKind.COMPUTE)
    edges = np.flatnonzero(np.diff(segment.block[compute])) + 1
    for run in np.split(compute, edges):
        if len(run):
            yield LAYERS, names[int(segment.block[run[0]])], "compute", int(start[run[0]]), int(end[run[-1]])
    for op in np.flatnonzero((graph.kind == OpKind.COLLECTIVE) | (graph.kind == OpKind.SEND)).tolist():
        stream = graph.stream_names[int(graph.stream[op])].removeprefix("rank 0 ")
        label = f"{graph.labels[graph.label[op]]} {names[int(segment.block[op])]}"
        category = graph.categories[graph.category[op]].removeprefix("exposed ")
        yield stream, label, category, int(start[op]), int(end[op])
