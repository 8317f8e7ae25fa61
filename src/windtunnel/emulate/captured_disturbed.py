"""What disturbances do to a captured step, and who is to blame: each alone, each mended, who waits for whom.

A rank is busy (it computes, moves bytes or launches) or waits for others. At a collective or message each member waits
from the moment it could begin until it does; ranks are told apart by their class and by what disturbs them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.emulate.captured_samples import sampled
from windtunnel.emulate.captured_step import CapturedStep, Replayed, stage_of
from windtunnel.engine import critical_path, exposed
from windtunnel.programs.lowering.lower import shown
from windtunnel.result import Blame, Disturbed, PathPart, RankClass, Samples, Waiting
from windtunnel.training.disturbances.attribution import thinned
from windtunnel.training.disturbances.cells import SAMPLES, Disturbances
from windtunnel.training.disturbances.planned import beyond

BLAMED_AT_MOST = 64  # disturbances whose own cost is worked out: two replays each
SAMPLED_AT_MOST = 4  # disturbances whose cost is followed from sample to sample


def disturb_captured(step: CapturedStep, asked: Disturbances) -> tuple[int, Disturbed]:
    """The makespan under everything that was asked for, in nanoseconds, and what explains it.

    With samples it is their median.
    """
    everything = frozenset(range(len(step.parts)))
    now, before = step.replayed(everything), step.replayed(())  # kept, so first: what follows asks for their lengths
    calm = step.makespan(())
    samples, without, alone = _samples(step, asked, calm)
    final = samples.p50_ns if samples else step.makespan(everything)
    places = _Places(step)
    blame = []
    for number, one in enumerate(step.parts):
        place = places.of(int(one.gpus[0])) if one.gpus and one.kind != "stage" else (one.stage, -1)
        if number in without:
            low, middle, high = without[number]
            blame.append(Blame(one.text, alone[number] - calm, middle, *place, (low, middle, high)))
        elif number < BLAMED_AT_MOST and not one.random:
            mended = step.makespan(everything) - step.makespan(everything - {number})
            blame.append(Blame(one.text, step.makespan({number}) - calm, mended, *place))
    classes, runs = _rank_classes(step, now, places)
    usual = _waiting(step, before)
    disturbed = Disturbed(
        undisturbed_step_time_ns=calm,
        gpus_lost=step.priced.job.world_size * (1.0 - calm / final) if final else 0.0,
        programs=now.captured.n_programs,
        replica_classes=tuple(np.bincount(now.captured.class_of).tolist()),
        blame=tuple(sorted(blame, key=lambda one: (-one.without_ns, -one.alone_ns, one.what))),
        samples=samples,
        rank_classes=classes,
        class_runs=runs,
        critical_path=thinned(_path(now, places)),
        waiting=beyond(_waiting(step, now), usual),
    )
    return final, disturbed


def _samples(
    step: CapturedStep, asked: Disturbances, calm_ns: int
) -> tuple[Samples | None, dict[int, tuple[int, int, int]], dict[int, int]]:
    """Percentiles of the step, of what mending each random disturbance saves, and the median of each alone."""
    everything = frozenset(range(len(step.parts)))
    varied = [number for number, one in enumerate(step.parts) if one.random or one.kind == "thermal"]
    if not (asked.sampled and varied):
        return None, {}, {}
    count = asked.samples or SAMPLES
    blamed = varied[:SAMPLED_AT_MOST] if len(step.parts) > 1 else []
    sets = [everything, *(everything - {one} for one in blamed), *(frozenset({one}) for one in blamed)]
    distinct = list(dict.fromkeys(sets))
    found = dict(zip(distinct, sampled(step, distinct, count, asked.seed, calm_ns / 1e9), strict=True))
    whole = found[everything]
    low, middle, high = _percentiles(whole)
    samples = Samples(asked.jitter, count, asked.seed, low, middle, high)
    if len(step.parts) == 1:
        spread = _percentiles(whole - calm_ns)
        return samples, {0: spread}, {0: middle}
    without = {one: _percentiles(whole - found[everything - {one}]) for one in blamed}
    return samples, without, {one: int(np.median(found[frozenset({one})])) for one in blamed}


def _percentiles(values: NDArray[np.int64]) -> tuple[int, int, int]:
    low, middle, high = (int(value) for value in np.percentile(values, [5, 50, 95]))
    return low, middle, high


class _Places:
    """Stage and replica of ranks, and what disturbs each."""

    def __init__(self, step: CapturedStep) -> None:
        job = step.priced.job
        self.stage = stage_of(step.priced)
        data = next((n for n, family in enumerate(job.families) if family.name.startswith(("dp", "fsdp", "data"))), -1)
        places = step.priced.places.place_of
        self.replica = np.maximum(places[data], 0) if data >= 0 else np.zeros(job.world_size, np.int64)
        texts: dict[tuple[str, ...], int] = {(): 0}
        by_rank: dict[int, tuple[str, ...]] = {}
        for one in step.parts:
            for gpu in one.gpus:
                by_rank[gpu] = (*by_rank.get(gpu, ()), one.text)
        self.kind = np.zeros(job.world_size, np.int64)
        for gpu, words in by_rank.items():
            self.kind[gpu] = texts.setdefault(words, len(texts))
        self.texts = tuple(texts)

    def of(self, rank: int) -> tuple[int, int]:
        """(stage, replica)."""
        return int(self.stage[rank]), int(self.replica[rank])


def _rank_classes(
    step: CapturedStep, now: Replayed, places: _Places
) -> tuple[tuple[RankClass, ...], tuple[tuple[int, int], ...]]:
    """Kinds of ranks in the order of their first rank, and the runs of them that make up all ranks."""
    captured, kinds = now.captured, len(places.texts)
    split = exposed(now.timeline, captured.graph)
    waited = split.idle_ns.sum(axis=1) + split.tail_ns
    key = captured.class_of * kinds + places.kind
    _, first, number, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    index = place[number.ravel()]
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    lengths = np.diff(np.append(starts, len(index)))
    total = now.timeline.makespan_ns
    classes = []
    for at in order.tolist():
        rank = int(first[at])
        waiting = int(waited[captured.class_of[rank]])
        classes.append(
            RankClass(
                int(counts[at]), rank, *places.of(rank), total - waiting, waiting, places.texts[int(places.kind[rank])]
            )
        )
    return tuple(classes), tuple(zip(index[starts].tolist(), lengths.tolist(), strict=True))


def _path(now: Replayed, places: _Places) -> tuple[PathPart, ...]:
    """The critical path, neighbouring ops of one rank together."""
    graph, timeline = now.captured.graph, now.timeline
    path = critical_path(graph, timeline)
    path = path[timeline.end_ns[path] > timeline.start_ns[path]]
    if not len(path):
        return ()
    program = graph.program[path]
    starts = np.flatnonzero(np.diff(program, prepend=-1))
    ends = np.append(starts[1:], len(path)) - 1
    part = np.repeat(np.arange(len(starts)), ends - starts + 1)
    time = np.zeros((len(starts), len(graph.categories)), np.int64)
    np.add.at(time, (part, graph.category[path]), timeline.end_ns[path] - timeline.start_ns[path])
    words = [name.removeprefix("exposed ") for name in graph.categories]
    found = []
    for number, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        rank = int(now.captured.first_rank[program[begin]])
        what = words[int(time[number].argmax())]
        found.append(
            PathPart(rank, *places.of(rank), what, int(timeline.start_ns[path[begin]]), int(timeline.end_ns[path[end]]))
        )
    return tuple(found)


def _waiting(step: CapturedStep, now: Replayed) -> tuple[Waiting, ...]:
    """Waiting for the last member, by family of groups: each rank's sum over the step, longest mean first."""
    captured, timeline = now.captured, now.timeline
    graph = captured.graph
    local = np.arange(graph.n_ops) - captured.first_op[graph.program]
    use = np.empty(graph.n_ops, np.int64)
    family = np.full(graph.n_ops, -1, np.int64)
    for number, template in enumerate(step.priced.templates):
        mine = captured.template_of[graph.program] == number
        use[mine] = template.use_of[local[mine]]
        of_use = np.array([template.slots[one.slot].family for one in template.uses] or [-1], np.int64)
        family[mine] = np.where(use[mine] >= 0, of_use[use[mine]], -1)
    ready = _ready(now)
    weight = graph.multiplicity
    found = []
    for number in np.unique(family[family >= 0]).tolist():
        ops = np.flatnonzero(family == number)
        waits = np.zeros(captured.n_programs, np.int64)
        np.add.at(waits, graph.program[ops], timeline.start_ns[ops] - ready[ops])
        members = np.unique(graph.program[ops])
        own = waits[members]
        mean = round(float((own * weight[members]).sum() / weight[members].sum()))
        last = -1
        if own.max() > 0:  # who waits least comes last; among equals the most disturbed
            pace = captured.pace
            trouble = np.maximum(pace.compute, pace.links)[captured.first_rank[members]]
            last = int(captured.first_rank[members[np.lexsort((-trouble, own))[0]]])
        found.append(Waiting(shown(step.priced.job.families[number].name), mean, int(own.max()), last))
    return tuple(sorted(found, key=lambda one: (-one.mean_ns, -one.worst_ns, one.communicator)))


def _ready(now: Replayed) -> NDArray[np.int64]:
    """When each op could begin on its own account: after what is before it on its stream, and its dependencies."""
    graph, end = now.captured.graph, now.timeline.end_ns
    order = np.argsort(graph.stream, kind="stable")
    ready = np.zeros(graph.n_ops, np.int64)
    same = graph.stream[order[1:]] == graph.stream[order[:-1]]
    ready[order[1:][same]] = end[order[:-1][same]]
    waiter = np.repeat(np.arange(graph.n_ops), np.diff(graph.dep_ptr))
    np.maximum.at(ready, waiter, end[graph.dep_idx])
    return ready
