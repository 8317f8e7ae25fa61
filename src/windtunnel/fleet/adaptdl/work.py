"""A training job as AdaptDL's simulator sees it: progress through epochs at the goodput of its placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from windtunnel.fleet.adaptdl.application import ONE_GPU, OWN_BATCH, Application, Placement
from windtunnel.fleet.adaptdl.goodput import Array, Config, Limits, Speed, best, fit

MOST_GPUS = 64  # of one job, as published


@dataclass(frozen=True)
class FixedBatch:
    """A job that trains at the batch that its user chose."""

    app: Application
    batch: int
    gpus_per_node: int

    @cached_property
    def most_gpus(self) -> int:
        """Beyond which a GPU would hold less than the smallest local batch."""
        return 1 if self.app.name in ONE_GPU else self.batch // self.app.smallest_local

    def split(self, replicas: int) -> tuple[int, int]:
        """(atomic batch, accumulations) on so many GPUs."""
        alone = self.batch > self.app.initial_batch
        return self.app.fixed_batch(self.batch, replicas, accumulate_alone=alone)

    def rate(self, placement: Placement, epoch: int) -> float:
        """Progress per second."""
        return self.app.goodput(placement, *self.split(sum(placement)), epoch)

    def before(self, placement: Placement, epoch: int) -> None:
        """Nothing to choose: the batch is fixed."""

    def after(self, placement: Placement, epoch: int) -> None:
        """Nothing to learn."""

    def iteration_s(self, gpus: int) -> float:
        """Time of one iteration on packed nodes, as Optimus predicts it: one replica always accumulates."""
        key = ("iteration", self.batch, gpus, self.gpus_per_node)
        if key not in self.app._cache:
            atomic, accumulations = self.app.fixed_batch(self.batch, gpus, accumulate_alone=True)
            full, rest = divmod(gpus, self.gpus_per_node)
            step, sync = self.app.step_times_s((self.gpus_per_node,) * full + (rest,) * (rest > 0), atomic)
            self.app._cache[key] = step + (step - sync) * accumulations
        seconds: float = self.app._cache[key]
        return seconds

    def remaining_iterations(self, epoch: int) -> float:
        """From the end of epoch number `epoch` to the end of the last; 1 in the last epoch, as published."""
        last = self.app.epochs - 1
        if epoch >= last:
            return 1.0
        return self.app.iterations_until(self.batch, last) - self.app.iterations_until(self.batch, epoch)


class ChosenBatch:
    """A job whose batch the scheduler's model chooses, and which learns that model while it runs.

    One of the few objects here that change: what it has seen only grows, and `learned` is a value that policies read.
    """

    def __init__(self, app: Application) -> None:
        self.app = app
        self.seen: dict[Config, tuple[float, float]] = {}
        self.speed: Speed | None = None
        self.gradient = (0.0, 0.0)
        self.split = (0, 0)
        # The last answer of each method and what it followed from: most ticks change nothing.
        self._split_of: Any = None
        self._rated: tuple[Any, float] = (None, 0.0)
        self._goodput: tuple[Any, Array] | None = None
        self._table: tuple[Any, Array] | None = None
        self.limits = Limits(app.initial_batch, app.largest_batch, app.smallest_local, app.largest_local)

    @property
    def most_gpus(self) -> int:
        """At most twice as many as were ever tried."""
        if self.app.name in ONE_GPU:
            return 1
        tried = max((gpus for _, gpus, _ in self.seen), default=0)
        return min(max(2 * tried, 1), MOST_GPUS, self.app.largest_batch // self.app.smallest_local)

    def before(self, placement: Placement, epoch: int) -> None:
        """Choose the batch for a placement."""
        gpus = sum(placement)
        known = (len(placement) > 1, gpus, self.speed, self.gradient)
        if known == self._split_of:
            return
        self._split_of = known
        fixed = OWN_BATCH.get(self.app.name)
        if fixed is None and self.speed is None:
            fixed = max(self.app.initial_batch, self.app.smallest_local * gpus)
        if fixed is None:
            assert self.speed is not None
            across, count = np.array([len(placement) > 1]), np.array([gpus])
            _, atomic, accumulations = best(self.speed, self.gradient, self.limits, across, count)
            self.split = int(atomic[0]), int(accumulations[0])
            atomic_most = self.app.largest_batch // (gpus * (self.split[1] + 1))
            self.split = min(self.split[0], atomic_most), self.split[1]
        else:
            self.split = self.app.fixed_batch(fixed, gpus, accumulate_alone=fixed > self.app.initial_batch)

    def rate(self, placement: Placement, epoch: int) -> float:
        """Progress per second; what it shows is learned at once."""
        known = (placement, self.split, epoch)
        if known == self._rated[0]:
            return self._rated[1]
        atomic, accumulations = self.split
        gpus = sum(placement)
        self.gradient = self.app.gradient(gpus * atomic * (accumulations + 1), epoch)
        key = (len(placement), gpus, atomic)
        if key not in self.seen:
            self.seen[key] = self.app.step_times_s(placement, atomic)
            self.speed = fit(self.seen)
        self._rated = known, self.app.goodput(placement, atomic, accumulations, epoch)
        return self._rated[1]

    def after(self, placement: Placement, epoch: int) -> None:
        """Choose the batch again, with what was learned."""
        self.before(placement, epoch)

    def speedups(self, most: int, reference: int) -> Array:
        """[on several nodes, GPUs]: goodput on 0 to `most` GPUs over that on `reference` GPUs of one node."""
        if self.speed is None:
            return np.tile(np.arange(most + 1) / reference, (2, 1))
        key = (most, reference, self.speed, self.gradient)
        if self._table is None or self._table[0] != key:
            goodput = self._goodputs(most, self.speed)
            if reference <= most:
                alone = goodput[0, reference]
            else:
                one_node, count = np.array([False]), np.array([reference])
                alone = best(self.speed, self.gradient, self.limits, one_node, count)[0][0]
            self._table = (key, goodput / alone)
        return self._table[1]

    def _goodputs(self, most: int, speed: Speed) -> Array:
        """[on several nodes, GPUs]: goodput on 0 to `most` GPUs."""
        key = (most, speed, self.gradient)
        if self._goodput is None or self._goodput[0] != key:
            gpus = np.arange(1, most + 1)
            across = np.concatenate([np.zeros(most, bool), np.ones(most - 1, bool)])
            found, _, _ = best(speed, self.gradient, self.limits, across, np.concatenate([gpus, gpus[1:]]))
            table = np.zeros((2, most + 1))
            table[0, 1:], table[1, 2:] = found[:most], found[most:]
            self._goodput = (key, table)
        return self._goodput[1]
