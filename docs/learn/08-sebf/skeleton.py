"""Lab 8: SEBF and MADD, the coflow scheduler of Varys. Fill in the functions; README.md explains them.

A switch has ports 0 .. ports - 1. Each sends at up to `rate` bytes/s and receives at up to `rate` bytes/s. A flow goes
from a sending port to a receiving port. A coflow is done when its last flow is. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Flow:
    """Bytes from one port to another."""

    source: int
    target: int
    left_bytes: float
    rate: float = 0.0  # bytes/s now

    def links(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The two one-way links that it uses: each is a key of `Free`."""
        return ("out", self.source), ("in", self.target)


@dataclass
class Coflow:
    """Flows that arrive together. Those with nothing left are done."""

    arrival_s: float
    flows: list[Flow] = field(default_factory=list)


Free = dict[tuple[str, int], float]  # bytes/s of each link that nobody uses yet


def bottleneck_s(coflow: Coflow, rate: float) -> float:
    """How long what is left of a coflow takes if it has the switch for itself."""
    raise NotImplementedError


def end_together(coflow: Coflow, free: Free) -> bool:
    """MADD: set rates with which all flows end at the same time, as early as `free` allows; take them from `free`.

    False, and nothing changed, if an unfinished flow needs a link with nothing free.
    """
    raise NotImplementedError


def fill(coflow: Coflow, free: Free) -> None:
    """Add to the rates what is free, max-min fair among the unfinished flows of this coflow; take it from `free`."""
    raise NotImplementedError


def share(coflows: Sequence[Coflow], ports: int, rate: float) -> None:
    """Set the rate of every flow: SEBF's order (equals by place in `coflows`), MADD, then backfill."""
    raise NotImplementedError


def finish_s(coflows: Sequence[Coflow], ports: int, rate: float) -> list[float]:
    """When each coflow is done; `coflows` are in the order of arrival. Uses up their `left_bytes`.

    `share` gets only those that have arrived.
    """
    raise NotImplementedError
