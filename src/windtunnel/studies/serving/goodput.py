"""Goodput: the highest rate at which enough requests meet their limits, by bisection with common random numbers.

Every rate runs the same requests in the same order with the same unit-rate gaps, only closer together; so attainment
falls with the rate but for scheduling noise, and the search is repeatable. It doubles or halves the rate until the
answer is enclosed, then bisects in the logarithm to 1 %. The answer says how many rates were run.

A rate is held where enough requests meet their limits and the queue does not grow (regime `over`): a load ends, and
with limits as long as the whole run all of it may be in time at any rate. Where one burst misses nothing, the requests
say nothing about rates, and more are asked for; where the highest rate held has them all there before the first is
answered, their number decides it, and `search` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from windtunnel.errors import UserError
from windtunnel.studies.serving.result import GoodputSearch, ServingResult, TriedRate
from windtunnel.studies.serving.workload.requests import LONGEST_S, Workload

PRECISION = 0.01  # of the rate
DOUBLINGS = 24
CURVE_POINTS = 10

Run = Callable[[Workload], ServingResult]


@dataclass(frozen=True, slots=True)
class Curve:
    """Latency over rate."""

    points: tuple[dict[str, float | str | None], ...]

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"points": [dict(point) for point in self.points]}


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """The same requests at another mean rate."""
    assert workload.arrival_ns is not None
    base = rate_of(workload)
    times = np.round((workload.arrival_ns - workload.arrival_ns[0]) * (base / rate_per_s)).astype(np.int64)
    return replace(workload, arrival_ns=times)


def rate_of(workload: Workload) -> float:
    """Mean rate of an open loop, per second."""
    assert workload.arrival_ns is not None
    span = float(workload.arrival_ns[-1] - workload.arrival_ns[0]) * 1e-9
    return (len(workload) - 1) / span if span > 0.0 else 1.0


def goodput_of(run: Run, workload: Workload, attain: float) -> ServingResult:
    """The result at the highest rate with attainment of at least `attain`; `search` says what was tried.

    Where even the slowest rate misses, the result is that of the slowest, with a goodput of zero. Raises UserError
    where none does, however close together these requests are sent.
    """
    attempts: list[tuple[float, float]] = []

    def attempt(rate: float) -> ServingResult:
        result = run(at_rate(workload, rate))
        attempts.append((rate, result.slo_attainment or 0.0))
        return result

    rate = rate_of(workload)
    result = attempt(rate)
    if not result.feasible:
        return replace(result, search=_search(attempts, attain, 0.0, 0.0))
    low, high = 0.0, math.inf
    best: ServingResult | None = None
    for _ in range(DOUBLINGS):
        if _goes_on(result, attain):
            low, best = rate, result
            if math.isfinite(high):
                break
            rate *= 2.0
        else:
            high = rate
            if low > 0.0:
                break
            rate /= 2.0
            if len(workload) > rate * LONGEST_S:
                break  # not in ten years
        result = attempt(rate)
    if best is None:
        return replace(result, goodput_requests_per_s=0.0, search=_search(attempts, attain, 0.0, high))
    if math.isinf(high):
        raise misses_nowhere(len(workload))
    while high / low > 1.0 + PRECISION:
        rate = math.sqrt(low * high)
        result = attempt(rate)
        if _goes_on(result, attain):
            low, best = rate, result
        else:
            high = rate
    search = _search(attempts, attain, low, high)
    if _all_at_once(best):
        warning = (
            f"at {low:.4g} requests/s all {len(workload)} were there before the first was answered: their number"
            " decides this goodput, not the rate; use more requests"
        )
        search = replace(search, warning=warning)
    return replace(best, goodput_requests_per_s=low, search=search)


def misses_nowhere(requests: int) -> UserError:
    """What a search for goodput says where no rate is too high."""
    return UserError(
        f"{requests} requests miss the limits at no rate, not even in one burst: use more requests (--requests), or"
        " tighter limits"
    )


def _goes_on(result: ServingResult, attain: float) -> bool:
    """Whether a rate can go on for ever with enough requests in time."""
    return (result.slo_attainment or 0.0) >= attain and result.regime != "over"


def _all_at_once(result: ServingResult) -> bool:
    """Whether every request had arrived before the first was answered."""
    stamps = result.stamps
    return stamps is not None and bool(stamps.arrival.max() <= np.nanmin(stamps.last))


def rate_curve(run: Run, workload: Workload, around: ServingResult) -> Curve:
    """Latencies from a tenth to 1.6 times the middle rate: the goodput where it was sought, else the asked rate."""
    middle = around.goodput_requests_per_s if around.search is not None else None
    middle = middle or rate_of(workload)
    points: list[dict[str, float | str | None]] = []
    for place in range(CURVE_POINTS):
        rate = middle * (0.1 + 1.5 * place / (CURVE_POINTS - 1))
        serving_result = run(at_rate(workload, rate))
        points.append(
            {
                "rate_per_s": rate,
                "ttft_mean_s": serving_result.ttft.mean if serving_result.ttft else None,
                "ttft_p99_s": serving_result.ttft.p99 if serving_result.ttft else None,
                "tpot_mean_s": serving_result.tpot.mean if serving_result.tpot else None,
                "tpot_p99_s": serving_result.tpot.p99 if serving_result.tpot else None,
                "e2e_mean_s": serving_result.e2e.mean if serving_result.e2e else None,
                "output_tokens_per_s": serving_result.output_tokens_per_s,
                "attainment": serving_result.slo_attainment,
                "regime": serving_result.regime,
            }
        )
    return Curve(tuple(points))


def _search(attempts: list[tuple[float, float]], attain: float, low: float, high: float) -> GoodputSearch:
    missed = high if math.isfinite(high) else None
    return GoodputSearch(attain, low, missed, tuple(TriedRate(rate, share) for rate, share in sorted(attempts)))
