"""Small cases whose answers follow from the rules by hand, and facts of docs/measured/fleet.md on what is published."""

import math

import numpy as np
import pytest
from oracles.adaptdl.clock import Running, run
from oracles.elasticflow import edf, elasticflow, gandiva, tiresias
from oracles.elasticflow.state import EfJob, aligned, overhead_s

from windtunnel.studies.fleet.clock.work import Scaling
from windtunnel.studies.fleet.measured.application import Application, Validation, smallest_rotation
from windtunnel.studies.fleet.measured.jobs import FixedBatch
from windtunnel.studies.fleet.packing.pack import Nodes, Pods, demand_of, pack, typical_kinds
from windtunnel.studies.fleet.policies.elastic.optimus import Optimus
from windtunnel.studies.fleet.policies.rigid.gittins import index
from windtunnel.studies.fleet.policies.rigid.tiresias import Tiresias


def application(epochs=2, step_s=1.0):
    """One progress per step at any batch; sync is nothing; any placement takes one second."""
    counts = np.arange(1.0, epochs + 1) * 100
    runs = {batch: Validation(counts, counts, np.ones(epochs), np.zeros(epochs)) for batch in (8, 64)}
    placements = {(n,): np.array([[1, step_s, 0.0], [64, step_s, 0.0]]) for n in range(1, 5)}
    return Application("app", placements, np.zeros((0, 3)), np.zeros((0, 2)), runs, epochs, 1, 64)


def test_a_tick_rounds_ends_to_seconds_and_charges_the_restart():
    job = Running(0, 61, 2, FixedBatch(application(), 8, 4))
    run([job], [4], Tiresias())
    assert (job.start_s, job.restarts) == (120, 0)
    assert job.end_s == 120 + 30 + 200  # 200 progress at one a second
    assert job.gpu_seconds == 2 * 230


def test_tiresias_moves_a_job_down_at_its_threshold():
    work = FixedBatch(application(epochs=2, step_s=5.0), 8, 4)
    long, short = Running(0, 0, 4, work), Running(1, 70, 4, work)
    run([long, short], [4], Tiresias(thresholds_gpu_s=(480.0,)))
    assert short.start_s == 180  # the long job had 4 GPUs for 120 s, and went down
    assert long.restarts == 1


def test_optimus_gives_all_to_one_only_where_it_gains():
    jobs = [Running(at, 0, 1, FixedBatch(application(), 8, 4)) for at in range(2)]
    run(jobs, [4], Optimus())
    assert [sum(job.counts) for job in jobs] == [2, 2]  # one replica accumulates, two need not, a third saves nothing


def test_placements_are_named_by_their_smallest_rotation():
    assert smallest_rotation((3, 1, 2)) == (1, 2, 3)
    assert smallest_rotation((2, 1, 2, 1)) == (1, 2, 1, 2)


RATES = {1: 1.0, 2: 1.8, 4: 3.0}


def ef_job(at, submit=0, work=60.0, deadline=math.inf, gpus=1, duration=60, rates=None):
    return EfJob(at, submit, duration, gpus, deadline, rates or RATES, 4, work)


def test_elasticflow_admits_what_fits_and_rejects_the_rest():
    fit_one, fit_two = ef_job(0, work=100.0, deadline=120), ef_job(1, work=100.0, deadline=120)
    hopeless = ef_job(2, work=1000.0, deadline=60)
    elasticflow.run([fit_one, fit_two, hopeless], 1, 4, 60, together=False, overheads=False)
    assert [job.state for job in (fit_one, fit_two, hopeless)] == ["completed", "completed", "rejected"]
    assert fit_one.end_s <= 120
    assert fit_two.end_s <= 120
    together = [ef_job(0, work=100.0, deadline=120), ef_job(2, work=1000.0, deadline=60)]
    elasticflow.run(together, 1, 4, 60, together=True)
    assert [job.state for job in together] == ["rejected", "rejected"]


def test_edf_runs_the_earliest_deadline_as_wide_as_it_can():
    jobs = [ef_job(0, work=30.0, deadline=500), ef_job(1, work=30.0, deadline=100)]
    edf.run(jobs, 4, 60)
    assert (jobs[1].start_s, jobs[1].end_s) == (0, 10)
    assert jobs[0].end_s == 20  # planned behind the slot, and planned anew at the other's end


