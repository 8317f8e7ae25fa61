"""`windtunnel fleet TRACE --policy ... --seeds N`: policies side by side with bands over seeds, on any executor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError, UserError
from windtunnel.units import parse_time

if TYPE_CHECKING:
    from windtunnel.studies.fleet.capacity.changes import Changes

BAND = (5.0, 50.0, 95.0)  # percentiles
ONE = "windtunnel.faces.cli.fleet_seeds:one_seed"


def changes_of(
    mtbf: str | None, repair: str | None, checkpoint_every: str | None, capacity: str | None
) -> Changes | None:
    """What happens to nodes, or None. Raises SpecError."""
    if repair is not None and mtbf is None:
        raise SpecError("--repair", repair, "it is for nodes that fail by --mtbf-node: give that too, or leave it out")
    if mtbf is None and capacity is None:
        if checkpoint_every is not None:
            remedy = "it is for nodes that fail: give --mtbf-node or --capacity too, or leave it out"
            raise SpecError("--checkpoint-every", checkpoint_every, remedy)
        return None
    from windtunnel.studies.fleet.capacity.changes import Changes

    if mtbf is not None and capacity is not None:
        raise SpecError("--capacity", capacity, "give this or --mtbf-node: a trace holds failures too")
    if mtbf is not None and mtbf.strip()[-1:].isdigit():
        raise SpecError("--mtbf-node", mtbf, f"say the unit: {mtbf.strip()}d, {mtbf.strip()}h or {mtbf.strip()}s")
    every = "30min" if checkpoint_every is None else checkpoint_every
    return Changes(
        None if mtbf is None else parse_time(mtbf, "--mtbf-node"),
        parse_time("1h" if repair is None else repair, "--repair"),
        float("inf") if every == "never" else parse_time(every, "--checkpoint-every"),
        None if capacity is None else Path(capacity),
    )


def one_seed(
    *,
    trace: str,
    where: str,
    cluster: str,
    gpus_per_node: int | None,
    policy: str,
    seed: int,
    tables: str | None,
    pool: bool,
    restart: float | None,
    failing: Sequence[Any],
    serving: str | None,
    elastic: float,
) -> dict[str, Any]:
    """Figures of one run. `failing`: the arguments of `changes_of`. Raises UserError."""
    from windtunnel.faces.cli.fleet_predicted import predicted_speeds, with_predictions
    from windtunnel.studies.fleet.jobs.read import read_jobs
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.outcome import aggregates
    from windtunnel.studies.fleet.policies.own import named
    from windtunnel.studies.fleet.run import simulate
    from windtunnel.studies.fleet.site import parse_site
    from windtunnel.studies.fleet.tables import Tables

    site = parse_site(cluster, gpus_per_node)
    jobs, _ = with_predictions(read_jobs(Path(trace), where), site)
    read = None if tables is None else Tables(Path(tables))
    speeds = predicted_speeds()
    options = Options(read, seed, pool, restart_s=restart, speeds=speeds, changes=changes_of(*failing))
    if policy.startswith("lyra"):
        from windtunnel.faces.cli.fleet_loans import loans_of

        options = replace(options, loans=loans_of(None if serving is None else Path(serving), elastic, seed))
    return aggregates(simulate(jobs, site, named(policy), options), site.gpus)


def run_seeds(names: Sequence[str], count: int, executor: str, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each policy the mean of each figure, its `bands` (5, 50, 95 %) over seeds, and `seeds`. Raises UserError."""
    from windtunnel.studies.sweeps.executors import rows_of

    if not 1 <= count <= 100_000:
        raise SpecError("--seeds", count, "give how many runs of each policy, such as 20")
    first = int(asked["seed"])
    points = [dict(asked, policy=name, seed=first + at) for name in names for at in range(count)]
    rows: list[dict[str, Any]] = [{} for _ in points]
    for place, row in rows_of(executor, ONE, list(enumerate(points)), os.cpu_count() or 1):
        if row["status"] != "ok":
            raise UserError(f"{points[place]['policy']}, seed {points[place]['seed']}: {row['reason']}")
        rows[place] = row["outputs"]
    return [_banded(rows[at : at + count]) for at in range(0, len(rows), count)]


def _banded(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import numpy as np

    result: dict[str, Any] = {}
    bands: dict[str, list[float]] = {}
    for name, value in runs[0].items():
        values: list[Any] = [run.get(name) for run in runs]
        if isinstance(value, str) or any(each is None for each in values):
            if len(set(values)) == 1:
                result[name] = value
            continue
        result[name] = value if len(set(values)) == 1 else round(float(np.mean(values)), 6)
        bands[name] = [round(float(each), 6) for each in np.percentile(values, BAND)]
    return {**result, "seeds": len(runs), "bands": bands}
