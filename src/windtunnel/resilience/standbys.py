"""How many machines to keep warm beside a job.

    the production rule   smallest k with P[Binomial(machines, q) <= k] >= 0.99, q = rate of a host x time to replace
                          one
    the cheapest          the k that minimises  k idle machines + machines x time that the job waits for a machine

ByteRobust (SOSP 2025) prints 2, 2, 3 and 4 for 128, 256, 512 and 1,024 machines at P99: any q from 1.18e-3 to 1.24e-3
gives all four, which at 6.5 failures per 1,000 node-days is 4.4 h to replace a machine.
"""

from __future__ import annotations

import math

SURE = 0.99


def unavailable(rate_per_host_s: float, replenish_s: float) -> float:
    """q: the chance that a host fails while one is being replaced."""
    return -math.expm1(-rate_per_host_s * replenish_s)


def at_most(machines: int, q: float, k: int) -> float:
    """P[Binomial(machines, q) <= k]."""
    if q <= 0 or k >= machines:
        return 1.0
    if q >= 1:
        return 0.0
    log_q, log_p = math.log(q), math.log1p(-q)
    whole = math.lgamma(machines + 1)
    terms = (
        math.exp(whole - math.lgamma(i + 1) - math.lgamma(machines - i + 1) + i * log_q + (machines - i) * log_p)
        for i in range(k + 1)
    )
    return min(1.0, math.fsum(terms))


def standbys_needed(machines: int, q: float, sure: float = SURE) -> int:
    """Fewest standbys that are enough with probability `sure`."""
    k = 0
    while k < machines and at_most(machines, q, k) < sure:
        k += 1
    return k


def standby_costs(
    machines: int, rate_per_host_s: float, replenish_s: float, wait_s: float, most: int
) -> tuple[tuple[int, float], ...]:
    """(standbys, machines' worth of time lost) for 0 to `most` standbys.

    A failure finds no standby when k are already away: P[Binomial(machines, q) >= k], and then the job waits `wait_s`.
    """
    q, failures = unavailable(rate_per_host_s, replenish_s), machines * rate_per_host_s
    costs = []
    for k in range(most + 1):
        none_left = 1.0 - at_most(machines, q, k - 1) if k else 1.0
        costs.append((k, k + machines * failures * none_left * wait_s))
    return tuple(costs)


def cheapest_standbys(costs: tuple[tuple[int, float], ...]) -> int:
    """The number with the least cost; the smaller of two."""
    return min(costs, key=lambda pair: (pair[1], pair[0]))[0]
