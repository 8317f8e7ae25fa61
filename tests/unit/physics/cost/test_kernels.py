from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.cost import kernels, roofline
from windtunnel.physics.cost.kernels import KernelCosts, kernel_costs, mean_kv_length
from windtunnel.physics.cost.measured import compaction
from windtunnel.physics.cost.measured.cache import package_data
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware import get_gpu
from windtunnel.physics.hardware.gpu import DTYPES as DTYPES_OF_GPUS
from windtunnel.physics.hardware.gpu import Gpu, KernelScale

GB = 2**30
H100 = Gpu(
    name="h100-test",
    vendor="nvidia",
    generation="hopper",
    memory_bytes=80 * GB,
    usable_memory_bytes=79 * GB,
    memory_bandwidth_bytes_per_s=3.35e12,
    flops_per_s={"bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12, "tf32": 494.7e12, "fp32": 66.9e12},
    sm_count=132,
    tdp_w=700,
    kernel_tables="h100_sxm",
)
CAPPED = dataclasses.replace(
    H100, name="capped", memory_bandwidth_bytes_per_s=2.4e12, kernel_scale=KernelScale(0.894, 0.716)
)
UNTIMED = dataclasses.replace(H100, name="untimed", kernel_tables=None)
MI300X = dataclasses.replace(UNTIMED, name="mi", generation="cdna3", sm_count=304)
GPUS = [H100, CAPPED, UNTIMED, MI300X]
DTYPES = ("bf16", "fp8", "tf32")
needs_package = pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")

gpus = st.sampled_from(GPUS).map(kernel_costs)
dtypes = st.sampled_from(DTYPES)
size = st.integers(1, 200_000)
factor = st.floats(1.0, 8.0)


def in_order(price: Price) -> bool:
    return 0 < price.p5 <= price.seconds <= price.p95


def not_less(after: Price, before: Price) -> bool:
    return after.seconds >= before.seconds * (1 - 1e-6)


@given(gpus, size, size, size, dtypes, factor)
@settings(max_examples=300)
def test_gemm_never_gets_faster_by_growing_nor_beats_the_data_sheet(
    costs: KernelCosts, m: int, n: int, k: int, dtype: str, grow: float
) -> None:
    price = costs.gemm(m, n, k, dtype)
    assert in_order(price)
    assert price.seconds >= 2.0 * m * n * k / costs.gpu.flops_per_s[dtype] * (1 - 1e-9)
    for bigger in ((m * grow, n, k), (m, n * grow, k), (m, n, k * grow)):
        assert not_less(costs.gemm(*bigger, dtype), price)


@given(gpus, st.integers(1, 256), st.floats(0.01, 20_000), size, st.integers(1, 16_384), dtypes, factor)
@settings(max_examples=200)
def test_grouped_gemm_never_gets_faster_by_growing(
    costs: KernelCosts, groups: int, rows: float, n: int, k: int, dtype: str, grow: float
) -> None:
    price = costs.grouped_gemm(groups, rows, n, k, dtype)
    assert in_order(price)
    assert not_less(costs.grouped_gemm(groups + 1, rows, n, k, dtype), price)
    assert not_less(costs.grouped_gemm(groups, rows * grow, n, k, dtype), price)
    assert not_less(costs.grouped_gemm(groups, rows, int(n * grow), k, dtype), price)
    assert not_less(costs.grouped_gemm(groups, rows, n, int(k * grow), dtype), price)


@given(
    gpus,
    st.integers(1, 16),
    st.integers(1, 262_144),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(16, 256),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10_000)),
    st.booleans(),
    st.sampled_from(("bf16", "fp32")),
)
@settings(max_examples=300)
def test_attention_never_gets_faster_by_growing(
    costs: KernelCosts,
    batch: int,
    seq: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    causal: bool,
    window: int | None,
    backward: bool,
    dtype: str,
) -> None:
    heads = kv_heads * group

    def priced(batch: int = batch, seq: int = seq, heads: int = heads, dim: int = head_dim, keys: int = seq) -> Price:
        return costs.attention(batch, seq, max(keys, seq), heads, kv_heads, dim, causal, window, backward, dtype)

    price = priced()
    assert in_order(price)
    for bigger in (priced(batch=batch + 1), priced(heads=2 * heads), priced(dim=head_dim + 8), priced(keys=seq * 2)):
        assert not_less(bigger, price)
    assert not_less(priced(seq=seq * 2), price)


