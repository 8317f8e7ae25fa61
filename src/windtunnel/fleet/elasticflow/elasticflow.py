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

from windtunnel.fleet.elasticflow.edf import Timeline, merged
from windtunnel.fleet.elasticflow.node_sets import NodeSets, place_all
from windtunnel.fleet.elasticflow.plan import Planned, gpu_time, level_up, plan
from windtunnel.fleet.elasticflow.state import EfJob, Event, Events, advance, overhead_s


@dataclass
class _Cluster:
    gpus: int
    slot_s: float
    together: bool  # the artifact's reading
    free: Timeline = field(default_factory=dict)
    runnable: list[EfJob] = field(default_factory=list)
    running: set[EfJob] = field(default_factory=set)
    wider: dict[EfJob, tuple[int, float, Planned | None]] = field(default_factory=dict)  # level, return, plan


def run(
    jobs: Sequence[EfJob], nodes: int, gpus_per_node: int, slot_s: float, *, together: bool, overheads: bool = True
) -> None:
    """Run until all jobs are done; each job's fields hold the outcome. `together`: the artifact's reading."""
    cluster = _Cluster(nodes * gpus_per_node, slot_s, together)
    sets = NodeSets(nodes, gpus_per_node)
    events = Events(jobs)
    elapsed_s: float = 0
    decisions = 0
    while events.list:
        event = events.list[0]
        now_s = event.time_s
        advance(cluster.runnable, elapsed_s, now_s, events)
        events.list.remove(event)
        _end(cluster, sets, event)
        _admit(cluster, sets, event, now_s)
        _settle(cluster, events, now_s)
        _start(cluster, events, now_s)
        _spare(cluster, events, now_s)
        cluster.runnable.sort(key=lambda job: -job.gpus)
        place_all(sets, cluster.runnable)
        sets.note_gangs()
        changes = [
            min((time for time in job.allocations if time > now_s), default=math.inf) for job in cluster.runnable
        ]
        change_s = min(changes, default=math.inf)
        events.sort()
        if math.isfinite(change_s) and (not events.list or change_s < events.list[0].time_s):
            if events.at(change_s) is None:
                events.list.append(Event(change_s))
            events.sort()
        if not events.list:
            return
        restart = decisions > 0 and decisions % slot_s == 0
        decisions += 1
        if restart:
            sets.cache.clear()
        for job in cluster.runnable:
            job.overhead_s = 0
            if job.gpus > 0 and overheads:
                job.overhead_s = overhead_s(job.gpus, cluster.gpus, restart=restart, cached=job.in_cache)
                job.old_end_s = job.end_s
                job.end_s += job.overhead_s
                events.move_end(job)
        events.sort()
        elapsed_s = int(events.merge(now_s, slot_s) - now_s)


def _end(cluster: _Cluster, sets: NodeSets, event: Event) -> None:
    for job in event.ends:
        if job.node_set is None or job not in cluster.running:
            continue
        cluster.running.remove(job)
        cluster.runnable.remove(job)
        sets.release(job)
        job.state = "completed"
        job.scored_late = job.real_end_s is None or job.real_end_s > job.deadline_s


def _plan_all(cluster: _Cluster, jobs: list[EfJob], now_s: float) -> dict[EfJob, Planned] | None:
    """Plans in deadline order, and None where one is late; leaves the timeline after them all."""
    cluster.free = {now_s: cluster.gpus}
    plans = {}
    jobs.sort(key=lambda job: job.deadline_s)
    late = False
    for job in jobs:
        made = plan(job, now_s, cluster.free, cluster.gpus, cluster.slot_s, as_released=cluster.together)
        plans[job] = made
        cluster.free = made.free
        late |= not made.in_time
    for job, made in plans.items():
        job.allocations, job.end_s, job.real_end_s = made.allocations, made.end_s, made.real_end_s
    return None if late else plans


