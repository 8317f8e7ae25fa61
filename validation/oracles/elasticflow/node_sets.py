"""Where ElasticFlow's simulator puts jobs: sets of nodes, listed by the GPUs that they have free.

Only one thing depends on it: a job that starts on GPUs where a gang of its size has run before pays a smaller overhead.
Sizes are powers of two; a set that is partly free is listed under the largest size that divides what is free.
All jobs are taken off and placed anew at each decision, so where they come to lie follows from their sizes alone.
Source: pkusys/ElasticFlow, ElasticFlow/scheduler/cluster.py (elastic_placement) and log.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter

from oracles.elasticflow.gandiva import SIZES
from windtunnel.errors import UserError

LARGEST_FIRST = tuple(reversed(SIZES))
Gangs = tuple[tuple[int, int], ...]  # (which of the sizes, first GPU)
_used = attrgetter("used")


@dataclass(eq=False)
class _NodeSet:
    """Nodes with jobs on them, by their place in the order."""

    nodes: range
    capacity: int
    jobs: list[int] = field(default_factory=list)
    used: int = 0


@lru_cache(maxsize=4096)
def gangs(sizes: tuple[int, ...], nodes: int, gpus_per_node: int) -> Gangs:
    """First GPUs of jobs of these sizes, in the order in which nodes are read.

    Raises UserError for a size that is no power of two.
    Whole nodes are given first, in the order of `sizes`, then parts, by falling size. AssertionError where a job does
    not fit. Of several jobs on a set of whole nodes only the first is told, as released.
    """
    for size in sizes:
        if size & (size - 1):
            raise UserError(
                f"ElasticFlow's placement knows powers of two, and a job runs on {size} GPUs: leave such rows out of"
                " ef_throughput.csv"
            )
    lists: dict[int, list[_NodeSet]] = {size: [] for size in sorted({*SIZES, *sizes})}
    taken = 0
    whole = [at for at, size in enumerate(sizes) if size >= gpus_per_node]
    parts = sorted((at for at, size in enumerate(sizes) if 0 < size < gpus_per_node), key=lambda at: -sizes[at])
    for at in (*whole, *parts):
        size = sizes[at]
        to = _with_room(lists, size)
        if to is None:
            count = math.ceil(size / gpus_per_node)
            assert taken + count <= nodes, "a gang does not fit, though its GPUs are free"
            to = _NodeSet(range(taken, taken + count), count * gpus_per_node)
            taken += count
        to.used += size
        to.jobs.append(at)
        hole = to.capacity - to.used
        listed = next((each for each in LARGEST_FIRST if each <= hole and hole % each == 0), size) if hole else size
        lists[listed].append(to)
        lists[size].sort(key=_used)
        lists[listed].sort(key=_used)
    return _read(lists, nodes, gpus_per_node, sizes)


def _with_room(lists: dict[int, list[_NodeSet]], size: int) -> _NodeSet | None:
    """A set that a job of this size joins, taken off its list: its own list, then larger holes."""
    for other in (size, *(each for each in LARGEST_FIRST if each > size)):
        if lists[other]:
            first = lists[other].pop(0)
            if first.used + size <= first.capacity:
                return first
            lists[other].append(first)
    return None


def _read(lists: dict[int, list[_NodeSet]], nodes: int, gpus_per_node: int, sizes: tuple[int, ...]) -> Gangs:
    where = {node: (size, each) for size, sets in lists.items() for each in sets for node in each.nodes}
    found: list[tuple[int, int]] = []
    for node in range(nodes):
        if node not in where:
            continue
        size, each = where[node]
        row = node * gpus_per_node
        if size >= gpus_per_node:
            if node == each.nodes.start:
                found.append((each.jobs[0], row))
            continue
        for job in each.jobs:
            found.append((job, row))
            row += sizes[job]
    return tuple(found)