@given(gpus, st.floats(0, 1e12), factor)
def test_memory_bound_has_a_floor_and_a_rate(costs: KernelCosts, bytes_total: float, grow: float) -> None:
    price = costs.memory_bound(bytes_total)
    assert in_order(price)
    assert price.seconds >= roofline.launch_floor_s()
    assert price.seconds >= bytes_total / costs.gpu.memory_bandwidth_bytes_per_s
    assert not_less(costs.memory_bound(bytes_total * grow), price)


def test_doubling_every_rate_halves_the_time_above_the_floor() -> None:
    double = dataclasses.replace(
        UNTIMED,
        memory_bandwidth_bytes_per_s=2 * UNTIMED.memory_bandwidth_bytes_per_s,
        flops_per_s={dtype: 2 * rate for dtype, rate in UNTIMED.flops_per_s.items()},
    )
    floor = roofline.launch_floor_s()
    for shape in ((8192, 8192, 8192), (8192, 16, 8192)):
        slow, fast = kernel_costs(UNTIMED).gemm(*shape, "bf16"), kernel_costs(double).gemm(*shape, "bf16")
        assert fast.seconds - floor == pytest.approx((slow.seconds - floor) / 2)


def brute_force_mean(seq_q: int, seq_kv: int, window: int | None) -> float:
    seen = [seq_kv - seq_q + i + 0.5 for i in range(seq_q)]
    return float(np.mean([min(keys, window if window is not None else seq_kv) for keys in seen]))


def test_mean_kv_length_counts_the_pairs_under_the_mask() -> None:
    edge = kernels._MASK_BLOCK / 2
    for seq_q, extra, window in itertools.product((1, 100, 1000), (0, 300, 5000), (None, 200, 900)):
        seq_kv = seq_q + extra
        cut = window is not None and window < seq_kv
        whole = brute_force_mean(seq_q, seq_kv, None)
        expected = min(whole, brute_force_mean(seq_q, seq_kv, window) + edge) if cut else whole
        assert mean_kv_length(seq_q, seq_kv, True, window) == pytest.approx(max(1.0, expected), abs=0.51)
    assert mean_kv_length(4096, 4096, False, None) == 4096 - edge


@needs_package
def test_sources_say_how_the_number_came_about() -> None:
    costs = kernel_costs(H100)
    assert costs.gemm(8192, 8192, 8192, "bf16").source is Source.MEASURED
    assert costs.gemm(8192, 13_696, 5120, "bf16").source is Source.INTERPOLATED
    assert costs.gemm(2_000_000, 65_536, 65_536, "bf16").source is Source.ROOFLINE
    assert costs.gemm(4096, 4096, 4096, "tf32").source is Source.FITTED
    assert costs.attention(1, 8192, 8192, 64, 8, 128).source is Source.MEASURED
    assert costs.attention(1, 8000, 8000, 64, 8, 128).source is Source.INTERPOLATED
    assert costs.attention(1, 262_144, 262_144, 8, 1, 128).source is Source.INTERPOLATED
    assert costs.attention(1, 8192, 8192, 64, 8, 128, backward=True).source is Source.FITTED
    assert costs.grouped_gemm(8, 4096, 14_336, 4096, "bf16").source is Source.FITTED
    assert kernel_costs(CAPPED).gemm(8192, 8192, 8192, "bf16").source is Source.INTERPOLATED
    untimed = kernel_costs(UNTIMED)
    grouped = untimed.grouped_gemm(8, 99, 512, 512, "fp8")
    for price in (untimed.gemm(512, 512, 512, "bf16"), grouped, untimed.memory_bound(1)):
        assert price.source is Source.ROOFLINE
    assert untimed.attention(1, 8192, 8192, 64, 8, 128, backward=True).source is Source.ROOFLINE


@needs_package
def test_bands_widen_away_from_the_measurements() -> None:
    costs = kernel_costs(H100)

    def width(price: Price) -> float:
        return price.p95 / price.p5

    on, between = costs.gemm(8192, 8192, 8192, "bf16"), costs.gemm(8192, 9159, 8192, "bf16")
    far, further = costs.gemm(131_072, 8192, 8192, "bf16"), costs.gemm(524_288, 8192, 8192, "bf16")
    assert width(on) <= width(between) < width(far) < width(further)
    plain = costs.attention(1, 8192, 8192, 64, 8, 128)
    assert width(plain) < width(costs.attention(1, 8192, 8192, 64, 8, 128, window=1024))
    assert width(plain) < width(costs.attention(1, 8192, 8192, 64, 8, 128, backward=True))


