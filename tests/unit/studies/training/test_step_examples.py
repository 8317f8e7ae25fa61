"""Each term of a step's time, state and noise, worked by hand beside it; constants come from the tables by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.cost.price import Z95, nanoseconds
from windtunnel.physics.graph import OpKind
from windtunnel.physics.graph.heap import Heap
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.physics.model.operations import KEPT_BYTES, Transfer
from windtunnel.physics.step.band import FASTER, SLOWER, band_of
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.disturbances.cells import cells_of, tied_replicas
from windtunnel.studies.training.disturbances.noise import passes_of, random_source, warming
from windtunnel.studies.training.disturbances.op_noise import COPIES_MOST, copies_of
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.memory import new_pages
from windtunnel.studies.training.memory.model_state import (
    FOREACH_PASSES,
    HOST_UPDATE_BYTES_PER_S,
    NEWTON_SCHULZ_ROUNDS,
    low_precision_bytes,
    optimizer_price,
    state_bytes,
)
from windtunnel.studies.training.pricing import FROZEN_BYTES, Pricer, parameter_bytes
from windtunnel.studies.training.schedules import schedule

SMALL = transformer(hidden=1024, layers=4, heads=8, vocab=4000, ffn=4096, name="small")
PLAN = {"global_batch": 32, "seq_len": 512}


def laid_out(model: Model = SMALL, cluster: str = "h100-sxm:16", **plan: Any) -> Layout:
    return resolve(model, parse_cluster(cluster), read_plan({**PLAN, **plan}))


def lowered(layout: Layout) -> tuple[LoweredStep, Pricer]:
    pricer = Pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return lower(layout, pieces_of(layout), chosen, pricer), pricer


def ops(step: LoweredStep, label: str) -> list[int]:
    return [int(op) for op in np.flatnonzero(np.array(step.graph.labels)[step.graph.label] == label)]


# The end of a step


@pytest.mark.parametrize("tp", [1, 2])
def test_a_tied_table_is_reduced_by_its_part_on_a_rank(tp: int) -> None:
    layout = laid_out(SMALL.with_changes(tied_embeddings=True), pp=4, tp=tp)
    step, pricer = lowered(layout)
    table = layout.vocab_padded * 1024 / tp  # rows of the vocabulary on one rank
    assert layout.vocab_padded >= 4000
    by_hand = pricer.links.transfer(Transfer("all_reduce", "pp", table * layout.gradient_bytes))[0].seconds
    assert [int(step.duration_ns[op]) for op in ops(step, "tied embedding")] == [nanoseconds(by_hand)] * 2


@pytest.mark.parametrize(("stage", "kind"), [(0, "all_reduce"), (1, "reduce_scatter")])
def test_gradients_are_reduced_and_parameters_gathered_in_messages_of_the_plan(stage: int, kind: str) -> None:
    layout = laid_out(zero_stage=stage, bucket_parameters=30_000_000)
    step, pricer = lowered(layout)
    (piece,) = pieces_of(layout)
    parameters = sum(piece.learning)
    count = math.ceil(parameters / 30e6)
    assert count == 3

    def by_hand(what: str, width: float) -> list[int]:
        return [nanoseconds(pricer.links.transfer(Transfer(what, "dp", parameters * width / count))[0].seconds)] * count

    found = ops(step, "reduce gradients")
    assert [int(step.duration_ns[op]) for op in found] == by_hand(kind, layout.gradient_bytes)
    gathers = [int(step.duration_ns[op]) for op in ops(step, "gather parameters")]
    assert gathers == (by_hand("all_gather", parameter_bytes(layout.plan)) if stage else [])
    whole = laid_out(zero_stage=stage, bucket_parameters=10**12)
    assert len(ops(lowered(whole)[0], "reduce gradients")) == 1


def test_between_steps_the_host_works_longer_with_each_doubling() -> None:
    for gpus in (8, 64):
        layout = laid_out(cluster=f"h100-sxm:{gpus}", global_batch=128)
        _, pricer = lowered(layout)
        each = pricer.training.step_per_doubling_s[layout.plan.framework] / layout.cluster.host.cpu_speed
        assert pricer.host.step_s == pytest.approx(each * math.log2(gpus / 8))


def test_an_optimizer_step_moves_what_it_reads_and_writes() -> None:
    n = 1e8
    layout = laid_out(zero_stage=0)
    pricer, width = Pricer(layout), layout.gradient_bytes
    # Gradient; master and two moments in fp32, read and written; the working copy; the norm; and clearing.
    update = width + 2 * 4 + 2 * 2 * 4 + 2
    update *= 1.0 if layout.habits.fused_optimizer else FOREACH_PASSES
    norm = width if layout.habits.clips_gradients else 0.0
    assert optimizer_price(layout, pricer, n, 0.0) == pricer.moved(n * update + n * norm + width * n)
    sharded = laid_out(zero_stage=1)
    own = n / sharded.shard_group
    assert sharded.shard_group == 16
    assert optimizer_price(sharded, Pricer(sharded), n, 0.0) == pricer.moved(own * (update + norm) + width * n)
    half = laid_out(zero_stage=0, offload_optimizer=0.5)
    away = n * 0.5
    link = half.cluster.host.offload_bandwidth_bytes_per_s
    host_s = away * (width + 2) / link + away * update / HOST_UPDATE_BYTES_PER_S
    on_device = pricer.moved(n * 0.5 * update + n * norm + width * n)
    found = optimizer_price(half, Pricer(half), n, 0.0)
    assert found.seconds == pytest.approx(on_device.seconds + host_s)
    assert found.p5 == pytest.approx(on_device.p5 + 0.6 * host_s)
    assert found.p95 == pytest.approx(on_device.p95 + 1.8 * host_s)


def test_muon_has_one_moment_and_five_rounds_of_three_products() -> None:
    n = 1e8
    layout = laid_out(zero_stage=0, optimizer="muon")
    pricer, width = Pricer(layout), layout.gradient_bytes
    update = (width + 2 * 4 + 2 * 4 + 2) * (1.0 if layout.habits.fused_optimizer else FOREACH_PASSES)
    norm = width if layout.habits.clips_gradients else 0.0
    moved = pricer.moved(n * update + n * norm + width * n).seconds
    products = pricer.square_gemm(1024).seconds * (n / 1024**2) * NEWTON_SCHULZ_ROUNDS * 3
    assert optimizer_price(layout, pricer, n, 0.0).seconds == pytest.approx(moved + products)


# State


@pytest.mark.parametrize(("stage", "own"), [(0, (1, 1, 1)), (1, (1, 1, 16)), (2, (1, 16, 16)), (3, (16, 16, 16))])
def test_state_is_a_copy_gradients_master_and_moments_each_sharded_from_its_stage_on(
    stage: int, own: tuple[int, int, int]
) -> None:
    layout = laid_out(zero_stage=stage)
    assert layout.habits.parameter_dtype != "fp32"
    found = state_bytes(layout, 1600.0, 0.0)
    assert found.parameters == pytest.approx(2 * 1600 / own[0])
    assert found.gradients == pytest.approx(layout.gradient_bytes * 1600 / own[1])
    assert found.optimizer == pytest.approx((4 + 2 * 4) * 1600 / own[2])


def test_state_of_other_optimizers_formats_and_of_experts() -> None:
    def of(dense: float, expert: float, **plan: Any) -> Any:
        return state_bytes(laid_out(zero_stage=0, **plan), dense, expert)

    assert of(100.0, 0.0, optimizer="sgd").optimizer == (4 + 4) * 100
    assert of(100.0, 0.0, optimizer="muon").optimizer == (4 + 4) * 100
    assert of(100.0, 0.0, optimizer_dtype="bf16").optimizer == (4 + 2 * 2) * 100
    assert of(100.0, 0.0, offload_optimizer=0.25).optimizer == pytest.approx(0.75 * 12 * 100)
    both = of(100.0, 300.0)
    assert (both.parameters, both.optimizer) == (2 * 400, 12 * 400)
    experts = load_model("mixtral-8x7b")
    sharded = resolve(experts, parse_cluster("h100-sxm:16"), read_plan({**PLAN, "ep": 8, "zero_stage": 1}))
    assert (sharded.shard_group, sharded.group("edp").size) == (16, 2)
    assert state_bytes(sharded, 160.0, 160.0).optimizer == pytest.approx(12 * (160 / 16 + 160 / 2))


def test_low_precision_keeps_a_copy_for_each_layout_that_its_products_read() -> None:
    hopper, blackwell = laid_out(precision="fp8"), laid_out(cluster="b200-sxm:16", precision="fp8")
    assert low_precision_bytes(hopper) == 2 * KEPT_BYTES["fp8"]
    assert low_precision_bytes(blackwell) == KEPT_BYTES["fp8"]
    rows = laid_out(cluster="b200-sxm:16", precision="mxfp8")
    assert low_precision_bytes(rows) == 2 * KEPT_BYTES["mxfp8"]
    assert parameter_bytes(read_plan({**PLAN, "precision": "fp32"})) == 4
    assert parameter_bytes(read_plan(PLAN)) == 2


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("alone", [True, False])
def test_parameters_in_fp8_are_all_there_is_or_copies_beside_the_working_ones(alone: bool, stage: int) -> None:
    layout = laid_out(precision="fp8", fp8_parameters=alone, zero_stage=stage)
    own = 1600 / (16 if stage == 3 else 1)
    copies = low_precision_bytes(layout) * own
    beside = 2 * own + (copies if stage == 0 else 0.0)  # what each pass gathers it quantises itself
    assert state_bytes(layout, 1600.0, 0.0).parameters == pytest.approx(copies if alone else beside)


def test_plain_precision_has_one_width_for_all_state_and_fp32_parameters_no_master() -> None:
    plain = laid_out(cluster="h100-sxm:1", framework="pytorch", precision="fp32", global_batch=4)
    assert plain.habits.pure_precision
    found = state_bytes(plain, 100.0, 0.0)
    assert (found.parameters, found.gradients, found.optimizer) == (400.0, 400.0, 2 * 400.0)
    fsdp = laid_out(framework="fsdp", zero_stage=0)
    assert fsdp.habits.parameter_dtype == "fp32"
    assert state_bytes(fsdp, 100.0, 0.0).parameters == 400.0
    assert state_bytes(fsdp, 100.0, 0.0).optimizer == 2 * 400.0
    adapters = state_bytes(laid_out(zero_stage=0, lora_rank=4), 1000.0, 0.0, adapters=10.0)
    assert adapters.parameters == 2 * 10 + 2 * 1000
    assert adapters.optimizer == 12 * 10


# Pages of a CPU


def test_an_optimizers_new_pages_are_the_mean_of_two_heaps_and_the_passes_those_of_a_pinned_one() -> None:
    model = transformer(hidden=512, layers=4, heads=8, vocab=8000, ffn=2048, name="pages")
    layout = laid_out(model, "h100-sxm:1", framework="pytorch", precision="fp32", global_batch=2, micro_batch=1)
    assert layout.habits.pure_precision
    pieces = pieces_of(layout)
    chosen = schedule(layout.schedule, 1, layout.micro_batches, 1)

    def steady(heap: Heap) -> new_pages.NewBytes:
        return new_pages._Rank(layout, pieces, chosen, 0, heap).steady()

    pinned, usual, crowded = steady(Heap(pinned=True)), steady(Heap()), steady(Heap(crowded=True))
    assert usual.optimizer != crowded.optimizer
    found = new_pages.new_bytes(layout, pieces, chosen, 0)
    assert found.optimizer == (usual.optimizer + crowded.optimizer) // 2
    assert (found.forward, found.backward, found.peak) == (pinned.forward, pinned.backward, pinned.peak)


# Noise


@pytest.mark.parametrize("plan", [{"tp": 2, "cp": 2}, {"cp": 4, "pp": 2}, {"tp": 2, "zero_stage": 3}])
def test_each_rank_of_a_cell_pauses_by_itself(plan: dict[str, Any]) -> None:
    layout = laid_out(**plan)
    step, _ = lowered(layout)
    always = Slow("pause", (), 1.0, link=False, kind="pause", seconds=0.001, share=1.0)
    units = layout.dp // tied_replicas(layout)
    draw = random_source(always, 0, step, layout, 5).start(0, 3)
    extra = draw(0, units, np.arange(step.graph.n_ops))
    assert extra.shape == (units, step.graph.n_ops, 3)
    assert extra.sum(axis=(0, 1)) == pytest.approx([layout.cluster.n_gpus * 1e6] * 3)  # each of all GPUs, once a step
    assert not extra[:, ~passes_of(step)].any()  # a pass runs at the moment
    never = random_source(replace(always, share=0.0), 0, step, layout, 5).start(0, 3)
    assert not never(0, units, np.arange(step.graph.n_ops)).any()


def test_a_cell_that_heats_up_is_as_slow_as_it_was_until_it_is_hotter() -> None:
    layout = laid_out(cluster="h100-sxm:8", tp=2, zero_stage=0)
    step, pricer = lowered(layout)
    hot = Slow("thermal=0:2:10s", (0,), 2.0, link=False, kind="thermal", seconds=10.0)
    slow = Slow("gpu=1:1.5", (1,), 1.5, link=False)  # of the same cell
    assert [int(one) for one in cells_of(layout, (0, 1))[0]] == [0, 0]
    links = np.ones((layout.dp, 1))
    (source,) = warming((slow, hot), step, layout, pieces_of(layout), pricer, links, 5.0)
    draw = source.start(0, 4)
    factors = draw(0, layout.dp, np.arange(step.graph.n_ops))
    update = np.flatnonzero((step.graph.kind == OpKind.COMPUTE) & ~passes_of(step))
    assert len(update)
    heat = 1.0 + (2.0 - 1.0) * -np.expm1(-np.arange(4) * 5.0 / 10.0)  # 1, 1.39, 1.63, 1.78
    by_hand = np.maximum(1.5, heat) / 2.0  # of what it takes when hot
    for op in update:
        assert factors[0, op] == pytest.approx(by_hand, rel=1e-5)
    assert (factors[1:] == 1.0).all()


def test_ranks_of_a_cell_that_are_run_side_by_side() -> None:
    layout = laid_out(tp=2, cp=2, zero_stage=0)
    step, _ = lowered(layout)
    assert copies_of(layout, step.segments[0]) == 4
    wide = laid_out(cluster="h100-sxm:64", tp=2, zero_stage=3, global_batch=64)
    assert copies_of(wide, lowered(wide)[0].segments[0]) == min(COPIES_MOST, 2 * tied_replicas(wide))


def test_parts_of_a_band_err_independently() -> None:
    uncertainty = {"software": 0.03, "gemm": 0.1, "exposed": 0.2, "host": 0.4, "other": 0.5, "gemm_moe": 0.3}
    whole = {"gemm": 600, "exposed tp (scale_up)": 300, "unnamed": 100}
    sigma = math.sqrt(0.03**2 + (0.6 * 0.1) ** 2 + (0.3 * 0.2) ** 2 + (0.1 * 0.5) ** 2)
    low, high, _ = band_of(whole, 0.0, uncertainty, experts=False)
    assert (low, high) == pytest.approx((1 / (1 + FASTER * Z95 * sigma), 1 + SLOWER * Z95 * sigma))
    wider = math.sqrt(0.03**2 + (0.6 * 0.3) ** 2 + (0.3 * 0.2) ** 2 + (0.1 * 0.5) ** 2)
    assert band_of(whole, 0.0, uncertainty, experts=True).high == pytest.approx(1 + SLOWER * Z95 * wider)
    spread = 2 * Z95 * 0.25  # kernels less sure than the runs
    kernels = math.sqrt(0.03**2 + (0.6 * 0.25) ** 2 + (0.3 * 0.2) ** 2 + (0.1 * 0.5) ** 2)
    assert band_of(whole, spread, uncertainty, experts=False).high == pytest.approx(1 + SLOWER * Z95 * kernels)
    far = band_of(whole, 0.0, uncertainty, [("beyond", 0.5, False)], experts=False)
    assert far.high == pytest.approx(1 + SLOWER * Z95 * math.hypot(sigma, 0.5))
    assert far.reason == "beyond"
    # What runs like it were off by takes the place of the parts' own, where it is wider.
    like = band_of(whole, 0.0, uncertainty, [("like", 0.4, True), ("beyond", 0.5, False)], experts=False)
    assert like.high == pytest.approx(1 + SLOWER * Z95 * math.hypot(0.4, 0.5))
    assert band_of(whole, 0.0, uncertainty, [("", sigma / 2, True)], experts=False).high == pytest.approx(high)
    assert band_of(whole, 0.0, uncertainty, experts=False).reason == "mostly exposed tp (scale_up) and matrix products"


# Prices of ops


def priced(**plan: Any) -> tuple[Pricer, dict[str, Any]]:
    layout = laid_out(**plan)
    return Pricer(layout), {op.name: op for op in pieces_of(layout)[0].blocks[1].operations}


def test_backward_products_are_those_of_the_turned_shapes() -> None:
    pricer, named = priced(zero_stage=0)
    up = named["mlp_up"]
    m, n, k = (round(size) for size in up.shape)
    assert pricer.forward(up) == pricer._gemm(m, n, k, low=False)
    assert pricer.input_gradient(up) == pricer._gemm(m, k, n, low=False)
    extra = up.weight_elements * pricer._gradient_bytes
    product = pricer._gemm(n, k, m, low=False)
    assert pricer.weight_gradient(up) == (product.plus(pricer.moved(extra)) if extra > 0 else product)
    width = pricer.layout.gradient_bytes
    assert pricer.layout.habits.adds_gradients == (pricer._gradient_bytes == 2 * width + 2)


def test_frozen_weights_of_fewer_bits_are_read_and_written_in_16_for_each_product() -> None:
    pricer, named = priced(lora_rank=8, frozen_dtype="nf4")
    up = named["mlp_up"]
    _, n, k = up.shape
    width = FROZEN_BYTES["nf4"]
    assert 0.5 <= width < 1.0
    assert pricer.weight_cast(up) == pricer.moved((width + 2.0) * n * k)


def test_a_streaming_op_takes_its_bytes_at_the_pace_of_training() -> None:
    pricer, named = priced()
    norm = next(op for op in named.values() if op.kind == "memory" and op.part == "norms")
    factor = pricer.training.sustained.memory
    for price, moved in (
        (pricer.forward(norm), norm.forward_bytes), (pricer.input_gradient(norm), norm.backward_bytes)
    ):  # fmt: skip
        assert price.seconds == pytest.approx(pricer.kernels.memory_bound(moved).seconds * factor)
    assert pricer.copied(1e9).seconds == pytest.approx(pricer.kernels.memory_bound(2e9).seconds)
    assert pricer.added(1e6).seconds == pytest.approx(pricer.moved(3e6 * 2).seconds)


def test_a_product_that_is_cut_up_beside_its_messages_takes_what_it_does_whole() -> None:
    """In two halves in each of four layers; a little longer where messages take from its memory."""
    step, pricer = lowered(laid_out(tp=2, overlap_tp=True))
    segment = step.segments[step.segment_names.index("forward")]
    labels = np.array(segment.graph.labels)[segment.graph.label]
    took = (segment.end_ns - segment.start_ns)[(labels == "mlp_up") & (segment.graph.kind == OpKind.COMPUTE)]
    up = {op.name: op for op in pieces_of(pricer.layout)[0].blocks[1].operations}["mlp_up"]
    assert len(took) == 8
    assert 4.0 <= took.sum() / nanoseconds(pricer.forward(up).seconds) < 4.1


def test_attention_is_its_kernel_by_context_parallel_ranks_and_documents() -> None:
    pricer, named = priced()
    core = next(op for op in named.values() if op.kind == "attention")
    batch, s, _, heads, kv, dim, value, window, cp = core.shape
    alone = pricer.kernels.attention(int(batch), int(s), int(s), int(heads), int(kv), int(dim), causal=True,
                                     window=int(window) or None, value_head_dim=int(value))  # fmt: skip
    factor = pricer.training.sustained.attention
    assert cp == 1
    assert pricer.forward(core).seconds == pytest.approx(alone.seconds * factor)
    half = replace(core, shape=(*core.shape[:8], 2))
    assert pricer.forward(half).seconds == pytest.approx(alone.seconds * factor / 2)
    # Of documents of 200 tokens three begin in 512, and the last is shorter.
    packed = pricer.with_documents(200)
    three = pricer.kernels.attention(int(batch) * 3, 200, 200, int(heads), int(kv), int(dim), causal=True,
                                     value_head_dim=int(value))  # fmt: skip
    assert packed.forward(core).seconds == pytest.approx(three.seconds * factor * 512 / 600)
    for variant, more in (("triton", "attention_triton"), ("flash2", "attention_flash2")):
        other = replace(core, variant=variant)
        assert pricer.forward(other).seconds == pytest.approx(
            alone.seconds * factor * getattr(pricer.training.sustained, more)
        )


def test_a_pass_of_transfers_takes_the_factors_of_its_network() -> None:
    from windtunnel.physics.cost.communication.collectives import collective

    layout = laid_out(load_model("mixtral-8x7b"), ep=8, tp=1)
    pricer = Pricer(layout)
    exchange = Transfer("all_to_all", "ep", 1e8)
    alone = collective("all_to_all", 10**8, layout.group("ep"), layout.cluster).seconds
    assert pricer.links.transfer(exchange)[0].seconds == pytest.approx(alone * pricer.training.sustained.dispatch)
    busiest = collective("all_to_all", int(1e8 * 1.5), layout.group("ep"), layout.cluster).seconds
    assert pricer.links.transfer(exchange, 1.5)[0].seconds == pytest.approx(
        busiest * pricer.training.sustained.dispatch
    )
    across = Pricer(laid_out(load_model("mixtral-8x7b"), "h100-sxm:64", ep=8, tp=8, etp=8, global_batch=64))
    far = across.layout.group("ep")
    price, network = across.links.transfer(exchange)
    assert network == "scale_out"
    by_hand = collective("all_to_all", 10**8, far, across.layout.cluster).seconds
    assert price.seconds == pytest.approx(by_hand * across.training.sustained.dispatch_across)
    pipeline = Pricer(laid_out(pp=2, tp=8))
    price, network = pipeline.links.hop(1e7, far=True)
    by_hand = collective("send_recv", 10**7, pipeline.layout.group("pp far"), pipeline.layout.cluster).seconds
    assert network == "scale_out"
    assert price.seconds == pytest.approx(by_hand * pipeline.training.sustained.p2p)


# Utilisation


def test_utilisation_is_the_models_flops_over_the_peak_of_all_gpus_and_time() -> None:
    result = predict(SMALL, "h100-sxm:16", {**PLAN, "recompute": "full", "tp": 2})
    peak = parse_cluster("h100-sxm:16").gpu.peak_flops("bf16")
    tokens = 32 * 512
    h, layers, ffn, vocab = 1024, 4, 4096, 4000
    gated = 3 if SMALL.layers[0].feed_forward.gated else 2
    attention = SMALL.layers[0].attention
    projections = h * attention.head_dim * (2 * attention.heads + 2 * attention.kv_heads)
    per_token = 2 * (layers * (projections + gated * h * ffn) + h * vocab)
    per_token += layers * 2 * 2 * attention.heads * attention.head_dim * 512  # scores and values; PaLM: no mask
    by_hand = 3 * per_token * tokens / result.step_time_s / 16 / peak
    assert result.mfu == pytest.approx(by_hand, rel=1e-6)
    layers_alone = per_token - 2 * h * vocab  # run forward once more; the head does not
    assert result.hfu / result.mfu == pytest.approx(1 + layers_alone / (3 * per_token))


# Stages on two types of GPU


def test_of_messages_only_those_between_types_cross_whichever_rank_sends() -> None:
    from windtunnel.studies.training.lowering.by_stage import _joined

    layout = laid_out(pp=2, tp=2)
    step, _ = lowered(layout)
    sent = np.flatnonzero(step.sender >= 0)
    assert {int(rank) for rank in step.sender[sent]} == {0, 1}  # forward and back
    apart = _joined([step, step], np.array([0, 1]), (12_345_678, "exposed far (scale_out)"))
    assert (apart.duration_ns[sent] == 12_345_678).all()
    assert {apart.graph.categories[int(one)] for one in apart.graph.category[sent]} == {"exposed far (scale_out)"}
    together = _joined([step, step], np.array([0, 0]), (12_345_678, "exposed far (scale_out)"))
    assert (together.duration_ns == step.duration_ns).all()
    slower = replace(step, duration_ns=step.duration_ns * 2)
    mixed = _joined([step, slower], np.array([0, 1]), (12_345_678, "exposed far (scale_out)"))
    own = (step.graph.rendezvous < 0) & (step.sender < 0)
    first, second = own & (step.graph.program == 0), own & (step.graph.program == 1)
    assert (mixed.duration_ns[first] == step.duration_ns[first]).all()
    assert (mixed.duration_ns[second] == 2 * step.duration_ns[second]).all()
    meets = step.graph.rendezvous >= 0
    alike = meets & (step.sender < 0)
    assert (mixed.duration_ns[alike] == 2 * step.duration_ns[alike]).all()  # who meets waits for the slower
