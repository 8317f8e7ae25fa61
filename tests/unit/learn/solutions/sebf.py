"""Lab 8, solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NOTHING = 1e-9  # of a rate or an amount: as good as none


@dataclass
class Flow:
    """Bytes from one port to another."""

    source: int
    target: int
    left_bytes: float
    rate: float = 0.0

    def links(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The two one-way links that it uses."""
        return ("out", self.source), ("in", self.target)


@dataclass
class Coflow:
    """Flows that arrive together."""

    arrival_s: float
    flows: list[Flow] = field(default_factory=list)


Free = dict[tuple[str, int], float]


def _unfinished(coflow: Coflow) -> list[Flow]:
    return [flow for flow in coflow.flows if flow.left_bytes > 0.0]


def _need(coflow: Coflow) -> Free:
    need: Free = {}
    for flow in _unfinished(coflow):
        for link in flow.links():
            need[link] = need.get(link, 0.0) + flow.left_bytes
    return need


def bottleneck_s(coflow: Coflow, rate: float) -> float:
    """The busiest link's bytes over its rate."""
    return max(_need(coflow).values(), default=0.0) / rate


def end_together(coflow: Coflow, free: Free) -> bool:
    """Every flow at what it has left over the time of the coflow's slowest link."""
    need = _need(coflow)
    if any(free[link] <= NOTHING for link in need):
        return False
    longest_s = max((amount / free[link] for link, amount in need.items()), default=0.0)
    for flow in _unfinished(coflow):
        flow.rate = flow.left_bytes / longest_s
        for link in flow.links():
            free[link] = max(0.0, free[link] - flow.rate)
    return True


def fill(coflow: Coflow, free: Free) -> None:
    """Progressive filling."""
    growing = [one for one in _unfinished(coflow) if all(free[link] > NOTHING for link in one.links())]
    while growing:
        count: dict[tuple[str, int], int] = {}
        for flow in growing:
            for link in flow.links():
                count[link] = count.get(link, 0) + 1
        level = min(free[link] / n for link, n in count.items())
        for flow in growing:
            flow.rate += level
            for link in flow.links():
                free[link] = max(0.0, free[link] - level)
        growing = [one for one in growing if all(free[link] > NOTHING for link in one.links())]


def share(coflows: Sequence[Coflow], ports: int, rate: float) -> None:
    """SEBF's order, MADD, backfill of those passed over, backfill of all."""
    free: Free = {(way, port): rate for way in ("out", "in") for port in range(ports)}
    for coflow in coflows:
        for flow in coflow.flows:
            flow.rate = 0.0
    order = sorted(coflows, key=lambda one: bottleneck_s(one, rate))
    passed_over = [one for one in order if not end_together(one, free)]
    for one in (*passed_over, *order):
        fill(one, free)


def finish_s(coflows: Sequence[Coflow], ports: int, rate: float) -> list[float]:
    """From event to event: an arrival, or the end of a flow."""
    ends = [coflow.arrival_s for coflow in coflows]
    clock = 0.0
    while True:
        here = [coflow for coflow in coflows if coflow.arrival_s <= clock and _unfinished(coflow)]
        share(here, ports, rate)
        moving = [flow for one in here for flow in _unfinished(one) if flow.rate > 0.0]
        times = [clock + flow.left_bytes / flow.rate for flow in moving]
        times += [coflow.arrival_s for coflow in coflows if coflow.arrival_s > clock]
        if not times:
            return ends
        until = min(times)
        for flow in moving:
            moved = flow.rate * (until - clock)
            flow.left_bytes = flow.left_bytes - moved if flow.left_bytes - moved > NOTHING * moved else 0.0
        clock = until
        for place, one in enumerate(coflows):
            if one in here and not _unfinished(one):
                ends[place] = clock
