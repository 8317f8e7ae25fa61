"""Who held up whom: where every rank's time went in a disturbed step, and which ranks the others waited for.

Each rank is busy (it computes, moves bytes or launches) or waits for other ranks, at every instant: of the replayed
timeline of its program, gaps are waiting, and so is what a disturbance of another rank adds to what it runs. Ranks are
told apart by program and by their own disturbances, and written as runs, so that 100,000 of them stay small. The
critical path is the chain of ops, each bound by the one before it, that ends last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Exposure, Timeline, critical_path, exposed
from windtunnel.physics.graph import Graph
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.result import Disturbed, PathPart, RankClass, Waiting
from windtunnel.physics.step.step import Step

NOWHERE = -1
PATH_PARTS_MOST = 200


class Explanation(NamedTuple):
    """Fields of `Disturbed`."""

    rank_classes: tuple[RankClass, ...]
    class_runs: tuple[tuple[int, int], ...]
    critical_path: tuple[PathPart, ...]
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True, eq=False)
class Ranks:
    """Where each rank is, and what disturbs it."""

    stage: NDArray[np.int64]  # [ranks]
    replica: NDArray[np.int64]  # [ranks]
    kind: NDArray[np.int64]  # [ranks] index into `texts`
    texts: tuple[tuple[str, ...], ...]  # disturbances of a kind of rank; the first kind has none

    def place(self, rank: int) -> tuple[int, int]:
        """(stage, replica) of a rank."""
        return int(self.stage[rank]), int(self.replica[rank])


def ranks_of(stage: NDArray[np.int64], replica: NDArray[np.int64], slow: Sequence[Slow]) -> Ranks:
    """Ranks with the disturbances that befall them; where chance or a shared link decides, that is nobody."""
    kind = np.zeros(len(stage), np.int64)
    texts: dict[tuple[str, ...], int] = {(): 0}
    for disturbance in slow:
        gpus = np.unique(np.array(disturbance.gpus, np.int64))
        before = kind[gpus]
        for number in np.unique(before).tolist():
            key = (*list(texts)[number], disturbance.text)
            kind[gpus[before == number]] = texts.setdefault(key, len(texts))
    return Ranks(stage, replica, kind, tuple(texts))


# What other ranks add to what these ranks run: (split time, ranks, their programs) -> int64[ranks] nanoseconds.
HeldUp = Callable[[Exposure, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]


def rank_classes(
    step: Step, timeline: Timeline, ranks: Ranks, held_up: HeldUp
) -> tuple[tuple[RankClass, ...], tuple[tuple[int, int], ...]]:
    """Kinds of ranks in the order of their first rank, and the runs of them that make up all ranks."""
    kinds = len(ranks.texts)
    key = step.program_of * kinds + ranks.kind
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    lengths = np.diff(np.append(starts, len(key)))
    _, first_run, number = np.unique(key[starts], return_index=True, return_inverse=True)
    order = np.argsort(first_run)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    index = place[number.ravel()]
    first = starts[first_run[order]]
    counts = np.zeros(len(order), np.int64)
    np.add.at(counts, index, lengths)
    program = key[first] // kinds
    split = exposed(timeline, step.graph)
    idle = (split.idle_ns.sum(axis=1) + split.tail_ns)[program]
    waited = np.minimum(idle + held_up(split, first, program), split.total_ns)
    classes = tuple(
        RankClass(count, rank, *ranks.place(rank), split.total_ns - waiting, waiting, ranks.texts[ranks.kind[rank]])
        for count, rank, waiting in zip(counts.tolist(), first.tolist(), waited.tolist(), strict=True)
    )
    return classes, tuple(zip(index.tolist(), lengths.tolist(), strict=True))


def path_parts(
    step: Step,
    timeline: Timeline,
    ranks: Ranks,
    names: Sequence[str],
    rank_of: Callable[[NDArray[np.int32]], NDArray[np.int64]],
) -> tuple[PathPart, ...]:
    """The critical path, neighbouring ops of one rank together: it tiles [0, makespan] in the order of time.

    `names`: of the graph's categories. `rank_of`: the rank to name for each of these ops.
    """
    graph = step.graph
    path = critical_path(graph, timeline)
    path = path[timeline.end_ns[path] > timeline.start_ns[path]]
    if not len(path):
        return ()
    rank = rank_of(path)
    starts = np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]]))
    ends = np.append(starts[1:], len(path)) - 1
    length = timeline.end_ns[path] - timeline.start_ns[path]
    part = np.repeat(np.arange(len(starts)), ends - starts + 1)
    time = np.zeros((len(starts), len(graph.categories)), np.int64)
    np.add.at(time, (part, graph.category[path]), length)
    return tuple(
        PathPart(
            int(rank[begin]),
            *ranks.place(int(rank[begin])),
            names[int(time[number].argmax())],
            int(timeline.start_ns[path[begin]]),
            int(timeline.end_ns[path[end]]),
        )
        for number, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    )


def thinned(parts: tuple[PathPart, ...], most: int = PATH_PARTS_MOST) -> tuple[PathPart, ...]:
    """The longest parts, in the order of time."""
    longest = sorted(parts, key=lambda part: (part.start_ns - part.end_ns, part.start_ns))[:most]
    return tuple(sorted(longest, key=lambda part: part.start_ns))


def ready_ns(graph: Graph, end_ns: NDArray[np.int64], leave: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """int64[ops]: when each op could begin on its own account, after what is before it on its stream and what it needs.

    `leave`: bool[dependencies] that do not count.
    """
    previous = graph.previous
    ready = np.where(previous >= 0, end_ns[previous], 0)
    waiter, needed = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr)), graph.dep_idx
    if leave is not None:
        waiter, needed = waiter[~leave], needed[~leave]
    np.maximum.at(ready, waiter, end_ns[needed])
    return ready


def longest_first(waiting: Iterable[Waiting]) -> tuple[Waiting, ...]:
    """By their means; then by the worst, and by name."""
    return tuple(sorted(waiting, key=lambda wait: (-wait.mean_ns, -wait.worst_ns, wait.communicator)))


def beyond(waiting: tuple[Waiting, ...], usual: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
    """What is waited more than in an undisturbed step, longest mean first."""
    usual_ns = {wait.communicator: wait.mean_ns for wait in usual}
    more = []
    for wait in waiting:
        less = usual_ns.get(wait.communicator, 0)
        mean, worst = wait.mean_ns - less, wait.worst_ns - less
        if mean > 0:
            more.append(replace(wait, mean_ns=mean, worst_ns=max(mean, worst)))
    return tuple(sorted(more, key=lambda wait: (-wait.mean_ns, wait.communicator)))


def with_waiting(disturbed: Disturbed, waiting_ns: int, n_gpus: int, step_ns: int) -> Disturbed:
    """The same with what every step waits anyway, so that its times compare with the step's."""
    undisturbed = disturbed.undisturbed_step_time_ns + waiting_ns
    samples = disturbed.samples
    if samples:
        samples = replace(
            samples,
            p5_ns=samples.p5_ns + waiting_ns,
            p50_ns=samples.p50_ns + waiting_ns,
            p95_ns=samples.p95_ns + waiting_ns,
        )
    lost = n_gpus * (1.0 - undisturbed / step_ns) if step_ns else 0.0
    return replace(disturbed, undisturbed_step_time_ns=undisturbed, gpus_lost=lost, samples=samples)
