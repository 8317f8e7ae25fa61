"""Lab 7, solved."""

from __future__ import annotations

import math

import numpy as np


def job_mtbf_s(gpus: int, one_gpu_mtbf_s: float) -> float:
    """Rates add."""
    return one_gpu_mtbf_s / gpus


def linear_ettr(mtbf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """Kokolis et al."""
    return max(0.0, (1.0 - (restart_s + interval_s / 2.0) / mtbf_s) / (1.0 + write_s / interval_s))


def exact_ettr(mtbf_s: float, restart_s: float, write_s: float, interval_s: float) -> float:
    """A renewal process. Beyond what a float holds nothing is ever finished."""
    if (restart_s + interval_s + write_s) / mtbf_s > 700.0:
        return 0.0
    tries = math.expm1((interval_s + write_s) / mtbf_s)
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * tries)


def young_s(mtbf_s: float, write_s: float) -> float:
    """The square root of 2 w M."""
    return math.sqrt(2.0 * write_s * mtbf_s)


def daly_s(mtbf_s: float, write_s: float) -> float:
    """Daly's second form."""
    if write_s >= 2.0 * mtbf_s:
        return mtbf_s
    share = write_s / (2.0 * mtbf_s)
    return young_s(mtbf_s, write_s) * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - write_s


def best_interval_s(mtbf_s: float, restart_s: float, write_s: float) -> float:
    """Thirds of the logarithm: the ETTR has a single maximum."""
    low, high = 0.0, math.log(86_400.0)
    while high - low > 1e-4:
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        at_left, at_right = (exact_ettr(mtbf_s, restart_s, write_s, math.exp(one)) for one in (left, right))
        if at_left < at_right:
            low = left
        else:
            high = right
    return math.exp((low + high) / 2.0)


def simulated_ettr(
    mtbf_s: float, restart_s: float, write_s: float, interval_s: float, segments: int, rng: np.random.Generator
) -> float:
    """Each segment is tried until no failure strikes it, and so is each restart."""
    wall_s = 0.0
    next_failure_s = rng.exponential(mtbf_s)
    for _ in range(segments):
        while wall_s + interval_s + write_s > next_failure_s:
            wall_s = next_failure_s
            next_failure_s += rng.exponential(mtbf_s)
            while wall_s + restart_s > next_failure_s:
                wall_s = next_failure_s
                next_failure_s += rng.exponential(mtbf_s)
            wall_s += restart_s
        wall_s += interval_s + write_s
    return segments * interval_s / wall_s
