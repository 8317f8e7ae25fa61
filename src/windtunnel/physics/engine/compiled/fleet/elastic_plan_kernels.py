"""Compiled plans of ElasticFlow: one job over a timeline of free GPUs (all jobs: `elastic_spread_kernels.py`).

The least level q is found that, filled from the deadline backwards (at each interval the largest level <= q that is
free), does the work in time; then it is laid out forwards: the level before q until the interval in which the backward
pass was done, q from there on. The last interval counts to the true deadline, what is planned ends on a whole slot.
Where no level is in time, the largest is used to the deadline and whatever is free after it. Source: D. Gu et al.,
"ElasticFlow", ASPLOS 2023; pkusys/ElasticFlow, scheduler.py (ef_sim_allocation), as rules. `as_released`: the plan
names every interval before the deadline, also those after its end, as the artifact's does, whose marginal returns
therefore count the last GPUs up to the next change of anything.

A timeline is times and GPUs free from each on. Jobs are columns: `level`, `rate` [jobs, levels] with `levels` of them,
ascending; `left` iterations, `deadline`, `largest` level. Allocations are rows of times and GPUs, `count` of them.
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

SURELY = 1 + 1e-9  # more than what rounding does to a sum of work


class Jobs(NamedTuple):
    """What jobs are, in the order in which they are planned; and when, on how many GPUs, by which rules."""

    level: Array  # i64[jobs, levels]
    rate: Array  # f64[jobs, levels] iterations/s
    levels: Array  # i64[jobs]
    largest: Array  # i64[jobs]
    left: Array  # f64[jobs]
    deadline: Array  # f64[jobs]
    now: float = 0.0
    cluster: int = 0  # GPUs
    slot: float = 1.0  # seconds
    as_released: bool = False


class Line(NamedTuple):
    """A step function of time; `used[0]` entries of it are in use."""

    time: Array  # f64
    gpus: Array  # i64
    used: Array  # i64[1]


class Plan(NamedTuple):
    """Room for one job's plan: what it gets, what is free after it, (planned end, estimated end), in time."""

    allocations: Line
    free: Line
    end: Array  # f64[2]
    in_time: Array  # bool[1]
    given: Array  # i64 scratch
    before: Array  # i64 scratch
    pick: Array  # i64 scratch


def line(length: int) -> Line:
    """An empty one with room for `length` entries."""
    return Line(np.empty(length), np.empty(length, np.int64), np.zeros(1, np.int64))


def room(length: int) -> Plan:
    """Room for plans over timelines of up to `length` entries."""
    scratch = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(length, np.int64)
    return Plan(line(length), line(length), np.zeros(2), np.zeros(1, np.bool_), *scratch)


@njit(cache=True)
def aligned(start: float, time: float, slot: float) -> float:
    """The first whole slot from `start` that is not before `time`."""
    if np.isinf(time):
        return time
    rest = (time - start) % slot
    whole: float = start + (np.rint((time - start - rest) / slot) + (1.0 if rest > 0 else 0.0)) * slot
    return whole


@njit(cache=True)
def level_up(jobs: Jobs, job: int, gpus: int) -> int:
    """The next level above `gpus`, or `gpus` itself at the top."""
    for at in range(jobs.levels[job]):
        if gpus < jobs.level[job, at] <= jobs.largest[job]:
            higher: int = jobs.level[job, at]
            return higher
    return gpus


@njit(cache=True)
def level_within(jobs: Jobs, job: int, gpus: int) -> int:
    """Index of the largest level up to `gpus`; -1 where there is none."""
    best = -1
    for at in range(jobs.levels[job]):
        if jobs.level[job, at] > gpus or jobs.level[job, at] > jobs.largest[job]:
            break
        best = at
    return best


@njit(cache=True)
def _merge(time: Array, gpus: Array, count: int, skip: bool, out: Line) -> None:
    """Copy without the times at which nothing changes; `skip`: entries below 0 are none."""
    last, n = -1, 0
    for at in range(count):
        if gpus[at] != last and not (skip and gpus[at] < 0):
            out.time[n] = time[at]
            out.gpus[n] = last = gpus[at]
            n += 1
    out.used[0] = n


