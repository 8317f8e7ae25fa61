"""What jobs run in the exact clock: units done at a rate that depends on the placement, in one phase or several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.clock.decision import Placement


def gpus_of(placement: Placement) -> int:
    """GPUs of a placement."""
    return sum(count for _, count in placement)


class Work(Protocol):
    """Units left, used up at a rate that holds until the phase ends."""

    @property
    def phases(self) -> int:
        """Number of phases."""
        ...

    @property
    def restart_s(self) -> float:
        """Time without progress after each new allocation."""
        ...

    def phase_end(self, phase: int) -> float:
        """Units done when a phase ends."""
        ...

    def rate(self, placement: Placement, phase: int) -> float:
        """Units per second on GPUs of nodes."""
        ...


@dataclass(frozen=True)
class Unknown:
    """Work of which nobody knows how much it is."""

    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """A phase never ends."""
        return inf

    def rate(self, placement: Placement, phase: int) -> float:
        """A rate above zero: the work makes some progress."""
        return 1.0


@dataclass(frozen=True)
class Rigid:
    """Runs its traced duration on the GPUs that it asks for; units are seconds."""

    duration_s: float
    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """Units of work: the duration."""
        return self.duration_s

    def rate(self, placement: Placement, phase: int) -> float:
        """Units per second: one."""
        return 1.0


@dataclass(frozen=True)
class Divisible:
    """Its traced duration on the GPUs that it asks for, and in proportion on fewer; units are seconds on all."""

    duration_s: float
    gpus: int
    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """Units of work: the duration."""
        return self.duration_s

    def rate(self, placement: Placement, phase: int) -> float:
        """Units per second, by the number of GPUs."""
        return gpus_of(placement) / self.gpus


@dataclass(frozen=True)
class Scaling:
    """Iterations at the measured or predicted rate of each number of GPUs; between two the smaller one's holds.

    The batch is fixed and nodes are packed: where a job lies on more nodes than it needs, that costs nothing.
    """

    iterations: float
    rates: Mapping[int, float]  # iterations per second by number of GPUs
    most_gpus: int
    restart_s: float = 0.0
    per_node: int = 1
    phases: int = 1

    @cached_property
    def levels(self) -> list[int]:
        """Numbers of GPUs with a rate of their own, rising."""
        return sorted(gpus for gpus in self.rates if gpus <= self.most_gpus)

    @cached_property
    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Numbers of GPUs and rates, rising."""
        return np.array(list(self.rates), np.int64), np.array(list(self.rates.values()))

    @property
    def least_gpus(self) -> int:
        """The fewest GPUs on which it makes progress."""
        return min(self.rates)

    def next_gpus(self, gpus: int) -> int:
        """The next number of GPUs on which it is faster; more than it can use where there is none."""
        at = bisect_right(self.levels, gpus)
        return self.levels[at] if at < len(self.levels) else self.most_gpus + 1

    def phase_end(self, phase: int) -> float:
        """Units of work: all iterations."""
        return self.iterations

    def per_s(self, gpus: int) -> float:
        """Iterations per second."""
        at = bisect_right(self.levels, gpus)
        return self.rates[self.levels[at - 1]] if at else 0.0

    def rate(self, placement: Placement, phase: int) -> float:
        """Iterations per second, by the number of GPUs."""
        return self.per_s(gpus_of(placement))

    def iteration_s(self, gpus: int) -> float:
        """Time of one iteration."""
        rate = self.per_s(gpus)
        return 1 / rate if rate > 0 else inf

    def remaining_iterations(self, done: tuple[int, float]) -> float:
        """Iterations left after (phase, units done)."""
        return max(self.iterations - done[1], 1.0)

    def speedups(self, most: int, reference: int) -> object:
        """[on several nodes, GPUs]: rate on 0 to `most` GPUs over that on `reference`, or the least that it can use.

        On several nodes only what no node holds, since the rates are those of packed nodes.
        """
        alone = self.per_s(max(reference, self.least_gpus))
        rates = np.array([self.per_s(gpus) for gpus in range(most + 1)]) / alone
        packed = np.arange(most + 1) <= self.per_node
        return np.stack([np.where(packed, rates, 0.0), np.where(packed, 0.0, rates)])


@dataclass(frozen=True)
class Epochs:
    """An application of AdaptDL's tables, epoch by epoch; `inner` knows its speed, on nodes of `per_node` of a kind."""

    inner: Any
    restart_s: float
    kind: str = ""
    per_node: int = 1

    @property
    def phases(self) -> int:
        """Number of epochs to finish."""
        return int(self.inner.app.epochs)

    @property
    def most_gpus(self) -> int:
        """The most GPUs that the inner model can use."""
        return int(self.inner.most_gpus)

    def phase_end(self, phase: int) -> float:
        """Progress at the end of an epoch."""
        return float(self.inner.app.epoch_end(phase))

    def rate(self, placement: Placement, phase: int) -> float:
        """Goodput, in units per second."""
        return float(self.inner.rate(tuple(count for _, count in placement), phase))

    def iteration_s(self, gpus: int) -> float:
        """Seconds of an iteration, as Optimus predicts it."""
        return float(self.inner.iteration_s(gpus))

    def remaining_iterations(self, done: tuple[int, float]) -> float:
        """To the end of the last epoch."""
        return float(self.inner.remaining_iterations(done[0]))

    def speedups(self, most: int, reference: int) -> object:
        """Speedups, as Pollux asks for them."""
        return self.inner.speedups(most, reference)

    @property
    def rates(self) -> dict[str, dict[int, float]]:
        """As Sia asks: goodput over that of one GPU, by GPUs on as few nodes as they fill, as learned so far."""
        most = self.most_gpus
        table = self.inner.speedups(most, 1)
        return {self.kind: {gpus: float(table[int(gpus > self.per_node), gpus]) for gpus in range(1, most + 1)}}
