"""Laws of a predicted step: monotonicity, scaling, limiting cases."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_jobs import Job, jobs, model_of, slow_cluster, take
from worse_hardware import WORSE

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.communication import nccl
from windtunnel.physics.cost.price import FREE, Price
from windtunnel.physics.hardware import cluster_with
from windtunnel.physics.model.operations import Transfer
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import predict
from windtunnel.studies.training.link_prices import LinkPrices
from windtunnel.studies.training.pricing import Pricer

law = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def answer(job: Job) -> Result:
    return predict(job.model, job.cluster, job.plan)


def time_of(job: Job) -> int:
    return answer(job).step_time_ns


# ------------------------------------------------------------------------------------------------------- monotonicity

GROWTHS = {
    "layers": lambda job: job.with_shape(layers=2 * job.shape["layers"]),
    "hidden": lambda job: job.with_shape(hidden=2 * job.shape["hidden"]),
    "feed-forward": lambda job: job.with_shape(feed_forward=job.shape["feed_forward"] + 256),
    "vocabulary": lambda job: job.with_shape(vocabulary=8192),
    "sequence": lambda job: job.with_plan(seq_len=2 * job.plan["seq_len"]),
    "micro-batch": lambda job: job.with_plan(
        micro_batch=2 * job.plan["micro_batch"], global_batch=2 * job.plan["global_batch"]
    ),
    "micro-batches": lambda job: job.with_plan(global_batch=2 * job.plan["global_batch"]),
}


@law
@given(jobs(), st.sampled_from(sorted(GROWTHS)))
def test_time_never_falls_when_work_grows(job, what):
    assert time_of(GROWTHS[what](job)) >= time_of(job)


@law
@given(jobs(), st.sampled_from(sorted(WORSE)), st.sampled_from([1.01, 1.3, 2.0, 10.0]), st.sampled_from([1, 2, 4, 8]))
def test_time_never_falls_on_worse_hardware(job, what, by, domain):
    """Also on small scale-up domains, where more of the traffic leaves them."""
    assume(job.cluster.gpus_per_node % domain == 0)
    near = cluster_with(job.cluster, scale_up_domain=domain)
    assert time_of(replace(job, cluster=WORSE[what](near, by))) >= time_of(replace(job, cluster=near))


# -------------------------------------------------------------------------------------------------------------- scaling


def _without_microseconds(constants: Any) -> Any:
    """A copy of the collectives' constants in which everything stated in microseconds is nothing."""
    if not isinstance(constants, dict):
        return constants
    zero = {key: 0 if not isinstance(value, dict) else dict.fromkeys(value, 0)
            for key, value in constants.items() if str(key).endswith("_us")}  # fmt: skip
    return {key: zero[key] if key in zero else _without_microseconds(value) for key, value in constants.items()}


@pytest.fixture
def no_fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without a launch floor, NCCL without a base latency; links and host keep theirs, which scale."""
    constants = _without_microseconds(copy.deepcopy(nccl.calibration()))
    monkeypatch.setattr(nccl, "calibration", lambda: constants)
    monkeypatch.setattr(roofline, "launch_floor_s", lambda: 0.0)


@settings(law, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs(low_precision=False), st.sampled_from([2.0, 4.0]))
def test_twice_the_rates_and_half_the_latencies_halve_a_run_without_fixed_costs(no_fixed_costs, job, times):
    # Prices are remembered by cluster: names of their own keep these apart from every other test's.
    n = job.cluster.n_gpus
    slow = time_of(replace(job, cluster=slow_cluster(n, name="scaled")))
    fast = time_of(replace(job, cluster=slow_cluster(n, times, name="scaled")))
    assert slow / fast == pytest.approx(times, rel=1e-4)


@law
@given(jobs(low_precision=False))
def test_fixed_costs_do_not_scale(job):
    n = job.cluster.n_gpus
    slow, fast = (time_of(replace(job, cluster=slow_cluster(n, times))) for times in (1.0, 2.0))
    assert fast < slow < 2 * fast


# ------------------------------------------------------------------------------------------------------- limiting cases


class FreeTransfers(Pricer):
    """Communication costs nothing, and is launched for nothing."""

    def __init__(self, layout: Any) -> None:
        super().__init__(layout)
        self.host.collective_launch_s = 0.0
        self.links = FreeLinks(layout, self.training)


class FreeLinks(LinkPrices):
    """Messages cost nothing."""

    def transfer(self, transfer: Transfer, skew: float = 1.0) -> tuple[Price, str]:
        return FREE, "scale_up"

    def hop(self, bytes_total: float, *, far: bool) -> tuple[Price, str]:
        return FREE, "scale_up"


def _balanced(plan: dict[str, Any], layers: int) -> tuple[int, int, int]:
    """Time until the last action ends, of equal stages with free communication; one rank's work; its first forward."""
    taken = take(model_of(layers=layers), slow_cluster(plan["pp"]), plan, pricer=FreeTransfers, same_pieces=True)
    step = taken.step
    counts = taken.counts
    work = sum(int(n) * segment.duration_ns for n, segment in zip(counts, step.segments, strict=True))
    assert work % plan["pp"] == 0
    return int(taken.timeline.end_ns[step.action_last].max()), work // plan["pp"], step.segments[0].duration_ns


@law
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 6), st.integers(0, 12), st.sampled_from(["none", "full"]))
def test_bubble_of_gpipe_and_1f1b_is_p_minus_1_over_m_of_the_work(name, p, more, recompute):
    m = p + more
    plan = {"pp": p, "schedule": name, "global_batch": m, "seq_len": 256, "recompute": recompute}
    end, work, _ = _balanced(plan, layers=2 * p)
    assert (end - work) * m == work * (p - 1)


@law
@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_bubble_of_interleaving_is_p_minus_1_over_v_m_of_the_work(p, groups, v, overlap):
    m = p * groups
    plan = {"pp": p, "virtual_stages": v, "global_batch": m, "seq_len": 256, "overlap_p2p": overlap}
    end, work, _ = _balanced(plan, layers=p * v)
    assert (end - work) * m * v == work * (p - 1)


@law
@given(st.integers(2, 6), st.integers(0, 12))
def test_a_zero_bubble_schedule_waits_less_than_1f1b(p, more):
    plan = {"pp": p, "global_batch": p + more, "seq_len": 256}
    split, whole = (_balanced(plan | {"schedule": name}, layers=2 * p) for name in ("zb-h1", "1f1b"))
    assert 0 < split[0] - split[1] < whole[0] - whole[1]


@law
@given(jobs(), st.integers(1, 6))
def test_one_stage_has_no_bubble_and_each_micro_batch_adds_the_same(job, m):
    def ask(count: int) -> Result:
        plan = job.plan | {"pp": 1, "global_batch": job.plan["micro_batch"] * count}
        n = plan["tp"] * plan["cp"]
        single = {"schedule", "virtual_stages"}
        plan = {k: v for k, v in plan.items() if k not in single} | ({"ep": 1} if "ep" in plan else {})
        # No gathers and reductions of shards: they hide behind the first and the last pass only.
        return answer(replace(job, plan=plan | {"zero_stage": 0}, cluster=cluster_with(job.cluster, n_gpus=n)))

    results = [ask(count) for count in (m, m + 1, m + 2)]
    assert "pipeline bubble" not in results[0].breakdown_ns
    if job.plan["cp"] == 1:
        straggling = [result.breakdown_ns.get("waiting for the slowest rank", 0) for result in results]
        replayed = [r.step_time_ns - waiting for r, waiting in zip(results, straggling, strict=True)]
        assert replayed[2] - replayed[1] == replayed[1] - replayed[0] > 0
