"""Gandiva as in ElasticFlow's evaluation: sets of nodes per gang size, and time-slices where they are full.

A job joins the least loaded node set of its size where that has room for more, else takes free nodes as a new set, else
shares a set in time-slices (round robin, a minute each), else waits. Each decision first re-divides the nodes: gang
size g should have floor(its share of the demand x GPUs), at most its demand. Decisions are at least a slot apart.
Source: pkusys/ElasticFlow, ElasticFlow/scheduler/cluster.py, which follows W. Xiao et al., "Gandiva", OSDI 2018. Kept
as published: a set counts as full one job before it is, and where a re-division makes sets of one node, jobs are not
spread over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel.studies.fleet.clock.decision import Decision, Snapshot
from windtunnel.studies.fleet.speeds.scaling import slot_of
from windtunnel.studies.fleet.traits import Traits

SLICE_S = 60.0
SOON_S = 1e-6  # a time-slice that ends within this has ended: clocks round to nanoseconds


@dataclass(slots=True)
class NodeSet:
    """Nodes that jobs of one gang size share."""

    nodes: int
    capacity: int  # jobs that run at once
    jobs: list[int] = field(default_factory=list)
    load: int = 0  # jobs that joined since the last re-division

    @property
    def is_shared(self) -> bool:
        """Whether some of its jobs wait for their time-slice."""
        return len(self.jobs) > self.at_once

    @property
    def at_once(self) -> int:
        """Jobs of it that run."""
        return max(min(self.capacity, len(self.jobs)), 1)


Sets = dict[int, list[NodeSet]]  # by gang size, rising


@dataclass(frozen=True)
class Gandiva:
    """`slot_s`: least time between decisions. `nodes` of `per_node` GPUs."""

    nodes: int
    per_node: int
    slot_s: float = 60.0

    def decide(self, snapshot: Snapshot) -> Decision:
        """Memory: the sets, and when time-slices changed last."""
        old_sets, switched_s = snapshot.memory or ({}, snapshot.now_s)
        there = {job.index: job for job in snapshot.jobs}
        sets = _without_gone(old_sets, there)
        for size in sorted({job.gpus for job in snapshot.jobs} - sets.keys()):
            sets[size] = []
        sets = dict(sorted(sets.items()))
        self._divide(sets)
        placed = {index for each in sets.values() for node_set in each for index in node_set.jobs}
        for job in sorted(snapshot.jobs, key=lambda job: (job.submit_s, job.index)):
            if job.index not in placed:
                self._join(sets, job.gpus, job.index)
        every = [node_set for each in sets.values() for node_set in each]
        if snapshot.now_s + SOON_S >= switched_s + SLICE_S:
            switched_s = snapshot.now_s
            for node_set in every:
                if node_set.is_shared:
                    node_set.jobs = [*node_set.jobs[node_set.at_once :], *node_set.jobs[: node_set.at_once]]
        gpus = {index: there[index].gpus for node_set in every for index in node_set.jobs[: node_set.at_once]}
        wake_s = switched_s + SLICE_S if any(node_set.is_shared for node_set in every) else None
        return Decision(gpus, wake_s=wake_s, memory=(sets, switched_s))

    def _new_set(self, sets: Sets, gpus: int) -> bool:
        """Take free nodes for a gang, if there are enough."""
        nodes = math.ceil(gpus / self.per_node)
        if nodes > self.nodes - sum(node_set.nodes for each in sets.values() for node_set in each):
            return False
        sets[gpus].append(NodeSet(nodes, nodes * self.per_node // gpus))
        return True

    def _join(self, sets: Sets, gpus: int, job: int) -> None:
        """Put a job into a set, if there is one or can be."""
        mine = sets[gpus]
        if mine:
            mine.append(mine.pop(0))
            if mine[-1].load + 1 < mine[-1].capacity:
                _add(mine, mine[-1], job)
                return
        if self._new_set(sets, gpus):
            _add(mine, mine[-1], job)
        elif mine:
            mine.append(mine.pop(0))
            _add(mine, mine[-1], job)

    def _divide(self, sets: Sets) -> None:
        """Give each gang size its share of the nodes."""
        demand = {size: size * sum(len(node_set.jobs) for node_set in each) for size, each in sets.items()}
        total = sum(demand.values())
        if total == 0:
            return
        gpus_by_size = {size: self.per_node * sum(node_set.nodes for node_set in each) for size, each in sets.items()}
        for size, mine in sets.items():
            if demand[size] == 0:
                continue
            plan = math.floor((demand[size] / total) * self.nodes * self.per_node)
            more = min(plan, demand[size]) - gpus_by_size[size]
            if more > 0:
                self._grow(sets, size, math.ceil(more / size))
            elif more < 0:
                _shrink(mine, math.ceil(-more / size))

    def _grow(self, sets: Sets, size: int, count: int) -> None:
        spread = 0
        for number in range(1, count + 1):
            spread = number
            if self._new_set(sets, size):
                spread = math.ceil(size / self.per_node) - 1
        if spread > 0:
            mine = sets[size]
            jobs = [job for node_set in mine for job in node_set.jobs]
            for node_set in mine:
                node_set.jobs, node_set.load = [], 0
            for job in jobs:
                _add(mine, mine[0], job)


def _without_gone(entry: Mapping[int, list[NodeSet]], there: Mapping[int, object]) -> Sets:
    """Copies of the sets with the jobs that are still there; sets without a job are free nodes."""
    sets: Sets = {}
    for size, node_sets in entry.items():
        copies = [
            NodeSet(node_set.nodes, node_set.capacity, [job for job in node_set.jobs if job in there], node_set.load)
            for node_set in node_sets
        ]
        sets[size] = [node_set for node_set in copies if node_set.jobs]
    return sets


def _add(sets: list[NodeSet], to: NodeSet, job: int) -> None:
    to.jobs.append(job)
    to.load += 1
    sets.sort(key=lambda node_set: node_set.load)


def _shrink(sets: list[NodeSet], count: int) -> None:
    if len(sets) <= count:
        count = len(sets) - 1
    jobs: list[int] = []
    for _ in range(count):
        jobs.extend(sets.pop(0).jobs)
    for job in jobs:
        _add(sets, sets[0], job)


POLICY = Traits(
    name="gandiva",
    asks="all",
    make=lambda site, options: Gandiva(site.nodes, site.per_node, slot_of(site.gpu)),
    slots=True,
    restarts=False,
)
