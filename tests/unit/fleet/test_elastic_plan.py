"""ElasticFlow's compiled plans against the same rules in plain Python, bit for bit; Pollux's packed states."""

from __future__ import annotations

import math

import naive_plan
import numpy as np
import pytest

from windtunnel.engine.compiled import elastic_plan_kernels as fast
from windtunnel.engine.compiled import genetic_kernels as genetic
from windtunnel.fleet.elasticflow.elasticflow import _known
from windtunnel.fleet.elasticflow.state import EfJob, aligned

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
        in_time = fast.plan_all(known, float(now), GPUS, float(SLOT), as_released, out, free, kept, end)
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
        ends, planned = dict(zip(jobs, end[:, 0].tolist(), strict=True)), end[:, 0].copy()
        fast.spread(known, order, held, planned, float(now), GPUS, float(SLOT), as_released, free, kept, wide, out)
        wanted, ranked, line = naive_plan.spread(list(jobs), now, line, GPUS, SLOT, as_released=as_released)
        assert planned.tolist() == list((ends | dict(wanted)).values())
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
    fast.plan(known, 0, 0.0, free, 4, 60.0, -1, False, True, out)
    assert (out.allocations.gpus[0], out.end[1], bool(out.in_time[0])) == (1, 100.0, True)


def problem(random: np.random.Generator, jobs: int, nodes: int) -> tuple[np.ndarray, ...]:
    counts = random.integers(0, 3, (jobs, nodes))
    speedup = np.sort(random.uniform(0, 9, (jobs, 2, 8 * nodes)), axis=2)
    return counts, speedup, random.uniform(0, 1, jobs), random.integers(1, 9, jobs), random.integers(1, 9, nodes)


def test_packed_states_are_judged_as_matrices_are():
    random = np.random.default_rng(1)
    for nodes in (1, 7, 8, 19):
        counts, speedup, factor, _, node_gpus = problem(random, 12, nodes)
        base = random.integers(0, 3, counts.shape)
        base[:6] = counts[:6]
        out = np.empty(2)
        genetic.evaluate(genetic.pack(counts), genetic.pack(base), speedup, factor, 0.3, node_gpus, out)
        gained = speedup[np.arange(12), (np.count_nonzero(counts, axis=1) > 1).astype(int), counts.sum(axis=1)]
        scaled = gained * 0.3 * np.where((counts != base).any(axis=1), factor, 1.0)
        assert out[0] == pytest.approx(12 / (1 / (scaled + genetic.TINY)).sum())
        assert out[1] == pytest.approx(gained.sum() / node_gpus[counts.any(axis=0)].sum())
        assert (genetic.unpack(genetic.pack(counts), nodes) == counts).all()


def test_repair_leaves_no_node_over_and_no_job_over_its_limit():
    random = np.random.default_rng(2)
    state = np.full(1, 7, np.uint64)
    for nodes in (3, 8, 17):
        counts, _, _, most, node_gpus = problem(random, 20, nodes)
        x = genetic.pack(counts)
        scratch = np.empty((3, x.shape[1]), np.uint64)
        genetic.repair(x, most, genetic.pack(node_gpus[None])[0], np.empty(nodes, np.int64), scratch, state)
        after = genetic.unpack(x, nodes).astype(int)
        assert (after.sum(axis=0) <= node_gpus).all()
        assert (after.sum(axis=1) <= most).all()
        assert (after <= counts).all()
        wide = (np.count_nonzero(after, axis=1) > 1)[:, None] & (after > 0)
        assert (wide.sum(axis=0) <= 1).all()
        assert after.sum() > 0


def test_fronts_are_those_of_pairwise_domination():
    random = np.random.default_rng(5)
    f = random.integers(0, 12, (150, 2)).astype(float)
    rank, left, level = np.full(len(f), -1), set(range(len(f))), 0
    while left:
        free = {a for a in left if not any((f[b] >= f[a]).all() and (f[b] > f[a]).any() for b in left)}
        rank[list(free)] = level
        left, level = left - free, level + 1
    assert (genetic.fronts(f) == rank).all()


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


def test_on_a_node_with_room_one_job_of_all_is_drawn_on_average():
    random, jobs, nodes, turns = np.full(1, 3, np.uint64), 10, 8, 3000
    node_gpus = np.full(nodes, 4)
    base = genetic.pack(np.zeros((jobs, nodes), np.int64))
    on, scratch = np.empty(2 * jobs, np.int64), np.empty((3, base.shape[1]), np.uint64)
    grown = np.zeros((jobs, nodes))
    for _ in range(turns):
        x = base.copy()
        genetic.mutate(x, base, node_gpus, genetic.some_of(jobs), on, scratch, random)
        grown += genetic.unpack(x, nodes) > 0
    assert grown.sum() / turns == pytest.approx(nodes * 4 / 5, rel=0.03)  # a fifth of the draws adds nothing
    assert grown.min() > 0.8 * grown.mean()


def test_a_job_that_is_on_the_node_grows_more_often():
    random, turns = np.full(1, 4, np.uint64), 20_000
    counts = np.zeros((10, 1), np.int64)
    counts[3] = counts[4] = 1
    on, scratch = np.empty(20, np.int64), np.empty((3, 1), np.uint64)
    grown = 0
    for _ in range(turns):
        x = genetic.pack(counts)
        genetic.mutate(x, genetic.pack(counts), np.array([4]), genetic.some_of(10), on, scratch, random)
        grown += int(genetic.unpack(x, 1)[3, 0] > 1)
    chance = (0.1 + 0.5 - 0.1 * 0.5) * 3 / 4
    assert grown / turns == pytest.approx(chance, rel=0.04)


def test_draws_are_binomial():
    for jobs in (1, 2, 9):
        total = [sum(math.comb(jobs, k) * (jobs - 1) ** (jobs - k) for k in range(n + 1)) for n in range(jobs + 1)]
        expected = np.array(total) / float(jobs**jobs)
        assert genetic.some_of(jobs) / 2.0**32 == pytest.approx(expected, abs=1e-8)
