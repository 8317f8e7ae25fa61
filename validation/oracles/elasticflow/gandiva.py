"""Gandiva as in ElasticFlow's evaluation: sets of nodes per gang size, and time-slices where they are full.

A job joins the least loaded node set of its size where that has room for more, else takes free nodes as a new set, else
shares a set in time-slices (round robin, switched at whole minutes), else waits. Each round first re-divides the nodes:
gang size g should have floor(its share of the demand x GPUs), at most its demand. Jobs run their traced duration; every
round with arrivals ahead charges an overhead to all that run.
Source: pkusys/ElasticFlow, ElasticFlow/scheduler/cluster.py, which follows W. Xiao et al., "Gandiva", OSDI 2018. Kept
as published: a set counts as full one job before it is, and where a re-division makes sets of one node, jobs are not
spread over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from oracles.elasticflow.state import EfJob, Events, overhead_s

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 88, 128, 256)
SLICE_S = 60


@dataclass(eq=False)
class _Set:
    """Nodes that jobs of one gang size share."""

    nodes: int
    capacity: int  # jobs that run at once
    jobs: list[EfJob] = field(default_factory=list)
    load: int = 0  # jobs that joined since the last re-division


@dataclass(eq=False)
class _Cluster:
    gpus_per_node: int
    total_gpus: int
    free_nodes: int
    sets: dict[int, list[_Set]] = field(default_factory=lambda: {size: [] for size in SIZES})

    def nodes_for(self, gpus: int) -> int:
        return math.ceil(gpus / self.gpus_per_node)

    def new_set(self, gpus: int) -> _Set:
        nodes = self.nodes_for(gpus)
        self.free_nodes -= nodes
        return _Set(nodes, int(nodes * self.gpus_per_node / gpus))


def run(jobs: Sequence[EfJob], nodes: int, gpus_per_node: int, slot_s: float) -> None:
    """Run until all jobs are done; each job's fields hold the outcome."""
    cluster = _Cluster(gpus_per_node, nodes * gpus_per_node, nodes)
    for job in jobs:
        cluster.sets.setdefault(job.gpus, [])
    cluster.sets = dict(sorted(cluster.sets.items()))
    arrivals = Events(jobs)
    waiting: list[EfJob] = []
    running: list[EfJob] = []
    once_waited: list[EfJob] = []
    now_s = arrivals.list[0].time_s if arrivals.list else 0
    elapsed_s: float = 0
    rounds = 0
    while arrivals.list or waiting or running:
        _divide(cluster)
        released = _execute(cluster, running, now_s, elapsed_s)
        for job in once_waited:
            job.overhead_s = 0
        event = arrivals.at(now_s)
        if event is not None:
            for job in event.starts:
                if _join(cluster, job):
                    job.start_s, job.state = now_s, "running"
                    running.append(job)
                else:
                    waiting.append(job)
                    once_waited.append(job)
            arrivals.remove(event)
        if released:
            at = 0
            while at < len(waiting):  # the released simulator skips the job behind one that starts
                job = waiting[at]
                if _join(cluster, job):
                    waiting.pop(at)
                    job.start_s, job.state = now_s, "running"
                    running.append(job)
                at += 1
        if not arrivals.list:
            now_s += slot_s
            elapsed_s = slot_s
            continue
        restart = rounds > 0 and rounds % slot_s == 0
        rounds += 1
        for job in running:
            job.overhead_s = overhead_s(job.gpus, cluster.total_gpus, restart=restart)
        next_s = arrivals.merge(now_s, slot_s)
        elapsed_s = int(next_s - now_s)
        now_s = next_s


def _join(cluster: _Cluster, job: EfJob) -> bool:
    sets = cluster.sets[job.gpus]
    if sets:
        sets.append(sets.pop(0))
        if sets[-1].load + 1 < sets[-1].capacity:
            _add(sets, sets[-1], job)
            return True
    if cluster.nodes_for(job.gpus) <= cluster.free_nodes:
        new = cluster.new_set(job.gpus)
        sets.append(new)
        _add(sets, new, job)
        return True
    if sets:
        sets.append(sets.pop(0))
        _add(sets, sets[-1], job)
        return True
    return False


def _add(sets: list[_Set], to: _Set, job: EfJob) -> None:
    to.jobs.append(job)
    to.load += 1
    sets.sort(key=lambda each: each.load)


def _divide(cluster: _Cluster) -> None:
    """Give each gang size its share of the nodes."""
    demand = {size: size * sum(len(each.jobs) for each in sets) for size, sets in cluster.sets.items()}
    total = sum(demand.values())
    if total == 0:
        return
    held = {size: cluster.gpus_per_node * sum(each.nodes for each in sets) for size, sets in cluster.sets.items()}
    for size, sets in cluster.sets.items():
        if demand[size] == 0:
            continue
        plan = math.floor((demand[size] / total) * cluster.total_gpus)
        more = min(plan, demand[size]) - held[size]
        if more > 0:
            _grow(cluster, size, sets, math.ceil(more / size))
        elif more < 0:
            _shrink(cluster, sets, math.ceil(-more / size))


def _grow(cluster: _Cluster, size: int, sets: list[_Set], count: int) -> None:
    nodes = cluster.nodes_for(size)
    spread = 0
    for number in range(1, count + 1):
        spread = number
        if nodes <= cluster.free_nodes:
            sets.append(cluster.new_set(size))
            spread = nodes - 1
    if spread > 0:
        jobs = [job for each in sets for job in each.jobs]
        for each in sets:
            each.jobs, each.load = [], 0
        for job in jobs:
            _add(sets, sets[0], job)


def _shrink(cluster: _Cluster, sets: list[_Set], count: int) -> None:
    if len(sets) <= count:
        count = len(sets) - 1
    jobs: list[EfJob] = []
    for _ in range(count):
        gone = sets.pop(0)
        jobs.extend(gone.jobs)
        cluster.free_nodes += gone.nodes
    for job in jobs:
        _add(sets, sets[0], job)


def _execute(cluster: _Cluster, running: list[EfJob], now_s: float, elapsed_s: float) -> bool:
    """Let the first jobs of each set run since the last round; returns whether nodes became free."""
    released = False
    switch = int(now_s % SLICE_S) == 0
    for sets in cluster.sets.values():
        for each in list(sets):
            at_once = min(each.capacity, len(each.jobs))
            ended = []
            for job in each.jobs[: max(at_once, 1)]:
                job.executed_s += max(elapsed_s - job.overhead_s, 0)
                job.gpu_seconds += job.gpus * elapsed_s
                job.overhead_s = 0
                if job.executed_s >= job.duration_s:
                    job.end_s = now_s - (job.executed_s - job.duration_s)
                    job.state = "completed"
                    ended.append(job)
            if switch and len(each.jobs) > at_once:
                each.jobs = [*each.jobs[at_once:], *each.jobs[:at_once]]
            for job in ended:
                running.remove(job)
                each.jobs.remove(job)
            if not each.jobs:
                cluster.free_nodes += each.nodes
                sets.remove(each)
                released = True
    return released
