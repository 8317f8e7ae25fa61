"""Grades lab 1: laws, the worked example, then windtunnel's own roofline."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import windtunnel
from windtunnel.physics.cost import roofline

SIZES = [(1, 4096, 4096), (16, 4096, 4096), (128, 1024, 8192), (4096, 4096, 4096), (300, 7000, 128), (8192, 64, 8192)]
BF16 = 2.0


def device(lab: ModuleType, name: str) -> Any:
    gpu = windtunnel.parse_cluster(f"{name}:8").gpu
    gemm = roofline.gemm_efficiency(gpu, "bf16")
    return lab.Device(
        peak_flops=gpu.peak_flops("bf16"),
        bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        sm_count=gpu.sm_count,
        launch_s=roofline.launch_floor_s(),
        gemm_share=gemm.peak,
        k_half=gemm.k_half,
        memory_share=roofline.memory_efficiency(gpu)[0],
    )


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("size", SIZES)
def test_work_and_traffic_do_not_depend_on_which_operand_is_which(lab: ModuleType, size: tuple[int, int, int]) -> None:
    m, n, k = size
    assert lab.gemm_flops(m, n, k) == lab.gemm_flops(n, m, k) == lab.gemm_flops(k, n, m)
    assert lab.gemm_bytes(m, n, k, BF16) == pytest.approx(lab.gemm_bytes(k, m, n, BF16))


def test_intensity_of_a_square_grows_with_its_side(lab: ModuleType) -> None:
    """2 n^3 over 3 s n^2."""
    for side in (64, 512, 4096):
        assert lab.intensity(side, side, side, BF16) == pytest.approx(side / 3)
        assert lab.intensity(side, side, side, 1.0) == pytest.approx(2 * side / 3)


@pytest.mark.parametrize("size", SIZES)
def test_no_time_falls_when_a_side_grows_and_none_beats_the_bound(lab: ModuleType, size: tuple[int, int, int]) -> None:
    gpu = device(lab, "h100-sxm")
    here = lab.gemm_s(gpu, *size, BF16)
    assert here > lab.least_s(gpu, *size, BF16)
    for side in range(3):
        larger = [one + (place == side) * 100 for place, one in enumerate(size)]
        assert lab.gemm_s(gpu, *larger, BF16) >= here
        assert lab.least_s(gpu, *larger, BF16) >= lab.least_s(gpu, *size, BF16)


def test_at_the_smallest_m_the_ridge_is_reached_and_before_it_is_not(lab: ModuleType) -> None:
    gpu = device(lab, "h100-sxm")
    for n, k in [(4096, 4096), (1024, 8192), (16384, 700)]:
        m = lab.smallest_compute_bound_m(gpu, n, k, BF16)
        assert lab.intensity(m, n, k, BF16) >= lab.ridge(gpu)
        assert lab.intensity(m - 1, n, k, BF16) < lab.ridge(gpu)
    assert lab.smallest_compute_bound_m(gpu, 256, 256, BF16) is None


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    gpu = device(lab, "h100-sxm")
    assert gpu[2:] == (132, 2.5e-6, 0.81, 128, 0.88)  # as the page says
    assert lab.ridge(gpu) == pytest.approx(295.3, abs=0.05)
    assert lab.intensity(16, 4096, 4096, BF16) == pytest.approx(15.9, abs=0.05)
    assert lab.least_s(gpu, 16, 4096, 4096, BF16) == pytest.approx(10.09e-6, abs=0.005e-6)
    assert lab.least_s(gpu, 4096, 4096, 4096, BF16) == pytest.approx(138.9e-6, abs=0.05e-6)
    assert lab.smallest_compute_bound_m(gpu, 4096, 4096, BF16) == 346
    assert lab.gemm_s(gpu, 4096, 4096, 4096, BF16) == pytest.approx(183.3e-6, abs=0.05e-6)


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("name", ["a100-80gb", "h100-sxm", "b200"])
@pytest.mark.parametrize("size", SIZES)
def test_times_are_windtunnels(lab: ModuleType, name: str, size: tuple[int, int, int]) -> None:
    gpu = windtunnel.parse_cluster(f"{name}:8").gpu
    assert lab.gemm_bytes(*size, BF16) == pytest.approx(roofline.gemm_bytes(*size, "bf16"))
    assert lab.gemm_s(device(lab, name), *size, BF16) == pytest.approx(roofline.gemm(gpu, *size, "bf16").seconds)
