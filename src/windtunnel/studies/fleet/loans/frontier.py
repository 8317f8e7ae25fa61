"""What lending buys and costs, over the lender's headroom: queueing delay x preempted GPU-hours x violations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.loans.pool import ServingPool
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import aggregates
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import Site

HEADROOMS = (0.0, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
KEYS = ("queueing_delay_mean_s", "jct_mean_s", "preempted_gpu_hours", "preemptions", "loan_violations", "use_of_all")


def frontier(
    jobs: Jobs, site: Site, options: Options, headrooms: Sequence[float] = HEADROOMS, policy: str = "lyra"
) -> list[dict[str, float]]:
    """One mapping per headroom: `headroom` and KEYS."""
    loans = options.loans
    assert loans is not None
    assert loans.pool is not None
    points = []
    for headroom in headrooms:
        chosen = replace(loans, pool=_with(loans.pool, headroom))
        figures = aggregates(simulate(jobs, site, policy, replace(options, loans=chosen)), site.gpus)
        points.append({"headroom": headroom, **{key: figures[key] for key in KEYS}})
    return points


def _with(pool: Callable[[float, float], ServingPool], headroom: float) -> Callable[[float, float], ServingPool]:
    return lambda begin_s, end_s: replace(pool(begin_s, end_s), headroom=headroom)
