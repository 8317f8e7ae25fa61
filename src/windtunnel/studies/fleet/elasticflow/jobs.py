"""A trace and throughput tables as jobs of ElasticFlow's clock."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.errors import UserError
from windtunnel.files.document import own_document
from windtunnel.studies.fleet.elasticflow.state import EfJob
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.tables import Speeds, Tables

LARGEST = 64  # GPUs of one job
SETTINGS = Path(__file__).parent / "settings.yaml"


@cache
def settings() -> dict[str, Any]:
    """Caps and slots as published."""
    data: dict[str, Any] = own_document(SETTINGS.read_text("utf-8"))
    return data


def slot_of(gpu: str) -> float:
    """The slot of the published runs on this kind of GPU."""
    slots = settings()["slot_s"]
    return float(slots.get(gpu, slots["other"]))


def ef_jobs(jobs: Jobs, site: Site, tables: Tables | None, speeds: Speeds | None, policy: str) -> list[EfJob]:
    """All jobs, as fast as `tables` say, else `speeds`. Raises UserError where one lacks what the policy needs."""
    plans = policy.startswith(("edf", "elasticflow"))
    result = []
    for index in range(len(jobs)):
        rates: dict[int, float] = {}
        largest = int(jobs.gpus[index])
        if plans:
            _check(jobs, index)
            if tables is not None:
                rates = _rates(jobs, index, site.gpu, tables)
                largest = _cap(jobs, index, site.gpu, rates, elastic=policy.startswith("elasticflow"))
                rates = {gpus: rate for gpus, rate in rates.items() if gpus <= max(largest, min(rates))}
            else:
                rates = predicted_rates(jobs, index, site, speeds, policy)
                largest = max(rates)
        elif math.isnan(jobs.duration_s[index]):
            raise UserError(
                f"{jobs.where(index)}: {policy} in this clock needs duration_s: add it, or choose elasticflow"
            )
        result.append(
            EfJob(
                index=index,
                submit_s=_plain(jobs.submit_s[index]),
                duration_s=_plain(jobs.duration_s[index]),
                requested=int(jobs.gpus[index]),
                deadline_s=_plain(jobs.deadline_s[index]) if not math.isnan(jobs.deadline_s[index]) else math.inf,
                rates=rates,
                largest=largest,
                iterations_left=_plain(jobs.iterations[index]),
                gpus=0 if plans else int(jobs.gpus[index]),
            )
        )
    return result


def _plain(value: float) -> float:
    """Whole numbers as int, as the published clock has them; what is not said stays NaN."""
    return int(value) if math.isfinite(value) and value == int(value) else float(value)


def _check(jobs: Jobs, index: int) -> None:
    for name in ("iterations", "batch_size"):
        if math.isnan(getattr(jobs, name)[index]):
            raise UserError(f"{jobs.where(index)}: {name} is missing, and this policy plans with it: add the column")


def predicted_rates(jobs: Jobs, index: int, site: Site, speeds: Speeds | None, policy: str) -> dict[int, float]:
    """Iterations per second by number of GPUs, of a job that no table holds. Raises UserError."""
    if speeds is None:
        raise UserError(f"{policy} chooses each job's GPUs by its speeds: give --tables DIR that holds them")
    return dict(speeds(jobs, index, site.gpu, site.per_node, site.gpus))


def _rates(jobs: Jobs, index: int, gpu: str, tables: Tables) -> dict[int, float]:
    key = (gpu.lower(), jobs.model[index], int(jobs.batch_size[index]))
    found = tables.rates.get(key)
    if not found:
        known = ", ".join(sorted({f"{model} at {batch}" for kind, model, batch in tables.rates if kind == key[0]}))
        raise UserError(
            f"{jobs.where(index)}: {key[1]} at batch {key[2]} was not measured on {gpu}"
            + (f" (measured: {known})" if known else f" (nothing was measured on {gpu})")
            + ": complete ef_throughput.csv"
        )
    return found


def _cap(jobs: Jobs, index: int, gpu: str, rates: dict[int, float], *, elastic: bool) -> int:
    batch = int(jobs.batch_size[index])
    if not elastic:
        return max((gpus for gpus in rates if gpus <= min(LARGEST, batch)), default=min(rates))
    caps = settings()["largest"].get(gpu.lower(), {})
    model = jobs.model[index]
    by_batch = caps.get(model, {})
    if isinstance(by_batch, int):
        return by_batch
    if by_batch == "batch":
        return batch
    named = by_batch.get(batch)
    if named is not None:
        return int(named)
    return min(LARGEST, batch) if caps.get("bounded_by_batch", True) else LARGEST
