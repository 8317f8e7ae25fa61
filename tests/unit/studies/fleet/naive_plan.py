"""The plain twin of `engine/compiled/fleet/elastic_plan_kernels.py`, whose docstring says what a plan is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from oracles.elasticflow.edf import Timeline, merged
from oracles.elasticflow.state import EfJob, aligned


@dataclass(frozen=True)
class Planned:
    """What one job would get."""

    allocations: Timeline
    free: Timeline  # after it
    end_s: float  # on a whole slot
    real_end_s: float
    in_time: bool


def level_up(job: EfJob, gpus: int) -> int:
    """The next level above `gpus`, or `gpus` itself at the top."""
    return next((level for level in job.rates if gpus < level <= job.largest), gpus)


def level_within(job: EfJob, free: int) -> int:
    """The largest level that fits into `free` GPUs."""
    best = 0
    for level in job.rates:
        if level > job.largest or level > free:
            break
        best = level
    return best


def gpu_time(allocations: Timeline, end_s: float) -> float:
    """GPU-seconds of a plan."""
    times = [*allocations, end_s]
    return sum(gpus * (later - time) for (time, gpus), later in zip(allocations.items(), times[1:], strict=True))


def plan(
    job: EfJob,
    now_s: float,
    free: Timeline,
    cluster_gpus: int,
    slot_s: float,
    assigned: int | None = None,
    *,
    as_released: bool,
) -> Planned:
    """Plan a job; with `assigned`, it holds so many GPUs for the first interval.

    `as_released`: the plan names every interval before the deadline, also those after its end, as the artifact's does,
    whose marginal returns therefore count the last GPUs up to the next change of anything.
    """
    left = job.iterations_left
    deadline_s = job.deadline_s
    bound_s = aligned(now_s, deadline_s, slot_s)
    after = dict(free)
    if bound_s not in after and bound_s >= now_s:
        after[bound_s] = [gpus for time, gpus in after.items() if time < bound_s][-1]
        after = dict(sorted(after.items()))
    allocations: Timeline = {now_s: 0}
    start_s = now_s

    def done(end_s: float, real_s: float) -> Planned:
        ordered = dict(sorted(after.items()))
        return Planned(merged(dict(sorted(allocations.items()))), merged(ordered), end_s, real_s, real_s <= deadline_s)

    if assigned is not None:
        later_s = next((time for time in free if time > now_s), bound_s)
        allocations[now_s] = assigned
        real_s: float = math.ceil(now_s + left / job.rate(assigned))
        end_s = aligned(now_s, real_s, slot_s)
        if later_s >= end_s and deadline_s >= real_s:
            before = after[now_s]
            for time in free:
                if now_s <= time < end_s:
                    before = after[time]
                    after[time] -= assigned
            if end_s not in free:
                after[end_s] = before
            return done(end_s, real_s)
        lasts_s = (deadline_s if later_s == bound_s else later_s) - now_s
        left -= lasts_s * job.rate(assigned)
        after[now_s] -= assigned
        start_s = later_s
        allocations[start_s] = 0

    if as_released:
        for time in after:
            if time < bound_s:
                allocations.setdefault(time, 0)
    level, level_before = level_up(job, 0), 0
    while level <= min(cluster_gpus, job.largest):
        from_s = _backwards(job, after, start_s, bound_s, level, left)
        if from_s is not None:
            end_s, real_s = _forwards(
                job, after, allocations, start_s, bound_s, from_s, level, level_before, left, slot_s
            )
            before = cluster_gpus
            for time in free:
                if start_s <= time < end_s:
                    before = free[time]
            if end_s not in free:
                after[end_s] = before
            return done(end_s, real_s)
        level_before, level = level, level_up(job, level)
        if level == level_before:
            break
    left = _to_the_deadline(job, after, allocations, start_s, bound_s, level_before, left)
    after_it = _Beyond(free, now_s, bound_s, cluster_gpus, slot_s, assigned)
    return done(*_late(job, after, allocations, max(bound_s, start_s), left, after_it))


@dataclass(frozen=True)
class _Beyond:
    """What a plan that is late has to know."""

    free: Timeline
    now_s: float
    bound_s: float
    cluster_gpus: int
    slot_s: float
    assigned: int | None


def _backwards(job: EfJob, after: Timeline, start_s: float, bound_s: float, level: int, left: float) -> float | None:
    """The interval from which on `level` is needed; None where it is not enough."""
    done = 0.0
    later_s = bound_s
    for time in reversed(after):
        if time >= bound_s:
            continue
        if time < start_s:
            break
        count = level if after[time] >= level else min(level, level_within(job, after[time]))
        if count:
            lasts_s = (job.deadline_s if later_s == bound_s else later_s) - time
            done += lasts_s * job.rate(count)
            if done >= left:
                return time
        later_s = time
    return None


def _forwards(
    job: EfJob,
    after: Timeline,
    allocations: Timeline,
    start_s: float,
    bound_s: float,
    from_s: float,
    level: int,
    level_before: int,
    left: float,
    slot_s: float,
) -> tuple[float, float]:
    """Lay the plan out; returns (planned end, estimated end)."""

    def count_at(time: float) -> int:
        return min(level if time >= from_s else level_before, level_within(job, after[time]))

    times = [time for time in after if start_s <= time <= bound_s]
    for at, (time, later_s) in enumerate(zip(times, [*times[1:], None], strict=True)):
        count = count_at(time)
        allocations[time] = count
        after[time] -= count
        last = at == len(times) - 1
        if count == 0 and not last:
            continue
        if not last and later_s is not None:
            lasts_s = (job.deadline_s if later_s == bound_s else later_s) - time
            done = lasts_s * job.rate(count)
            if time < from_s or done < left:
                left -= done
                continue
        rest_s = math.ceil(left / job.rate(count or level))
        return time + aligned(0, rest_s, slot_s), time + rest_s
    raise AssertionError("a plan that is in time has an end")


def _to_the_deadline(
    job: EfJob, after: Timeline, allocations: Timeline, start_s: float, bound_s: float, level: int, left: float
) -> float:
    """Use the largest level up to the deadline; returns the iterations still left."""
    times = [time for time in after if start_s <= time <= bound_s]
    for time, later_s in pairwise(times):
        count = min(level, level_within(job, after[time]))
        allocations[time] = count
        after[time] -= count
        if count:
            left -= ((job.deadline_s if later_s == bound_s else later_s) - time) * job.rate(count)
    return left


def _late(
    job: EfJob, after: Timeline, allocations: Timeline, time: float, left: float, at: _Beyond
) -> tuple[float, float]:
    """Whatever is free after the deadline, until the job is done; returns (planned end, estimated end)."""
    for later_s in [each for each in after if each > at.bound_s]:
        count = min(level_within(job, after[time]), job.largest)
        allocations[time] = count
        if count:
            work = (later_s - time) * job.rate(count)
            if work >= left:
                real_s: float = math.ceil(time + left / job.rate(count))
                end_s = aligned(at.now_s, real_s, at.slot_s)
                before = after[time]
                for each in list(after):
                    if at.bound_s <= each < end_s and each in at.free:
                        before = at.free[each]
                    if time <= each < end_s:
                        after[each] -= count
                if end_s not in at.free:
                    after[end_s] = before
                return end_s, real_s
            left -= work
            for each in after:
                if time <= each < later_s:
                    after[each] -= count
        time = later_s
    count = min(at.cluster_gpus, job.largest) if at.assigned is None else at.assigned
    allocations[time] = count
    real_s = math.ceil(time + max(left, 0) / job.rate(count))
    end_s = aligned(at.now_s, real_s, at.slot_s)
    after[time] = at.cluster_gpus - count
    after[end_s] = at.cluster_gpus
    return end_s, real_s


def consider(
    job: EfJob, now_s: float, free: Timeline, spare: int, cluster_gpus: int, slot_s: float, *, as_released: bool
):
    """(what one level more would be worth, its plan or None)."""
    level = level_up(job, job.gpus)
    if level - job.gpus > spare or level == job.gpus:
        return -math.inf, None
    free = dict(free)
    for time in (job.end_s, *job.allocations):
        if time not in free:
            earlier = [gpus for at, gpus in free.items() if at < time]
            free[time] = earlier[-1] if earlier else cluster_gpus
            free = dict(sorted(free.items()))
    held = 0
    for time, gpus in job.allocations.items():
        for each in free:
            if time <= each < job.end_s:
                free[each] += gpus - held
        held = gpus
    wide = plan(job, now_s, merged(free), cluster_gpus, slot_s, level, as_released=as_released)
    added = gpu_time(wide.allocations, wide.end_s) - gpu_time(job.allocations, job.end_s)
    worth = added / (level - job.gpus)
    return (math.inf if job.gpus == 0 else worth if as_released else -worth), wide


def spread(jobs: list[EfJob], now_s: float, free: Timeline, cluster_gpus: int, slot_s: float, *, as_released: bool):
    """Spare GPUs to those who gain most; returns the steps (job, end) and the order that is left."""
    spare = cluster_gpus - sum(job.gpus for job in jobs)
    order, steps = list(jobs), []
    wider = {job: consider(job, now_s, free, spare, cluster_gpus, slot_s, as_released=as_released) for job in order}
    order.sort(key=lambda job: -wider[job][0])
    while spare > 0:
        job = next((job for job in order if wider[job][1] and 0 < level_up(job, job.gpus) - job.gpus <= spare), None)
        if job is None:
            break
        wide = wider[job][1]
        free, job.allocations, job.end_s = wide.free, wide.allocations, wide.end_s
        job.real_end_s = wide.real_end_s
        spare -= level_up(job, job.gpus) - job.gpus
        job.gpus = level_up(job, job.gpus)
        steps.append((job, wide.end_s))
        wider[job] = wider[job][0], None
        for other in order:
            if level_up(other, other.gpus) > other.gpus:
                wider[other] = consider(other, now_s, free, spare, cluster_gpus, slot_s, as_released=as_released)
        order.sort(key=lambda job: -wider[job][0])
    return steps, order, free
