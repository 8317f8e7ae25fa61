"""Blame: where every rank's time went in a disturbed step, and which ranks held up the others.

Each rank is busy (it computes or moves bytes) or waits for other ranks, at every instant: of the replayed timeline of
its program, gaps are waiting, and so is what a disturbance of another rank adds to its passes and transfers
(`culprits.py`). Ranks are told apart by (stage, class of replicas, own disturbances) and written as runs, so that
100,000 of them stay small. The critical path is the chain of ops, each bound by the one before it, that ends last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine import Timeline, critical_path, exposed
from windtunnel.graph import OpKind
from windtunnel.result import PathPart, RankClass, Waiting
from windtunnel.training.disturbances.cells import Slow
from windtunnel.training.disturbances.pace_setters import Culprits, culprits_of
from windtunnel.training.disturbances.replicas import Unfolded
from windtunnel.training.disturbances.waiting import waiting_of
from windtunnel.training.layout import Layout
from windtunnel.training.lowering.step import DP, STREAMS, Step

PATH_PARTS_MOST = 200


class Explanation(NamedTuple):
    """Fields of `Disturbed`."""

    rank_classes: tuple[RankClass, ...]
    class_runs: tuple[tuple[int, int], ...]
    critical_path: tuple[PathPart, ...]
    waiting: tuple[Waiting, ...]


def explain(
    unfolded: Unfolded, timeline: Timeline, step: Step, layout: Layout, slow: Sequence[Slow]
) -> Explanation:  # fmt: skip
    """What every rank did in the step that `timeline` replayed from `unfolded`, and whom it waited for.

    `slow`: the disturbances that `unfolded` was made with. Works on folded and unfolded replicas alike.
    """
    culprits = culprits_of(layout, slow)
    classes, runs = rank_classes(unfolded, timeline, step, culprits)
    return Explanation(
        classes,
        runs,
        thinned(path_parts(unfolded, timeline, step, culprits)),
        waiting_of(unfolded, timeline, step, layout, culprits),
    )


def rank_classes(
    unfolded: Unfolded, timeline: Timeline, step: Step, culprits: Culprits
) -> tuple[tuple[RankClass, ...], tuple[tuple[int, int], ...]]:
    """Kinds of ranks in the order of their first rank, and the runs of them that make up all ranks."""
    stages, kinds = culprits.stages, len(culprits.texts)
    program = unfolded.class_of[None, :] * stages + np.arange(stages)[:, None]  # [stages, replicas]
    key = np.repeat(program.ravel(), culprits.cell) * kinds + culprits.kind
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    lengths = np.diff(np.append(starts, len(key)))
    _, first_run, number = np.unique(key[starts], return_index=True, return_inverse=True)
    order = np.argsort(first_run)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    index = place[number.ravel()]
    first = starts[first_run[order]]
    ranks = np.zeros(len(order), np.int64)
    np.add.at(ranks, index, lengths)
    waited = _waited(unfolded, timeline, step, culprits, first, key[first] // kinds)
    total = timeline.makespan_ns
    stage, within = np.divmod(first, culprits.replicas * culprits.cell)
    rows = zip(ranks.tolist(), first.tolist(), stage.tolist(), (within // culprits.cell).tolist(), waited.tolist(),
               culprits.kind[first].tolist(), strict=True)  # fmt: skip
    found = tuple(
        RankClass(count, rank, at, replica, total - waiting, waiting, culprits.texts[kind])
        for count, rank, at, replica, waiting, kind in rows
    )
    return found, tuple(zip(index.tolist(), lengths.tolist(), strict=True))


def _waited(
    unfolded: Unfolded,
    timeline: Timeline,
    step: Step,
    culprits: Culprits,
    ranks: NDArray[np.int64],
    program: NDArray[np.int64],
) -> NDArray[np.int64]:
    """int64[len(ranks)]: how long these ranks, of these programs, wait for others."""
    split = exposed(timeline, unfolded.graph)
    idle = split.idle_ns.sum(axis=1) + split.tail_ns
    passes, transfers = _added(unfolded, timeline, step)
    # Of a program's transfers only what is exposed holds the rank up; what a disturbance added to it in proportion.
    moved = (split.communication_ns * transfers).sum(axis=1)
    inside = passes[program] * (1.0 - culprits.own[ranks])
    between = moved[program] * (1.0 - culprits.own_link[ranks])
    waited = idle[program] + np.rint(inside + between).astype(np.int64)
    least: NDArray[np.int64] = np.minimum(waited, split.total_ns)
    return least


def _added(
    unfolded: Unfolded, timeline: Timeline, step: Step
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """What disturbances add to each program: nanoseconds of its passes, and shares of its transfers by category."""
    n, programs = step.graph.n_ops, unfolded.graph.n_programs
    stages, categories = step.graph.n_programs, len(step.graph.categories)
    taken = (timeline.end_ns - timeline.start_ns).reshape(-1, n)
    slowed = unfolded.duration_ns.reshape(-1, n)
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


def path_parts(
    unfolded: Unfolded, timeline: Timeline, step: Step, culprits: Culprits
) -> tuple[PathPart, ...]:  # fmt: skip
    """The critical path, neighbouring ops of one rank together: it tiles [0, makespan] in the order of time.

    A cell is named by the rank that sets its pace, else by its first; a collective over slow links by the slowest.
    """
    graph = unfolded.graph
    path = critical_path(graph, timeline)
    path = path[timeline.end_ns[path] > timeline.start_ns[path]]
    if not len(path):
        return ()
    rank = _named(unfolded, step, culprits, path)
    starts = np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]]))
    ends = np.append(starts[1:], len(path)) - 1
    length = timeline.end_ns[path] - timeline.start_ns[path]
    part = np.repeat(np.arange(len(starts)), ends - starts + 1)
    time = np.zeros((len(starts), len(graph.categories)), np.int64)
    np.add.at(time, (part, graph.category[path]), length)
    words = _words(step)
    columns = zip(
        rank[starts].tolist(),
        time.argmax(axis=1).tolist(),
        timeline.start_ns[path[starts]].tolist(),
        timeline.end_ns[path[ends]].tolist(),
        strict=True,
    )
    return tuple(
        PathPart(number, *culprits.place(number), words[most], begins, finishes)
        for number, most, begins, finishes in columns
    )


def _named(
    unfolded: Unfolded, step: Step, culprits: Culprits, path: NDArray[np.int32]
) -> NDArray[np.int64]:  # fmt: skip
    """The rank that stands for each op of the path."""
    graph = unfolded.graph
    replica_class, stage = np.divmod(graph.program[path].astype(np.int64), culprits.stages)
    replica = np.unique(unfolded.class_of, return_index=True)[1][replica_class]
    slowest = culprits.slowest_link[stage]
    slower = unfolded.duration_ns[path] > step.duration_ns[path % step.graph.n_ops]
    shared = (graph.stream[path] % len(STREAMS) == DP) & slower & (slowest >= 0)
    return np.where(shared, slowest, culprits.speaker(replica, stage))


def thinned(parts: tuple[PathPart, ...], most: int = PATH_PARTS_MOST) -> tuple[PathPart, ...]:
    """The longest parts, in the order of time."""
    longest = sorted(parts, key=lambda part: (part.start_ns - part.end_ns, part.start_ns))[:most]
    return tuple(sorted(longest, key=lambda part: part.start_ns))


def _words(step: Step) -> list[str]:
    """How categories of the step graph are called on a path: a transfer there is exposed by nature."""
    passes = list(step.segment_names)
    return passes + [name.removeprefix("exposed ") for name in step.graph.categories[len(passes) :]]
