"""A serving pool that lends: its servers, its request stream, and what loans cost its users.

    needed(t)    = ceil(rate x (1 + headroom) / rate that one server keeps up)
    lent(t)      what the orchestrator asks for at its ticks; what comes back first loads its weights (`load_s`)
    violations   = integral of rate x (1 - attainment(rate / servers that serve)) dt

`attainment(rate per server)` is the serving study's, handed in: the share of requests that meet their limits when the
load holds. Inside a step of the stream the load is steady; a backlog is not carried over to the next step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

NS = 1_000_000_000
Attainment = Callable[[float], float]


@dataclass(frozen=True)
class ServingPool:
    """`times_s[i]`, `rates_per_s[i]`: requests per second from a time on. `server_rate_per_s`: what one server keeps up
    within its objective. `interval_s`: how often servers change hands; `lookback_s`: the highest rate of so long
    counts.
    """

    servers: int
    times_s: Sequence[float]
    rates_per_s: Sequence[float]
    server_rate_per_s: float
    attainment: Attainment
    headroom: float = 0.1
    interval_s: float = 300.0
    lookback_s: float = 900.0
    load_s: float = 60.0
    gpus_per_server: int = 8

    def rate_at(self, time_s: float) -> float:
        """Requests per second; the first step's before it begins."""
        return self.rates_per_s[max(bisect_right(self.times_s, time_s) - 1, 0)]

    def highest(self, from_s: float, to_s: float) -> float:
        """The highest rate in a stretch of time."""
        first = max(bisect_right(self.times_s, from_s) - 1, 0)
        last = max(bisect_right(self.times_s, to_s), first + 1)
        return max(self.rates_per_s[first:last])

    def offers(self, begin_s: float, end_s: float) -> list[tuple[int, int]]:
        """(time in ns, servers that can be lent) at each tick at which that number changes."""
        offers: list[tuple[int, int]] = []
        tick = 0
        while (time_s := begin_s + tick * self.interval_s) <= end_s:
            rate = self.highest(time_s - self.lookback_s, time_s)
            count = lendable(self.servers, rate, self.server_rate_per_s, self.headroom)
            if not offers or offers[-1][1] != count:
                offers.append((round(time_s * NS), count))
            tick += 1
        return offers

    def served(self, lent: Sequence[tuple[int, int]], begin_s: float, end_s: float) -> Served:
        """What becomes of the requests when so many servers are away from each time (ns) on."""
        away = _with_loading(lent, round(self.load_s * NS))
        begin, end = round(begin_s * NS), round(end_s * NS)
        cuts = {begin, end}
        cuts.update(time for time, _ in away if begin < time < end)
        cuts.update(at for time_s in self.times_s if begin < (at := round(time_s * NS)) < end)
        times = sorted(cuts)
        starts = [time for time, _ in away]
        cached: dict[float, float] = {}
        requests = missed = busy = 0.0
        for time, until in pairwise(times):
            rate = self.rate_at(time / NS)
            place = bisect_right(starts, time) - 1
            up = self.servers - (away[place][1] if place >= 0 else 0)
            load = rate / up if up else float("inf")
            share = cached.get(load)
            if share is None:
                share = cached[load] = self.attainment(load) if up else 0.0
            lasts = (until - time) / NS
            requests += rate * lasts
            missed += rate * lasts * (1.0 - share)
            busy += min(rate / self.server_rate_per_s, self.servers) * lasts
        return Served(requests, missed, busy)


@dataclass(frozen=True)
class Served:
    """Requests, those that missed their limits, and the server-seconds that the load needs."""

    requests: float
    missed: float
    needed_server_s: float

    @property
    def violations(self) -> float:
        """Share of requests that missed."""
        return self.missed / self.requests if self.requests else 0.0


def _with_loading(lent: Sequence[tuple[int, int]], load_ns: int) -> list[tuple[int, int]]:
    """Servers that do not serve from each time on: those lent, and those that came back less than `load_ns` ago."""
    changes: list[tuple[int, int]] = []
    before = 0
    for time, count in lent:
        changes.append((time if count > before else time + load_ns, count - before))
        before = count
    changes.sort()
    result: list[tuple[int, int]] = []
    level = 0
    for time, step in changes:
        level += step
        if result and result[-1][0] == time:
            result[-1] = (time, level)
        else:
            result.append((time, level))
    return result


@dataclass(frozen=True)
class Loans:
    """How a site lends and scales. `pool(begin s, end s)`: the serving pool over that time."""

    pool: Callable[[float, float], ServingPool] | None = None
    elastic: float = 0.05  # share of jobs
    loan_speed: float = 1.0


def lendable(servers: int, rate_per_s: float, server_rate_per_s: float, headroom: float) -> int:
    """Servers that can go: all but what the rate and its headroom need. `server_rate_per_s`: what one server keeps
    up.
    """
    needed = math.ceil(rate_per_s * (1.0 + headroom) / server_rate_per_s - 1e-9)
    return max(servers - needed, 0)
