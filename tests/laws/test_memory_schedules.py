"""Laws of memory: what a schedule keeps alive, and what sharding, recomputation and smaller shapes save."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_jobs import Job, jobs, model_of, slow_cluster

from windtunnel.errors import UserError
from windtunnel.physics.hardware import cluster_with
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import predict

law = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])


def answer(job: Job, **changes: Any) -> Result:
    return predict(job.model, job.cluster, job.plan | changes)


def allocated(result: Result) -> list[int]:
    return [memory.peak_allocated_bytes for memory in result.memory]


def state(result: Result) -> list[int]:
    return [
        sum(memory.categories[name] for name in ("parameters", "gradients", "optimizer")) for memory in result.memory
    ]


def activations(pp: int, m: int, name: str, layers: int) -> list[int]:
    """Of the ranks that hold layers only."""
    plan = {"pp": pp, "schedule": name, "global_batch": m, "seq_len": 512}
    result = predict(model_of(layers=layers), slow_cluster(pp), plan)
    return [memory.categories["activations"] for memory in result.memory][1:-1]


@law
@given(st.sampled_from([4, 6, 8]), st.integers(0, 8))
def test_1f1b_holds_what_it_has_sent_ahead_and_gpipe_everything(p, more):
    """Rank r of 1F1B has min(m, p - r) micro-batches in flight, every rank of GPipe all m."""
    m = p + more
    held, whole = activations(p, m, "1f1b", p), activations(p, m, "gpipe", p)
    one = whole[0] / m
    assert whole == [whole[0]] * (p - 2)
    for rank, size in enumerate(held, start=1):
        assert size == pytest.approx((p - rank) * one, rel=1e-3)


@law
@given(st.sampled_from([4, 6]), st.integers(0, 8))
def test_zb_h1_holds_no_less_than_1f1b(p, more):
    held, split = (activations(p, p + more, name, p) for name in ("1f1b", "zb-h1"))
    assert all(a <= b for a, b in zip(held, split, strict=True))


@law
@given(jobs(recompute=False))
def test_recomputation_keeps_less(job):
    kinds = ["none", "selective:core_attention", "full"]
    kept = [[memory.categories["activations"] for memory in answer(job, recompute=kind).memory] for kind in kinds]
    for more, less in pairwise(kept):
        assert all(b <= a for a, b in zip(more, less, strict=True))


@law
@given(jobs())
def test_each_zero_stage_shards_more(job):
    """But FSDP2 in a pipeline, which holds a step's parameters and gradients whole beside the shards."""
    states = [state(answer(job, zero_stage=stage)) for stage in range(4)]
    whole = job.plan["framework"] in ("torchtitan", "fsdp") and job.plan["pp"] > 1
    for more, less in [states[:2]] if whole else pairwise(states):
        assert all(b <= a for a, b in zip(more, less, strict=True))
    if job.cluster.n_gpus > job.plan["tp"] * job.plan["pp"] and not whole:
        assert states[3] < states[0]


GROWTHS = {
    "layers": lambda job: job.with_shape(layers=2 * job.shape["layers"]),
    "feed-forward": lambda job: job.with_shape(feed_forward=2 * job.shape["feed_forward"]),
    "sequence": lambda job: job.with_plan(seq_len=2 * job.plan["seq_len"]),
    "micro-batch": lambda job: job.with_plan(
        micro_batch=2 * job.plan["micro_batch"], global_batch=2 * job.plan["global_batch"]
    ),
}


@law
@given(jobs(), st.sampled_from(sorted(GROWTHS)))
def test_memory_never_falls_when_work_grows(job, what):
    bigger = allocated(answer(GROWTHS[what](job)))
    assert all(b >= a for a, b in zip(allocated(answer(job)), bigger, strict=True))


@law
@given(jobs(experts=False), st.sampled_from([2, 4]))
def test_tensor_parallelism_never_holds_more(job, by):
    assume(job.plan["tp"] * by <= 4)
    n = job.cluster.n_gpus * by
    wide = replace(job, cluster=cluster_with(job.cluster, n_gpus=n)).with_plan(tp=job.plan["tp"] * by)
    assert all(b <= a for a, b in zip(allocated(answer(job)), allocated(answer(wide)), strict=True))


@law
@given(jobs(), st.sampled_from([1.5, 4.0]))
def test_memory_does_not_depend_on_how_fast_the_network_is(job, by):
    link = job.cluster.scale_out
    slower = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / by)
    other = replace(job, cluster=cluster_with(job.cluster, scale_out=slower))
    assert [dict(m.categories) for m in answer(other).memory] == [dict(m.categories) for m in answer(job).memory]


@law
@given(jobs(), st.integers(0, 4))
def test_the_drawn_curve_reaches_the_peak_and_nothing_above_it(job, offloaded):
    try:
        result = answer(job, offload_activations=offloaded)
    except UserError:
        assume(False)
    for memory in result.memory:
        highest = max(bytes_total for _, bytes_total in memory.timeline)
        assert highest <= memory.peak_allocated_bytes
        times = [time for time, _ in memory.timeline]
        assert times == sorted(times)
