"""A trace under Lyra and under its halves: `lyra-none`, `lyra-loan`, `lyra-elastic`, `lyra`; one scheduler otherwise.

Which jobs are elastic: those whose trace says `max_gpus`, else a share of all, drawn by the seed, that can use twice
what they ask for. Speed on more GPUs: measured tables where they hold the model, else in proportion. With tables
only jobs that they hold are drawn.

loan_violations          share of requests that missed their limits, first to last submission
loan_violations_alone    the same, had no server been lent
preempted_gpu_hours      work done and lost when servers went back, on the GPUs that it was done on
use_of_own               GPU time held for training up to the last submission, over that of the own GPUs
use_of_all               the same with what the serving load needs, over that of all GPUs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.loans.clock import NS, LoanClock, Training
from windtunnel.studies.fleet.loans.pool import Loans, ServingPool
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import COMPLETED, UNFINISHED, Outcome, outcome_of_runs
from windtunnel.studies.fleet.policies.beyond.lyra import PARTS, Lyra
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.tables import Tables

GROWTH = 2  # GPUs that an elastic job can use, of those that it asks for, where the trace does not say


def run_lyra(jobs: Jobs, site: Site, name: str, options: Options) -> Outcome:
    """Outcome of all jobs; what is lent is among the options."""
    policy = PARTS[name]
    if options.restart_s is not None:
        policy = replace(policy, restart_s=options.restart_s, rescale_s=options.restart_s)
    loans = options.loans or Loans()
    if policy.loan and loans.pool is None:
        raise UserError(f"{name} borrows inference servers: add --serving POOL.yaml, or choose lyra-elastic")
    begin_s, until_s = float(jobs.submit_s.min()), float(jobs.submit_s.max())
    work_s = float((jobs.duration_s * jobs.gpus).sum()) / site.gpus
    end_s = until_s + work_s + 2 * float(jobs.duration_s.max())  # loans go on while jobs run
    pool = loans.pool(begin_s, end_s) if loans.pool is not None else None
    if pool is not None and pool.gpus_per_server != site.per_node:
        remedy = f"lent servers join nodes of {site.per_node} GPUs: make them as large"
        raise SpecError("gpus_per_server", pool.gpus_per_server, remedy)
    running = trainings_of(jobs, site, policy, loans, options)
    offers = pool.offers(begin_s, end_s) if pool is not None and policy.loan else ()
    clock = LoanClock(
        running, site.nodes, site.per_node, policy, offers, loan_speed=loans.loan_speed, until_ns=round(until_s * NS)
    )
    clock.run()
    states = [COMPLETED if job.end_ns is not None else UNFINISHED for job in running]
    return outcome_of_runs(jobs, name, running, states, _figures(clock, site, pool, begin_s, until_s))


def _figures(
    clock: LoanClock, site: Site, pool: ServingPool | None, begin_s: float, until_s: float
) -> dict[str, float | int | None]:
    span = max(until_s - begin_s, 1e-9)
    held_s = clock.gpu_ns_until / NS
    result: dict[str, float | int | None] = {
        "preemptions": clock.stopped,
        "preempted_gpu_hours": round(clock.lost_gpu_ns / NS / 3600, 6),
        "resizes": sum(job.resizes for job in clock.jobs),
        "use_of_own": round(held_s / (site.gpus * span), 6),
    }
    if pool is None:
        return result
    served, alone = pool.served(clock.lent, begin_s, until_s), pool.served((), begin_s, until_s)
    serving_gpus = pool.servers * site.per_node
    needed_s = served.needed_server_s * site.per_node
    return {
        **result,
        "use_of_all": round((held_s + needed_s) / ((site.gpus + serving_gpus) * span), 6),
        "servers_lent_mean": round(_mean_level(clock.lent, begin_s, until_s), 6),
        "loan_violations": round(served.violations, 9),
        "loan_violations_alone": round(alone.violations, 9),
    }


def _mean_level(steps: Sequence[tuple[int, int]], begin_s: float, until_s: float) -> float:
    begin, until = round(begin_s * NS), round(until_s * NS)
    times = [max(min(time, until), begin) for time, _ in steps] + [until]
    level_ns = sum(count * (after - time) for (_, count), time, after in zip(steps, times, times[1:], strict=False))
    return level_ns / max(until - begin, 1)


def trainings_of(jobs: Jobs, site: Site, policy: Lyra, loans: Loans, options: Options) -> list[Training]:
    """Each job with its range and its speed. The draw is the same whichever parts of Lyra are on."""
    speeds = _speeds(jobs, site, options.tables)
    most = _ranges(jobs, loans.elastic, speeds, options.seed)
    return [
        Training(
            index,
            round(float(jobs.submit_s[index]) * NS),
            int(jobs.gpus[index]),
            most[index] if policy.elastic else int(jobs.gpus[index]),
            round(float(jobs.duration_s[index]) * NS),
            speeds[index] or proportional(int(jobs.gpus[index])),
        )
        for index in range(len(jobs))
    ]


def proportional(gpus: int) -> Callable[[int], float]:
    """Twice the GPUs, twice the speed."""
    return lambda number: number / gpus


def _ranges(jobs: Jobs, share: float, speeds: Sequence[object], seed: int) -> list[int]:
    """Most GPUs of each job."""
    most = [int(gpus) for gpus in jobs.gpus]
    max_gpus = jobs.columns.get("max_gpus")
    if max_gpus is not None:
        for index, text in enumerate(max_gpus):
            if not text:
                continue
            if not text.isdigit() or int(text) < most[index]:
                raise SpecError("max_gpus", text, f"give at least gpus, {most[index]}", jobs.where(index))
            most[index] = int(text)
        return most
    if not 0.0 <= share <= 1.0:
        raise SpecError("--elastic", share, "give a share of jobs, from 0 to 1")
    measured = any(speed is not None for speed in speeds)
    able = [index for index in range(len(jobs)) if not measured or speeds[index] is not None]
    chosen = np.random.default_rng(seed).permutation(len(able))[: round(share * len(jobs))]
    for place in chosen.tolist():
        most[able[place]] *= GROWTH
    return most


def _speeds(jobs: Jobs, site: Site, tables: Tables | None) -> list[Callable[[int], float] | None]:
    """Relative speed of each job that the tables hold at its model and batch, straight between measured levels."""
    if tables is None or not (tables.folder / "ef_throughput.csv").is_file():
        return [None] * len(jobs)
    curves: dict[tuple[str, int, int], Callable[[int], float] | None] = {}
    result = []
    for model, batch, gpus in zip(jobs.model, jobs.batch_size.tolist(), jobs.gpus.tolist(), strict=True):
        key = (model, 0 if math.isnan(batch) else int(batch), gpus)
        if key not in curves:
            curves[key] = _relative(tables.rates.get((site.gpu.lower(), key[0], key[1]), {}), gpus)
        result.append(curves[key])
    return result


def _relative(rates: dict[int, float], gpus: int) -> Callable[[int], float] | None:
    if len(rates) < 2 or not min(rates) <= gpus < max(rates):
        return None
    levels, values = list(rates), list(rates.values())
    base = float(np.interp(gpus, levels, values))
    table = {number: float(np.interp(number, levels, values)) / base for number in range(gpus, GROWTH * gpus + 1)}

    def speed(count: int) -> float:
        relative = table.get(count)
        return relative if relative is not None else float(np.interp(count, levels, values)) / base

    return speed
