"""Attribution in a planned step: which rank of a cell works while the others wait for it (`pace_setters.py`).

What a disturbance adds to a pass or a transfer of a cell is work of the rank that it befalls, and waiting of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine import Exposure, Timeline
from windtunnel.graph import OpKind
from windtunnel.result import PathPart
from windtunnel.step.disturbances.attribution import Explanation, path_parts, rank_classes, thinned
from windtunnel.step.disturbances.parse import Slow
from windtunnel.training.disturbances.pace_setters import PaceSetters, pace_setters_of
from windtunnel.training.disturbances.replicas import Unfolded
from windtunnel.training.disturbances.waiting import waiting_of
from windtunnel.training.layout import Layout
from windtunnel.training.lowering.step import DP, STREAMS, LoweredStep


def who_waits(
    unfolded: Unfolded, timeline: Timeline, step: LoweredStep, layout: Layout, slow: Sequence[Slow]
) -> Explanation:
    """What every rank did in the step that `timeline` replayed from `unfolded`, and whom it waited for.

    `slow`: the disturbances that `unfolded` was made with. Works on folded and unfolded replicas alike.
    """
    setters = pace_setters_of(layout, slow)
    held_up = partial(_held_up, unfolded, timeline, step, setters)
    classes, runs = rank_classes(unfolded.step, timeline, setters.ranks, held_up)
    path = thinned(path_of(unfolded, timeline, step, setters))
    return Explanation(classes, runs, path, waiting_of(unfolded, timeline, step, layout, setters))


def path_of(unfolded: Unfolded, timeline: Timeline, step: LoweredStep, setters: PaceSetters) -> tuple[PathPart, ...]:
    """The critical path, as a whole."""
    named = partial(_named, unfolded, step, setters)
    return path_parts(unfolded.step, timeline, setters.ranks, _names(step), named)


def _held_up(
    unfolded: Unfolded,
    timeline: Timeline,
    step: LoweredStep,
    setters: PaceSetters,
    split: Exposure,
    ranks: NDArray[np.int64],
    program: NDArray[np.int64],
) -> NDArray[np.int64]:
    """int64[len(ranks)]: what other ranks add to the passes and transfers of these ranks, of these programs."""
    passes, transfers = _added(unfolded, timeline, step)
    # Of a program's transfers only what is exposed holds the rank up; what a disturbance added to it in proportion.
    moved = (split.communication_ns * transfers).sum(axis=1)
    inside = passes[program] * (1.0 - setters.own[ranks])
    between = moved[program] * (1.0 - setters.own_link[ranks])
    held: NDArray[np.int64] = np.rint(inside + between).astype(np.int64)
    return held


def _added(
    unfolded: Unfolded, timeline: Timeline, step: LoweredStep
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """What disturbances add to each program: nanoseconds of its passes, and shares of its transfers by category."""
    n, programs = step.graph.n_ops, unfolded.step.graph.n_programs
    stages, categories = step.graph.n_programs, len(step.graph.categories)
    taken = (timeline.end_ns - timeline.start_ns).reshape(-1, n)
    slowed = unfolded.step.duration_ns.reshape(-1, n)
    share = 1.0 - np.minimum(step.duration_ns / np.maximum(slowed, 1), 1.0)
    share[:, step.duration_ns == 0] = 0.0
    added = taken * share
    own = step.graph.program
    passes = np.zeros((len(taken), stages))
    shares = np.zeros((len(taken), stages, categories))
    computes = step.graph.kind == OpKind.COMPUTE
    for stage in range(stages):
        passes[:, stage] = added[:, computes & (own == stage)].sum(axis=1)
    moves = ~computes & (step.graph.kind <= OpKind.RECV)
    for stage in range(stages):
        for category in np.unique(step.graph.category[moves & (own == stage)]).tolist():
            these = moves & (own == stage) & (step.graph.category == category)
            whole = taken[:, these].sum(axis=1)
            shares[:, stage, category] = added[:, these].sum(axis=1) / np.maximum(whole, 1)
    return passes.reshape(programs), shares.reshape(programs, categories)


def _named(unfolded: Unfolded, step: LoweredStep, setters: PaceSetters, path: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rank that stands for each op of the path.

    A cell is named by the rank that sets its pace, else by its first; a collective over slow links by the slowest.
    """
    graph = unfolded.step.graph
    replica_class, stage = np.divmod(graph.program[path].astype(np.int64), setters.stages)
    replica = np.unique(unfolded.class_of, return_index=True)[1][replica_class]
    slowest = setters.slowest_link[stage]
    slower = unfolded.step.duration_ns[path] > step.duration_ns[path % step.graph.n_ops]
    shared = (graph.stream[path] % len(STREAMS) == DP) & slower & (slowest >= 0)
    return np.where(shared, slowest, setters.speaker(replica, stage))


def _names(step: LoweredStep) -> list[str]:
    """How categories of the step graph are called on a path: a transfer there is exposed by nature."""
    passes = list(step.segment_names)
    return passes + [name.removeprefix("exposed ") for name in step.graph.categories[len(passes) :]]
