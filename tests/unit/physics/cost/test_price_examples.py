"""Each term of a kernel's price, worked by hand beside it.

Constants are taken from the tables by name: fitting them anew changes nothing here, and leaving a term out does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from windtunnel.physics.cost import roofline, sustained
from windtunnel.physics.cost.inference import experts
from windtunnel.physics.cost.inference.experts import Engine, Experts
from windtunnel.physics.cost.inference.kernels import InferenceKernels, inference_kernels
from windtunnel.physics.cost.kernels import KernelCosts, mean_kv_length
from windtunnel.physics.cost.price import FREE, NO_MATTER, Z95, Price, Source, nanoseconds
from windtunnel.physics.cost.sustained import SHORT_LOADS, SMOOTH, sustained_gemm, sustained_grouped_gemm, unaligned
from windtunnel.physics.cost.training import (
    Software,
    TrainingCosts,
    before,
    software,
    training_costs,
    training_document,
)
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.gpu import Gpu, KernelScale

GPU = Gpu(
    name="by-hand", vendor="nvidia", generation="hopper", memory_bytes=80 << 30, usable_memory_bytes=79 << 30,
    memory_bandwidth_bytes_per_s=1e12, flops_per_s={"bf16": 1e14, "fp8": 2e14, "fp32": 1e13}, sm_count=10, tdp_w=700,
)  # fmt: skip
FLOOR = roofline.launch_floor_s()
STREAMED = 1e12 * roofline.memory_efficiency(GPU)[0]


# A price


def test_a_price_and_another_after_it() -> None:
    one, two = Price(2.0, 1.0, 4.0, Source.MEASURED), Price(3.0, 2.5, 5.0, Source.ROOFLINE)
    assert one.plus(two) == (5.0, 3.5, 9.0, Source.ROOFLINE)
    assert one.plus(two.scaled(NO_MATTER * 0.5)).source is Source.MEASURED  # too short to matter
    edge = Price(NO_MATTER, NO_MATTER, NO_MATTER, Source.FITTED)
    assert Price(1 - NO_MATTER, 1.0, 1.0, Source.MEASURED).plus(edge).source is Source.FITTED  # a twentieth does
    assert one.scaled(2.0) == (4.0, 2.0, 8.0, Source.MEASURED)
    assert one.plus(FREE) == one


def test_a_fitted_factor_widens_a_band_to_its_own_and_no_further() -> None:
    narrow, wide = Price(2.0, 1.9, 2.1, Source.MEASURED), Price(2.0, 0.5, 8.0, Source.ROOFLINE)
    sigma = 0.1
    assert narrow.fitted(3.0, sigma) == pytest.approx(
        (6.0, 6.0 / (1 + Z95 * sigma), 6.0 * (1 + Z95 * sigma), Source.FITTED)
    )
    assert wide.fitted(3.0, sigma) == (6.0, 1.5, 24.0, Source.ROOFLINE)
    assert narrow.fitted(1.0, sigma) is narrow


def test_widths_of_a_band_add_in_squares() -> None:
    price = Price(1.0, math.exp(-0.3), math.exp(0.3), Source.MEASURED).widened(-0.4, 0.4, Source.FITTED)
    assert price == pytest.approx((1.0, math.exp(-0.5), math.exp(0.5), Source.FITTED))


def test_seconds_are_rounded_to_whole_nanoseconds() -> None:
    assert nanoseconds(1.5e-9 + 1e-12) == 2
    assert nanoseconds(1.0) == 10**9


# Kernels without a measurement


def test_a_streaming_kernel_is_a_launch_and_its_bytes() -> None:
    assert roofline.memory_bound(GPU, 1e9).seconds == pytest.approx(FLOOR + 1e9 / STREAMED)
    band = roofline.memory_efficiency(GPU)[1]
    price = roofline.memory_bound(GPU, 1e9)
    assert (price.seconds / price.p5, price.p95 / price.seconds) == pytest.approx((math.exp(band), math.exp(band)))


def test_bytes_of_a_product_are_both_operands_and_the_result() -> None:
    assert roofline.gemm_bytes(3, 5, 7, "bf16") == 2 * (3 * 7 + 7 * 5) + 2 * 3 * 5
    assert roofline.gemm_bytes(3, 5, 7, "fp8") == 1 * (3 * 7 + 7 * 5) + 2 * 3 * 5  # the result is never in 8 bits
    assert roofline.gemm_bytes(3, 5, 7, "fp32") == 4 * (3 * 7 + 7 * 5) + 4 * 3 * 5


def test_a_product_is_its_flops_with_edge_tail_and_depth() -> None:
    m, n, k = 4096, 2048, 1024
    gemm_efficiency = roofline.gemm_efficiency(GPU, "bf16")
    edge, wave = roofline.constants()["edge_rows"], roofline.constants()["wave_share"]
    flops = 2 * ((m + edge) * (n + edge) + wave * GPU.sm_count * roofline.TILE**2) * (k + gemm_efficiency.k_half)
    assert roofline.gemm(GPU, m, n, k, "bf16").seconds == pytest.approx(FLOOR + flops / (1e14 * gemm_efficiency.peak))
    slower = replace(GPU, kernel_scale=KernelScale(1.0, 1.0, 0.5))
    assert roofline.gemm(slower, m, n, k, "bf16").seconds == pytest.approx(
        FLOOR + flops / (0.5e14 * gemm_efficiency.peak)
    )
    thin = roofline.gemm(GPU, 1, n, k, "bf16").seconds  # reading the weights takes longer than multiplying
    assert thin == pytest.approx(FLOOR + roofline.gemm_bytes(1, n, k, "bf16") / STREAMED)


def test_attention_is_four_flops_per_query_key_and_feature_with_its_tails() -> None:
    entry = roofline.by_generation(roofline.constants()["generations"], "hopper")["attention"]
    rows = 8192.0 + roofline.constants()["attention_half_waves"] * GPU.sm_count * roofline.TILE
    length = 2048.0 + roofline.constants()["attention_half_length"] / 2
    price = roofline.attention(GPU, 8192.0, 2048.0, 128.0, 1.0, "bf16")
    assert price.seconds == pytest.approx(FLOOR + 4 * rows * length * 128 / (1e14 * entry["peak"]))
    assert roofline.attention(GPU, 1.0, 1.0, 1.0, 1e9, "bf16").seconds == pytest.approx(FLOOR + 1e9 / STREAMED)


def test_untimed_attention_moves_queries_keys_values_and_its_output() -> None:
    batch, s, heads, kv, dim = 2, 4, 6, 3, 8
    price = KernelCosts(GPU, None).attention(batch, s, s, heads, kv, dim, True)
    moved = 2 * (batch * heads * s * 2 * dim + batch * kv * s * 2 * dim)
    by_hand = roofline.attention(GPU, batch * heads * s, mean_kv_length(s, s, True, None), dim, moved, "bf16")
    assert price == by_hand
    wider = KernelCosts(GPU, None).attention(batch, s, s, heads, kv, dim, True, value_head_dim=16)
    moved = 2 * (batch * heads * s * (8 + 16) + batch * kv * s * (8 + 16))
    assert wider == roofline.attention(GPU, batch * heads * s, mean_kv_length(s, s, True, None), 12.0, moved, "bf16")
    few = KernelCosts(GPU, None).attention(64, 1, 4096, 8, 4, dim, False)  # of few rows it is the keys that take time
    read = 2 * (64 * 4 * 4096 + 64 * 8) * 2 * dim
    assert few.seconds == pytest.approx(FLOOR + read / STREAMED)


def test_keys_that_a_query_sees() -> None:
    block = 128  # rows of a tile, half of which a mask wastes
    assert mean_kv_length(1000, 1000, True, None) == 500
    assert mean_kv_length(1000, 3000, True, None) == 2000 + 500
    assert mean_kv_length(1000, 1000, False, None) == 1000 - block / 2  # tables time causal squares
    # A window of 200 of 1,000: rows 0 to 199 see 0 to 200, the others 200; half a block more is wasted at its end.
    assert mean_kv_length(1000, 1000, True, 200) == pytest.approx((200 * 100 + 800 * 200) / 1000 + block / 2)
    assert mean_kv_length(1000, 1000, False, 300) == pytest.approx(300)


def test_grouped_products_are_one_product_of_all_rows_and_edges() -> None:
    costs, groups, m, n, k = KernelCosts(GPU, None), 8, 512.0, 1024, 2048
    from windtunnel.physics.cost.kernels import _GROUP_EDGE_ROWS

    rows = groups * m + groups * -math.expm1(-m) * _GROUP_EDGE_ROWS
    assert costs.grouped_gemm(groups, m, n, k, "bf16").seconds == pytest.approx(costs.gemm(rows, n, k, "bf16").seconds)
    few = 0.25  # rows each: most experts get none, and weights of the others are what takes the time
    active = groups * (1 - math.exp(-few))
    moved = 2 * active * n * k + groups * few * (2 * k + 2 * n)
    assert costs.grouped_gemm(groups, few, n, k, "bf16").seconds == pytest.approx(
        max(FLOOR + moved / STREAMED, costs.gemm(groups * few + active * _GROUP_EDGE_ROWS, n, k, "bf16").seconds)
    )
    assert costs.grouped_gemm(1, m, n, k, "bf16") == costs.gemm(m, n, k, "bf16")


# Training


def test_a_long_product_levels_off_at_the_rate_that_power_sustains() -> None:
    costs, training = KernelCosts(GPU, None), training_costs("hopper")
    m = n = k = 8192
    share = training.sustained.gemm["bf16"]
    burst, limit = costs.gemm(m, n, k, "bf16").seconds, 2 * m * n * k / (share * 1e14)
    halves = [parts * costs.gemm(m // parts, n, k, "bf16").seconds for parts in (2, 4) if m * n * k * 2 / parts > 1e12]
    burst = min([burst, *halves])
    together = (burst**SMOOTH + limit**SMOOTH) ** (1 / SMOOTH)
    assert sustained_gemm(costs, training, m, n, k, "bf16").seconds == pytest.approx(together)
    unknown = replace(training, sustained=replace(training.sustained, gemm={}))
    assert sustained_gemm(costs, unknown, m, n, k, "bf16").seconds == pytest.approx(burst)


def test_grouped_products_level_off_by_the_flops_of_all_groups() -> None:
    costs, training = KernelCosts(GPU, None), training_costs("hopper")
    groups, m, n, k = 4, 4096.0, 4096, 4096
    burst = costs.grouped_gemm(groups, m, n, k, "bf16").seconds
    limit = 2 * groups * m * n * k / (training.sustained.gemm["bf16"] * 1e14)
    price = sustained_grouped_gemm(costs, training, groups, m, n, k, "bf16")
    assert price.seconds == pytest.approx((burst**SMOOTH + limit**SMOOTH) ** (1 / SMOOTH))


def test_rows_that_no_load_of_sixteen_bytes_divides() -> None:
    for n, factor in ((4096, SHORT_LOADS[8]), (4100, SHORT_LOADS[4]), (50258, SHORT_LOADS[2]), (50257, SHORT_LOADS[1])):
        assert unaligned(n, 4096) == unaligned(4096, n) == factor
    assert sustained.ALIGNED == 8
    assert SHORT_LOADS[1] > SHORT_LOADS[2] > SHORT_LOADS[4] > SHORT_LOADS[8] == 1.0


def test_the_slowest_of_many_and_who_slows_whom() -> None:
    costs = training_costs("hopper")
    assert costs.straggling(1) == 0.0
    assert costs.straggling(1024) == pytest.approx(costs.jitter * math.sqrt(2 * math.log(1024)))
    table = costs.slowdown_factors()
    named: TrainingCosts = replace(costs, compute_by_scale_up=1.0, compute_by_scale_out=2.0, comm_by_compute=3.0)
    assert named.slowdown_factors() == (
        (0, 0, 0, 0, 0), (0, 0, 0, 1, 2), (0, 0, 0, 1, 2), (0, 3, 3, 0, 0), (0, 3, 3, 0, 0),
    )  # fmt: skip
    assert len(table) == 5


def test_a_release_is_the_next_one_that_was_fitted() -> None:
    known = {name: Software(**habits) for name, habits in training_document()["releases"].items()}
    assert software("nemo-24.08") == known["nemo-24.08"]
    assert software("nemo-23.01") == known["nemo-24.08"]
    assert software("nemo-24.09") == known["nemo-25.02"] != known["nemo-24.08"]
    assert software(None) == software("nemo-9999.1") == software("no-such-1.0") == Software()
    assert before("nemo-24.09", "nemo-24.11")
    assert not before("nemo-24.11", "nemo-24.11")
    assert before("nemo-2024.09", "nemo-24.11")  # a year is the short form of itself
    assert not before("other-24.09", "nemo-24.11")
    assert not before(None, "nemo-24.11")


# Serving


def served(gpu: Gpu = GPU) -> InferenceKernels:
    return inference_kernels(replace(parse_cluster("h100-sxm:8"), gpu=gpu), "vllm")


def test_absorbed_products_read_both_matrices_and_write_both_sides() -> None:
    kernels = served()
    tokens, heads, nope, value, rank = 3.0, 5, 7, 11, 13
    weights = 2 * heads * rank * (nope + value)
    # Into the latent space: nope wide in, rank out; and back: rank in, value out. Two bytes each.
    rows = 2 * tokens * heads * ((nope + rank) + (rank + value))
    assert kernels.absorbed_s(tokens, heads, nope, value, rank) == pytest.approx(
        2 * FLOOR + (weights + rows) / STREAMED
    )
    many = 1e6
    flops = 2 * many * heads * rank * (nope + value)
    slow = served(replace(GPU, flops_per_s={"bf16": 1e9}))
    assert slow.absorbed_s(many, heads, nope, value, rank) == pytest.approx(2 * FLOOR + flops / (0.5 * 1e9))


def test_products_with_weights_in_fewer_bits_save_what_is_not_read() -> None:
    kernels = served(replace(GPU, flops_per_s={"bf16": 1e14}))  # multiplies in 16 bits only
    m, n, k = 8.0, 4096, 4096
    whole = kernels.dense.gemm(m, n, k, "bf16").seconds
    assert kernels.gemm_s(m, n, k, "bf16") == whole
    saved = (2 - 1) * n * k / STREAMED
    assert kernels.gemm_s(m, n, k, "fp8") == pytest.approx(max(whole - saved, 0.5 * whole))
    many = 65536.0  # of many rows the FLOPs are what takes the time
    whole = kernels.dense.gemm(many, n, k, "bf16").seconds
    floor = 2 * many * n * k / (1e14 * roofline.gemm_efficiency(GPU, "bf16").peak)
    assert kernels.gemm_s(many, n, k, "fp8") == pytest.approx(max(whole - saved, floor, 0.5 * whole))
    assert kernels.gemm_s(0.0, n, k, "bf16") == kernels.gemm_s(1.0, n, k, "bf16")
    assert kernels.derived_from("fp8") == "bf16"
    assert kernels.derived_from("bf16") is None


def test_attention_of_a_gpu_without_tables_streams_its_cache() -> None:
    kernels = served()
    table = kernels.decode_attention(8, 2, 128, "bf16", None)
    assert table.at(4, 1000) == pytest.approx(2 * FLOOR + 4 * 1000 * 2 * 2 * 128 * 2 / STREAMED)
    half = kernels.decode_attention(8, 2, 128, "fp8", None)
    assert half.at(4, 1000) == pytest.approx(2 * FLOOR + 4 * 1000 * 2 * 2 * 128 / STREAMED)
    seen = kernels.decode_attention(8, 2, 128, "bf16", 100)
    assert seen.at(4, 1000) == pytest.approx(table.at(4, 100), rel=1e-3)
    assert seen.at(4, 50) == pytest.approx(table.at(4, 50))
    latent = kernels.latent_attention(16, 576, "bf16")
    per_token = max(576 * 2 / STREAMED, 4 * 16 * 576 / (0.4 * 1e14))
    assert latent.at(4, 1000) == pytest.approx(2 * FLOOR + 4 * 1000 * per_token)
    many = kernels.latent_attention(512, 576, "bf16")
    assert many.at(4, 1000) == pytest.approx(2 * FLOOR + 4 * 1000 * 4 * 512 * 576 / (0.4 * 1e14))


def test_latent_attention_grows_with_heads_beyond_those_that_were_timed() -> None:
    pytest.importorskip("aiconfigurator_core")
    kernels = inference_kernels(parse_cluster("h100-sxm:8"), "vllm")
    most, twice = (kernels.latent_attention(heads, 576, "bf16").at(64, 8000) for heads in (128, 256))
    assert twice == pytest.approx(2 * most)


@pytest.mark.parametrize("ep", [1, 4])
def test_routed_experts_read_their_weights_or_multiply_padded_rows(ep: int) -> None:
    layer = Experts(hidden=64, inter=32, topk=2, experts=16, tp=2, ep=ep, dtype="bf16", gated=True)
    engine = Engine(GPU, "vllm")
    of_one = 3 * 64 * 32 / 2
    for tokens in (4.0, 1e7):
        touched = 16 * (1 - (1 - 2 / 16) ** tokens)
        moved = touched / ep * of_one * 2 + 4 * tokens * 2 / ep * (64 + 32 / 2)
        rows = (
            tokens * 2 / ep + touched / ep * experts.ROUTED_TILE / 2
        )  # half a tile is padding, of this rank's experts
        rate = 1e14 * roofline.gemm_efficiency(GPU, "bf16").peak * 0.7
        by_hand = 4 * FLOOR + max(moved / STREAMED, 2 * rows * of_one / rate)
        assert experts._experts_s(engine, tokens, layer) == pytest.approx(by_hand)
    slow = Engine(replace(GPU, flops_per_s={"bf16": 1e9}), "vllm")  # so that padding is what one sees
    touched = 16 * (1 - (1 - 2 / 16) ** 4)
    rows = 4 * 2 / ep + touched / ep * experts.ROUTED_TILE / 2
    rate = 1e9 * roofline.gemm_efficiency(GPU, "bf16").peak * 0.7
    assert experts._experts_s(slow, 4.0, layer) == pytest.approx(4 * FLOOR + 2 * rows * of_one / rate)
    every = layer._replace(topk=16)
    assert experts._touched(1.0, every) == 16
    assert experts._weights_of_one(layer._replace(gated=False)) == 2 * 64 * 32 / 2
