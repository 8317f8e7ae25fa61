"""Jobs of a trace that are measured applications, each with the model of its speed, as AdaptDL's simulator sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.measured.application import ONE_GPU, Application, Placement
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.tables import Tables

if TYPE_CHECKING:
    from windtunnel.studies.fleet.measured.chosen import ChosenBatch


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


def works(jobs: Jobs, site: Site, tables: Tables, *, learns: bool) -> list[FixedBatch | ChosenBatch]:
    """Each job's model of its own speed; `learns`: its batch is chosen, as it finds out how fast it is.

    Raises UserError with the line of a job that cannot run.
    """
    result: list[FixedBatch | ChosenBatch] = []
    places = {name: at for at, name in enumerate(tables.applications)}
    for index in range(len(jobs)):
        app = tables.applications.get(jobs.model[index])
        if app is None:
            text = ", ".join(tables.applications)
            raise UserError(
                f"{jobs.where(index)}: application {jobs.model[index]!r} was not measured; measured: {text}"
            )
        if learns:
            from windtunnel.studies.fleet.measured.chosen import ChosenBatch

            result.append(ChosenBatch(app, tables.measured, places[app.name]))
            continue
        batch = jobs.batch_size[index]
        if math.isnan(batch):
            raise UserError(f"{jobs.where(index)}: batch_size is missing; give the batch that the job trains at")
        if not app.initial_batch <= batch <= app.largest_batch:
            raise UserError(
                f"{jobs.where(index)}: batch {batch:g} of {app.name} is outside what was measured,"
                f" {app.initial_batch} to {app.largest_batch}; ask for one inside"
            )
        result.append(FixedBatch(app, int(batch), site.per_node))
    return result
