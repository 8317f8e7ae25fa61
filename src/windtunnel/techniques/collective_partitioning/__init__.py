"""Centauri-style partitioned collectives: pricing in `price`, the real ones in `partitioned`.

from windtunnel.techniques import collective_partitioning as partitioning

summed = partitioning.all_reduce_by_group(gradient, inside, across)
y = partitioning.gather_then_matmul(shard, weight, group, pieces=4)
z = partitioning.matmul_then_scatter(x, weight, group, pieces=4)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.techniques.collective_partitioning.partitioned import (
        all_reduce_by_group,
        all_reduce_by_primitive,
        gather_then_matmul,
        matmul_then_scatter,
        two_levels,
    )

__all__ = ["all_reduce_by_group", "all_reduce_by_primitive", "gather_then_matmul", "matmul_then_scatter", "two_levels"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.partitioned"), name)
