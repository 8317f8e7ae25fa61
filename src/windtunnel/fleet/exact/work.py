"""What jobs run in the exact clock: units done at a rate that depends on the placement, in one phase or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from windtunnel.fleet.adaptdl.application import Placement


class Work(Protocol):
    """Units left, used up at a rate that holds until the phase ends."""

    @property
    def phases(self) -> int:
        """How many."""
        ...

    @property
    def restart_s(self) -> float:
        """Time without progress after each new allocation."""
        ...

    def phase_end(self, phase: int) -> float:
        """Units done when a phase ends."""
        ...

    def rate(self, placement: Placement, phase: int) -> float:
        """Units per second on GPUs by node."""
        ...


@dataclass(frozen=True)
class Rigid:
    """Runs its traced duration on the GPUs that it asks for; units are seconds."""

    duration_s: float
    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """The duration."""
        return self.duration_s

    def rate(self, placement: Placement, phase: int) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class Divisible:
    """Its traced duration on the GPUs that it asks for, and in proportion on fewer; units are seconds on all."""

    duration_s: float
    gpus: int
    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """The duration."""
        return self.duration_s

    def rate(self, placement: Placement, phase: int) -> float:
        """By the number of GPUs."""
        return sum(placement) / self.gpus


@dataclass(frozen=True)
class Scaling:
    """Iterations at a measured or predicted rate for each number of GPUs."""

    iterations: float
    per_s: Callable[[int], float]
    most_gpus: int
    restart_s: float = 0.0
    phases: int = 1
    least_gpus: int = 1  # on fewer it makes no progress

    def phase_end(self, phase: int) -> float:
        """All iterations."""
        return self.iterations

    def rate(self, placement: Placement, phase: int) -> float:
        """By the number of GPUs."""
        return self.per_s(sum(placement))

    def iteration_s(self, gpus: int) -> float:
        """Time of one iteration."""
        rate = self.per_s(gpus)
        return 1 / rate if rate > 0 else inf

    def remaining_iterations(self, done: tuple[int, float]) -> float:
        """Of (phase, units done)."""
        return max(self.iterations - done[1], 1.0)


def by_levels(rates: Mapping[int, float]) -> Callable[[int], float]:
    """The rate of the largest measured level that the GPUs hold."""
    levels = sorted(rates)

    def per_s(gpus: int) -> float:
        return max((rates[level] for level in levels if level <= gpus), default=0.0)

    return per_s


@dataclass(frozen=True)
class Epochs:
    """An application of AdaptDL's tables, epoch by epoch; `inner` knows its speed, on nodes of `per_node` of a kind."""

    inner: Any
    restart_s: float
    kind: str = ""
    per_node: int = 1

    @property
    def phases(self) -> int:
        """Epochs to finish."""
        return int(self.inner.app.epochs)

    @property
    def most_gpus(self) -> int:
        """Of the inner model."""
        return int(self.inner.most_gpus)

    def phase_end(self, phase: int) -> float:
        """Progress at the end of an epoch."""
        return float(self.inner.app.epoch_end(phase))

    def rate(self, placement: Placement, phase: int) -> float:
        """Goodput."""
        return float(self.inner.rate(placement, phase))

    def iteration_s(self, gpus: int) -> float:
        """As Optimus predicts it."""
        return float(self.inner.iteration_s(gpus))

    def remaining_iterations(self, done: tuple[int, float]) -> float:
        """To the end of the last epoch."""
        return float(self.inner.remaining_iterations(done[0]))

    def speedups(self, most: int, reference: int) -> Any:
        """As Pollux asks."""
        return self.inner.speedups(most, reference)

    @property
    def rates(self) -> dict[str, dict[int, float]]:
        """As Sia asks: goodput over that of one GPU, by GPUs on as few nodes as they fill, as learned so far."""
        most = self.most_gpus
        table = self.inner.speedups(most, 1)
        return {self.kind: {gpus: float(table[int(gpus > self.per_node), gpus]) for gpus in range(1, most + 1)}}