def _admit(cluster: _Cluster, sets: NodeSets, event: Event, now_s: float) -> None:
    for job in cluster.runnable:
        job.old_end_s = job.end_s
        if job.node_set is not None:
            sets.release(job)
    newcomers = [event.starts] if cluster.together else [[job] for job in event.starts]
    for group in newcomers:
        if not group:
            continue
        for job in group:
            job.old_end_s = job.end_s
        if _plan_all(cluster, [*cluster.runnable, *group], now_s) is None:
            for job in group:
                job.state = "rejected"
                job.end_s, job.real_end_s = 0, None
        else:
            cluster.runnable.extend(group)


def _settle(cluster: _Cluster, events: Events, now_s: float) -> None:
    """Plan those that were accepted, and move their ends."""
    _plan_all(cluster, cluster.runnable, now_s)
    for job in cluster.runnable:
        before = job.gpus
        job.gpus = job.allocations[now_s]
        job.restarts += job in cluster.running and job.gpus not in (0, before)
        events.move_end(job)
        job.old_end_s = job.end_s


def _start(cluster: _Cluster, events: Events, now_s: float) -> None:
    for job in cluster.runnable:
        if job not in cluster.running and job.gpus > 0:
            _run(cluster, job, now_s)
            events.add_end(job)


def _run(cluster: _Cluster, job: EfJob, now_s: float) -> None:
    cluster.running.add(job)
    job.start_s, job.state = now_s, "running"


def _consider(cluster: _Cluster, job: EfJob, spare: int, now_s: float) -> None:
    """What one level more would be worth to a job."""
    level = level_up(job, job.gpus)
    if level - job.gpus > spare or level == job.gpus:
        cluster.wider[job] = (level, -math.inf, None)
        return
    free = dict(cluster.free)
    for time in (job.end_s, *job.allocations):
        if time not in free:
            earlier = [gpus for at, gpus in free.items() if at < time]
            free[time] = earlier[-1] if earlier else cluster.gpus
            free = dict(sorted(free.items()))
    held = 0
    marks = list(job.allocations.items())
    for at, (time, gpus) in enumerate(marks):
        del at
        for each in free:
            if time <= each < job.end_s:
                free[each] += gpus - held
        held = gpus
    wide = plan(job, now_s, merged(free), cluster.gpus, cluster.slot_s, level, as_released=cluster.together)
    added = gpu_time(wide.allocations, wide.end_s) - gpu_time(job.allocations, job.end_s)
    worth = added / (level - job.gpus)
    if job.gpus == 0:
        worth = math.inf
    elif not cluster.together:
        worth = -worth
    cluster.wider[job] = (level, worth, wide)


def _spare(cluster: _Cluster, events: Events, now_s: float) -> None:
    """Give what is free now to those who gain most."""
    spare = cluster.gpus - sum(job.gpus for job in cluster.runnable)
    assert cluster.free[now_s] == spare, "the timeline and the jobs disagree on what is free"
    if spare == 0:
        return
    cluster.wider = {}
    for job in cluster.runnable:
        _consider(cluster, job, spare, now_s)
    cluster.runnable.sort(key=lambda job: -cluster.wider[job][1])
    while spare > 0:
        for job in cluster.runnable:
            level, _, wide = cluster.wider[job]
            if wide is not None and 0 < level - job.gpus <= spare:
                break
        else:
            return
        cluster.free = wide.free
        job.allocations = wide.allocations
        spare -= level - job.gpus
        job.gpus = level
        job.old_end_s, job.end_s = job.end_s, wide.end_s
        if job not in cluster.running:
            _run(cluster, job, now_s)
        events.move_end(job)
        cluster.wider[job] = (level_up(job, level), cluster.wider[job][1], None)
        for other in cluster.runnable:
            if level_up(other, other.gpus) > other.gpus:
                _consider(cluster, other, spare, now_s)
        cluster.runnable.sort(key=lambda other: -cluster.wider[other][1])