def test_rigid_policies_run_the_traced_duration():
    for scheduler in ("tiresias", "gandiva"):
        jobs = [ef_job(at, gpus=2, duration=300) for at in range(2)]
        for job in jobs:
            job.gpus = 2
        if scheduler == "tiresias":
            tiresias.run(jobs, 4, 60)
        else:
            gandiva.run(jobs, 2, 4, 60)
        assert all(job.state == "completed" and job.end_s >= 300 for job in jobs)


def test_overheads_and_slots():
    assert overhead_s(8, 64, restart=False) == 2 + 2 * 4
    assert overhead_s(8, 64, restart=True) == 2 + 27 + 8
    assert overhead_s(8, 256, restart=True) == 7 + 47 + 8
    assert overhead_s(8, 64, restart=True, cached=True) == 2
    assert [aligned(5, time, 60) for time in (5, 6, 65, 66)] == [5, 65, 65, 125]


def test_gittins_of_two_kinds_of_job():
    sample = (1.0,) * 9 + (1000.0,)
    assert index(sample, 0.0, 2.0, as_coded=False) == pytest.approx(9 / (9 * 1 + 2))
    assert index(sample, 500.0, 2.0, as_coded=False) == 0.0
    assert index(sample, 999.5, 2.0, as_coded=False) == pytest.approx(1 / 0.5)
    assert index(sample, 5000.0, 2.0, as_coded=True) == 0.0


def packing_case():
    kinds = np.array([[1000, 10, 1, 500, 0], [1000, 10, 2, 1000, 0], [500, 5, 0, 0, 0]])
    pods = Pods(kinds, np.array([0] * 12 + [1] * 6 + [2] * 4))
    nodes = Nodes(np.array([64_000] * 4), np.array([1000] * 4), np.array([4, 4, 2, 0]), np.array([0, 0, 1, 63]))
    return pods, nodes


@pytest.mark.parametrize("policy", ["random", "bestfit", "dotprod", "gpupacking", "gpuclustering", "fgd"])
def test_packing_never_gives_more_than_there_is(policy):
    pods, nodes = packing_case()
    run_ = pack(policy, pods, nodes, 3)
    milli = np.zeros(4)
    for pod, node in zip(run_.pods, run_.placed, strict=True):
        if node >= 0:
            kind = pods.kinds[pods.kind_of[pod]]
            milli[node] += kind[2] * kind[3]
    assert (milli <= nodes.gpus * 1000).all()
    assert (np.diff(run_.allocated) >= 0).all()
    assert run_.allocated[-1] == pytest.approx(milli.sum() / nodes.capacity_milli)
    assert (run_.fragments + run_.allocated <= 1 + 1e-9).all()
    again = pack(policy, pods, nodes, 3)
    assert (again.placed == run_.placed).all()


def test_typical_kinds_cover_most_pods():
    pods, _ = packing_case()
    kinds, share = typical_kinds(pods)
    assert len(kinds) == 3
    assert share.sum() == pytest.approx(1)


def test_compiled_packing_is_the_uncompiled():
    from windtunnel.physics.engine.compiled.fleet import packing_kernels

    pods, nodes = packing_case()
    results = []
    for function in (packing_kernels.pack, packing_kernels.pack.py_func):
        placed, trace = np.empty(len(pods.kind_of), np.int64), np.empty((len(pods.kind_of), 3))
        function(packing_kernels.FGD, pods.kind_of, demand_of(pods), nodes.empty(), 1, placed, trace)
        results.append((placed.tolist(), trace.tolist()))
    assert results[0] == results[1]


def test_a_measured_level_is_reached_with_its_own_number_of_gpus() -> None:
    """Between levels the one below holds; below the least nothing runs."""
    work = Scaling(1.0, {2: 3.0, 8: 9.0}, 64)
    assert [work.per_s(gpus) for gpus in (0, 1, 2, 7, 8, 64)] == [0.0, 0.0, 3.0, 3.0, 9.0, 9.0]
