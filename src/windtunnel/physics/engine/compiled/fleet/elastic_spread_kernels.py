"""Compiled plans of ElasticFlow for all jobs: by deadline, and who gets spare GPUs. Of one: `elastic_plan_kernels.py`.

Allocations of all jobs are kept as (time, gpus, count), rows of [jobs, ..].
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs, Line, Plan, level_up, level_within, plan

Allocations: TypeAlias = tuple[Array, Array, Array]  # of [jobs, ..]: times, GPUs; and how many of each job


@njit(cache=True)
def plan_all(jobs: Jobs, out: Plan, free: Line, allocations: Allocations, end: Array) -> bool:
    """Plan all jobs in order; whether all are in time. Into `free` what is left, `allocations` (time, gpus, count)
    [jobs, ..] what each gets, `end` f64[jobs, 2] when it ends."""
    free.time[0], free.gpus[0], free.used[0] = jobs.now, jobs.cluster, 1
    in_time = True
    for job in range(len(jobs.left)):
        plan(jobs, job, free, -1, True, out)
        _keep(allocations, job, out)
        end[job, 0], end[job, 1] = out.end[0], out.end[1]
        _copy(out.free, free)
        in_time &= out.in_time[0]
    return in_time


@njit(cache=True)
def _keep(allocations: Allocations, job: int, out: Plan) -> None:
    allocations[2][job] = out.allocations.used[0]
    for at in range(out.allocations.used[0]):
        allocations[0][job, at], allocations[1][job, at] = out.allocations.time[at], out.allocations.gpus[at]


@njit(cache=True)
def _copy(source: Line, target: Line) -> None:
    target.used[0] = source.used[0]
    for at in range(source.used[0]):
        target.time[at], target.gpus[at] = source.time[at], source.gpus[at]


@njit(cache=True)
def _given_back(allocations: Allocations, job: int, end: float, free: Line, cluster: int, wide: Line) -> None:
    """The timeline as if a job had nothing: both step functions in one pass, without times at which nothing changes."""
    count, n = allocations[2][job], free.used[0]
    at, mark, used = 0, 0, 0
    base, own, last, ended = cluster, 0, -1, False
    while at < n or mark < count or not ended:
        time = np.inf if ended else end
        if at < n:
            time = min(time, free.time[at])
        if mark < count:
            time = min(time, allocations[0][job, mark])
        if at < n and free.time[at] == time:
            base = free.gpus[at]
            at += 1
        if mark < count and allocations[0][job, mark] == time:
            own = allocations[1][job, mark]
            mark += 1
        ended |= end == time
        total = base + (0 if time >= end else own)
        if total != last:
            wide.time[used], wide.gpus[used] = time, total
            used += 1
            last = total
    wide.used[0] = used


@njit(cache=True)
def _gpu_time(time: Array, gpus: Array, count: int, end: float) -> float:
    total = 0.0
    for at in range(count):
        total += gpus[at] * ((time[at + 1] if at + 1 < count else end) - time[at])
    return total


@njit(cache=True)
def _consider(
    jobs: Jobs,
    job: int,
    number: int,
    end: float,
    spare: int,
    free: Line,
    allocations: Allocations,
    held_gpu_s: float,
    whole: bool,
    wide: Line,
    out: Plan,
) -> float:
    """What one level more is worth to a job that holds some; its plan is left in `out`. -inf where it cannot be.
    `held_gpu_s`: of its plan so far. `whole`: as for `plan`."""
    level = level_up(jobs, job, number)
    if level == number or level - number > spare:
        return -np.inf
    _given_back(allocations, job, end, free, jobs.cluster, wide)
    plan(jobs, job, wide, level_within(jobs, job, level), whole, out)
    added = _gpu_time(out.allocations.time, out.allocations.gpus, out.allocations.used[0], out.end[0]) - held_gpu_s
    worth: float = added / (level - number)
    return worth if jobs.as_released else -worth


@njit(cache=True)
def spread_gpus(
    jobs: Jobs, order: Array, gpus_of: Array, end: Array, free: Line, allocations: Allocations, wide: Line, out: Plan
) -> None:
    """Give spare GPUs, one level at a time, to the job that gains most.

    `order`: of jobs, re-ordered by worth in place; `gpus_of` i64[jobs] and `end` f64[jobs, 2], the planned end on a
    slot and the real one, become what they are then. The better plans are in `allocations`, what is left in `free`.
    """
    n = len(order)
    spare = jobs.cluster - gpus_of.sum()
    worth, planned, held_gpu_s = np.full(n, -np.inf), np.zeros(n, np.bool_), np.empty(n)
    for job in range(n):
        held_gpu_s[job] = _gpu_time(allocations[0][job], allocations[1][job], allocations[2][job], end[job, 0])
    while True:
        for job in range(n):
            level = level_up(jobs, job, gpus_of[job])
            if level > gpus_of[job] == 0:  # comes first whatever its plan
                planned[job] = level <= spare
                worth[job] = np.inf if planned[job] else -np.inf
            elif level > gpus_of[job]:
                held_s = held_gpu_s[job]
                worth[job] = _consider(
                    jobs, job, gpus_of[job], end[job, 0], spare, free, allocations, held_s, False, wide, out
                )
                planned[job] = worth[job] != -np.inf
        _sort(order, worth)
        best = -1
        for at in range(n):
            if planned[order[at]]:
                best = order[at]
                break
        if best < 0 or spare <= 0:
            return
        _consider(jobs, best, gpus_of[best], end[best, 0], spare, free, allocations, 0.0, True, wide, out)
        _keep(allocations, best, out)
        _copy(out.free, free)
        level = level_up(jobs, best, gpus_of[best])
        spare -= level - gpus_of[best]
        gpus_of[best] = level
        end[best, 0], end[best, 1] = out.end[0], out.end[1]
        held_gpu_s[best] = _gpu_time(allocations[0][best], allocations[1][best], allocations[2][best], end[best, 0])
        planned[best] = False


@njit(cache=True)
def _sort(order: Array, worth: Array) -> None:
    """By falling worth; equal ones keep their order."""
    for at in range(1, len(order)):
        job, back = order[at], at
        while back > 0 and worth[order[back - 1]] < worth[job]:
            order[back] = order[back - 1]
            back -= 1
        order[back] = job
