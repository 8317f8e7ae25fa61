"""The part of a captured step's timeline that a result keeps.

A small step is kept op by op. Of a large one, neighbouring ops of one stream that belong together (one layer of one
micro-batch in one phase, or communications of one kind) become one interval, in the order of time as far as there is
room; one interval says how much follows. Each captured program is shown on the first class of ranks that runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from windtunnel.physics.step.disturbances.disturbed_step import Replayed
from windtunnel.physics.step.result import Interval
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob
from windtunnel.studies.programs.program import Op

EXCERPT_OPS = 1200  # per result: enough to draw, small enough to keep
KEPT_OPS = 20_000  # of a step that a result keeps until its excerpt is read
JOINED_GAP_NS = 50_000  # between ops of one interval
_LAYER = re.compile(r"^(.*?(?:^|\.)\d+)(?:\.|$)")


def captured_excerpt(priced: PricedJob, now: Replayed[CapturedGraph]) -> Callable[[], tuple[Interval, ...]]:
    """Intervals by captured program and time: made when they are read where the step is small enough to be kept."""
    if now.step.step.graph.n_ops <= KEPT_OPS:
        return lambda: _excerpt(priced, now)
    intervals = _excerpt(priced, now)
    return lambda: intervals


def _excerpt(priced: PricedJob, now: Replayed[CapturedGraph]) -> tuple[Interval, ...]:
    lasting = int((now.timeline.end_ns > now.timeline.start_ns).sum())
    joined = lasting > EXCERPT_OPS
    rows = [row for number in range(len(priced.templates)) for row in _rows(priced, now, number, joined)]
    rows = sorted(rows, key=lambda row: row.start_ns)[:EXCERPT_OPS]
    rows += [gap for number in range(len(priced.templates)) for gap in _rest(now, rows, number)]
    return tuple(sorted(rows, key=lambda row: (row.stage, row.start_ns, row.stream)))


def _rest(now: Replayed[CapturedGraph], rows: list[Interval], number: int) -> Iterator[Interval]:
    """What of a program follows behind the intervals that are shown of it."""
    program = int(np.flatnonzero(now.step.template_of == number)[0])
    first, last = int(now.step.first_op[program]), int(now.step.first_op[program + 1])
    start, end = now.timeline.start_ns[first:last], now.timeline.end_ns[first:last]
    shown = max((row.end_ns for row in rows if row.stage == number), default=0)
    left = int(((start >= shown) & (end > start)).sum())
    if left:
        yield Interval(number, "compute", f"{left} ops not shown", "not shown", shown, int(end.max()))


def _rows(priced: PricedJob, now: Replayed[CapturedGraph], number: int, joined: bool) -> list[Interval]:
    """The first intervals of one program, as many as a result may hold at most."""
    graph, timeline, template = now.step.step.graph, now.timeline, priced.templates[number]
    program = int(np.flatnonzero(now.step.template_of == number)[0])
    first, last = int(now.step.first_op[program]), int(now.step.first_op[program + 1])
    ops = first + np.flatnonzero(timeline.end_ns[first:last] > timeline.start_ns[first:last])
    ops = ops[np.argsort(timeline.start_ns[ops], kind="stable")]
    rows: list[tuple[str, str, str, int]] = []  # stream, label, category, start
    ends: list[int] = []
    open_of: dict[str, int] = {}  # stream -> its last interval
    labels: dict[tuple[int, str], str] = {}
    columns = (ops - first, timeline.start_ns[ops], timeline.end_ns[ops], graph.category[ops], graph.label[ops])
    for own, start, end, of_category, of_label in zip(*(column.tolist() for column in columns), strict=True):
        source = int(template.op_of[own])
        stream = template.stream_names[int(template.stream[own])]
        category = graph.categories[of_category].removeprefix("exposed ")
        label = graph.labels[of_label]
        if joined:
            label = labels.get((source, category), "")
            if not label:
                captured = template.program.ops[source] if source >= 0 else None
                label = labels[source, category] = _joined_label(captured, category)
            previous = open_of.get(stream, -1)
            if previous >= 0 and rows[previous][1] == label and start - ends[previous] <= JOINED_GAP_NS:
                ends[previous] = end
                continue
        if len(rows) == EXCERPT_OPS:
            break
        open_of[stream] = len(rows)
        rows.append((stream, label, category, start))
        ends.append(end)
    return [Interval(number, *row, end) for row, end in zip(rows, ends, strict=True)]


def _joined_label(op: Op | None, category: str) -> str:
    if op is None:
        return category
    layer = _LAYER.match(op.module)
    where = layer[1] if layer else op.module.partition(".")[0]
    if op.communication is not None:
        return f"{op.communication.kind} {where}".rstrip()
    again = "recompute " if op.recompute else ""
    return f"{again}{op.phase} mb {op.micro_batch} {where}".rstrip()
