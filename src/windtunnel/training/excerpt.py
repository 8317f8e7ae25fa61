"""The part of a step's timeline that a result keeps: how the pipeline fills, and its steady state.

A small step is kept whole. Of a large one, the first ops in order of time, which reach into the steady state; where
the pipeline takes longer to fill than that, half of the ops show the beginning and half the moment from which every
rank runs backwards too, with one interval per rank that says how much lies between.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine import Timeline
from windtunnel.result import Interval
from windtunnel.training.lower import STREAMS, Step
from windtunnel.training.schedules import Kind

EXCERPT_OPS = 1200  # per result: enough to draw, small enough to keep
STEADY_SHARE = 0.15  # of the excerpt that must be left when the steady state begins
PASS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward input",
    Kind.BACKWARD_WEIGHT: "backward weight",
}


def excerpt_of(step: Step, timeline: Timeline) -> tuple[Interval, ...]:
    """Ops by rank class and time. Categories do not say "exposed": whether an op is depends on what runs beside it."""
    start = timeline.start_ns
    order = np.flatnonzero(timeline.end_ns > start)
    order = order[np.argsort(start[order], kind="stable")]
    first, second = _windows(step, start, order)
    shown = np.concatenate([first, second])
    found = [*_intervals(step, timeline, shown), *_gaps(step, timeline, order, first, second)]
    return tuple(sorted(found, key=lambda op: (op.stage, op.start_ns, op.stream, op.end_ns)))


def _windows(
    step: Step, start: NDArray[np.int64], order: NDArray[np.int64]
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


def _intervals(step: Step, timeline: Timeline, shown: NDArray[np.int64]) -> list[Interval]:
    graph, schedule = step.graph, step.schedule
    action = np.searchsorted(step.action_first, shown, side="right") - 1
    beyond = shown > step.action_last[np.maximum(action, 0)]  # not a part of the pass itself
    columns = zip(
        shown.tolist(), action.tolist(), beyond.tolist(), graph.program[shown].tolist(), graph.stream[shown].tolist(),
        graph.category[shown].tolist(), timeline.start_ns[shown].tolist(), timeline.end_ns[shown].tolist(), strict=True,
    )  # fmt: skip
    found = []
    for op, at, outside, rank, stream, category, begin, end in columns:
        label = graph.labels[graph.label[op]]
        name = graph.categories[category]
        if at >= 0 and not outside:
            label = _pass_label(step, at)
        elif label == "send":  # right behind the pass whose output it carries
            label = f"send {_pass_label(step, at)}"
        elif label == "receive":
            cause = int(graph.dep_idx[graph.dep_ptr[op]])
            source = int(np.searchsorted(step.action_first, cause, side="right")) - 1
            label = f"receive {_pass_label(step, source)} from stage {schedule.rank[source]}"
        shown_as = "compute" if name.startswith("segment ") else name.removeprefix("exposed ")
        found.append(Interval(rank, STREAMS[stream % len(STREAMS)], label, shown_as, begin, end))
    return found


def _pass_label(step: Step, action: int) -> str:
    schedule = step.schedule
    text = f"{PASS[Kind(int(schedule.kind[action]))]} mb {schedule.micro_batch[action]}"
    return f"{text} chunk {schedule.chunk[action]}" if schedule.chunks > 1 else text


def _gaps(
    step: Step, timeline: Timeline, order: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> list[Interval]:
    if not len(second):
        return []
    program = step.graph.program
    between = order[len(first) : int(np.flatnonzero(order == second[0])[0])]
    resumed = int(timeline.start_ns[second[0]])
    found = []
    for rank in range(step.graph.n_programs):
        left = int(np.count_nonzero(program[between] == rank))
        stopped = int(timeline.end_ns[first[program[first] == rank]].max(initial=0))
        if left and stopped < resumed:
            found.append(Interval(rank, "compute", f"{left} ops not shown", "not shown", stopped, resumed))
    return found
