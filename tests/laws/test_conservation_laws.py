"""Laws of conservation: however a model is cut, the same FLOPs are computed and the same bytes travel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_jobs import DRAWN, Job, Taken, model_of, predicted, shared_jobs, slow_cluster, take

from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.catalogue import catalogue_names
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.pass_lowering import build_segment
from windtunnel.studies.training.memory.model_state import optimizer_price
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind, schedule

law = settings(deadline=None, max_examples=DRAWN, suppress_health_check=[HealthCheck.too_slow])
GRADIENT = {"fp32": 4, "bf16": 2}


def taken(job: Job) -> Taken:
    return take(job.model, job.cluster, job.plan)


def moved(job: Job, kind: str, group: str) -> float:
    """Bytes of one kind of collective over all GPUs of the job, on either tier."""
    traffic = predicted(job).traffic_bytes
    mean = sum(value for key, value in traffic.items() if key.startswith(f"{kind} {group} ("))
    return float(mean * job.cluster.n_gpus)


def tokens(job: Job) -> int:
    return int(job.plan["global_batch"] * job.plan["seq_len"])


# ---------------------------------------------------------------------------------------------------------------- FLOPs


@law
@given(shared_jobs(recompute=False, experts=False))
def test_a_dense_model_computes_its_flops_in_every_layout(job):
    """Those of the model: forward once, backward twice, attention counted in full as MFU counts it."""
    want = 3.0 * tokens(job) * job.model.forward_flops_per_token(job.plan["seq_len"], "full")
    assert taken(job).executed_flops() == pytest.approx(want, rel=1e-9)


@law
@given(shared_jobs(recompute=False))
def test_flops_do_not_depend_on_the_layout(job):
    plain = {"global_batch", "seq_len", "framework", "precision"}
    alone = {key: value for key, value in job.plan.items() if key in plain}
    one = take(job.model, cluster_with(job.cluster, n_gpus=1), alone)
    assert taken(job).executed_flops() == pytest.approx(one.executed_flops(), rel=1e-9)


@law
@given(shared_jobs(recompute=False))
def test_full_recomputation_adds_at_most_one_forward_pass(job):
    again = taken(job.with_plan(recompute="full")).executed_flops()
    once = taken(job).executed_flops()
    forward = tokens(job) * job.model.forward_flops_per_token(job.plan["seq_len"], "full")
    assert once < again <= once + forward * (1 + 1e-9)


@law
@given(shared_jobs())
def test_hfu_counts_what_is_recomputed_and_nothing_else(job):
    result = predicted(job)
    if job.plan["recompute"] == "none":
        assert result.hfu == result.mfu
    else:
        assert result.mfu < result.hfu <= result.mfu * 4 / 3


# -------------------------------------------------------------------------------------------------------- bytes by gro


@law
@given(shared_jobs(experts=False), st.sampled_from(["fp32", "bf16"]))
def test_every_gradient_is_reduced_once(job, dtype):
    """Without tensor parallelism every parameter is on one rank of a replica, so bytes = parameters x width."""
    job = with_tensor_parallel(job, 1).with_plan(gradient_dtype=dtype)
    plan = resolved(job)
    ranks = plan.dp * plan.plan.cp
    assume(ranks > 1)
    passes = plan.micro_batches if plan.reduces_in_passes else 1
    copies = 2 if plan.schedule == "dualpipe" and plan.plan.pp > 1 else 1  # each stage is on two ranks
    if copies == 2 and plan.reduces_in_passes:
        copies = 1  # reduced where a pass ends, and each micro-batch passes one of them
    want = job.model.parameters * GRADIENT[dtype] * passes * copies * ranks
    kind = "all_reduce" if plan.plan.zero_stage == 0 else "reduce_scatter"
    assert moved(job, kind, "dp") == pytest.approx(want, rel=1e-6)


def with_tensor_parallel(job: Job, tp: int) -> Job:
    """The same job on more or fewer GPUs: every other degree stays."""
    n = job.cluster.n_gpus // job.plan["tp"] * tp
    return replace(job, cluster=cluster_with(job.cluster, n_gpus=n)).with_plan(tp=tp)


def resolved(job: Job) -> Any:
    return resolve(job.model, job.cluster, read_plan(job.plan))


@law
@given(shared_jobs(experts=False, recompute=False, low_precision=False))
def test_sharded_parameters_are_gathered_once_per_step_or_pass(job):
    layout = resolved(job)
    ranks = layout.dp * layout.plan.cp
    assume(ranks > 1 and layout.plan.zero_stage >= 1 and layout.schedule != "dualpipe")
    split = layout.schedule in ("zb-h1", "zb-v", "dualpipe-v") and layout.plan.pp > 1
    assume(not split)
    pieces = pieces_of(layout)
    held = sum(piece.dense_parameters for piece in pieces)
    if layout.gathers_in_passes:
        # Forward and backward; what stays between the two is gathered once.
        root = sum(piece.root_bytes for piece in pieces) / 2.0
        held = (2.0 * held - root) * layout.micro_batches
    # Each unit's shard is a whole number of bytes.
    assert moved(job, "all_gather", "dp") == pytest.approx(2.0 * held * layout.plan.tp * ranks, rel=1e-5)


@law
@given(shared_jobs())
def test_each_boundary_between_pieces_is_crossed_once_each_way_per_micro_batch(job):
    layout = resolved(job)
    plan = layout.plan
    chain = len(layout.virtual_layers)
    crossings = chain - 1
    if layout.schedule in ("zb-v", "dualpipe-v"):
        crossings -= 1  # the turn of the V stays on the last rank
    sent = (
        2.0
        * tokens(job)
        * layout.model.hidden_size
        * (1 if plan.sequence_parallel or layout.habits.scatters_sends else plan.tp)
    )
    want = 2 * crossings * sent if plan.pp > 1 else 0.0
    assert moved(job, "send_recv", "pp") == pytest.approx(want, rel=1e-6)


@law
@given(shared_jobs(spread=True))
def test_every_token_travels_to_its_experts_and_back_twice(job):
    """Dispatch and combine, forward and backward, once for each of its experts or for each rank that has some."""
    assert job.plan["ep"] > 1
    again = 1 if job.plan["recompute"] == "full" else 0
    model = job.model
    one = 2.0 * tokens(job) * 2 * model.hidden_size * model.n_layers  # two experts per token, two bytes
    low, high = 4 * one / 2, (4 + 2 * again) * one  # both experts on one rank, or never
    assert low * (1 - 1e-6) <= moved(job, "all_to_all", "ep") <= high * (1 + 1e-6)


@law
@given(shared_jobs(recompute=False, experts=False))
def test_the_ring_passes_keys_and_values_by_every_rank(job):
    job = job.with_plan(cp_kind="ring")
    layout = resolved(job)
    attention = job.model.layers[0].attention
    heads = max(attention.kv_heads, layout.plan.tp)
    size = 2.0 * tokens(job) * heads * (attention.head_dim + attention.value_head_dim) * job.model.n_layers
    # Forward once, backward twice (gradients travel too).
    assert moved(job, "send_recv", "cp") == pytest.approx(3 * (layout.plan.cp - 1) * size, rel=1e-6)


@law
@given(shared_jobs(recompute=False, experts=False, low_precision=False), st.sampled_from([2, 4]))
def test_tensor_parallel_bytes_depend_on_tokens_and_width_only(job, tp):
    """Gathered and scattered bytes of a group: the same however tokens are cut into passes and stages."""
    job = with_tensor_parallel(job, tp).with_plan(sequence_parallel=True)
    alone = {"pp": 1, "cp": 1, "micro_batch": 1, "schedule": None, "virtual_stages": 1}
    base = replace(job, cluster=cluster_with(job.cluster, n_gpus=tp)).with_plan(**alone)
    for kind in ("all_gather", "reduce_scatter"):
        assert moved(job, kind, "tp") == pytest.approx(moved(base, kind, "tp"), rel=1e-6)


@law
@given(shared_jobs())
def test_nothing_travels_where_there_is_nobody_else(job):
    layout = resolved(job)
    result = predicted(job)
    for key, value in result.traffic_bytes.items():
        group = key.split()[1]
        assert layout.group(group).size > 1 or value == 0, key


# --------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("name", catalogue_names())
def test_every_parameter_is_on_one_stage(name):
    """Without tensor parallelism the pieces hold the model, for any number of stages. Tied tables are on two."""
    model = load_model(name)
    for pp in (1, 2, 4):
        plan = {"framework": "fsdp", "pp": pp, "global_batch": 8, "seq_len": 512}
        pieces = pieces_of(resolve(model, parse_cluster("h100-sxm:8"), read_plan(plan)))
        held = sum(piece.dense_parameters + piece.expert_parameters for piece in pieces)
        copy = model.vocab_size * model.hidden_size if model.tied_embeddings and pp > 1 else 0
        assert held == model.parameters + copy


@law
@given(shared_jobs())
def test_layers_are_dealt_once_and_in_order(job):
    dealt = [number for stage in resolved(job).virtual_layers for number in stage]
    assert dealt == list(range(job.model.n_layers))


# ---------------------------------------------------------------------------------------------------------- plain sums


@law
@given(shared_jobs())
def test_one_gpu_takes_the_sum_of_its_parts(job):
    """No partner, no host time: every kernel of every micro-batch, one after the other, then the optimizer."""
    single = ("global_batch", "micro_batch", "seq_len", "framework", "precision", "recompute")
    plan = {key: job.plan[key] for key in single if key in job.plan}
    cluster = cluster_with(job.cluster, n_gpus=1, host=replace(job.cluster.host, cpu_speed=1e12))
    layout = resolve(job.model, cluster, read_plan(plan))
    pricer = Pricer(layout)
    (piece,) = pieces_of(layout)
    kernels = 0
    for block in piece.blocks:
        for op in block.operations:
            prices = [pricer.forward(op), pricer.cast(op, backward=False)]
            if op.backward_bytes or op.kind != "memory":
                prices += [pricer.input_gradient(op), pricer.cast(op, backward=True), pricer.weight_gradient(op)]
            kernels += sum(round(price.seconds * 1e9) for price in prices if price is not None)
    update = optimizer_price(layout, pricer, piece.dense_parameters, piece.expert_parameters)
    want = layout.micro_batches * kernels + round(update.seconds * 1e9)
    step = predict(job.model, cluster, plan).step_time_ns
    if plan.get("recompute", "none") == "none":
        assert step == want
    else:
        assert step > want


@law
@given(shared_jobs())
def test_a_pass_is_split_exactly_and_takes_at_least_its_kernels(job):
    layout = resolved(job)
    pricer = Pricer(layout)
    for piece in set(pieces_of(layout)):
        whole = build_segment(pricer, piece.blocks, Kind.BACKWARD)
        parts = [build_segment(pricer, piece.blocks, phase) for phase in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
        for segment in (whole, *parts):
            assert sum(segment.breakdown_ns.values()) == segment.duration_ns
            kernels = segment.graph.kind == 0
            assert int((segment.end_ns - segment.start_ns)[kernels].sum()) <= segment.duration_ns
        assert sum(part.flops for part in parts) == pytest.approx(whole.flops)


@law
@given(shared_jobs())
def test_traffic_of_a_step_is_that_of_its_ops(job):
    step = taken(job).step
    chosen = schedule(job.plan.get("schedule") or "1f1b", 1, 1)
    assert chosen.stages == 1
    inside = [segment.traffic_bytes for segment in step.segments]
    for traffic, segment in zip(inside, step.segments, strict=True):
        assert sum(traffic.values()) == pytest.approx(float(segment.graph.bytes[segment.graph.kind != 0].sum()))


def test_a_replay_of_the_same_layout_is_the_same_object_for_object():
    layout = resolve(model_of(), slow_cluster(4), read_plan({"pp": 2, "tp": 2, "global_batch": 8, "seq_len": 256}))
    pieces, chosen = pieces_of(layout), schedule("1f1b", 2, layout.micro_batches)
    first, second = (lower(layout, pieces, chosen, Pricer(layout)) for _ in range(2))
    assert (first.duration_ns == second.duration_ns).all()
    assert (first.graph.dep_idx == second.graph.dep_idx).all()
