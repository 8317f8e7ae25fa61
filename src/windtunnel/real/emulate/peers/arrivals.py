"""Who meets whom in a communication, and when it is done: from the arrivals of its members.

A rank tells its own groups only. Ranks of its class call their own groups at the same places of the same program:
group i of rank r is a box of the rank numbers, origin + a1 s1 + a2 s2 ..., 0 <= ai < ni, and rank p's group is the box
of the same sides that holds p:

    origin(p) = p - sum of ((p // si) mod ni) si

which is what a mesh of ranks in row-major order gives. Members that are no box, or a box that the rank numbers are not
tiled by, are a group for those very ranks; every other rank is then taken to meet nobody slower than itself.

A communication starts when its last member arrives and the communication before it on the same group is done. Some of
the seconds that it takes are for threads to wake up (gloo's, on a CPU), which those in a queue are spared:

    finish = max(last arrival + seconds, finish of the one before + seconds in a queue)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]
Times = NDArray[np.float64]
Box = tuple[tuple[int, int], ...]  # (stride, count), smallest stride first


@lru_cache(maxsize=4096)
def box_of(members: tuple[int, ...]) -> Box | None:
    """Sides of the box that the members are, None where they are none or the rank numbers are not tiled by it."""
    ranks = sorted(members)
    if len(set(ranks)) != len(ranks):
        return None
    offsets = [rank - ranks[0] for rank in ranks]
    box: list[tuple[int, int]] = []
    done = 1
    while done < len(offsets):
        stride, block = offsets[done], offsets[:done]
        count = 1
        while offsets[count * done : (count + 1) * done] == [count * stride + offset for offset in block]:
            count += 1
        if count == 1:
            return None
        box.append((stride, count))
        done *= count
    if any(above[0] % (below[0] * below[1]) for below, above in pairwise(box)):
        return None
    return tuple(box) if origin_of(ranks[0], tuple(box)) == ranks[0] else None


def origin_of(rank: int, box: Box) -> int:
    """The first member of the box that holds `rank`."""
    return rank - sum(rank // stride % count * stride for stride, count in box)


@dataclass(frozen=True, eq=False)
class Roster:
    """All groups like one: which of them each rank is in, and how many members it has."""

    group_of: Ranks  # rank -> number of its group
    expected: Ranks  # members of each group

    def neighbour(self, ranks: Ranks, ahead: int) -> Ranks:
        """For each rank the member of its group that is `ahead` places after it, the last before the first."""
        order, place, first = places(self)
        groups = self.group_of[ranks]
        return order[first[groups] + (place[ranks] + ahead) % self.expected[groups]]


@lru_cache(maxsize=1024)
def roster(members: tuple[int, ...], world_size: int) -> Roster:
    """The groups of all ranks that are like this one."""
    box = box_of(members)
    origin = np.arange(world_size, dtype=np.int64)
    if box is not None:
        ranks = origin.copy()
        for stride, count in box:
            origin -= ranks // stride % count * stride
    else:
        origin[list(members)] = min(members)
    group_of = np.unique(origin, return_inverse=True)[1].astype(np.int64).reshape(-1)
    return Roster(group_of, np.bincount(group_of).astype(np.int64))


@lru_cache(maxsize=64)
def pairs(world_size: int) -> Roster:
    """Messages, each known by the rank that sends it: complete with two."""
    ranks = np.arange(world_size, dtype=np.int64)
    return Roster(ranks, np.full(world_size, 2, dtype=np.int64))


@lru_cache(maxsize=1024)
def places(of: Roster) -> tuple[Ranks, Ranks, Ranks]:
    """Ranks in order of their groups, each rank's place within its group, and where each group begins."""
    order = np.argsort(of.group_of, kind="stable").astype(np.int64)
    first = np.concatenate(([0], np.cumsum(of.expected)[:-1])).astype(np.int64)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - first[of.group_of[order]]
    return order, place, first


def idle(of: Roster) -> Times:
    """Per group, when its stream is free again: nothing was done yet."""
    return np.full(len(of.expected), -np.inf)


class Span(NamedTuple):
    """When a communication starts, its last member there and its stream free, and when it is done."""

    start: float
    finish: float


class Meeting:
    """One communication of every group of a roster: who came, and when it is done. `finish` is NaN until all came."""

    __slots__ = ("came", "finish", "last_arrival", "roster", "start")

    def __init__(self, of: Roster) -> None:
        groups = len(of.expected)
        self.roster = of
        self.last_arrival = np.full(groups, -np.inf)
        self.came = np.zeros(groups, dtype=np.int64)
        self.start = np.full(groups, np.nan)
        self.finish = np.full(groups, np.nan)

    def arrive(
        self, groups: Ranks, times: Times, seconds: float, free_at: Times, queued_s: float | None = None
    ) -> None:
        """A member of each of these groups is there, groups repeated by members.

        Groups that are now complete start when their stream is free, and take `seconds`, or `queued_s` from then on
        where they had to wait for that; `free_at` is set anew.
        """
        np.maximum.at(self.last_arrival, groups, times)
        np.add.at(self.came, groups, 1)
        ready = np.unique(groups)
        ready = ready[self.came[ready] == self.roster.expected[ready]]
        self.start[ready] = np.maximum(self.last_arrival[ready], free_at[ready])
        queued = free_at[ready] + (seconds if queued_s is None else min(seconds, queued_s))
        self.finish[ready] = free_at[ready] = np.maximum(self.last_arrival[ready] + seconds, queued)
