"""Lab 1: how fast can a matrix product be? Fill in the functions; README.md explains them.

A GEMM multiplies an m x k by a k x n matrix. Sizes count elements, times are in seconds.
"""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """A GPU as the roofline sees it."""

    peak_flops: float  # FLOP/s of the matrix units in the data type of the operands
    bandwidth_bytes_per_s: float  # of device memory
    sm_count: int  # streaming multiprocessors
    launch_s: float  # shortest time of any kernel
    gemm_share: float  # part of `peak_flops` that a huge GEMM reaches
    k_half: float  # k at which half of that is reached
    memory_share: float  # part of the bandwidth that a long kernel reaches


def gemm_flops(m: int, n: int, k: int) -> float:
    """Floating-point operations: one multiply and one add for each of m n k products."""
    raise NotImplementedError


def gemm_bytes(m: int, n: int, k: int, element_bytes: float) -> float:
    """Bytes that must move at least: both operands are read once, the result is written once."""
    raise NotImplementedError


def intensity(m: int, n: int, k: int, element_bytes: float) -> float:
    """Arithmetic intensity, FLOP per byte."""
    raise NotImplementedError


def ridge(device: Device) -> float:
    """Intensity at which compute and memory take equally long by the data sheet, FLOP per byte."""
    raise NotImplementedError


def least_s(device: Device, m: int, n: int, k: int, element_bytes: float) -> float:
    """Time that no kernel can beat: the longer of compute and memory, each at its data-sheet rate."""
    raise NotImplementedError


def smallest_compute_bound_m(device: Device, n: int, k: int, element_bytes: float) -> int | None:
    """Smallest m from which the GEMM is at or beyond the ridge, or None if no m is enough."""
    raise NotImplementedError


def gemm_s(device: Device, m: int, n: int, k: int, element_bytes: float) -> float:
    """Expected time: launch, then the longer of compute and memory, at rates that a real kernel reaches."""
    raise NotImplementedError
