"""How fast a job is on how many GPUs: measured tables, else the training predictor; and how far it is ever scaled."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.errors import UserError
from windtunnel.files.document import own_document
from windtunnel.studies.fleet.clock.work import Scaling
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.tables import Tables

LARGEST = 64  # GPUs of one job
SETTINGS = Path(__file__).parent / "scaling.yaml"


@cache
def settings() -> dict[str, Any]:
    """Caps and slots as published."""
    return own_document(SETTINGS.read_text("utf-8"))


def slot_of(gpu: str) -> float:
    """The slot of the published runs on this kind of GPU."""
    slots = settings()["slot_s"]
    return float(slots.get(gpu, slots["other"]))


def scaling_of(jobs: Jobs, index: int, site: Site, options: Options, policy: str, *, elastic: bool = True) -> Scaling:
    """A job as fast as tables say, else the predictor. `elastic`: capped as ElasticFlow caps it, else by its batch.

    Raises UserError where the job or the tables say too little.
    """
    for name in ("iterations", "batch_size"):
        if math.isnan(getattr(jobs, name)[index]):
            raise UserError(f"{jobs.where(index)}: {name} is missing, and this policy plans with it: add the column")
    if options.tables is not None:
        rates = measured_rates(jobs, index, site.gpu, options.tables)
        largest = cap_of(jobs, index, site.gpu, rates, elastic=elastic)
        rates = {gpus: rate for gpus, rate in rates.items() if gpus <= max(largest, min(rates))}
    elif options.speeds is not None:
        rates = dict(options.speeds(jobs, index, site.gpu, site.per_node, site.gpus))
        largest = max(rates)
    else:
        raise UserError(f"{policy} chooses each job's GPUs by its speeds: give --tables DIR that holds them")
    least = min(rates)
    if least > site.gpus:
        raise UserError(f"{jobs.where(index)}: measured on {least} GPUs or more, and there are {site.gpus}")
    iterations = float(jobs.iterations[index])
    return Scaling(iterations, rates, largest, options.restart_s or 0.0, per_node=site.per_node)


def measured_rates(jobs: Jobs, index: int, gpu: str, tables: Tables) -> dict[int, float]:
    """Iterations per second by number of GPUs. Raises UserError for a job that was not measured."""
    key = (gpu.lower(), jobs.model[index], int(jobs.batch_size[index]))
    rates = tables.rates.get(key)
    if not rates:
        text = ", ".join(sorted({f"{model} at {batch}" for kind, model, batch in tables.rates if kind == key[0]}))
        raise UserError(
            f"{jobs.where(index)}: {key[1]} at batch {key[2]} was not measured on {gpu}"
            + (f" (measured: {text})" if text else f" (nothing was measured on {gpu})")
            + ": complete ef_throughput.csv"
        )
    return rates


def cap_of(jobs: Jobs, index: int, gpu: str, rates: dict[int, float], *, elastic: bool) -> int:
    """GPUs beyond which a job is never scaled."""
    batch = int(jobs.batch_size[index])
    if not elastic:
        return max((gpus for gpus in rates if gpus <= min(LARGEST, batch)), default=min(rates))
    caps = settings()["largest"].get(gpu.lower(), {})
    by_batch = caps.get(jobs.model[index], {})
    if isinstance(by_batch, int):
        return by_batch
    if by_batch == "batch":
        return batch
    cap = by_batch.get(batch)
    if cap is not None:
        return int(cap)
    return min(LARGEST, batch) if caps.get("bounded_by_batch", True) else LARGEST
