"""Communicators made family by family, each by its members alone (MegaScale, NSDI 2024, section 3.5).

`torch.distributed.new_group` ends with a barrier of *all* ranks, so n ranks with O(n) groups make O(n^2) arrivals.
The groups of a layout come in families (tensor, pipeline, data parallel ...) that each hold every rank once: a
barrier of a group's members is enough, O(n) in all, if all ranks go through the families in one order. It has to be
families: PyTorch (2.13, `_hash_ranks_to_str`) names a group that its members make alone by its ranks *and by how many
groups the rank has made so far*, so members that have made different numbers never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from windtunnel.errors import SpecError

Family = Sequence[Sequence[int]]


def checked(families: Sequence[Family], world: int) -> list[list[tuple[int, ...]]]:
    """Families with sorted groups. Raises SpecError for one that does not hold each rank exactly once."""
    sorted_families = []
    for family in families:
        groups = sorted(tuple(sorted(ranks)) for ranks in family)
        if sorted(rank for ranks in groups for rank in ranks) != list(range(world)):
            raise SpecError("family", [list(ranks) for ranks in family], f"hold each rank of 0 to {world - 1} once")
        sorted_families.append(groups)
    return sorted_families


def make_groups(
    families: Sequence[Family], *, backend: str | None = None, timeout_s: float | None = None
) -> list[object]:  # fmt: skip
    """The process group that this rank is in, of each family. Every rank gives the same families in the same order."""
    rank, groups = dist.get_rank(), []
    limit = None if timeout_s is None else timedelta(seconds=timeout_s)
    for family in checked(families, dist.get_world_size()):
        members = next(ranks for ranks in family if rank in ranks)
        groups.append(
            dist.new_group(list(members), timeout=limit, backend=backend, use_local_synchronization=True)
        )  # fmt: skip
    return groups
