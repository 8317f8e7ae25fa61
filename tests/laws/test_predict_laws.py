"""Laws of a predicted step: sums, monotonicity, scaling, limiting cases, and no surprise on any plan."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_jobs import FRAMEWORKS, Job, jobs, model_of, slow_cluster, take

from windtunnel.cli.app import main
from windtunnel.cost import nccl, roofline
from windtunnel.cost.price import FREE, Price
from windtunnel.errors import UserError
from windtunnel.hardware import Cluster, cluster_with, parse_cluster
from windtunnel.model import load_model
from windtunnel.model.catalogue import catalogue_names
from windtunnel.model.operations import Transfer
from windtunnel.result import Result
from windtunnel.training import passes, predict
from windtunnel.training.pricing import Pricer
from windtunnel.training.schedules import NAMES

law = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def answer(job: Job) -> Result:
    return predict(job.model, job.cluster, job.plan)


def time_of(job: Job) -> int:
    return answer(job).step_time_ns


def assert_sound(result: Result) -> None:
    """What holds of every Result, feasible or not."""
    step = result.step_time_ns
    assert 0 < result.step_time_p5_ns <= step <= result.step_time_p95_ns
    assert sum(result.breakdown_ns.values()) == step
    assert min(result.breakdown_ns.values()) >= 0
    for stage in result.stages:
        assert sum(stage.breakdown_ns.values()) == step, stage.stage
        assert min(stage.breakdown_ns.values()) >= 0
    assert sum(stage.ranks for stage in result.stages) == result.n_gpus
    assert sum(stage.ranks for stage in result.memory) == result.n_gpus
    for memory in result.memory:
        assert sum(memory.categories.values()) == memory.peak_allocated_bytes
        assert min(memory.categories.values()) >= 0
        assert memory.peak_allocated_bytes <= memory.peak_reserved_bytes <= memory.device_bytes
        assert 0 <= memory.peak_time_ns <= step
        assert all(0 <= t <= step and b >= 0 for t, b in memory.timeline)
    assert math.isclose(sum(result.provenance.values()), 1.0, rel_tol=1e-9)
    assert min(result.provenance.values()) >= 0
    assert 0 < result.mfu <= result.hfu <= 1
    assert result.tokens_per_s == pytest.approx(result.tokens_per_step / result.step_time_s)
    assert result.tokens_per_s_per_gpu * result.n_gpus == pytest.approx(result.tokens_per_s)
    assert min(result.traffic_bytes.values(), default=0) >= 0
    full = max(memory.device_bytes for memory in result.memory)
    assert (result.status == "infeasible") == (full > result.memory_capacity_bytes) == (result.infeasible is not None)
    if result.infeasible:
        assert result.infeasible.needed_bytes == full
        assert result.infeasible.fixes
    for limit in result.limits:
        assert 0 < limit.share <= 1
        assert limit.step_time_s_without == pytest.approx(result.step_time_s * (1 - limit.share))
    for op in result.excerpt:
        assert 0 <= op.start_ns < op.end_ns <= step
        assert not op.category.startswith("exposed")
    json.loads(result.to_json(), parse_constant=pytest.fail)  # NaN and infinities end here


def assert_one_message(error: UserError) -> None:
    """One line that says more than what is wrong."""
    text = str(error)
    assert "\n" not in text
    assert len(text.split()) > 5
    assert any(mark in text for mark in (";", ":")), text


# --------------------------------------------------------------------------------------------- every plan has an answer


@law
@given(jobs())
def test_every_legal_job_has_a_sound_answer(job):
    assert_sound(answer(job))


small = st.sampled_from([1, 1, 1, 2, 3, 4, 8])
switch = st.sampled_from([None, None, True, False])
any_plans = st.fixed_dictionaries(
    {
        "global_batch": st.sampled_from([1, 8, 12, 16, 32, 64]),
        "seq_len": st.sampled_from([1, 100, 128, 1000, 2048, 8192]),
        "tp": small,
        "pp": small,
    },
    optional={
        "framework": st.sampled_from(FRAMEWORKS),
        "release": st.sampled_from(["mlperf-v3.0", "no such release"]),
        "cp": small,
        "ep": small,
        "etp": small,
        "dp": small,
        "virtual_stages": small,
        "layers_per_stage": st.lists(st.integers(-1, 4), max_size=4).map(tuple),
        "account_for_embedding": switch,
        "schedule": st.sampled_from([*NAMES, "2f2b"]),
        "sequence_parallel": switch,
        "cp_kind": st.sampled_from(["ring", "ulysses"]),
        "zero_stage": st.integers(0, 4),
        "shard_group": small,
        "micro_batch": small,
        "precision": st.sampled_from(["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4"]),
        "fp8_parameters": switch,
        "gradient_dtype": st.sampled_from(["fp32", "bf16"]),
        "optimizer": st.sampled_from(["adam", "sgd", "muon"]),
        "optimizer_dtype": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(["none", "full", "full:2", "selective:mlp", "selective:ops", "selective:x", ""]),
        "offload_activations": st.integers(0, 5),
        "offload_optimizer": st.floats(0, 1.2),
        "attention_impl": st.sampled_from(["flash", "flash2", "triton", "unfused"]),
        "overlap_grad_reduce": switch,
        "overlap_param_gather": switch,
        "overlap_tp": switch,
        "overlap_p2p": switch,
        "overlap_ep": switch,
        "cuda_graphs": switch,
        "compile": switch,
    },
)  # fmt: skip


@settings(law, max_examples=800)
@given(
    any_plans,
    st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2", "llama-4-scout", "bloom-176b"]),
    st.integers(1, 5),
    st.sampled_from(["h100-sxm", "a100-40gb-sxm", "gb200", "mi300x", "l40s", "tpu-v5p", "gaudi2"]),
    st.sampled_from([1, 2, 4, 8, 16, 64]),
)  # fmt: skip
def test_any_plan_is_answered_or_refused_in_one_message(plan, name, layers, gpu, n):
    try:
        cluster = parse_cluster(f"{gpu}:{n}")
        result = predict(load_model(name).with_changes(layers=layers), cluster, plan)
    except UserError as error:
        assert_one_message(error)
    else:
        assert_sound(result)


@pytest.mark.parametrize("name", catalogue_names())
def test_every_model_of_the_catalogue_has_a_sound_answer(name):
    model = load_model(name)
    heads = min(layer.attention.heads for layer in model.layers)
    moe = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    plan: dict[str, Any] = {
        "tp": math.gcd(heads, 8),
        "pp": 4,
        "global_batch": 64,
        "seq_len": min(2048, model.max_sequence_length),
    }
    if moe:
        plan |= {"ep": 8, "etp": 1}
    result = predict(name, f"h100-sxm:{plan['tp'] * 4 * 8}", plan)
    assert_sound(result)
    assert sum(stage.layers for stage in result.stages) == model.n_layers


EVERY = [
    *({"framework": name} for name in FRAMEWORKS),
    *({"schedule": name, "virtual_stages": 2 if name == "interleaved" else 1} for name in NAMES),
    *({"precision": name} for name in ("fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4")),
    *({"recompute": kind} for kind in ("none", "full", "full:1")),
    *({"recompute": f"selective:{part}"} for part in
      ("attention", "core_attention", "mlp", "norms", "activation", "moe_activation", "ops", "mlp,norms,activation")),
    *({"zero_stage": stage, "framework": name} for stage in range(4) for name in FRAMEWORKS),
    *({"zero_stage": stage, "shard_group": 2} for stage in (1, 2, 3)),
    *({"attention_impl": kind} for kind in ("flash", "flash2", "triton", "unfused")),
    *({"optimizer": kind, "optimizer_dtype": "bf16"} for kind in ("adam", "sgd", "muon")),
    *({"cp": 2, "cp_kind": kind} for kind in ("ring", "ulysses")),
    {"offload_activations": 2, "offload_optimizer": 0.5},
    {"fp8_parameters": True, "precision": "fp8"},
    {"ep": 2}, {"ep": 2, "etp": 1}, {"ep": 4, "overlap_ep": True, "etp": 1}, {"etp": 1},
    {"layers_per_stage": (5, 3)}, {"layers_per_stage": (0, 8)}, {"account_for_embedding": True},
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "experts"),
    [(changes, experts) for changes in EVERY for experts in (0, 8) if experts or not {"ep", "etp"} & set(changes)],
    ids=str,
)
def test_every_option_has_a_sound_answer(changes, experts):
    plan = {"tp": 2, "pp": 2, "global_batch": 32, "seq_len": 512} | changes
    result = predict(model_of(layers=8, experts=experts), "gb200:16", plan)
    assert_sound(result)
    for name, value in changes.items():
        spec = result.spec["plan"][name]
        assert (tuple(spec) if isinstance(spec, list) else spec) == value


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


def _slower_link(cluster: Cluster, tier: str, by: float) -> Cluster:
    link = getattr(cluster, tier)
    peer = link.peer_bandwidth_bytes_per_s
    changed = replace(
        link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / by, peer_bandwidth_bytes_per_s=peer and peer / by
    )
    return cluster_with(cluster, **{tier: changed})


def _later_link(cluster: Cluster, tier: str, by: float) -> Cluster:
    link = getattr(cluster, tier)
    return cluster_with(cluster, **{tier: replace(link, latency_s=link.latency_s * by + 1e-7)})


def _slower_compute(cluster: Cluster, by: float) -> Cluster:
    gpu, scale = cluster.gpu, cluster.gpu.kernel_scale
    rates = {dtype: rate / by for dtype, rate in gpu.flops_per_s.items()}
    slower = replace(gpu, flops_per_s=rates, kernel_scale=scale._replace(compute=scale.compute / by))
    return cluster_with(cluster, gpu=slower)


def _slower_memory(cluster: Cluster, by: float) -> Cluster:
    gpu, scale = cluster.gpu, cluster.gpu.kernel_scale
    bandwidth = gpu.memory_bandwidth_bytes_per_s / by
    slower = replace(gpu, memory_bandwidth_bytes_per_s=bandwidth, kernel_scale=scale._replace(memory=scale.memory / by))
    return cluster_with(cluster, gpu=slower)


WORSE = {
    "compute": _slower_compute,
    "memory": _slower_memory,
    "scale-up bandwidth": lambda cluster, by: _slower_link(cluster, "scale_up", by),
    "scale-out bandwidth": lambda cluster, by: _slower_link(cluster, "scale_out", by),
    "scale-up latency": lambda cluster, by: _later_link(cluster, "scale_up", by),
    "scale-out latency": lambda cluster, by: _later_link(cluster, "scale_out", by),
    "host": lambda cluster, by: cluster_with(
        cluster, host=replace(cluster.host, cpu_speed=cluster.host.cpu_speed / by)
    ),
    "oversubscription": lambda cluster, by: cluster_with(cluster, oversubscription=by),
}


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


@settings(law, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        self.collective_launch_s = 0.0

    def transfer(self, transfer: Transfer) -> tuple[Price, str]:
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


# ---------------------------------------------------------------------------------------------- same input, same bytes

ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-3-8b", "h100-sxm:16", {"tp": 2, "pp": 2, "global_batch": 32, "seq_len": 2048}),
    ("mixtral-8x7b", "gb200:32", {"pp": 2, "ep": 8, "global_batch": 64, "seq_len": 1024, "precision": "mxfp8"}),
    ("deepseek-v2-lite", "a100-80gb-sxm:16", {"framework": "torchtitan", "global_batch": 32, "seq_len": 2048}),
    ("gpt2-xl", "mi300x:8", {"framework": "fsdp", "global_batch": 64, "seq_len": 1024, "recompute": "full"}),
]


def test_same_input_same_bytes_in_every_process():
    code = (
        "import hashlib, json, sys; from windtunnel.training import predict\n"
        "for model, cluster, plan in json.load(sys.stdin):\n"
        "    print(hashlib.sha256(predict(model, cluster, plan).to_json().encode()).hexdigest())"
    )
    here = [hashlib.sha256(predict(*asked).to_json().encode()).hexdigest() for asked in ASKED]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps(ASKED), capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.split() == here


@law
@given(jobs())
def test_asking_twice_gives_the_same_bytes(job):
    assert answer(job).to_json() == answer(job).to_json()


@law
@given(jobs(), st.sampled_from([1, 2, 4]))
def test_an_answer_does_not_depend_on_what_was_asked_before(job, replicas):
    """Passes are remembered between questions: with those of fewer replicas at hand, and with none."""
    n, batch = job.cluster.n_gpus, job.plan["global_batch"]
    cluster = cluster_with(job.cluster, n_gpus=n * replicas)
    job = replace(job, cluster=cluster).with_plan(global_batch=batch * replicas)
    after_others = answer(job).to_json()
    passes.forget_passes()
    assert answer(job).to_json() == after_others


def command_line(words: str) -> dict[str, Any]:
    """What the command prints as JSON."""
    name, *arguments = shlex.split(words)
    assert name == "windtunnel"
    out = StringIO()
    with redirect_stdout(out):
        assert main([*arguments, "--json", "--no-save"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@settings(law, max_examples=60)
@given(jobs(), st.sampled_from([0.0, 0.5, 1e-7]), st.sampled_from([None, "it's new -x", "-x", "mlperf-v4.1"]))
def test_reproduce_gives_the_same_result_on_the_command_line(job, offloaded, release):
    plan = {key: value for key, value in job.plan.items() if value is not None}
    plan |= {"offload_optimizer": offloaded} | ({"release": release} if release else {})
    model = "mixtral-8x7b" if job.shape["experts"] else "llama-3-8b"
    n, gpu = job.cluster.n_gpus, job.cluster.gpu.name
    result = predict(model, f"{gpu}:{n}", plan)
    again = command_line(result.reproduce)
    assert again["content_hash"] == result.content_hash
    assert again["reproduce"] == result.reproduce


@settings(law, max_examples=40)
@given(jobs(), st.sampled_from(sorted(WORSE)), st.integers(1, 3))
def test_reproduce_spells_out_a_changed_model_and_cluster(job, what, layers):
    model = load_model("llama-3-8b").with_changes(layers=8 * layers, tied_embeddings=layers == 2)
    plan = {key: value for key, value in job.plan.items() if key != "ep"}
    result = predict(model, WORSE[what](job.cluster, 1.5), plan)
    again = command_line(result.reproduce)
    assert again["step_time_ns"] == result.step_time_ns
    assert again["memory"] == json.loads(result.to_json())["memory"]
