"""Where a job runs when there are clouds beside the own GPUs: four strategies, and Starburst's waiting time.

    allowed     privacy is a hard filter: label(job) <= label(pool), whatever the rest says
    choose      least  a cost + b end + c data moved + d secret data moved  over what the pools offer; ties: first pool
    patience_s  Starburst (Luo et al., ATC 2024): how long a job waits for own GPUs before it runs in the cloud

The strategies are weight vectors: one weight is 1, the others only break ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel.studies.fleet.traits import Traits

LABELS = ("public", "internal", "private")  # a pool's label is the most secret that it may hold
TIE = 1e-9  # of a dollar, a second or a GB beside one of the measure that counts


@dataclass(frozen=True, slots=True)
class Offer:
    """What running a job in a pool would mean."""

    pool: int
    cost: float  # GPU time and egress, in the currency of the prices
    start_s: float
    end_s: float
    moved_gb: float
    secret_gb: float  # moved to a pool of another owner, of data that is not public


@dataclass(frozen=True, slots=True)
class Weights:
    """What a strategy minds."""

    cost: float = TIE
    end: float = TIE
    moved: float = TIE
    secret: float = TIE

    def score(self, offer: Offer) -> float:
        """Score of an offer; less is better."""
        return (
            self.cost * offer.cost
            + self.end * offer.end_s
            + self.moved * offer.moved_gb
            + self.secret * offer.secret_gb
        )


STRATEGIES = {
    "hybrid-cost": Weights(cost=1.0),
    "hybrid-time": Weights(end=1.0),
    "hybrid-locality": Weights(moved=1.0),
    "hybrid-privacy": Weights(secret=1.0),
}


def allowed(job_label: int, pool_labels: Sequence[int]) -> list[int]:
    """Pools that may hold a job of this label."""
    return [at for at, label in enumerate(pool_labels) if job_label <= label]


def choose(offers: Sequence[Offer], weights: Weights) -> Offer:
    """The best of what is allowed; there must be one."""
    return min(offers, key=lambda offer: (weights.score(offer), offer.pool))


Per = Literal["constant", "runtime", "gpus", "log-gpus", "cost"]
PER: tuple[Per, ...] = ("constant", "runtime", "gpus", "log-gpus", "cost")


def patience_s(per: Per, factor: float, duration_s: float, gpus: int) -> float:
    """Seconds: `factor` itself, or times run time, GPUs, 1 + log2 GPUs, or GPU-seconds."""
    if per == "constant":
        return factor
    if per == "runtime":
        return factor * duration_s
    if per == "gpus":
        return factor * gpus
    if per == "log-gpus":
        return factor * (1.0 + math.log2(gpus))
    return factor * duration_s * gpus


POLICIES = (
    *(
        Traits(name=name, asks="arrival", loop="clouds", capacity=frozenset({"own", "cloud", "spot"}), restarts=False)
        for name in STRATEGIES
    ),
    Traits(name="starburst", asks="lines", loop="clouds", capacity=frozenset({"own", "cloud"}), restarts=False),
    Traits(name="spot", asks="arrival", loop="clouds", capacity=frozenset({"own", "cloud", "spot"}), restarts=False),
)
