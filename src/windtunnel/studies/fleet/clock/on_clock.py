"""A trace in the exact clock: each job with the model of its speed that the policy needs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UserError
from windtunnel.files.table import LONGEST_S
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import NOBODY, Owner
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Divisible, Epochs, Rigid, Work
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.kinds.run import learns, typed_works
from windtunnel.studies.fleet.measured.jobs import works
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import CANCELLED, COMPLETED, REJECTED, UNFINISHED, Outcome, outcome_of_runs
from windtunnel.studies.fleet.parts.part import known_parts
from windtunnel.studies.fleet.sharing.links import links_of
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.scaling import scaling_of
from windtunnel.studies.fleet.speeds.tables import Tables
from windtunnel.studies.fleet.traits import Traits

MOST_ROUNDS = 1_000_000  # eleven years of Gavel's; minutes of computing
CPUS_MOST = 1 << 32  # of a job
RESTART_S = 30.0  # of applications in AdaptDL's tables, as measured there


def run_exact(jobs: Jobs, site: Site, traits: Traits, options: Options) -> Outcome:
    """Outcome of all jobs."""
    clock = clock_of(jobs, site, traits, options)
    _require_few_rounds(jobs, site, traits.name, clock.interval_ns / NS)
    until_s = options.until_s
    if options.changes is not None and until_s is None:
        until_s = _end_s(jobs, site)
    stays = options.changes is None and until_s is None and clock.links is None
    if not (stays and clock.lines is not None and clock.lines.run_whole(clock.jobs, clock.nodes)):
        clock.run(None if until_s is None else round(until_s * NS))
    outcome = outcome_of(jobs, traits.name, clock.jobs)
    losses = {} if options.changes is None else _losses(clock, site.unit)
    further = losses | ({} if clock.lines is None else clock.lines.further(clock.board, clock.jobs))
    return replace(outcome, extra=further) if further else outcome


def _require_few_rounds(jobs: Jobs, site: Site, policy: str, interval_s: float) -> None:
    """A policy that is asked at intervals is asked until the last job ends. Raises UserError on too many intervals."""
    rounds = _busy_s(jobs, site) / interval_s if interval_s else 0.0
    if rounds > MOST_ROUNDS:
        at = int(np.nanargmax(jobs.duration_s))
        raise UserError(
            f"{jobs.where(at)}: {policy} decides every {interval_s:g} s, with a job of {jobs.duration_s[at]:g} s that"
            f" is {rounds:,.0f} times, more than {MOST_ROUNDS:,}: check the unit of duration_s, or give another policy"
        )


def _busy_s(jobs: Jobs, site: Site) -> float:
    """From the first submission to the last end, about; jobs whose durations are not known take none."""
    work_s = np.nan_to_num(jobs.duration_s)
    return float(np.ptp(jobs.submit_s) + float((work_s * jobs.gpus).sum()) / site.gpus + float(work_s.max()))


def _end_s(jobs: Jobs, site: Site) -> float:
    """When a run with failures is ended: a job that fails more often than it reaches a checkpoint never is."""
    from windtunnel.studies.fleet.capacity import LONGEST

    return float(jobs.submit_s.min() + LONGEST * max(_busy_s(jobs, site), 86_400.0))


def _losses(clock: Clock, unit: int) -> dict[str, object]:
    """What failures cost, in GPU-hours of GPUs of so many units; capacity from the first submission to the last end.

    Where no job ended: to the end of the run.
    """
    hour = 3600 * NS * unit
    begin_ns = min(job.submit_ns for job in clock.jobs)
    end_ns = max((job.end_ns for job in clock.jobs if job.end_ns is not None), default=clock.now_ns)
    down = clock.down_until(end_ns)
    lost = sum(job.lost_gpu_ns for job in clock.jobs)
    recovery = sum(job.recovery_gpu_ns for job in clock.jobs)
    return {
        "node_losses": clock.node_losses,
        "job_failures": sum(job.failures for job in clock.jobs),
        "failure_lost_gpu_hours": round((lost + recovery) / hour, 6),
        "failure_undone_gpu_hours": round(lost / hour, 6),
        "failure_restart_gpu_hours": round(recovery / hour, 6),
        "restart_gpu_hours": round(sum(job.restart_gpu_ns for job in clock.jobs) / hour, 6),
        "down_gpu_hours": round(down / hour, 6),
        "capacity_gpu_hours": round((clock.whole_gpus * (end_ns - begin_ns) - down) / hour, 6),
    }


def clock_of(jobs: Jobs, site: Site, traits: Traits, options: Options) -> Clock:
    """The clock before anything has happened. Raises UserError for jobs that say too little."""
    work: list[Work]
    if traits.kinds and not learns(jobs, site, traits, options):
        work = list(typed_works(jobs, site, traits, options))
    else:
        work = exact_works(jobs, site, traits, options)
    limits, priorities = jobs.further("limit_s"), np.nan_to_num(jobs.further("priority"))
    queues, owners = jobs.quota_queues, owners_of(jobs)
    parts = [None] * len(jobs) if site.unit == 1 or options.pool else known_parts(jobs, site)
    if not np.isnan(limits).all():
        limits = np.where(np.isnan(limits), math.inf, limits)
    running = [
        Running(
            index,
            round(float(jobs.submit_s[index]) * NS),
            int(jobs.gpus[index]),
            work[index],
            _number(jobs.deadline_s[index]),
            _number(limits[index]),
            float(priorities[index]),
            queues[index],
            owners[index],
            part=parts[index],
        )
        for index in range(len(jobs))
    ]
    nodes = list(site.node_sizes)
    with_quotas = replace(options, quotas=jobs.quotas, cohorts=jobs.cohorts)
    decider = options.decider or (options.make and options.make(site, with_quotas))
    decider = decider or traits.make_policy(site, with_quotas)
    links = None if options.pool else links_of(jobs, site, compatible=options.compatible)
    if options.changes is None:
        return Clock(running, nodes, decider, links=links)
    changes = options.changes.stream(site, float(jobs.submit_s.min()), options.seed)
    return Clock(running, nodes, decider, changes=changes, checkpoint_s=options.changes.checkpoint_s, links=links)


def owners_of(jobs: Jobs) -> list[Owner]:
    """Whose each job is."""
    account, qos = (jobs.columns.get(name, [""] * len(jobs)) for name in ("account", "qos"))
    billing, cpus = jobs.further("billing"), np.clip(np.nan_to_num(jobs.further("cpus")), 0, CPUS_MOST)
    charged = np.where(np.isnan(billing), jobs.gpus, billing)
    asked = (jobs.columns.get(name, [""] * len(jobs)) for name in ("topology", "gpu_type", "flavors"))
    topology, gpu, flavors = asked
    nodes = jobs.further("nodes_asked")
    nodes = np.where(np.isnan(nodes), jobs.further("nodes"), nodes)
    nodes = np.clip(np.nan_to_num(nodes), 0, CPUS_MOST).astype(int)
    pods = np.nan_to_num(jobs.further("pod_gpus")).astype(int)
    checks = [_number(value) for value in jobs.further("checks_s")]
    for at, seconds in enumerate(checks):
        if seconds is not None and not 0.0 <= seconds <= LONGEST_S:
            raise SpecError("checks_s", seconds, "give seconds from 0 on", jobs.where(at))
    columns = (account, qos, jobs.user, topology, gpu, flavors)
    if not (any(map(any, columns)) or nodes.any() or any(seconds is not None for seconds in checks)):
        return [NOBODY] * len(jobs)
    counted = charged.tolist(), cpus.astype(int).tolist(), topology, pods.tolist(), nodes.tolist(), gpu, flavors, checks
    return [Owner(*each) for each in zip(jobs.user, account, qos, *counted, strict=True)]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def outcome_of(jobs: Jobs, policy: str, running: list[Running]) -> Outcome:
    """The table of a run."""
    states = [
        CANCELLED
        if job.cancelled
        else COMPLETED
        if job.end_ns is not None
        else REJECTED
        if job.rejected
        else UNFINISHED
        for job in running
    ]
    return outcome_of_runs(jobs, policy, running, states)


def exact_works(jobs: Jobs, site: Site, traits: Traits, options: Options) -> list[Work]:
    """A model of each job's speed: measured applications, else predicted or rigid."""
    restart_s = options.restart_s
    sized = not traits.divides and not traits.slots
    if sized and options.tables is not None and options.tables.hold_all(jobs.model):
        job_works = works(jobs, site, options.tables, learns=traits.name in ("pollux", "sia"))
        seconds = RESTART_S if restart_s is None else restart_s
        return [Epochs(work, seconds, site.gpu, site.per_node) for work in job_works]
    if traits.sizes:
        if traits.name == "pollux" and options.tables is not None:
            remedy = "pollux needs pollux_*.csv in --tables, with the trace's applications"
            raise UserError(f"{jobs.where(0)}: {remedy}")
        elastic = traits.name != "edf"
        return [scaling_of(jobs, at, site, options, traits.name, elastic=elastic) for at in range(len(jobs))]
    unsaid = np.flatnonzero(np.isnan(jobs.duration_s))
    if len(unsaid):
        raise UserError(
            f"{jobs.where(int(unsaid[0]))}: duration_s is missing: add it, or give --tables that hold {traits.name}'s"
        )
    if traits.divides:
        each = zip(jobs.duration_s.tolist(), jobs.gpus.tolist(), strict=True)
        return [Divisible(duration, gpus, restart_s or 0.0) for duration, gpus in each]
    return [Rigid(float(duration), restart_s or 0.0) for duration in jobs.duration_s]


def alone_s(jobs: Jobs, site: Site, tables: Tables) -> NDArray[np.float64]:
    """Seconds that each job takes on packed nodes with the GPUs that it asks for, from measured steps."""
    result = np.empty(len(jobs))
    for index, work in enumerate(works(jobs, site, tables, learns=False)):
        full, rest = divmod(int(jobs.gpus[index]), site.per_node)
        placement = (site.per_node,) * full + (rest,) * (rest > 0)
        done, total = 0.0, 0.0
        for epoch in range(work.app.epochs):
            end = work.app.epoch_end(epoch)
            total += (end - done) / work.rate(placement, epoch)
            done = end
        result[index] = total
    return result
