"""Attribution in a planned step: which rank of a cell works while the others wait for it (`pace_setters.py`).

What a disturbance adds to a pass or a transfer of a cell is work of the rank that it befalls, and waiting of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Exposure, Timeline
from windtunnel.physics.graph import OpKind
from windtunnel.physics.step.disturbances.attribution import Explanation, path_parts, rank_classes, thinned
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.result import PathPart
from windtunnel.studies.training.disturbances.pace_setters import pace_setters_of
from windtunnel.studies.training.disturbances.replicas import Unfolded
from windtunnel.studies.training.disturbances.waiting import ReplayedStep, waiting_of
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.lowering.step import DP, STREAMS, LoweredStep


def who_waits(
    unfolded: Unfolded, timeline: Timeline, step: LoweredStep, layout: Layout, slow: Sequence[Slow]
) -> Explanation:
    """What every rank did in the step that `timeline` replayed from `unfolded`, and whom it waited for.

    `slow`: the disturbances that `unfolded` was made with. Works on folded and unfolded replicas alike.
    """
    at = ReplayedStep(unfolded, timeline, step, pace_setters_of(layout, slow))
    classes, runs = rank_classes(unfolded.step, timeline, at.setters.ranks, partial(_held_up, at))
    return Explanation(classes, runs, thinned(path_of(at)), waiting_of(at, layout))


def path_of(at: ReplayedStep) -> tuple[PathPart, ...]:
    """The critical path, as a whole."""
    return path_parts(at.unfolded.step, at.timeline, at.setters.ranks, _names(at.step), partial(_standing_ranks, at))


def _held_up(
    at: ReplayedStep, split: Exposure, ranks: NDArray[np.int64], program: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64[len(ranks)]: what other ranks add to the passes and transfers of these ranks, of these programs."""
    passes, transfers = _added(at)
    # Of a program's transfers only what is exposed holds the rank up; what a disturbance added to it in proportion.
    moved = (split.communication_ns * transfers).sum(axis=1)
    inside = passes[program] * (1.0 - at.setters.own[ranks])
    between = moved[program] * (1.0 - at.setters.own_link[ranks])
    delay_ns: NDArray[np.int64] = np.rint(inside + between).astype(np.int64)
    return delay_ns


def _added(at: ReplayedStep) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What disturbances add to each program: nanoseconds of its passes, and shares of its transfers by category."""
    graph, durations, added = at.graph, at.duration, at.added
    stages, categories = graph.n_programs, len(graph.categories)
    passes = np.zeros((len(durations), stages))
    shares = np.zeros((len(durations), stages, categories))
    computes = graph.kind == OpKind.COMPUTE
    moves = ~computes & (graph.kind <= OpKind.RECV)
    for stage in range(stages):
        own = at.program == stage
        passes[:, stage] = added[:, computes & own].sum(axis=1)
        for category in np.unique(graph.category[moves & own]).tolist():
            these = moves & own & (graph.category == category)
            whole = durations[:, these].sum(axis=1)
            shares[:, stage, category] = added[:, these].sum(axis=1) / np.maximum(whole, 1)
    return passes.reshape(-1), shares.reshape(-1, categories)


def _standing_ranks(at: ReplayedStep, path: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rank that stands for each op of the path.

    A cell is named by the rank that sets its pace, else by its first; a collective over slow links by the slowest.
    """
    unfolded, setters = at.unfolded.step, at.setters
    replica_class, stage = np.divmod(unfolded.graph.program[path].astype(np.int64), setters.stages)
    slowest = setters.slowest_link[stage]
    slower = unfolded.duration_ns[path] > at.step.duration_ns[path % at.graph.n_ops]
    shared = (unfolded.graph.stream[path] % len(STREAMS) == DP) & slower & (slowest >= 0)
    return np.where(shared, slowest, at.speaker(replica_class, stage))


def _names(step: LoweredStep) -> list[str]:
    """How categories of the step graph are called on a path: a transfer there is exposed by nature."""
    passes = list(step.segment_names)
    return passes + [name.removeprefix("exposed ") for name in step.graph.categories[len(passes) :]]
