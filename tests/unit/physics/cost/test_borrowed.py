"""Times of inference kernels on a GPU that borrows the tables of its sibling."""

from __future__ import annotations

import pytest

from windtunnel.physics.cost.inference import inference_kernels
from windtunnel.physics.cost.inference.kernels import InferenceKernels, quantised_grids
from windtunnel.physics.cost.roofline import beside_sibling, borrowed_s, launch_floor_s
from windtunnel.physics.hardware import get_gpu, parse_cluster


def _kernels(gpu: str) -> InferenceKernels:
    kernels = inference_kernels(parse_cluster(f"{gpu}:1"), "trtllm")
    if not kernels.measured:
        pytest.skip("aiconfigurator-core is not installed: no tables to borrow")
    return kernels


def test_what_binds_on_both_is_scaled_by_its_rate() -> None:
    gpu = get_gpu("rtx-pro-4500")  # compute 0.374, memory 0.501 of the RTX PRO 6000
    assert beside_sibling(gpu, 1e9, 0.0) == pytest.approx(1 / 0.501)
    assert beside_sibling(gpu, 0.0, 1e-3) == pytest.approx(1 / 0.374)


def test_a_kernel_that_products_bind_here_alone_takes_what_they_add() -> None:
    gpu = get_gpu("h20")  # compute 0.1496, memory 0.833
    read_s = 1e-3
    there_s = 0.833 * read_s  # reading, in which the sibling's products of 0.1496 x 2 ms hide
    assert beside_sibling(gpu, read_s * gpu.memory_bandwidth_bytes_per_s, 2e-3) == pytest.approx(2e-3 / there_s)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "nvfp4"])
@pytest.mark.parametrize("name", ["rtx-5090", "rtx-5080", "rtx-pro-5000", "gb10"])
def test_products_are_scaled_by_the_ratio_of_the_peaks_in_their_format(name: str, dtype: str) -> None:
    gpu, sibling = get_gpu(name), get_gpu("rtx-pro-6000")
    slower = sibling.peak_flops(dtype) / gpu.peak_flops(dtype)
    assert beside_sibling(gpu, 0.0, 1e-3, dtype) == pytest.approx(slower, rel=5e-3)
    borrowed, own = (_kernels(one) for one in (name, "rtx-pro-6000"))
    if dtype != "bf16":  # quantised products of serving have tables of their own
        ratio = borrowed.gemm_s(8192, 8192, 8192, dtype) / own.gemm_s(8192, 8192, 8192, dtype)
        assert ratio == pytest.approx(slower, rel=0.01)
    if dtype == "nvfp4":
        trained = [one.dense.gemm(8192, 8192, 8192, dtype).seconds for one in (borrowed, own)]
        assert trained[0] / trained[1] == pytest.approx(slower, rel=0.01)


def test_what_power_leaves_of_the_rate_holds_in_every_format() -> None:
    gpu = get_gpu("h100-sxm-96gb-hbm2e-500w")  # the peaks of its sibling, 0.894 of them sustained
    assert beside_sibling(gpu, 0.0, 1e-3, "fp8") == pytest.approx(1 / 0.894)


def test_a_launch_is_not_stretched_with_the_kernel() -> None:
    gpu, launch = get_gpu("gb10"), launch_floor_s()  # memory 0.171 of the RTX PRO 6000
    assert borrowed_s(gpu, launch, 1e9, 0.0) == launch
    assert borrowed_s(gpu, launch + 1e-6, 1e9, 0.0) == pytest.approx(launch + 1e-6 / 0.171)
    borrowed, own = _kernels("gb10"), _kernels("rtx-pro-6000")
    quantised = quantised_grids("rtx_pro_6000_server")["fp8"].shortest_s  # with the kernel that quantises a row
    assert quantised > 2 * launch
    here, there = (one.gemm_s(1, 128, 2048, "fp8") for one in (borrowed, own))
    assert here - quantised == pytest.approx((there - quantised) / 0.171)
    experts = (4096, 14336, 2, 8, 1, 1, "fp8")
    here, there = (one.experts(*experts).at(1) for one in (borrowed, own))
    assert here - launch == pytest.approx((there - launch) / 0.171)


def test_nor_is_one_in_training() -> None:
    borrowed, own = (_kernels(name).dense for name in ("gb10", "rtx-pro-6000"))
    here, there = (one.gemm(1, 128, 2048, "bf16").seconds for one in (borrowed, own))
    assert here == pytest.approx(there, rel=0.01)  # 2.4 us
    sizes = (1, 64, 64, 1, 1, 128)
    short = own.tables.attention["bf16"].grid.shortest_s if own.tables else 0.0
    here, there = (one.attention(*sizes).seconds for one in (borrowed, own))
    assert here - short == pytest.approx((there - short) / 0.171)
    large = [one.gemm(8192, 8192, 8192, "bf16").seconds for one in (borrowed, own)]
    assert large[0] / large[1] == pytest.approx(1 / 0.248, rel=0.01)


def test_a_gpu_with_tables_of_its_own_keeps_their_times() -> None:
    assert beside_sibling(get_gpu("h100-sxm"), 1e9, 1e-3) == 1.0


@pytest.mark.parametrize("dtype", ["fp8", "nvfp4"])
@pytest.mark.parametrize("tokens", [1.0, 64.0, 4096.0])
def test_quantised_products_take_as_much_longer_as_the_rates_are_less(dtype: str, tokens: float) -> None:
    borrowed, own = _kernels("rtx-pro-4500"), _kernels("rtx-pro-6000")
    launch = quantised_grids("rtx_pro_6000_server")[dtype].shortest_s
    here, there = (one.gemm_s(tokens, 4096, 4096, dtype) - launch for one in (borrowed, own))
    ratio = here / there
    assert 1 / 0.502 <= ratio <= 1 / 0.373


def test_attention_and_experts_take_longer_where_the_memory_is_slower() -> None:
    borrowed, own = _kernels("rtx-pro-4500"), _kernels("rtx-pro-6000")
    shape = (32, 8, 128, "fp8", None)
    assert borrowed.decode_attention(*shape).at(64, 8192) > 1.9 * own.decode_attention(*shape).at(64, 8192)
    experts = (4096, 14336, 2, 8, 1, 1, "fp8")
    assert borrowed.experts(*experts).at(64) > 1.9 * own.experts(*experts).at(64)


@pytest.mark.parametrize("framework", ["vllm", "sglang"])
def test_long_sums_over_pcie_have_peer_access_whatever_the_release(framework: str) -> None:
    """Tables before 2026-06 were timed without: 15 GB/s on two RTX PRO 6000, 36 since. Short sums are the release's."""
    cluster = parse_cluster("rtx-pro-6000:2")
    older, newest = (inference_kernels(cluster, framework, release) for release in ("0.5.10", "9"))
    if not older.measured:
        pytest.skip("aiconfigurator-core is not installed")
    long_s = [kernels.all_reduce_s(float(1 << 25), 2) for kernels in (older, newest)]
    assert long_s[0] == pytest.approx(long_s[1], rel=0.01)
    assert long_s[0] == pytest.approx((1 << 25) / 36e9, rel=0.05)
    if framework == "sglang":
        assert older.all_reduce_s(4096.0, 2) > 2 * newest.all_reduce_s(4096.0, 2)
