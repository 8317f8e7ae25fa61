"""How many machines to keep warm beside a job.

    the production rule   smallest k with P[Binomial(machines, q) <= k] >= 0.99, q = rate of a host x time to replace
                          one
    the cheapest          the k that minimises  k idle machines + machines x time that the job waits for a machine

ByteRobust (SOSP 2025) prints 2, 2, 3 and 4 for 128, 256, 512 and 1,024 machines at P99: any q from 1.18e-3 to 1.24e-3
gives all four, which at 6.5 failures per 1,000 node-days is 4.4 h to replace a machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat

SURE = 0.99


def unavailable(rate_per_host_s: float, replenish_s: float) -> float:
    """q: the chance that a host fails while one is being replaced."""
    return -math.expm1(-rate_per_host_s * replenish_s)


def at_most(machines: int, q: float) -> Iterator[float]:
    """P[Binomial(machines, q) <= k] for k = 0, 1, ... without end."""
    if 0 < q < 1:
        log_term, total = machines * math.log1p(-q), 0.0
        for k in range(machines):
            total += math.exp(log_term)
            yield min(1.0, total)
            log_term += math.log(q) - math.log1p(-q) + math.log((machines - k) / (k + 1))
    elif q >= 1:
        yield from repeat(0.0, machines)
    yield from repeat(1.0)


def standbys_needed(machines: int, q: float) -> int:
    """Fewest standbys that are enough with probability `SURE`."""
    return next(k for k, chance in enumerate(at_most(machines, q)) if chance >= SURE)


def standby_costs(
    machines: int, rate_per_host_s: float, replenish_s: float, wait_s: float, most: int
) -> tuple[tuple[int, float], ...]:
    """(standbys, machines' worth of time lost) for 0 to `most` standbys.

    A failure finds no standby when k are already away: P[Binomial(machines, q) >= k], and then the job waits `wait_s`.
    """
    q, failures = unavailable(rate_per_host_s, replenish_s), machines * rate_per_host_s
    fewer = chain([0.0], at_most(machines, q))  # chance that fewer than k are away
    return tuple((k, k + machines * failures * (1.0 - next(fewer)) * wait_s) for k in range(most + 1))


def cheapest_standbys(costs: tuple[tuple[int, float], ...]) -> int:
    """The number with the least cost; the smaller of two."""
    return min(costs, key=lambda pair: (pair[1], pair[0]))[0]
