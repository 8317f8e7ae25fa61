"""Seconds to build the communication groups of a job.

    every group, global barrier     (groups + barrier) x ranks operations on one store, so  c n^2
    ordered groups                  a constant number of operations a rank, so              c n

MegaScale (NSDI 2024) at 2,048 GPUs: 1,047 s on TCPStore, 361 s on Redis with non-blocking operations, both with a
global barrier after each group; under 5 s once groups are ordered so that barriers are not needed; under 30 s beyond
10,000. With 1,047 = c n^2, c is 250 us an operation of TCPStore; 361 gives 86 us of Redis. Ordered groups then cost
operations of 86 us, `ORDERED_OPERATIONS` of them a rank, the most that keeps both published bounds.
"""

from __future__ import annotations

from typing import Literal

Initialisation = Literal["tcp-store", "redis", "ordered"]
MEASURED_AT = 2048
OPERATION_S = {"tcp-store": 1047.0 / MEASURED_AT**2, "redis": 361.0 / MEASURED_AT**2, "ordered": 361.0 / MEASURED_AT**2}
ORDERED_OPERATIONS = 25


def initialisation_s(gpus: int, kind: Initialisation = "ordered") -> float:
    """Seconds until all groups of a job of that size are built."""
    operations = ORDERED_OPERATIONS * gpus if kind == "ordered" else gpus * gpus
    return OPERATION_S[kind] * operations
