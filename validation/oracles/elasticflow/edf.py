"""EDF as in ElasticFlow's evaluation: each job as wide as it can be, in deadline order; nobody is turned away.

Over a timeline of free GPUs each job, in deadline order (ties: order of arrival), takes at every step its cap (64, its
batch, the last level at which it runs) or else the largest level that is free, until it is done. Ends are rounded up to
seconds, its GPUs return at the end of that slot. Plans are made anew at every event; there is no overhead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from oracles.elasticflow.state import EfJob, Event, Events, advance, aligned

Timeline = dict[float, int]  # GPUs free from each time on, in order of time


def merged(timeline: Timeline) -> Timeline:
    """Without the times at which nothing changes."""
    result: Timeline = {}
    last = -1
    for time_s, free in timeline.items():
        if free != last:
            result[time_s] = last = free
    return result


def plan(job: EfJob, now_s: float, free: Timeline, cluster_gpus: int, slot_s: float) -> tuple[Timeline, Timeline, int]:
    """(allocations, timeline after it, end) of one job."""
    left = job.iterations_left
    cap = min(job.largest, cluster_gpus)
    after = dict(free)
    allocations: Timeline = {now_s: 0}
    time_s, available = now_s, free[now_s]
    times = list(free)
    for later_s in times[1:]:
        count = cap if available >= cap else max((level for level in job.rates if level <= available), default=0)
        allocations[time_s] = count
        if count:
            end_s = math.ceil(time_s + left / job.rate(count))
            if later_s >= end_s:
                before = cluster_gpus
                for each_s in times:
                    if time_s <= each_s < end_s:
                        before = after[each_s]
                        after[each_s] -= count
                if end_s not in free:
                    after[aligned(now_s, end_s, slot_s)] = before
                return merged(allocations), merged(dict(sorted(after.items()))), end_s
            left -= (later_s - time_s) * job.rate(count)
            after[time_s] -= count
        time_s, available = later_s, after[later_s]
    allocations[time_s] = cap
    end_s = math.ceil(time_s + left / job.rate(cap))
    after[time_s] = cluster_gpus - cap
    after[aligned(now_s, end_s, slot_s)] = cluster_gpus
    return merged(allocations), merged(dict(sorted(after.items()))), end_s


def run(jobs: Sequence[EfJob], cluster_gpus: int, slot_s: float) -> None:
    """Run until all jobs are done; each job's fields hold the outcome."""
    events = Events(jobs)
    runnable: list[EfJob] = []
    running: set[EfJob] = set()
    elapsed_s: float = 0
    now_s = events.list[0].time_s if events.list else 0
    while events.list:
        advance(runnable, elapsed_s, now_s, events)
        event: Event = events.list[0]
        now_s = event.time_s
        for job in event.ends:
            if job in running:
                runnable.remove(job)
                running.remove(job)
                job.state = "completed"
        order = [*runnable, *event.starts] if event.starts else runnable
        order.sort(key=lambda job: job.deadline_s)
        free: Timeline = {now_s: cluster_gpus}
        planned: dict[EfJob, tuple[Timeline, float]] = {}
        for job in order:
            allocations, free, end_s = plan(job, now_s, free, cluster_gpus, slot_s)
            planned[job] = allocations, end_s
        runnable.extend(event.starts)
        for job in runnable:
            job.allocations, end_after_s = planned[job]
            before = job.gpus
            job.gpus = job.allocations[now_s]
            job.old_end_s, job.end_s = job.end_s, end_after_s
            if job in running:
                events.move_end(job)
                job.restarts += job.gpus not in (0, before)
            elif job.gpus > 0:
                running.add(job)
                job.start_s, job.state = now_s, "running"
                events.add_end(job)
        events.remove(event)
        if not events.list:
            return
        next_s = events.merge(now_s, slot_s)
        elapsed_s = int(next_s - now_s)
        now_s = next_s
