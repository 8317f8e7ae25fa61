"""Lab 1, solved."""

from __future__ import annotations

import math
from typing import NamedTuple

TILE = 128
EDGE_ROWS = 32
WAVE_SHARE = 0.05


class Device(NamedTuple):
    """A GPU as the roofline sees it."""

    peak_flops: float
    bandwidth_bytes_per_s: float
    sm_count: int
    launch_s: float
    gemm_share: float
    k_half: float
    memory_share: float


def gemm_flops(m: int, n: int, k: int) -> float:
    """Floating-point operations."""
    return 2.0 * m * n * k


def gemm_bytes(m: int, n: int, k: int, element_bytes: float) -> float:
    """Bytes that must move at least."""
    return element_bytes * (m * k + k * n + m * n)


def intensity(m: int, n: int, k: int, element_bytes: float) -> float:
    """Arithmetic intensity, FLOP per byte."""
    return gemm_flops(m, n, k) / gemm_bytes(m, n, k, element_bytes)


def ridge(device: Device) -> float:
    """Intensity at which compute and memory take equally long, FLOP per byte."""
    return device.peak_flops / device.bandwidth_bytes_per_s


def least_s(device: Device, m: int, n: int, k: int, element_bytes: float) -> float:
    """Time that no kernel can beat."""
    compute_s = gemm_flops(m, n, k) / device.peak_flops
    return max(compute_s, gemm_bytes(m, n, k, element_bytes) / device.bandwidth_bytes_per_s)


def smallest_compute_bound_m(device: Device, n: int, k: int, element_bytes: float) -> int | None:
    """Smallest m at or beyond the ridge: 2mnk >= r s (m (n + k) + nk), solved for m."""
    per_element = ridge(device) * element_bytes
    gain = 2.0 * n * k - per_element * (n + k)
    if gain <= 0.0:
        return None
    m = max(1, math.floor(per_element * n * k / gain))
    while intensity(m, n, k, element_bytes) < ridge(device):
        m += 1
    return m


def gemm_s(device: Device, m: int, n: int, k: int, element_bytes: float) -> float:
    """Expected time."""
    padded = (m + EDGE_ROWS) * (n + EDGE_ROWS) + WAVE_SHARE * device.sm_count * TILE * TILE
    compute_s = 2.0 * padded * (k + device.k_half) / (device.peak_flops * device.gemm_share)
    memory_s = gemm_bytes(m, n, k, element_bytes) / (device.bandwidth_bytes_per_s * device.memory_share)
    return device.launch_s + max(compute_s, memory_s)
