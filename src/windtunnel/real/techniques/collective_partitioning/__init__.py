"""Centauri-style partitioned collectives: the real ones in `partitioned`, DistributedDataParallel's in `ddp_hook`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.collective_partitioning.ddp_hook import PartitionState, apply, partitioned_hook
    from windtunnel.real.techniques.collective_partitioning.partitioned import (
        all_reduce_by_group,
        gather_then_matmul,
        matmul_then_scatter,
        two_levels,
    )

__all__ = [
    "PartitionState",
    "all_reduce_by_group",
    "apply",
    "gather_then_matmul",
    "matmul_then_scatter",
    "partitioned_hook",
    "two_levels",
]
_OF_HOOK = ("PartitionState", "apply", "partitioned_hook")
__getattr__ = lazily(__name__, {name: "ddp_hook" if name in _OF_HOOK else "partitioned" for name in __all__})
