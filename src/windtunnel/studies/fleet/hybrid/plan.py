"""Jobs over own GPUs and clouds, decided when they arrive: each is reserved around all that came before it.

    start = first time after start-up and data move at which the pool has the GPUs for as long as the job runs
    end   = start + run time (in a spot pool: with what interruptions cost)
    cost  = (run + start-up) x GPUs x price  +  GB moved x egress price of where they lay

In pools with a limit this is conservative backfill: run times are known, and no job delays one that came before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.studies.fleet.hybrid.clouds import Cloud, Clouds
from windtunnel.studies.fleet.hybrid.spot import Ups, spot_run
from windtunnel.studies.fleet.policies.beyond.hybrid import Offer, Weights, allowed, choose


class Profile:
    """`gpus` free for ever at first; times in ns. Reservations are kept, so each job is placed around all before it."""

    def __init__(self, gpus: int) -> None:
        self.times = [0]
        self.free = [gpus]
        self.gpus = gpus

    def earliest(self, from_ns: int, gpus: int, lasts_ns: int) -> int:
        """The first time from which so many GPUs are free for so long. AssertionError for more than there are."""
        assert gpus <= self.gpus
        at = bisect_right(self.times, from_ns) - 1
        start = from_ns
        while True:
            if self.free[at] < gpus:
                at += 1  # the last step has all free again
                start = self.times[at]
                continue
            last = at
            while last + 1 < len(self.times) and self.times[last + 1] < start + lasts_ns:
                last += 1
                if self.free[last] < gpus:
                    at, start = last, self.times[last]
                    break
            else:
                return start

    def take(self, start_ns: int, end_ns: int, gpus: int) -> None:
        """Reserve; they must be free."""
        if end_ns <= start_ns:
            return
        first, last = self._cut(start_ns), self._cut(end_ns)
        for at in range(first, last):
            assert self.free[at] >= gpus, "reserved more GPUs than are free"
            self.free[at] -= gpus

    def forget(self, before_ns: int) -> None:
        """What lies before a time is no longer asked for."""
        at = bisect_right(self.times, before_ns) - 1
        if at > 64:  # seldom, so that it costs little
            del self.times[:at], self.free[:at]

    def _cut(self, time_ns: int) -> int:
        at = bisect_left(self.times, time_ns)
        if at == len(self.times) or self.times[at] != time_ns:
            self.times.insert(at, time_ns)
            self.free.insert(at, self.free[at - 1])
        return at


NS = 1_000_000_000
CHECKPOINT_S = 1800.0  # of work between checkpoints, where machines can be taken away


@dataclass(frozen=True, slots=True)
class HybridJob:
    """`label`: 0 public, 1 internal, 2 private. `data_at`: the pool in which `data_gb` lie."""

    index: int
    submit_s: float
    gpus: int
    duration_s: float
    label: int = 0
    data_gb: float = 0.0
    data_at: int = 0


@dataclass(frozen=True, slots=True)
class CloudRun:
    """Where a job ran, and what that cost. `gpu_s`: GPU time paid for."""

    job: int
    pool: int
    start_s: float
    end_s: float
    cost: float
    moved_gb: float
    secret_gb: float
    gpu_s: float
    restarts: int = 0


def plan(jobs: Sequence[HybridJob], clouds: Clouds, weights: Weights, *, seed: int = 0) -> list[CloudRun | None]:
    """What becomes of each job; None where no pool may or can hold it."""
    pools = clouds.pools
    profiles = [Profile(cloud.gpus) if cloud.gpus is not None else None for cloud in pools]
    ups = ups_of(clouds, seed)
    labels = [cloud.privacy for cloud in pools]
    result: list[CloudRun | None] = [None] * len(jobs)
    for row, job in sorted(enumerate(jobs), key=lambda pair: (pair[1].submit_s, pair[1].index)):
        now_ns = round(job.submit_s * NS)
        for profile in profiles:
            if profile is not None:
                profile.forget(now_ns)
        able = [at for at in allowed(job.label, labels) if (pools[at].gpus or job.gpus) >= job.gpus]
        if not able:
            continue
        best = choose([offer_of(job, at, clouds, profiles[at]) for at in able], weights)
        placed = _placed(job, best, clouds, ups[best.pool])
        profile = profiles[best.pool]
        if profile is not None:
            profile.take(round(placed.start_s * NS), round(placed.end_s * NS), job.gpus)
        result[row] = placed
    return result


def ups_of(clouds: Clouds, seed: int) -> list[Ups | None]:
    """When each spot pool is up, drawn; None for pools that nobody takes away."""
    return [
        None if cloud.spot_s is None else Ups(*cloud.spot_s, np.random.default_rng([seed, at]))
        for at, cloud in enumerate(clouds.pools)
    ]


def offer_of(job: HybridJob, pool: int, clouds: Clouds, profile: Profile | None) -> Offer:
    """What running the job there would mean, as far as can be known now."""
    cloud, source = clouds.pools[pool], clouds.pools[job.data_at]
    moved = 0.0 if pool == job.data_at else job.data_gb
    ready_s = job.submit_s + cloud.startup_s + (cloud.move_s(moved, source) if moved else 0.0)
    lasts_s = job.duration_s * _slowdown(cloud)
    start_s = ready_s
    if profile is not None:
        # rounded as they will be reserved: start and end, not the length
        ready_ns = round(ready_s * NS)
        start_s = profile.earliest(ready_ns, job.gpus, round(lasts_s * NS) + 1) / NS
    cost = (lasts_s + cloud.startup_s) * job.gpus * cloud.price_per_gpu_s + moved * source.egress_per_gb
    return Offer(pool, cost, start_s, start_s + lasts_s, moved, secret_of(job, cloud, clouds, moved))


def secret_of(job: HybridJob, cloud: Cloud, clouds: Clouds, moved_gb: float) -> float:
    """GB that are not public and go to another owner."""
    return moved_gb if job.label > 0 and cloud.owner != clouds.pools[0].owner else 0.0


def _slowdown(cloud: Cloud) -> float:
    """Expected time of a spot run over that of one that nobody interrupts."""
    if cloud.spot_s is None:
        return 1.0
    up_s, down_s = cloud.spot_s
    return 1.0 + (down_s + cloud.startup_s + min(CHECKPOINT_S / 2, up_s / 2)) / up_s


def _placed(job: HybridJob, offer: Offer, clouds: Clouds, ups: Ups | None) -> CloudRun:
    cloud = clouds.pools[offer.pool]
    if ups is None:
        gpu_s = (job.duration_s + cloud.startup_s) * job.gpus
        return CloudRun(
            job.index, offer.pool, offer.start_s, offer.end_s, offer.cost, offer.moved_gb, offer.secret_gb, gpu_s
        )
    run = spot_run(job.duration_s, offer.start_s, ups, cloud.startup_s, CHECKPOINT_S)
    gpu_s = (run.held_s + cloud.startup_s) * job.gpus
    egress = offer.moved_gb * clouds.pools[job.data_at].egress_per_gb
    cost = gpu_s * cloud.price_per_gpu_s + egress
    assert math.isfinite(run.end_s)
    return CloudRun(
        job.index, offer.pool, run.start_s, run.end_s, cost, offer.moved_gb, offer.secret_gb, gpu_s, run.interruptions
    )
