"""A training job as AdaptDL's simulator sees it: progress through epochs at the goodput of its placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from windtunnel.studies.fleet.measured.application import ONE_GPU, Application, Placement


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

    def iteration_s(self, gpus: int) -> float:
        """Time of one iteration on packed nodes, as Optimus predicts it: one replica always accumulates."""
        key = ("iteration", self.batch, gpus, self.gpus_per_node)
        if key not in self.app._cache:
            atomic, accumulations = self.app.fixed_batch(self.batch, gpus, accumulate_alone=True)
            full, rest = divmod(gpus, self.gpus_per_node)
            step, sync = self.app.step_times_s((self.gpus_per_node,) * full + (rest,) * (rest > 0), atomic)
            self.app._cache[key] = step + (step - sync) * accumulations
        return self.app._cache[key]

    def remaining_iterations(self, epoch: int) -> float:
        """From the end of epoch number `epoch` to the end of the last; 1 in the last epoch, as published."""
        last = self.app.epochs - 1
        if epoch >= last:
            return 1.0
        return self.app.iterations_until(self.batch, last) - self.app.iterations_until(self.batch, epoch)
