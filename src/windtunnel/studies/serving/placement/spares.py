"""Spares of a serving fleet: the fewest replicas more that hold a rate though GPUs fail.

    a replica is up for    A = 1 / (1 + g R / M) of the time     g GPUs, M between failures of one, R until it is back
    a pool holds for       P(Binomial(n + s, A) >= n)               n replicas carry the rate, s are spare
    pools apart            the product of theirs

One GPU that fails takes its replica out until it is repaired; the others of the replica stand still meanwhile. Spares
run and fail as the others do. Replicas fail independently of each other: what takes several at once (a rack, a switch)
needs more. Shares of time are those of the long run, whatever the laws of failures and repairs with these means.
Where a failed GPU alone is replaced, and the restart is short, the units are GPUs: `loose_gpus`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.errors import UserError
from windtunnel.studies.serving.placement.fewest import Plan

MOST = 1000  # spares of a pool
LEAST_UP = 0.5  # share of the time for which a replica has to be up, that spares are any help


@dataclass(frozen=True, slots=True)
class Failures:
    """GPUs that fail: `mtbf_s` between failures of one, `repair_s` until it is back, `available`: share of the time."""

    mtbf_s: float
    repair_s: float
    available: float

    def up(self, gpus: int) -> float:
        """Share of the time for which so many GPUs are all up."""
        return 1.0 / (1.0 + gpus * self.repair_s / self.mtbf_s)


@dataclass(frozen=True, slots=True)
class Spares:
    """What a plan has to have more: replicas (decode workers where they are apart), prefill workers, GPUs of both."""

    replicas: int
    prefill: int
    gpus: int
    loose_gpus: int  # instead, where a failed GPU alone is replaced
    held: float  # share of the time for which the rate is held
    without: float  # the same without spares


def share_held(needed: int, spare: int, up: float) -> float:
    """P(Binomial(needed + spare, up) >= needed)."""
    if up >= 1.0:
        return 1.0
    total = needed + spare
    each = (
        math.exp(
            math.lgamma(total + 1)
            - math.lgamma(down + 1)
            - math.lgamma(total - down + 1)
            + down * math.log1p(-up)
            + (total - down) * math.log(up)
        )
        for down in range(spare + 1)
    )
    return min(1.0, math.fsum(each))


def fewest_spares(needed: int, up: float, available: float) -> int:
    """The fewest that hold for that share of the time. Raises UserError."""
    for spare in range(MOST + 1) if up >= LEAST_UP else ():
        if share_held(needed, spare, up) >= available:
            return spare
    problem = f"a replica is up for {up:.0%} of the time: no {MOST:,} spares hold the rate for {available:.6g} of it"
    raise UserError(f"{problem}: give a longer --mtbf-gpu, a shorter --repair, or a smaller --available")


def spares_of(plan: Plan, failures: Failures) -> Spares:
    """Of a plan: of all pairs of spares of two pools that hold the one with the fewest GPUs. Raises UserError."""
    shape, up, share = plan.shape, failures.up(plan.shape.gpus), failures.available
    alone = fewest_spares(plan.gpus, failures.up(1), share)
    if plan.prefill is None:
        spare = fewest_spares(plan.n, up, share)
        with_spares, without = share_held(plan.n, spare, up), share_held(plan.n, 0, up)
        return Spares(spare, 0, spare * shape.gpus, alone, with_spares, without)
    first, first_up = plan.prefill, failures.up(plan.prefill.gpus)
    without = share_held(plan.n, 0, up) * share_held(plan.n_prefill, 0, first_up)
    options: list[Spares] = []
    spare = fewest_spares(plan.n_prefill, first_up, share)
    while not options or spare * first.gpus < min(spares.gpus for spares in options):
        of_first = share_held(plan.n_prefill, spare, first_up)
        if of_first >= share:
            decode = fewest_spares(plan.n, up, share / of_first)
            with_spares = of_first * share_held(plan.n, decode, up)
            options.append(Spares(decode, spare, decode * shape.gpus + spare * first.gpus, alone, with_spares, without))
        spare += 1
    return min(options, key=lambda spares: (spares.gpus, -spares.held))
