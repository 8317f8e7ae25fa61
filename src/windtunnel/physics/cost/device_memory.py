"""Memory of a device outside of tensors: the constants of `calibration/memory.yaml`, the context, NCCL's buffers."""

from __future__ import annotations

from typing import Any

from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.physics.hardware.cluster import Cluster

MIB = 1 << 20


def memory_document() -> dict[str, Any]:
    """Constants of memory, as in the calibration file."""
    return read_calibration("memory.yaml")


def outside_of_allocator(cluster: Cluster, communicators: int) -> int:
    """Bytes on a device that its allocator does not know of: the context, as measured if it was, and NCCL's buffers."""
    if cluster.gpu.generation == "cpu":
        return 0
    document = memory_document()
    measured = cluster.calibration.memory.get("context_bytes") if cluster.calibration is not None else None
    context = document["context_mib"] * MIB if measured is None else measured
    return int(context + document["communicator_mib"] * communicators * MIB)
