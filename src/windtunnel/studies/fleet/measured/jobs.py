"""Jobs of a trace that are measured applications, each with the model of its speed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.measured.work import FixedBatch
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.tables import Tables

if TYPE_CHECKING:
    from windtunnel.studies.fleet.measured.chosen import ChosenBatch


def works(jobs: Jobs, site: Site, tables: Tables, *, learns: bool) -> list[FixedBatch | ChosenBatch]:
    """Each job's model of its own speed; `learns`: its batch is chosen, as it finds out how fast it is.

    Raises UserError with the line of a job that cannot run.
    """
    result: list[FixedBatch | ChosenBatch] = []
    places = {name: at for at, name in enumerate(tables.applications)}
    for index in range(len(jobs)):
        app = tables.applications.get(jobs.model[index])
        if app is None:
            known = ", ".join(tables.applications)
            raise UserError(
                f"{jobs.where(index)}: application {jobs.model[index]!r} was not measured; measured: {known}"
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
