"""Machines that a provider takes away: when a zone is up, a job's run in one zone, and a job that changes zones.

zone up for Exp(up), then down for Exp(down); a job that loses its machines goes back to its last checkpoint
choice (as SkyPilot's failover): the cheapest allowed spot zone that is up, not the one just lost; where none is up,
the cheapest pool that nobody takes away
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


class Ups:
    """Up and down times of one zone, drawn as far as they are asked for; up at time zero. Seconds."""

    def __init__(self, up_s: float, down_s: float, draw: Generator) -> None:
        self.up_s, self.down_s, self.draw = up_s, down_s, draw
        self.begin: list[float] = [0.0]
        self.end: list[float] = [float(draw.exponential(up_s))]

    def next_up(self, time_s: float) -> tuple[float, float]:
        """The stretch in which the zone is up at this time, or else the next one: (from, to)."""
        while self.end[-1] <= time_s:
            begin = self.end[-1] + float(self.draw.exponential(self.down_s))
            self.begin.append(begin)
            self.end.append(begin + max(float(self.draw.exponential(self.up_s)), 1e-3))
        at = bisect_right(self.end, time_s)
        return self.begin[at], self.end[at]


@dataclass(frozen=True, slots=True)
class SpotRun:
    """First start, end, machine time held, and how often machines were lost."""

    start_s: float
    end_s: float
    held_s: float
    interruptions: int


def spot_run(work_s: float, ready_s: float, ups: Ups, startup_s: float, checkpoint_s: float) -> SpotRun:
    """A job that waits for its zone whenever that is down. `startup_s` before each stretch but the first."""
    done = held_s = 0.0
    lost = 0
    now, first = ready_s, -1.0
    pause = 0.0
    while True:
        begin, end = ups.next_up(now)
        now = max(now, begin)
        if first < 0:
            first = now
        need = pause + work_s - done
        if now + need <= end:
            return SpotRun(first, now + need, held_s + need, lost)
        held_s += end - now
        done = surviving_work_s(done + max(end - now - pause, 0.0), checkpoint_s)
        lost += 1
        pause = startup_s
        now = end


def surviving_work_s(done_s: float, checkpoint_s: float) -> float:
    """Work that survives."""
    return done_s // checkpoint_s * checkpoint_s if checkpoint_s > 0 else done_s


@dataclass(frozen=True, slots=True)
class Zone:
    """A pool as the choice sees it. `ups` None: nobody takes it away."""

    pool: int
    price_per_gpu_s: float
    ups: Ups | None
    startup_s: float


def best_zone(zones: Sequence[Zone], now_s: float, lost: int | None) -> Zone:
    """Where to go now; there must be a zone that nobody takes away, or one to wait for."""
    up = [zone for zone in zones if zone.ups is not None and zone.pool != lost and zone.ups.next_up(now_s)[0] <= now_s]
    steady = [zone for zone in zones if zone.ups is None]
    cheapest = min(up, key=lambda zone: (zone.price_per_gpu_s, zone.pool), default=None)
    sure = min(steady, key=lambda zone: (zone.price_per_gpu_s, zone.pool), default=None)
    if cheapest is None and sure is None:
        return min(zones, key=lambda zone: (zone.ups.next_up(now_s)[0] if zone.ups else now_s, zone.pool))
    if cheapest is None or (sure is not None and sure.price_per_gpu_s <= cheapest.price_per_gpu_s):
        assert sure is not None
        return sure
    return cheapest


@dataclass(frozen=True, slots=True)
class Stay:
    """One stretch of a job that changes zones."""

    pool: int
    start_s: float
    end_s: float


def roam(work_s: float, ready_s: float, zones: Sequence[Zone], checkpoint_s: float) -> list[Stay]:
    """The stretches of a job that goes to the best zone, and on to the next whenever it loses its machines."""
    done, now = 0.0, ready_s
    stays: list[Stay] = []
    lost: int | None = None
    while True:
        zone = best_zone(zones, now, lost)
        begin, end = (now, float("inf")) if zone.ups is None else zone.ups.next_up(now)
        now = max(now, begin)
        need = zone.startup_s + work_s - done
        if now + need <= end:
            stays.append(Stay(zone.pool, now, now + need))
            return stays
        stays.append(Stay(zone.pool, now, end))
        done = surviving_work_s(done + max(end - now - zone.startup_s, 0.0), checkpoint_s)
        now, lost = end, zone.pool
