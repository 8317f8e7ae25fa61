"""ElasticFlow's compiled plans against the same rules in plain Python, bit for bit."""

from __future__ import annotations

import math

import naive_plan
import numpy as np
import pytest
from oracles.elasticflow.elasticflow import _known
from oracles.elasticflow.state import EfJob, aligned

from windtunnel.physics.engine.compiled.fleet import elastic_plan_kernels as fast
from windtunnel.physics.engine.compiled.fleet import elastic_spread_kernels as all_jobs

GPUS, SLOT = 32, 60
LENGTH = 2000


def a_job(at: int, random: np.random.Generator, now: int) -> EfJob:
    levels = [1, 2, 4, 8, 16, 32][: int(random.integers(1, 7))]
    rates = {level: level ** float(random.uniform(0.5, 0.98)) for level in levels}
    deadline = now + int(random.integers(-200, 4000))
    return EfJob(at, 0, 60, 1, deadline, rates, levels[-1], float(random.uniform(1, 9000)))


def test_slots_align_as_in_plain_python():
    for start, time in ((0, 59.5), (7, 67), (7, 68), (3, 1e9), (60, 13), (0, 0)):
        assert fast.aligned(float(start), float(time), float(SLOT)) == aligned(start, time, SLOT)


@pytest.mark.parametrize("as_released", [True, False])
def test_plans_and_spare_gpus_are_those_of_plain_python(as_released):
    random = np.random.default_rng(3)
    several = 0
    for _ in range(60):
        now = int(random.integers(0, 500))
        jobs = [a_job(at, random, now) for at in range(int(random.integers(1, 9)))]
        jobs.sort(key=lambda job: job.deadline_s)
        known = _known(jobs)
        known.left[:] = [job.iterations_left for job in jobs]
        kept = np.empty((len(jobs), LENGTH)), np.empty((len(jobs), LENGTH), np.int64), np.zeros(len(jobs), np.int64)
        end, free, wide, out = np.zeros((len(jobs), 2)), fast.line(LENGTH), fast.line(LENGTH), fast.room(LENGTH)
        known = known._replace(now=float(now), cluster=GPUS, slot=float(SLOT), as_released=as_released)
        in_time = all_jobs.plan_all(known, out, free, kept, end)
        line, late = {now: GPUS}, False
        for row, job in enumerate(jobs):
            made = naive_plan.plan(job, now, line, GPUS, SLOT, as_released=as_released)
            line, late = made.free, late or not made.in_time
            job.allocations, job.end_s = made.allocations, made.end_s
            job.gpus = made.allocations[now]
            count = kept[2][row]
            assert dict(zip(kept[0][row, :count], kept[1][row, :count], strict=True)) == made.allocations
            assert tuple(end[row]) == (made.end_s, made.real_end_s)
        assert in_time != late
        assert dict(zip(free.time[: free.used[0]], free.gpus[: free.used[0]], strict=True)) == line

        held, order = np.array([job.gpus for job in jobs]), np.arange(len(jobs))
        ends, planned = dict(zip(jobs, end[:, 0].tolist(), strict=True)), end.copy()
        all_jobs.spread_gpus(known, order, held, planned, free, kept, wide, out)
        wanted, ranked, line = naive_plan.spread(list(jobs), now, line, GPUS, SLOT, as_released=as_released)
        assert planned[:, 0].tolist() == list((ends | dict(wanted)).values())
        real = dict(zip(jobs, end[:, 1].tolist(), strict=True)) | {job: job.real_end_s for job, _ in wanted}
        assert planned[:, 1].tolist() == list(real.values())
        assert [jobs[row] for row in order] == ranked
        assert held.tolist() == [job.gpus for job in jobs]
        assert dict(zip(free.time[: free.used[0]], free.gpus[: free.used[0]], strict=True)) == line
        several += len(wanted) > 1
    assert several > 10


def test_a_job_without_a_deadline_runs_as_narrow_as_it_can():
    job = EfJob(0, 0, 60, 1, math.inf, {1: 1.0, 2: 1.8}, 2, 100.0)
    known = _known([job])
    known.left[:] = 100.0
    out, free = fast.room(64), fast.line(64)
    free.time[0], free.gpus[0], free.used[0] = 0.0, 4, 1
    fast.plan(known._replace(cluster=4, slot=60.0), 0, free, -1, True, out)
    assert (out.allocations.gpus[0], out.end[1], bool(out.in_time[0])) == (1, 100.0, True)


def test_a_plan_takes_the_least_level_that_is_in_time():
    rates = {1: 1.0, 2: 1.8, 4: 3.0}
    made = naive_plan.plan(EfJob(0, 0, 60, 1, 60, rates, 4, 100.0), 0, {0: 4}, 4, 60, as_released=False)
    assert made.allocations[0] == 2
    assert made.in_time
    assert made.real_end_s == math.ceil(100 / 1.8)
    assert made.free[0] == 2
    late = naive_plan.plan(EfJob(0, 0, 60, 1, 60, rates, 4, 300.0), 0, {0: 4}, 4, 60, as_released=False)
    assert not late.in_time
    assert naive_plan.gpu_time({0: 2, 30: 4}, 60) == 180
