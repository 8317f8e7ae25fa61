"""A trace and throughput tables as jobs of ElasticFlow's clock."""

from __future__ import annotations

import math

from oracles.elasticflow.state import EfJob
from windtunnel.errors import UserError
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.scaling import scaling_of
from windtunnel.studies.fleet.speeds.tables import Tables


def ef_jobs(jobs: Jobs, site: Site, tables: Tables, policy: str) -> list[EfJob]:
    """All jobs, as fast as `tables` say. Raises UserError where one lacks what the policy needs."""
    plans = policy.startswith(("edf", "elasticflow"))
    result = []
    for index in range(len(jobs)):
        rates: dict[int, float] = {}
        largest = int(jobs.gpus[index])
        if plans:
            elastic = policy.startswith("elasticflow")
            work = scaling_of(jobs, index, site, Options(tables=tables), policy, elastic=elastic)
            rates, largest = dict(work.rates), work.most_gpus
        elif math.isnan(jobs.duration_s[index]):
            raise UserError(f"{jobs.where(index)}: {policy} in this clock needs duration_s: add it")
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