@needs_package
def test_a_sibling_is_slower_by_its_scale() -> None:
    own, sibling = kernel_costs(H100), kernel_costs(CAPPED)
    shape = (8192, 8192, 8192, "bf16")
    assert sibling.gemm(*shape).seconds == pytest.approx(own.gemm(*shape).seconds / 0.894, rel=1e-3)
    streaming = (32_768, 32, 16_384, "bf16")  # one operand streams: bandwidth decides
    assert sibling.gemm(*streaming).seconds > own.gemm(*streaming).seconds / 0.894


@pytest.mark.parametrize("gpu", GPUS)
def test_attention_in_fp32_computes_at_that_rate_and_starts_as_quickly(gpu: Gpu) -> None:
    costs, slower = kernel_costs(gpu), 989.4 / 66.9
    small, large = (
        costs.attention(1, seq, seq, 16, 16, 64, dtype="fp32").seconds
        / costs.attention(1, seq, seq, 16, 16, 64).seconds
        for seq in (64, 16_384)
    )
    assert 1.0 <= small < 2.0
    assert 0.9 * slower < large <= slower


def test_attention_in_fp32_takes_as_long_as_in_bf16_where_the_gpu_computes_no_slower() -> None:
    costs = kernel_costs(dataclasses.replace(UNTIMED, flops_per_s={"bf16": 1e14, "fp32": 1e14}))
    full, half = (costs.attention(1, 4096, 4096, 16, 16, 64, dtype=dtype) for dtype in ("fp32", "bf16"))
    assert full.seconds == half.seconds


@needs_package
def test_hopper_kernels_run_at_the_rates_people_publish() -> None:
    """FlashAttention-3 forward at 16k causal: 610-650 TFLOP/s; its backward 450-560. cuBLAS bf16: 650-800."""
    costs = kernel_costs(H100)
    forward = costs.attention(1, 16_384, 16_384, 32, 32, 128).seconds
    flops = 2.0 * 32 * 16_384**2 * 128
    assert 560e12 < flops / forward < 680e12
    backward = costs.attention(1, 16_384, 16_384, 32, 32, 128, backward=True).seconds
    assert 430e12 < 2.5 * flops / backward < 580e12
    assert 650e12 < 2.0 * 8192 * 8192 * 28_672 / costs.gemm(8192, 28_672, 8192, "bf16").seconds < 820e12
    speedup = costs.gemm(8192, 28_672, 8192, "bf16").seconds / costs.gemm(8192, 28_672, 8192, "fp8").seconds
    assert 1.6 < speedup < 2.3


@needs_package
def test_held_out_gemm_shapes_are_predicted() -> None:
    found = package_data()
    assert found is not None
    ((dtype, cubes, axes), *_) = compaction.gemm_cubes(found[0] / "h100_sxm")
    assert dtype == "bf16"
    middle = np.median(np.stack(cubes), axis=0)  # NaN, and so not judged, where one of them is
    hidden = compaction.checkerboard(middle.shape[1:]) == 0
    estimate = compaction.gemm_without(middle, axes, hidden)
    m, n, k = np.meshgrid(*axes, indexing="ij")
    judged = hidden[None] & (middle > np.log(20e-6)) & (np.minimum(np.minimum(m, n), k) > np.log(255))
    assert np.abs(np.expm1((estimate - middle)[judged])).mean() < 0.05


@needs_package
def test_roofline_is_within_its_band_of_the_measurements() -> None:
    timed, untimed = kernel_costs(H100), kernel_costs(UNTIMED)
    ratios = []
    for shape in itertools.product((1024, 4096, 16_384), (2048, 8192, 28_672), (2048, 8192, 28_672)):
        ratios.append(untimed.gemm(*shape, "bf16").seconds / timed.gemm(*shape, "bf16").seconds)
    assert np.abs(np.log(ratios)).mean() < 0.08
    assert np.abs(np.log(ratios)).max() < roofline.gemm_efficiency(UNTIMED, "bf16").band


def test_what_the_gpu_cannot_do_is_said_plainly() -> None:
    with pytest.raises(SpecError, match=r"nvfp4.*h100-test has no such rate"):
        kernel_costs(H100).gemm(1024, 1024, 1024, "nvfp4")
    with pytest.raises(SpecError, match="m = 0"):
        kernel_costs(UNTIMED).gemm(0, 1024, 1024, "bf16")
    with pytest.raises(SpecError, match="m_per_group"):
        kernel_costs(UNTIMED).grouped_gemm(4, 0.0, 1024, 1024, "bf16")