@njit(cache=True)
def _insert(at: Line, time: float, gpus: int) -> int:
    """Put an entry in its place, unless that time is there; returns its index."""
    n = at.used[0]
    place: int = n
    while place > 0 and at.time[place - 1] >= time:
        place -= 1
    if place < n and at.time[place] == time:
        return place
    for number in range(n, place, -1):
        at.time[number] = at.time[number - 1]
        at.gpus[number] = at.gpus[number - 1]
    at.time[place], at.gpus[place] = time, gpus
    at.used[0] = n + 1
    return place


@njit(cache=True)
def _finish(end: float, real: float, before: int, has_entry: bool, deadline: float, whole: bool, out: Plan) -> None:
    """Close a plan: GPUs are `before` again from `end` on, unless the timeline before the job `has_entry` there."""
    n = out.free.used[0]
    _merge(out.free.time, out.given, n, True, out.allocations)
    out.end[0], out.end[1] = end, real
    out.in_time[0] = real <= deadline
    if not whole:
        return
    if not has_entry:
        place = _insert(out.free, end, before)
        out.free.gpus[place] = before
    count, last = 0, -1
    for at in range(out.free.used[0]):
        if out.free.gpus[at] != last:
            out.free.time[count] = out.free.time[at]
            out.free.gpus[count] = last = out.free.gpus[at]
            count += 1
    out.free.used[0] = count


@njit(cache=True)
def plan(jobs: Jobs, job: int, free: Line, assigned: int, whole: bool, out: Plan) -> None:
    """Plan a job as late and as narrow as its deadline allows. `assigned`: index of the level held first, or -1.
    `whole`: also what is free after it."""
    now, slot = jobs.now, jobs.slot
    left, deadline = jobs.left[job], jobs.deadline[job]
    level, rate = jobs.level[job], jobs.rate[job]
    bound = aligned(now, deadline, slot)
    n = free.used[0]
    time, after, allotment, before = out.free.time, out.free.gpus, out.given, out.before
    for at in range(n):
        time[at], after[at] = free.time[at], free.gpus[at]
        before[at] = free.gpus[at]  # as it was; -1 at a time that was no entry
    out.free.used[0] = n
    if bound >= now:
        place = _insert(out.free, bound, -1)
        if after[place] < 0:
            after[place] = after[place - 1]
            for number in range(n, place, -1):
                before[number] = before[number - 1]
            before[place] = -1
            n += 1
    for at in range(n):
        allotment[at] = -1
    first = 0
    while time[first] < now:
        first += 1
    allotment[first] = 0
    if assigned >= 0:
        gpus = level[assigned]
        later_at = first + 1
        while later_at < n and before[later_at] < 0:
            later_at += 1
        later = time[later_at] if later_at < n else max(bound, now)
        allotment[first] = gpus
        real = np.ceil(now + left / rate[assigned])
        end = aligned(now, real, slot)
        if later >= end and deadline >= real:
            back, has_entry = after[first], False
            for at in range(n):
                if before[at] >= 0 and now <= time[at] < end:
                    back = after[at]
                    after[at] -= gpus
                has_entry |= before[at] >= 0 and time[at] == end
            _finish(end, real, back, has_entry, deadline, whole, out)
            return
        lasts = (deadline if later == bound else later) - now
        if later_at == n and bound < now:
            lasts = 0.0
        left -= lasts * rate[assigned]
        after[first] -= gpus
        while first < n and time[first] < later:
            first += 1
        first = min(first, n - 1)
        allotment[first] = 0
    if jobs.as_released:
        for at in range(n):
            if time[at] < bound and allotment[at] < 0:
                allotment[at] = 0
    start = time[first]
    pick_of = out.pick
    for at in range(first, n):
        if time[at] > bound:
            break
        pick_of[at] = level_within(jobs, job, after[at])
    limit, below, top, fastest = min(jobs.cluster, jobs.largest[job]), -1, 0, 0.0
    while top < jobs.levels[job] and level[top] <= limit:
        fastest = max(fastest, rate[top])
        if fastest * (bound - start) * SURELY >= left:
            begin = _backwards(jobs, job, time, pick_of, n, first, bound, top, left)
            if begin >= 0:
                _forwards(jobs, job, n, first, bound, begin, top, below, left, whole, out)
                return
        below = top
        top += 1
    for at in range(first, n - 1):
        if time[at + 1] > bound:
            break
        pick = min(below, pick_of[at])
        allotment[at] = level[pick] if pick >= 0 else 0
        after[at] -= allotment[at]
        if pick >= 0:
            left -= ((deadline if time[at + 1] == bound else time[at + 1]) - time[at]) * rate[pick]
    _late(jobs, job, n, max(bound, start), bound, left, assigned, whole, out)


