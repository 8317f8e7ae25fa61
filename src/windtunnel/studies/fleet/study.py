"""The fleet study from Python: `windtunnel.fleet(trace, cluster, policies, ...)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.arguments import typed
from windtunnel.errors import SpecError
from windtunnel.studies.fleet.decision import Policy
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import Outcome, aggregates, write_jobs
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site, parse_site
from windtunnel.studies.fleet.tables import Runtime, Tables, speeds_by


@dataclass(frozen=True, eq=False)
class FleetResult:
    """What became of a trace under each policy, in the order asked."""

    site: Site
    outcomes: tuple[Outcome, ...]

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Aggregates by policy; names and definitions: `fleet/outcome.py`."""
        return {outcome.policy: aggregates(outcome, self.site.gpus) for outcome in self.outcomes}

    def to_dict(self) -> dict[str, Any]:
        """The figures by policy, and those of a single policy at the top too."""
        figures = self.figures
        only = next(iter(figures.values())) if len(figures) == 1 else {}
        return {**only, "policies": figures}

    def write_jobs(self, path: str | Path) -> None:
        """One line per job, CSV or Parquet."""
        write_jobs(list(self.outcomes), path)


@typed
def fleet(
    trace: str | Path | Jobs,
    cluster: str | Site,
    policies: str | Policy | Sequence[str | Policy] = "fifo",
    *,
    where: str = "",
    tables: str | Path | None = None,
    seed: int | None = None,
    pool: bool | None = None,
    iteration_s: Runtime | None = None,
    options: Options | None = None,
) -> FleetResult:
    """Run a trace under policies, e.g. `fleet("jobs.csv", "v100:64", ["fifo", "easy", Mine()])`.

    A policy is a name or an object with `decide(snapshot) -> Decision` (`fleet/policies/own.py`).
    `iteration_s(model, batch, GPUs)` gives seconds per iteration for policies that size jobs without tables. What is
    given by name comes before the same of `options`. Raises UserError for what cannot be asked.
    """
    if not isinstance(trace, str | Path | Jobs):
        raise SpecError("trace", trace, "give the path of a trace, or Jobs")
    if not isinstance(cluster, str | Site):
        raise SpecError("cluster", cluster, "give GPU:COUNT such as t4:64, the path of a file, or a Site")
    jobs = trace if isinstance(trace, Jobs) else read_jobs(trace, where)
    site = cluster if isinstance(cluster, Site) else parse_site(cluster)
    if seed is not None and seed < 0:
        raise SpecError("seed", seed, "give a whole number from 0 on")
    by_name = {
        "tables": None if tables is None else Tables(Path(tables)),
        "seed": seed,
        "pool": pool,
        "speeds": None if iteration_s is None else speeds_by(iteration_s),
    }
    given: dict[str, Any] = {name: value for name, value in by_name.items() if value is not None}
    chosen = replace(options or Options(), **given)
    asked = list(policies) if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    return FleetResult(site, tuple(simulate(jobs, site, policy, chosen) for policy in asked))
