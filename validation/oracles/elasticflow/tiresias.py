"""Tiresias in ElasticFlow's clock: two thresholds, 3,250 and 7,200 GPU-s, jobs that run their traced duration.

The same order as `policies/tiresias.py`; what differs is the clock: decisions at least a slot apart, a start costs an
overhead, service in whole seconds, jobs that wait move behind those that run in their queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oracles.elasticflow.state import EfJob, Events, overhead_s

THRESHOLDS_GPU_S = (3250, 7200)


@dataclass(eq=False)
class _Served:
    job: EfJob
    checked_s: float
    queue: int = 0
    executed_s: int = 0
    runs: bool = False


def run(jobs: Sequence[EfJob], cluster_gpus: int, slot_s: float) -> None:
    """Run until all jobs are done; each job's fields hold the outcome."""
    arrivals = Events(jobs)
    served: list[_Served] = []
    queues: list[list[_Served]] = [[] for _ in range(len(THRESHOLDS_GPU_S) + 1)]
    end_s = jump_s = math.inf
    ending: list[_Served] = []
    decisions = 0
    while arrivals.list or served:
        start_s = arrivals.next_start_s()
        now_s = min(start_s, end_s)
        starts: list[EfJob] = []
        ends: list[_Served] = []
        if jump_s < now_s:
            now_s = jump_s
        else:
            if end_s == now_s:
                ends = ending
            if start_s == now_s:
                starts = arrivals.list[0].starts
                arrivals.remove(arrivals.list[0])
        assert math.isfinite(now_s), "jobs wait, and nothing will happen"
        for done in ends:
            served.remove(done)
            queues[done.queue].remove(done)
            done.job.state = "completed"
            done.job.gpu_seconds += done.job.gpus * max(done.job.end_s - done.checked_s, 0)
        for job in starts:
            new = _Served(job, job.submit_s)
            served.append(new)
            queues[0].append(new)
        for item in served:
            _serve(item, now_s, queues)
        restart = decisions > 0 and decisions % slot_s == 0
        decisions += 1
        _choose(queues, cluster_gpus, now_s, restart)
        end_s, ending = _next_end(served, now_s, slot_s, cluster_gpus, restart)
        jump_s = min((_jump_s(item, now_s) for item in served if item.runs), default=math.inf)
        jump_s = max(jump_s, now_s + slot_s)
        if arrivals.list:
            arrivals.merge(now_s, slot_s)


def _serve(item: _Served, now_s: float, queues: list[list[_Served]]) -> None:
    """Book the time since the last decision, and move the job down where its service says so."""
    job = item.job
    if item.runs:
        job.gpu_seconds += job.gpus * int(now_s - item.checked_s)
        item.executed_s = int(item.executed_s + max(int(now_s - item.checked_s) - job.overhead_s, 0))
        job.overhead_s = 0
        if item.queue < len(THRESHOLDS_GPU_S) and item.executed_s * job.gpus >= THRESHOLDS_GPU_S[item.queue]:
            queues[item.queue + 1].append(item)
            queues[item.queue].remove(item)
            item.queue += 1
    item.checked_s = now_s


def _choose(queues: list[list[_Served]], cluster_gpus: int, now_s: float, restart: bool) -> None:
    """Walk the queues: whatever fits runs, what no longer fits stops."""
    free = cluster_gpus
    begin: list[_Served] = []
    stop: list[_Served] = []
    for queue in queues:
        for item in queue:
            if item.job.gpus <= free:
                free -= item.job.gpus
                if not item.runs:
                    begin.append(item)
                    item.job.overhead_s = overhead_s(item.job.gpus, cluster_gpus, restart=restart)
            elif item.runs:
                stop.append(item)
    for item in stop:
        item.runs = False
    for item in begin:
        item.runs = True
        job = item.job
        job.restarts += math.isfinite(job.start_s)
        job.start_s = min(job.start_s, now_s)
    for queue in queues:
        queue.sort(key=lambda item: not item.runs)


def _next_end(
    served: list[_Served], now_s: float, slot_s: float, cluster_gpus: int, restart: bool
) -> tuple[float, list[_Served]]:
    first_s = math.inf
    ending: list[_Served] = []
    for item in _by_size(served):
        if not item.runs:
            continue
        job = item.job
        left_s = job.duration_s - item.executed_s
        if restart:
            job.overhead_s = overhead_s(job.gpus, cluster_gpus, restart=True)
            left_s += job.overhead_s
        end_s = int(now_s + left_s)
        event_s = max(now_s + slot_s, end_s)
        if event_s < first_s:
            first_s, ending = event_s, [item]
            job.end_s = end_s
        elif event_s == first_s:
            ending.append(item)
            job.end_s = end_s
    return first_s, ending


def _by_size(served: list[_Served]) -> list[_Served]:
    served.sort(key=lambda item: -item.job.gpus)
    return served


def _jump_s(item: _Served, now_s: float) -> float:
    if item.queue >= len(THRESHOLDS_GPU_S):
        return math.inf
    return int(math.ceil((THRESHOLDS_GPU_S[item.queue] - item.executed_s) / item.job.gpus) + now_s)
