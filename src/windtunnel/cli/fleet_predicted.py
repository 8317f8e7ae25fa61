"""Jobs of a trace that name a model and a batch, and no duration: the training predictor says how long they run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.fleet.jobs.trace import Jobs
    from windtunnel.fleet.site import Site

DEGREES = ("tp", "pp", "cp", "ep")  # columns of the trace that say how a job is laid out; else data-parallel


def with_predictions(jobs: Jobs, site: Site) -> tuple[Jobs, list[str]]:
    """Jobs with `iterations` x predicted step where no duration is said, and a line on each that does not fit.

    Needs the columns model, batch_size (sequences), seq_len and iterations; jobs without them stay as they are. Equal
    jobs are predicted once. Raises UserError for a model or a layout that cannot be.
    """
    unsaid = [at for at in range(len(jobs)) if math.isnan(jobs.duration_s[at]) and _says_enough(jobs, at)]
    if not unsaid:
        return jobs, []
    from windtunnel.training import predict

    duration_s = jobs.duration_s.copy()
    known: dict[tuple[str, ...], float | None] = {}
    lines = []
    for at in unsaid:
        gpus = int(jobs.gpus[at])
        plan = {"global_batch": int(jobs.batch_size[at]), "seq_len": int(jobs.columns["seq_len"][at])}
        plan |= {name: int(jobs.columns[name][at]) for name in DEGREES if jobs.columns.get(name, [""] * len(jobs))[at]}
        key = (jobs.model[at], str(gpus), *map(str, plan.items()))
        if key not in known:
            found = predict(jobs.model[at], f"{site.gpu}:{gpus}", plan)
            known[key] = found.step_time_s if found.status != "infeasible" else None
        step_s = known[key]
        if step_s is None:
            lines.append(f"{jobs.where(at)}: {jobs.model[at]} does not fit in memory on {gpus} GPUs as it is laid out")
        else:
            duration_s[at] = jobs.iterations[at] * step_s
    return replace(jobs, duration_s=duration_s), lines


def _says_enough(jobs: Jobs, at: int) -> bool:
    numbers = (jobs.iterations[at], jobs.batch_size[at])
    said = jobs.columns.get("seq_len")
    return bool(jobs.model[at]) and not any(map(math.isnan, numbers)) and said is not None and said[at].isdigit()
