"""SpotServe's decisions when machines come or go: which layout, and when it can serve after a migration.

layout     of those that fit the machines ahead: if any reaches the rate, the one with the least latency; else the
           one with the most throughput
migration  KV cache first, then layers from the front; the first pass runs after the layers, so serving goes on before
           the last one is in
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from windtunnel.studies.serving.spot.mapping import Layout, Migration, Position, missing_layers


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with its batch, and what it does."""

    layout: Layout
    batch: int
    throughput_per_s: float
    latency_s: float

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.layout[1] * self.layout[2]

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.layout[0] * self.replica_gpus


def choose(
    choices: Iterable[Choice], gpus: int, rate_per_s: float, more: Callable[[Choice], bool] = lambda choice: True
) -> Choice | None:
    """The layout for so many GPUs; None where none fits. Of equals the one with fewer GPUs, then the first."""
    fitting = [choice for choice in choices if choice.gpus <= gpus and more(choice)]
    if not fitting:
        return None
    enough = [choice for choice in fitting if choice.throughput_per_s >= rate_per_s]
    if enough:
        return min(enough, key=lambda choice: (choice.latency_s, choice.gpus))
    return min(fitting, key=lambda choice: (-choice.throughput_per_s, choice.gpus))


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one GPU has to receive: bytes of cache, then those of each of its layers, the first of which is `front`."""

    cache_bytes: float
    front: int  # of the whole model, from 0
    layer_bytes: Sequence[float]


def receipts(
    migration: Migration,
    positions: Sequence[Position | None],
    old: Layout,
    new: Layout,
    layers: int,
    weight_bytes: float,
) -> list[Receipt]:
    """What each GPU of a new layout has to receive, of GPUs at `positions` of the old one."""
    return [
        Receipt(cache, *missing_layers(positions[gpu], old, wanted, new, layers, weight_bytes))
        for cache, gpu, wanted in zip(migration.received_cache, migration.gpu_of, migration.positions, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Schedule:
    """When serving goes on, and when the last layer is in: seconds after the stop."""

    serving_s: float
    done_s: float


def migrate(received: Iterable[Receipt], bytes_per_s: float, layer_s: float) -> Schedule:
    """Layer-wise migration, all GPUs at once: cache first, then layers from the front.

    Serving goes on as soon as no layer is late for the first pass, which takes `layer_s` for each.
    """
    serving = done = 0.0
    for receipt in received:
        at = receipt.cache_bytes / bytes_per_s
        for place, size in enumerate(receipt.layer_bytes):
            at += size / bytes_per_s
            serving = max(serving, at - (receipt.front + place) * layer_s)
        done = max(done, at)
    return Schedule(serving, done)
