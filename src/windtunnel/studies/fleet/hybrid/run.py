"""A trace over own GPUs and clouds: the four strategies, `starburst`, and `spot`.

cost                 in the currency of the prices: GPU time (own too, at its price) and egress
moved_gb, secret_gb  data moved; of these what was not public and went to another owner
outside_jobs         jobs that ran in a pool that is not the own one
private_outside      of these with the label private: none, by the filter
"""

from __future__ import annotations

import math

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.hybrid.clouds import Clouds, label_of, read_clouds
from windtunnel.studies.fleet.hybrid.plan import CHECKPOINT_S, CloudRun, HybridJob, plan, secret_of, ups_of
from windtunnel.studies.fleet.hybrid.spot import Zone, roam
from windtunnel.studies.fleet.hybrid.starburst import starburst
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import COMPLETED, REJECTED, STATES, Outcome
from windtunnel.studies.fleet.policies.beyond.hybrid import LABELS, STRATEGIES, allowed
from windtunnel.studies.fleet.site import Site


def run_hybrid(jobs: Jobs, site: Site, name: str, options: Options) -> Outcome:
    """Outcome of all jobs."""
    if site.file is None:
        raise UserError(f"{name} needs clouds beside the own GPUs: give --cluster a YAML file with pools")
    clouds = read_clouds(site.file, site.gpus)
    work = hybrid_jobs(jobs, clouds)
    if name == "starburst":
        placed = starburst(work, clouds)
    elif name == "spot":
        placed = roaming(work, clouds, options.seed)
    else:
        placed = plan(work, clouds, STRATEGIES[name], seed=options.seed)
    never = [each is None for each in placed]
    return Outcome(
        jobs,
        name,
        "exact",
        np.array([math.nan if each is None else each.start_s for each in placed]),
        np.array([math.nan if each is None else each.end_s for each in placed]),
        np.array([0 if each is None else each.restarts for each in placed], np.int64),
        np.array([0.0 if each is None else each.gpu_s for each in placed]),
        np.array([STATES.index(REJECTED if is_nowhere else COMPLETED) for is_nowhere in never], np.int8),
        extra=figures_of(placed, work, clouds),
    )


def hybrid_jobs(jobs: Jobs, clouds: Clouds) -> list[HybridJob]:
    """Jobs with label and data; what the trace does not say is public, and without data. Raises SpecError."""
    blank = [""] * len(jobs)
    labels, sizes, places = (jobs.columns.get(column, blank) for column in ("privacy", "data_gb", "data_at"))
    result = []
    for index in range(len(jobs)):
        where = jobs.where(index)
        at = clouds.position_of(places[index]) if places[index] else 0
        if at is None:
            text = ", ".join(cloud.name for cloud in clouds.pools)
            raise SpecError("data_at", places[index], f"name a pool: {text}", where)
        result.append(
            HybridJob(
                index,
                float(jobs.submit_s[index]),
                int(jobs.gpus[index]),
                float(jobs.duration_s[index]),
                label_of(labels[index], "privacy", where),
                _gigabytes(sizes[index], where),
                at,
            )
        )
    return result


def _gigabytes(text: str, where: str) -> float:
    try:
        size = float(text or 0.0)
    except ValueError:
        size = math.nan
    if not 0.0 <= size < math.inf:
        raise SpecError("data_gb", text, "give a number of gigabytes", where)
    return size


def roaming(work: list[HybridJob], clouds: Clouds, seed: int) -> list[CloudRun | None]:
    """Each job in the cheapest spot zone that is up, and on to the next; own GPUs are for jobs that may not leave."""
    ups = ups_of(clouds, seed)
    labels = [cloud.privacy for cloud in clouds.pools]
    able_of = [[at for at in allowed(job.label, labels) if at > 0 and clouds.pools[at].gpus is None] for job in work]
    result: list[CloudRun | None] = [None] * len(work)
    bound = [job for job, able in zip(work, able_of, strict=True) if not able]
    for placed in plan(bound, clouds, STRATEGIES["hybrid-cost"], seed=seed):
        if placed is not None:
            result[placed.job] = placed
    for job, able in zip(work, able_of, strict=True):
        if not able:
            continue
        zones = [Zone(at, (c := clouds.pools[at]).price_per_gpu_s, ups[at], c.startup_s) for at in able]
        stays = roam(job.duration_s, job.submit_s, zones, CHECKPOINT_S)
        cost = moved = secret = gpu_s = 0.0
        at = job.data_at
        for stay in stays:
            cloud = clouds.pools[stay.pool]
            stay_gpu_s = (stay.end_s - stay.start_s) * job.gpus
            gpu_s += stay_gpu_s
            cost += stay_gpu_s * cloud.price_per_gpu_s
            if stay.pool != at:  # data follows the job
                cost += job.data_gb * clouds.pools[at].egress_per_gb
                moved += job.data_gb
                secret += secret_of(job, cloud, clouds, job.data_gb)
                at = stay.pool
        first, last = stays[0], stays[-1]
        result[job.index] = CloudRun(
            job.index, last.pool, first.start_s, last.end_s, cost, moved, secret, gpu_s, len(stays) - 1
        )
    return result


def figures_of(placed: list[CloudRun | None], work: list[HybridJob], clouds: Clouds) -> dict[str, object]:
    """The measures of the strategies."""
    there = [each for each in placed if each is not None]
    label = {job.index: job.label for job in work}
    by_pool = {cloud.name: 0.0 for cloud in clouds.pools}
    for each in there:
        by_pool[clouds.pools[each.pool].name] += each.gpu_s / 3600
    return {
        "cost": round(sum(each.cost for each in there), 6),
        "moved_gb": round(sum(each.moved_gb for each in there), 6),
        "secret_gb": round(sum(each.secret_gb for each in there), 6),
        "outside_jobs": sum(each.pool > 0 for each in there),
        "private_outside": sum(each.pool > 0 and label[each.job] == LABELS.index("private") for each in there),
        "gpu_hours_by_pool": {name: round(hours, 3) for name, hours in by_pool.items()},
    }