@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "mi300x", "l40s", "gaudi2"])
def test_every_format_that_a_gpu_has_a_rate_for_is_priced(name: str) -> None:
    gpu = get_gpu(name)
    costs = kernel_costs(gpu)
    for dtype in DTYPES_OF_GPUS:
        if not gpu.supports(dtype) and dtype != "fp16":
            with pytest.raises(SpecError, match=f"dtype = {dtype!r}.*no such rate"):
                costs.gemm(4096, 4096, 4096, dtype)
            continue
        for price in (costs.gemm(4096, 4096, 4096, dtype), costs.grouped_gemm(4, 1024, 4096, 4096, dtype)):
            assert in_order(price)
            assert price.seconds >= 2.0 * 4096**3 / gpu.flops_per_s.get(dtype, gpu.peak_flops("bf16"))
    if gpu.supports("fp64"):
        assert costs.gemm(4096, 4096, 4096, "fp64").seconds >= costs.gemm(4096, 4096, 4096, "bf16").seconds


def test_experts_of_a_tpu_reach_less_of_its_rate_than_one_gemm() -> None:
    """Where no generation says so, a GEMM per expert takes what one of all their rows takes."""
    for gpu, share in (("tpu-v6e", 0.72), ("tpu-v7x", 0.72), ("tpu-v5p", 1.0), ("trainium2", 1.0)):
        costs = kernel_costs(get_gpu(gpu))
        seconds = costs.gemm(8 * (4096 + kernels._GROUP_EDGE_ROWS), 4096, 4096, "bf16").seconds
        assert costs.grouped_gemm(8, 4096.0, 4096, 4096, "bf16").seconds == pytest.approx(seconds / share)


def test_one_group_is_a_plain_gemm_and_fp16_is_bf16() -> None:
    for gpu in GPUS:
        costs = kernel_costs(gpu)
        assert costs.grouped_gemm(1, 4096, 2048, 2048, "bf16") == costs.gemm(4096, 2048, 2048, "bf16")
        assert costs.gemm(4096, 2048, 2048, "fp16") == costs.gemm(4096, 2048, 2048, "bf16")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_experts_without_a_token_cost_nothing(gpu: Gpu) -> None:
    """Four tokens among 256 experts or among 1,024: four experts work."""
    few, many = (kernel_costs(gpu).grouped_gemm(groups, 4 / groups, 2048, 2048, "bf16") for groups in (256, 1024))
    assert many.seconds == pytest.approx(few.seconds, rel=0.02)


@needs_package
@pytest.mark.parametrize("m", [1, 16, 64])
def test_kernels_of_another_gpu_are_no_faster_than_this_ones_memory(m: int) -> None:
    """CAPPED has the H100's tables, and less of its bandwidth than of its rate."""
    efficiency, _ = roofline.memory_efficiency(CAPPED)
    least = roofline.gemm_bytes(m, 8192, 8192, "bf16") / (CAPPED.memory_bandwidth_bytes_per_s * efficiency)
    assert kernel_costs(CAPPED).gemm(m, 8192, 8192, "bf16").seconds >= least * (1 - 1e-9)


def test_an_untimed_gpu_computes_at_the_clock_that_its_power_leaves() -> None:
    slower = dataclasses.replace(MI300X, kernel_scale=KernelScale(clock=0.8))
    size = (8192, 8192, 8192, "bf16")
    assert roofline.gemm(slower, *size).seconds == pytest.approx(roofline.gemm(MI300X, *size).seconds / 0.8, rel=0.01)
    assert roofline.memory_bound(slower, 1e9) == roofline.memory_bound(MI300X, 1e9)
    assert get_gpu("mi300x").kernel_scale.clock < 1.0 < get_gpu("mi325x").kernel_scale.clock


@pytest.mark.skipif(package_data() is None, reason="the measured tables are not installed")
def test_a_sibling_with_far_slower_matrix_units_keeps_what_the_memory_gives() -> None:
    """H20: H200's kernels, 15 % of its products a second, five sixths of its bytes."""
    h200, h20 = kernel_costs(get_gpu("h200-sxm")), kernel_costs(get_gpu("h20"))
    small, large = (8, 8192, 8192), (8192, 8192, 8192)
    here, there = (one.gemm(*small, "bf16").seconds - roofline.launch_floor_s() for one in (h20, h200))
    assert here / there == pytest.approx(1 / 0.833, rel=0.01)
    products_s = 2.0 * 8192**3 / 148e12
    assert products_s < h20.gemm(*large, "bf16").seconds < 1.5 * products_s
