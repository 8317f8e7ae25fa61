"""Where ElasticFlow's simulator puts jobs: sets of nodes, listed by the GPUs that they have free.

Only one thing depends on it: a job that starts on GPUs where a gang of its size has run before pays a smaller overhead.
Sizes are powers of two; a set that is partly free is listed under the largest size that divides what is free.
Source: pkusys/ElasticFlow, ElasticFlow/scheduler/cluster.py (elastic_placement, release_job_res) and log.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from windtunnel.fleet.elasticflow.gandiva import SIZES
from windtunnel.fleet.elasticflow.state import EfJob

LARGEST_FIRST = tuple(reversed(SIZES))


@dataclass(eq=False)
class NodeSet:
    """Nodes with jobs on them."""

    nodes: list[int]
    capacity: int
    listed: int  # the size under which it was last listed
    jobs: list[EfJob] = field(default_factory=list)
    used: int = 0


class NodeSets:
    """The nodes of a cluster; `cache` holds the (first GPU, GPUs) of gangs that have run."""

    def __init__(self, nodes: int, gpus_per_node: int) -> None:
        self.gpus_per_node = gpus_per_node
        self.count = nodes
        self.free = list(range(nodes))
        self.lists: dict[int, list[NodeSet]] = {size: [] for size in SIZES}
        self.cache: set[tuple[int, int]] = set()

    def place(self, job: EfJob) -> bool:
        """Find room for a job: its own list, then larger holes, then free nodes. False where there is none."""
        size = job.gpus
        for other in (size, *(each for each in LARGEST_FIRST if each > size)):
            sets = self.lists[other]
            if not sets:
                continue
            first = sets.pop(0)
            if first.used + size <= first.capacity:
                self._into(first, job, size)
                return True
            sets.append(first)
        nodes = math.ceil(size / self.gpus_per_node)
        if nodes > len(self.free):
            return False
        new = NodeSet([self.free.pop(0) for _ in range(nodes)], nodes * self.gpus_per_node, size)
        self._into(new, job, size, keep_listed=True)
        return True

    def _into(self, to: NodeSet, job: EfJob, size: int, *, keep_listed: bool = False) -> None:
        to.used += size
        to.jobs.append(job)
        job.node_set = to
        hole = to.capacity - to.used
        for each in LARGEST_FIRST:
            if hole > 0 and each <= hole and hole % each == 0:
                if not keep_listed:
                    to.listed = each
                self.lists[each].append(to)
                self._sort(size)
                self._sort(each)
                return
        self.lists[size].append(to)
        self._sort(size)

    def release(self, job: EfJob) -> None:
        """Take a job off its nodes."""
        of: NodeSet = job.node_set
        job.node_set = None
        of.used -= job.gpus
        of.jobs.remove(job)
        hole = of.capacity - of.used
        if of.used == 0:
            self.free = sorted([*self.free, *of.nodes])
            for sets in self.lists.values():
                if of in sets:
                    sets.remove(of)
            return
        for each in LARGEST_FIRST:
            if each <= hole and hole % each == 0:
                if hole == of.listed:
                    return
                if of in self.lists[of.listed]:
                    self.lists[of.listed].remove(of)
                else:  # listed elsewhere since it was new
                    next(sets for sets in self.lists.values() if of in sets).remove(of)
                of.listed = each
                self.lists[each].append(of)
                self._sort(each)
                return

    def _sort(self, size: int) -> None:
        self.lists[size].sort(key=lambda each: each.used)

    def note_gangs(self) -> None:
        """Say of each placed job whether a gang of its size has run on its GPUs before, and remember that it has."""
        where = {node: (size, each) for size, sets in self.lists.items() for each in sets for node in each.nodes}
        row = 0
        noted: set[EfJob] = set()
        for node in range(self.count):
            if node not in where:
                row += self.gpus_per_node
                continue
            size, each = where[node]
            if size >= self.gpus_per_node:
                if each.jobs[0] not in noted:
                    self._note(each.jobs[0], row)
                    noted.add(each.jobs[0])
                row += self.gpus_per_node
                continue
            start = row
            for job in each.jobs:
                self._note(job, row)
                row += job.gpus
            row = start + self.gpus_per_node

    def _note(self, job: EfJob, first_gpu: int) -> None:
        gang = (first_gpu, job.gpus)
        job.in_cache = gang in self.cache
        self.cache.add(gang)


def place_all(sets: NodeSets, jobs: Sequence[EfJob]) -> None:
    """Place jobs with GPUs: whole nodes first, in the order given, then smaller ones by falling size."""
    for job in jobs:
        if job.gpus >= sets.gpus_per_node:
            assert sets.place(job), "a gang of whole nodes does not fit, though its GPUs are free"
    for size in reversed(SIZES):
        if size >= sets.gpus_per_node:
            continue
        for job in jobs:
            if job.gpus == size:
                assert sets.place(job), "a gang inside a node does not fit, though its GPUs are free"
