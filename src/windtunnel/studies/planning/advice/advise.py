"""Advice that was tried: changes of one field of a plan, each predicted before it is said.

    every legal change -> those that a bound rules out are dropped -> the rest replayed, most promising first

A bound never exceeds the replayed step (`bounds.py`), so what is dropped cannot help, and the list ends when no change
left could beat what was found, or after `REPLAYS_MOST` replays. What does not fit in memory, or in the host's where
the optimizer goes there, is not said; nor is a gain below `WORTH`, nor a third value of one field. What the framework
is not known to have is named, as such, only where nothing that it has is as quick.

Where the plan itself does not fit, the changes with which it does are told, quickest step first. Where none does, two
or three of them together; where those do not either, more GPUs.

Steps and memory are those that `predict` gives, to the nanosecond and the byte. Under disturbances, uneven experts,
packed documents or a technique the best of the list are asked again with all of these, and told if they still help.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.model import Model, load_model
from windtunnel.physics.step.result import Advice, Result
from windtunnel.studies.planning.advice.changes import (
    NUMBERS,
    OTHERS,
    PLAN,
    Change,
    change_fields,
    changes_of,
    flags_of,
)
from windtunnel.studies.planning.oracle import (
    Layout,
    Plan,
    host_holds,
    laid_out,
    least_memory_bytes,
    memory_bytes,
    read_plan,
    replayed,
    step_ns,
    straggling,
)
from windtunnel.studies.planning.search.bounds import Bounds

WORTH = 0.005  # of the step
HEAD_ROOM = 0.03  # of a device's memory, which a change leaves free
TOLD = {PLAN: 6, NUMBERS: 3, OTHERS: 1}
TOLD_OF_A_FIELD = 2
REPLAYS_MOST = 96
FEW = 3  # single changes with which a plan fits: where there are fewer, two together are tried
ASKED_AGAIN = 6  # with disturbances
TOGETHER = 20  # changes that save most memory, tried in pairs; and pairs, tried with a third
DOUBLINGS = 6

Repredict = Callable[[Cluster, Plan], Result]


@dataclass(frozen=True, slots=True)
class _Candidate:
    fields: Mapping[str, object]
    kind: str
    layout: Layout
    step_ns: int
    memory_bytes: int


def advise(
    model: Model | str | Path | Mapping[str, object],
    cluster: Cluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object],
) -> tuple[Advice, ...]:
    """Changes of one field of a plan that make its step shorter, or that make it fit, best first; each was predicted.

    Arguments as `predict` takes them. Raises UserError on a plan that cannot be.
    """
    model = model if isinstance(model, Model) else load_model(model)
    cluster = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    return _advice(laid_out(model, cluster, plan if isinstance(plan, Plan) else read_plan(plan)), None)[0]


def with_advice(result: Result, model: Model, cluster: Cluster, plan: Plan, repredict: Repredict | None) -> Result:
    """The answer of a plan with its advice; `repredict`: how it was answered, if not by `predict` alone."""
    advice, attempts = _advice(laid_out(model, cluster, plan), result, repredict)
    return replace(result, advice=advice, advice_tried=attempts)


def _advice(base: Layout, result: Result | None, repredict: Repredict | None = None) -> tuple[tuple[Advice, ...], int]:
    now = replayed(base)
    changes, bounds = changes_of(base), Bounds(straggling(base.cluster))
    fits = now.fits if result is None else result.infeasible is None
    limit = now.step_ns * (1.0 - WORTH) if fits else float("inf")
    room = int(now.capacity_bytes * (1.0 - HEAD_ROOM))
    best = _best(changes, bounds, limit, room)
    attempts = len(changes)
    if not fits and sum(candidate.kind == PLAN for candidate in best) < FEW:
        pairs, more = _together(base, changes, room)
        best += pairs
        attempts += more
    if not fits and not best:
        best, more = _larger(base)
        attempts += more
    if repredict is None or result is None:
        advices = [_advice_of(candidate, candidate.step_ns, candidate.memory_bytes, now.step_ns) for candidate in best]
    else:
        advices = _asked_again(best, result, repredict, fits)
    had = min((advice.step_time_ns for advice in advices if advice.kind != OTHERS), default=0)
    advices = [advice for advice in advices if advice.kind != OTHERS or not had or advice.step_time_ns < had]
    return tuple(sorted(advices, key=lambda advice: (_order(advice.kind), advice.step_time_ns, advice.flags))), attempts


def _order(kind: str) -> int:
    return (PLAN, NUMBERS, OTHERS).index(kind)


def _advice_of(candidate: _Candidate, step_ns: int, memory: int, before_ns: int) -> Advice:
    gain = 1.0 - step_ns / before_ns
    n_gpus = candidate.layout.cluster.n_gpus if "n_gpus" in candidate.fields else None
    flags = f"--set cluster.n_gpus={n_gpus}" if n_gpus is not None else flags_of(candidate.fields)
    return Advice(dict(candidate.fields), flags, candidate.kind, step_ns, gain, memory)


def _asked_again(best: Sequence[_Candidate], result: Result, repredict: Repredict, fits: bool) -> list[Advice]:
    advices = []
    for candidate in best[:ASKED_AGAIN]:
        try:
            other = repredict(candidate.layout.cluster, candidate.layout.user_plan)
        except UserError:  # e.g. a disturbance of a stage that is gone
            continue
        helps = not fits or other.step_time_ns < result.step_time_ns * (1.0 - WORTH)
        if helps and other.infeasible is None:
            memory = other.peak_memory.device_bytes
            advices.append(_advice_of(candidate, other.step_time_ns, memory, result.step_time_ns))
    return advices


def _best(changes: Iterable[Change], bounds: Bounds, limit_ns: float, capacity: int) -> list[_Candidate]:
    """The quickest changes that fit and stay below a limit, best-first by their bounds."""
    rough, close, done = range(3)
    heap: list[tuple[float, int, int]] = []
    every = list(changes)
    candidates: dict[int, _Candidate] = {}
    counts = dict.fromkeys(TOLD, 0)
    of_field: Counter[str] = Counter()
    for number, change in enumerate(every):
        # Formats are priced by another cost: they are few, and replayed at once.
        key = (bounds.work_ns(change.layout), rough, number) if change.bounded else (0.0, close, number)
        if key[0] <= limit_ns:
            heapq.heappush(heap, key)
    best: list[_Candidate] = []
    replays = 0
    while heap:
        key_ns, level, number = heapq.heappop(heap)
        change = every[number]
        field = next(iter(change.fields))
        if counts[change.kind] == TOLD[change.kind] or of_field[field] == TOLD_OF_A_FIELD:
            continue
        if level == done:
            if not any(_does_all_of(candidate, candidates[number]) for candidate in best):
                best.append(candidates[number])
                counts[change.kind] += 1
                of_field[field] += change.kind != OTHERS
        elif level == rough:
            bound = max(key_ns, bounds.step_ns(change.layout))
            if bound <= limit_ns and bounds.memory_bytes(change.layout) <= capacity:
                heapq.heappush(heap, (bound, close, number))
        elif replays < REPLAYS_MOST:
            candidate = _try_out(change, capacity)
            replays += candidate is not None
            if candidate is not None and candidate.step_ns <= limit_ns:
                candidates[number] = candidate
                heapq.heappush(heap, (float(candidate.step_ns), done, number))
    return best


def _does_all_of(candidate: _Candidate, other: _Candidate) -> bool:
    """Whether a candidate, part of the other, is as quick and as small: then the rest of the other does nothing."""
    part = candidate.fields.items() <= other.fields.items()
    return part and candidate.step_ns <= other.step_ns and candidate.memory_bytes <= other.memory_bytes


def _try_out(change: Change, capacity: int) -> _Candidate | None:
    """The change, replayed; None where it does not fit."""
    layout = change.layout
    needed = memory_bytes(layout, capacity)
    if needed > capacity or not host_holds(layout):
        return None
    return _Candidate(change.fields, change.kind, layout, step_ns(layout), needed)


def _together(base: Layout, changes: Sequence[Change], capacity: int) -> tuple[list[_Candidate], int]:
    """Two changes with which a plan fits, else three, quickest first; how many were tried."""
    bounds, before = Bounds(straggling(base.cluster)), least_memory_bytes(base)
    saving = sorted(
        ((least_memory_bytes(change.layout), number) for number, change in enumerate(changes) if change.kind != OTHERS),
        key=lambda pair: pair,
    )
    some = [changes[number] for needed, number in saving if needed < before][:TOGETHER]
    joined: list[tuple[int, Change]] = []
    for first, second in combinations(some, 2):
        both = (
            None if set(first.fields) & set(second.fields) else change_fields(base, {**first.fields, **second.fields})
        )
        if both is not None:
            joined.append((least_memory_bytes(both.layout), _as(both, first, second)))
    pairs = _best((both for needed, both in joined if needed <= capacity), bounds, float("inf"), capacity)
    if pairs:
        return pairs, len(joined)
    joined.sort(key=lambda pair: pair[0])
    threes = {}
    for _, both in joined[:TOGETHER]:
        for third in some:
            fields = {**both.fields, **third.fields}
            key = frozenset(fields.items())
            if not set(third.fields) & set(both.fields) and key not in threes:
                together = change_fields(base, fields)
                threes[key] = None if together is None else _as(together, both, third)
    legal = [three for three in threes.values() if three is not None]
    return _best(legal, bounds, float("inf"), capacity), len(joined) + len(legal)


def _as(change: Change, first: Change, second: Change) -> Change:
    return replace(change, kind=max(first.kind, second.kind, key=_order))


def _larger(base: Layout) -> tuple[list[_Candidate], int]:
    """The same plan on more GPUs: the least doubling that fits."""
    for doubling in range(1, DOUBLINGS + 1):
        more = base.cluster.n_gpus * 2**doubling
        try:
            layout = laid_out(
                base.model, cluster_with(base.cluster, n_gpus=more), base.user_plan.with_fields({"dp": None})
            )
        except UserError:
            continue
        fields = {"n_gpus": more} | ({} if base.user_plan.dp is None else {"dp": layout.dp})
        candidate = _try_out(
            Change(fields, PLAN, layout), int(base.cluster.gpu.usable_memory_bytes * (1.0 - HEAD_ROOM))
        )
        if candidate is not None:
            return [candidate], doubling
    return [], DOUBLINGS
