"""ElasticFlow: deadlines are promised on admission, and kept with as few GPUs as that takes.

Admission: the newcomer is accepted if all accepted jobs and it can be planned in deadline order (`plan.py`). Spare GPUs
now go, one level at a time, to the job with the best marginal return; jobs that hold none come first. All is planned
anew at arrivals, ends and the next change in any plan; events closer than a slot merge into its end.

Two readings. The paper's: newcomers are judged one by one in order of arrival, and the best return is the largest
reduction of GPU-time per added GPU. The released artifact's: all jobs that arrive in one slot are accepted or rejected
together, and the largest *increase* of GPU-time per added GPU comes first.
Source: D. Gu et al., "ElasticFlow", ASPLOS 2023, section 4; pkusys/ElasticFlow, scheduler.py, as rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from oracles.elasticflow.node_sets import gangs
from oracles.elasticflow.state import EfJob, Event, Events, advance, overhead_s

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs

PER_JOB = 16  # entries of a timeline: two for each plan of a job, which is planned at most once a level


class _Room:
    """Arrays in which plans of up to `jobs` jobs are made."""

    def __init__(self, jobs: int) -> None:
        from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import line, room

        length = PER_JOB * jobs + 64
        self.jobs = jobs
        self.free, self.wide, self.plan = line(length), line(length), room(length)
        self.kept = np.empty((jobs, length)), np.empty((jobs, length), np.int64), np.zeros(jobs, np.int64)
        self.end = np.zeros((jobs, 2))


@dataclass
class _Cluster:
    gpus: int
    slot_s: float
    together: bool  # the artifact's reading
    known: Jobs  # what jobs are, by their number
    row: dict[EfJob, int]
    room: _Room
    runnable: list[EfJob] = field(default_factory=list)
    running: set[EfJob] = field(default_factory=set)


def _known(jobs: Sequence[EfJob]) -> Jobs:
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs

    most = max((len(job.rates) for job in jobs), default=1)
    level, rate = np.zeros((len(jobs), most), np.int64), np.zeros((len(jobs), most))
    for row, job in enumerate(jobs):
        level[row, : len(job.rates)] = list(job.rates)
        rate[row, : len(job.rates)] = list(job.rates.values())
    counts = np.array([len(job.rates) for job in jobs], np.int64)
    largest = np.array([job.largest for job in jobs], np.int64)
    return Jobs(level, rate, counts, largest, np.zeros(len(jobs)), np.array([job.deadline_s for job in jobs], float))


def run(
    jobs: Sequence[EfJob], nodes: int, gpus_per_node: int, slot_s: float, *, together: bool, overheads: bool = True
) -> None:
    """Run until all jobs are done; each job's fields hold the outcome. `together`: the artifact's reading."""
    gpus = nodes * gpus_per_node
    known, row = _known(jobs), {job: at for at, job in enumerate(jobs)}
    cluster = _Cluster(gpus, slot_s, together, known, row, _Room(min(len(jobs), 64)))
    ran: set[tuple[int, int]] = set()  # first GPU and GPUs of gangs that have run
    events = Events(jobs)
    elapsed_s: float = 0
    decisions = 0
    while events.list:
        event = events.list[0]
        now_s = event.time_s
        advance(cluster.runnable, elapsed_s, now_s, events)
        events.remove(event)
        _end(cluster, event)
        ordered = _admit(cluster, event, now_s)
        _settle(cluster)
        _spare(cluster, ordered)
        _start(cluster, now_s)
        change_s = _next_change_s(cluster)
        first_s = min((job.end_s for job in cluster.runnable), default=math.inf)
        first_s = min(first_s, events.next_start_s())
        cluster.runnable.sort(key=lambda job: -job.gpus)
        for job in cluster.runnable:
            job.placed = job.gpus > 0
        if overheads:  # nothing else depends on where a job lies
            _place(cluster.runnable, nodes, gpus_per_node, ran)
        restart = decisions > 0 and decisions % slot_s == 0
        decisions += 1
        if restart:
            ran.clear()
        for job in cluster.runnable:
            job.overhead_s = 0
            if job.gpus > 0 and overheads:
                job.overhead_s = overhead_s(job.gpus, cluster.gpus, restart=restart, cached=job.in_cache)
                job.end_s += job.overhead_s
            events.move_end(job)
        if change_s < first_s:
            events.note(change_s)
        if not events.list:
            return
        elapsed_s = int(events.merge(now_s, slot_s) - now_s)


def _place(jobs: list[EfJob], nodes: int, gpus_per_node: int, ran: set[tuple[int, int]]) -> None:
    """Place those that hold GPUs, and note whether a gang of their size has run on these before."""
    for at, first in gangs(tuple(job.gpus for job in jobs), nodes, gpus_per_node):
        job = jobs[at]
        gang = (first, job.gpus)
        job.in_cache = gang in ran
        ran.add(gang)


def _end(cluster: _Cluster, event: Event) -> None:
    for job in event.ends:
        if not job.placed or job not in cluster.running:
            continue
        job.placed = False
        cluster.running.remove(job)
        cluster.runnable.remove(job)
        job.state = "completed"
        job.scored_late = job.real_end_s is None or job.real_end_s > job.deadline_s


def _plan_all(cluster: _Cluster, jobs: list[EfJob], now_s: float) -> tuple[Jobs, bool]:
    """Sort by deadline and plan in that order; (the jobs in it, whether all are in time). Plans are in `room`."""
    from windtunnel.physics.engine.compiled.fleet.elastic_plan_kernels import Jobs
    from windtunnel.physics.engine.compiled.fleet.elastic_spread_kernels import plan_all

    jobs.sort(key=lambda job: job.deadline_s)
    if len(jobs) > cluster.room.jobs:
        cluster.room = _Room(2 * len(jobs))
    room, known = cluster.room, cluster.known
    rows = np.array([cluster.row[job] for job in jobs], np.int64)
    left = np.array([job.iterations_left for job in jobs], float)
    columns = known.level[rows], known.rate[rows], known.levels[rows], known.largest[rows], left, known.deadline[rows]
    ordered = Jobs(*columns, float(now_s), cluster.gpus, float(cluster.slot_s), cluster.together)
    in_time = plan_all(ordered, room.plan, room.free, room.kept, room.end)
    return ordered, bool(in_time)


def _admit(cluster: _Cluster, event: Event, now_s: float) -> Jobs:
    """Accept or reject those that arrive, and plan all that were accepted; `room` holds the plans."""
    for job in cluster.runnable:
        job.old_end_s = job.end_s
    newcomers = [event.starts] if cluster.together else [[job] for job in event.starts]
    planned: Jobs | None = None
    for group in newcomers:
        if not group:
            continue
        for job in group:
            job.old_end_s = job.end_s
        asked = [*cluster.runnable, *group]
        planned, in_time = _plan_all(cluster, asked, now_s)
        if in_time:
            cluster.runnable = asked
            continue
        planned = None
        for job in group:
            job.state = "rejected"
            job.end_s, job.real_end_s = 0, None
    return _plan_all(cluster, cluster.runnable, now_s)[0] if planned is None else planned


def _settle(cluster: _Cluster) -> None:
    """Those that were accepted hold what the plans give them, and end where the plans have them."""
    ends, gpus = cluster.room.end.tolist(), cluster.room.kept[1][:, 0].tolist()
    for row, job in enumerate(cluster.runnable):
        job.end_s, job.real_end_s = ends[row]
        before = job.gpus
        job.gpus = gpus[row]
        job.restarts += job in cluster.running and job.gpus not in (0, before)


def _start(cluster: _Cluster, now_s: float) -> None:
    for job in cluster.runnable:
        if job.gpus > 0 and job not in cluster.running:
            cluster.running.add(job)
            job.start_s, job.state = now_s, "running"


def _spare(cluster: _Cluster, ordered: Jobs) -> None:
    """Give what is free now to those who gain most."""
    from windtunnel.physics.engine.compiled.fleet.elastic_spread_kernels import spread_gpus

    jobs, room = cluster.runnable, cluster.room
    held = np.array([job.gpus for job in jobs], np.int64)
    spare = cluster.gpus - int(held.sum())
    assert room.free.gpus[0] == spare, "the timeline and the jobs disagree on what is free"
    if spare == 0 or not jobs:
        return
    order, end = np.arange(len(jobs)), room.end[: len(jobs)].copy()
    spread_gpus(ordered, order, held, end, room.free, room.kept, room.wide, room.plan)
    for job, gpus, ends in zip(jobs, held.tolist(), end.tolist(), strict=True):
        job.gpus, (job.end_s, job.real_end_s) = gpus, ends
    cluster.runnable = [jobs[row] for row in order.tolist()]


def _next_change_s(cluster: _Cluster) -> float:
    """When the first plan changes."""
    times, _, counts = cluster.room.kept
    changing = np.flatnonzero(counts[: len(cluster.runnable)] > 1)
    return float(times[changing, 1].min()) if len(changing) else math.inf
