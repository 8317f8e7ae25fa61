"""Made-up requests: fixed or jittered lengths, Poisson and Gamma arrivals, constant rates in stages.

    Gamma(CV)   gaps with mean 1 / rate and coefficient of variation CV: shape 1 / CV^2;  CV 1 = Poisson

Gaps of unit rate are drawn once per seed and divided by the rate, so runs at two rates share their random numbers.
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.studies.serving.workload.requests import LONGEST_S, Ints


def lengths(count: int, prompt: int, output: int, ratio: float, seed: int) -> tuple[Ints, Ints]:
    """`count` pairs, uniform on [ratio x L, L] (ratio 1 = fixed)."""
    if not 0.0 < ratio <= 1.0:
        raise SpecError("length ratio", ratio, "must be above 0, at most 1")
    draw = np.random.default_rng(seed)
    low = [max(1, round(ratio * size)) for size in (prompt, output)]
    prompts = draw.integers(low[0], prompt + 1, count)
    outputs = draw.integers(low[1], output + 1, count)
    return prompts.astype(np.int64), outputs.astype(np.int64)


def check_rate(rate_per_s: float) -> None:
    """Raises SpecError unless requests can come at that mean rate."""
    if not (math.isfinite(rate_per_s) and rate_per_s > 0.0):
        raise SpecError("rate", rate_per_s, "must be above zero requests per second")


def check_span(span_s: float, rate_per_s: float) -> None:
    """Raises SpecError where requests at that rate come over more than ten years."""
    if span_s > LONGEST_S:
        raise SpecError("rate", rate_per_s, "so many requests take more than ten years: give a higher rate, or fewer")


def arrivals(count: int, rate_per_s: float, cv: float, seed: int) -> Ints:
    """Arrival times in ns at a mean rate; `cv` 0 = constant, 1 = Poisson, above = bursts."""
    check_rate(rate_per_s)
    if not 0.0 <= cv <= 100.0:
        raise SpecError("cv", cv, "must be 0 (constant) to 100")
    if cv == 0.0:
        gaps = np.ones(count)
    else:
        draw = np.random.default_rng([seed, 1])
        shape = 1.0 / cv**2
        gaps = draw.gamma(shape, 1.0 / shape, count)
    times = np.cumsum(gaps) - gaps[0]
    check_span(float(times[-1]) / rate_per_s, rate_per_s)
    nanoseconds: Ints = np.round(times / rate_per_s * 1e9).astype(np.int64)
    return nanoseconds
