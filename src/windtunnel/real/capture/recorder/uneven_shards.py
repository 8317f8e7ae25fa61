"""Which groups of a script share parameters unevenly, and from which of their members on parts are shorter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from windtunnel.studies.programs.rank_classes.grid import Members
from windtunnel.studies.programs.rank_classes.uneven_shards import short_from

if TYPE_CHECKING:
    import torch


def tails_of(parameters: Iterable[torch.Tensor]) -> dict[Members, set[int]]:
    """Of the groups that share a parameter (a DTensor): the places in each at which parts become shorter."""
    import torch.distributed as dist

    tails: dict[Members, set[int]] = {}
    for parameter in parameters:
        lengths = [int(length) for length in parameter.shape]
        for dimension, placement in enumerate(getattr(parameter, "placements", ())):
            along = getattr(placement, "dim", None)
            if along is None:  # every rank has it whole, or a part of the sum
                continue
            size = parameter.device_mesh.size(dimension)
            # FSDP2 shards what tensor parallelism has split already, though its dimension of the mesh comes first.
            before = getattr(placement, "split_factor", 1)
            places = short_from(-(-lengths[along] // before), size)
            if before == 1:
                lengths[along] = -(-lengths[along] // size)
            if places:
                members = tuple(dist.get_process_group_ranks(parameter.device_mesh.get_group(dimension)))
                tails.setdefault(members, set()).update(places)
    return tails