@njit(cache=True)
def _backwards(
    jobs: Jobs, job: int, time: Array, pick_of: Array, n: int, first: int, bound: float, top: int, left: float
) -> int:
    """Index of the interval from which on level `top` is needed; -1 where it is not enough. `pick_of`: index of the
    largest level that is free, by interval."""
    done, later = 0.0, bound
    for at in range(n - 1, first - 1, -1):
        if time[at] >= bound:
            continue
        pick = min(top, pick_of[at])
        if pick >= 0:
            done += ((jobs.deadline[job] if later == bound else later) - time[at]) * jobs.rate[job, pick]
            if done >= left:
                return at
        later = time[at]
    return -1


@njit(cache=True)
def _forwards(
    jobs: Jobs,
    job: int,
    n: int,
    first: int,
    bound: float,
    begin: int,
    top: int,
    below: int,
    left: float,
    whole: bool,
    out: Plan,
) -> None:
    """Lay a plan out that is in time: level `below` until `begin`, `top` from there on."""
    time, after, allotment, before = out.free.time, out.free.gpus, out.given, out.before
    level, rate, deadline = jobs.level[job], jobs.rate[job], jobs.deadline[job]
    end = real = jobs.now
    for at in range(first, n):
        if time[at] > bound:
            break
        pick = min(top if at >= begin else below, out.pick[at])
        allotment[at] = level[pick] if pick >= 0 else 0
        after[at] -= allotment[at]
        last = at == n - 1 or time[at + 1] > bound
        if pick < 0 and not last:
            continue
        if not last:
            done = ((deadline if time[at + 1] == bound else time[at + 1]) - time[at]) * rate[pick]
            if at < begin or done < left:
                left -= done
                continue
        rest = np.ceil(left / rate[pick if pick >= 0 else top])
        end, real = time[at] + aligned(0.0, rest, jobs.slot), time[at] + rest
        break
    back, has_entry = jobs.cluster, False
    if whole:
        for at in range(n):
            if before[at] >= 0 and time[first] <= time[at] < end:
                back = before[at]
            has_entry |= before[at] >= 0 and time[at] == end
    _finish(end, real, back, has_entry, deadline, whole, out)


@njit(cache=True)
def _late(
    jobs: Jobs,
    job: int,
    n: int,
    start: float,
    bound: float,
    left: float,
    assigned: int,
    whole: bool,
    out: Plan,
) -> None:
    """Whatever is free after the deadline, until the job is done."""
    now, slot, cluster = jobs.now, jobs.slot, jobs.cluster
    time, after, allotment, before = out.free.time, out.free.gpus, out.given, out.before
    level, rate, deadline = jobs.level[job], jobs.rate[job], jobs.deadline[job]
    here = 0
    while here < n - 1 and time[here] < start:
        here += 1
    for later_at in range(n):
        if time[later_at] <= bound:
            continue
        pick = level_within(jobs, job, after[here])
        allotment[here] = level[pick] if pick >= 0 else 0
        if pick >= 0:
            work = (time[later_at] - time[here]) * rate[pick]
            if work >= left:
                real = np.ceil(time[here] + left / rate[pick])
                end = aligned(now, real, slot)
                back, has_entry = after[here], False
                for at in range(n):
                    if bound <= time[at] < end and before[at] >= 0:
                        back = before[at]
                    if time[here] <= time[at] < end:
                        after[at] -= allotment[here]
                    has_entry |= before[at] >= 0 and time[at] == end
                _finish(end, real, back, has_entry, deadline, whole, out)
                return
            left -= work
            for at in range(n):
                if time[here] <= time[at] < time[later_at]:
                    after[at] -= allotment[here]
        here = later_at
    pick = assigned if assigned >= 0 else level_within(jobs, job, min(cluster, jobs.largest[job]))
    allotment[here] = level[pick]
    real = np.ceil(time[here] + max(left, 0.0) / rate[pick])
    end = aligned(now, real, slot)
    after[here] = cluster - level[pick]
    _finish(end, real, cluster, False, deadline, whole, out)
