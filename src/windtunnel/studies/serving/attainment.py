"""Attainment by load: the share of requests that meet their limits at each steady rate, for whoever sizes a pool.

One replica is run at rates around the highest that keeps the promised share (`goodput.py`), with common random numbers;
between them attainment is interpolated, and it never rises with the rate. Beyond the highest rate run, nobody is
served in time. Many replicas behind a router that looks at load do a little better than one with its part of the
requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.errors import UserError
from windtunnel.studies.serving.goodput import Run, at_rate, goodput_of
from windtunnel.studies.serving.workload.requests import Workload

AROUND = (0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 1.8)  # of the goodput


@dataclass(frozen=True)
class AttainmentCurve:
    """Of one replica: requests per second that keep the promise, and attainment by rate as points."""

    goodput_per_s: float
    rates_per_s: tuple[float, ...]
    shares: tuple[float, ...]

    def at(self, rate_per_s: float) -> float:
        """Share of requests in time at a steady rate."""
        if rate_per_s > self.rates_per_s[-1]:
            return 0.0
        return float(np.interp(rate_per_s, self.rates_per_s, self.shares))


def attained(run: Run, workload: Workload, promise: float) -> AttainmentCurve:
    """Of the replica that `run` runs. Raises UserError where it does not fit, or keeps the promise at no rate."""
    serving_result = goodput_of(run, workload, promise)
    if not serving_result.feasible:
        raise UserError(f"the served model {serving_result.reason}")
    goodput = serving_result.goodput_requests_per_s
    if not goodput:
        raise UserError(f"no rate keeps the limits for {promise:.1%} of the requests: loosen slo, or use more GPUs")
    rates = [share * goodput for share in AROUND]
    shares = [run(at_rate(workload, rate)).slo_attainment or 0.0 for rate in rates]
    falling = np.minimum.accumulate(shares)
    return AttainmentCurve(goodput, tuple(rates), tuple(falling.tolist()))
