"""Communicators made in one global order, each by its members alone (MegaScale, NSDI 2024, section 3.5).

`torch.distributed.new_group` is a collective of *all* ranks, and each ends with a barrier of all: a job of n ranks with
O(n) groups makes O(n) barriers of n ranks, O(n^2) messages. If every rank makes the groups that it is in, in the same
global order, a barrier of the members is enough: every rank waits O(groups it is in) times, and all messages together
are the sum of the groups' sizes, O(n) for the parallel groups of a layout. The order matters: two ranks that make two
common groups in different orders wait for each other for ever.

    messages(all)     = groups x n          messages(ordered) = sum of the groups' sizes
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from windtunnel.errors import SpecError


def ordered(groups: Sequence[Sequence[int]], world: int) -> list[tuple[int, ...]]:
    """The groups in the global order: by size, then by members. Raises SpecError on one that cannot be."""
    found = []
    for ranks in groups:
        members = tuple(sorted(ranks))
        if not members or len(set(members)) != len(members) or members[0] < 0 or members[-1] >= world:
            raise SpecError("group", list(ranks), f"give different ranks from 0 to {world - 1}")
        found.append(members)
    if len(set(found)) != len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise SpecError("group", list(twice), "is given twice: give each group once")
    return sorted(found, key=lambda members: (len(members), members))


def messages(groups: Sequence[Sequence[int]], world: int, *, by_members: bool) -> int:
    """Arrivals at barriers over all ranks."""
    return sum(len(ranks) for ranks in groups) if by_members else len(groups) * world


def make_groups(
    groups: Sequence[Sequence[int]], *, backend: str | None = None, timeout_s: float | None = None
) -> dict[tuple[int, ...], Any]:
    """The process groups that this rank is in, by their members; every rank gives the same list, in any order."""
    rank, made = dist.get_rank(), {}
    limit = None if timeout_s is None else timedelta(seconds=timeout_s)
    for members in ordered(groups, dist.get_world_size()):
        if rank in members:
            made[members] = dist.new_group(
                list(members), timeout=limit, backend=backend, use_local_synchronization=True
            )
    return made
