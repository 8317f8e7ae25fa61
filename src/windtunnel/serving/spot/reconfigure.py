"""SpotServe's decisions when machines come or go: which layout, when to stop, when each layer can serve.

layout     of those that fit the machines ahead: if any reaches the rate, the one with the least latency; else the
           one with the most throughput
stop       on a notice: as many more tokens as fit before grace - migration; on a new machine: as late as possible
migration  KV cache first, then layers from the front; a stage starts when its layers are in; a layer goes only when
           the receiver's buffer has room, so memory never holds more than one layer twice
recovery   every token is committed: what moved with its cache goes on, the rest is computed again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from windtunnel.serving.spot.mapping import Layout


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout with its batch, and what it does."""

    layout: Layout
    batch: int
    throughput_per_s: float
    latency_s: float

    @property
    def gpus(self) -> int:
        """It takes."""
        data, pipeline, tensor = self.layout
        return data * pipeline * tensor


def choose(
    choices: Iterable[Choice], gpus: int, rate_per_s: float, more: Callable[[Choice], bool] = lambda one: True
) -> Choice | None:
    """The layout for so many GPUs; None where none fits. Of equals the one with fewer GPUs, then the first."""
    fitting = [one for one in choices if one.gpus <= gpus and more(one)]
    if not fitting:
        return None
    enough = [one for one in fitting if one.throughput_per_s >= rate_per_s]
    if enough:
        return min(enough, key=lambda one: (one.latency_s, one.gpus))
    return min(fitting, key=lambda one: (-one.throughput_per_s, one.gpus))


def tokens_before(grace_s: float, migration_s: float, token_s: float) -> int:
    """Tokens that can still be decoded before migration must begin, so that it ends within the grace period."""
    return max(0, int((grace_s - migration_s) / token_s))


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each layer is in, when serving starts, when all is done: seconds after the stop."""

    layer_s: tuple[float, ...]
    serving_s: float
    done_s: float


def migrate(
    kv_bytes: float,
    layer_bytes: Sequence[float],
    bandwidth_bytes_per_s: float,
    stage_layers: int,
    layer_compute_s: float = 0.0,
    progressive: bool = True,
) -> Schedule:
    """Layer-wise migration of one position: KV first, then its layers from the front.

    Serving starts when the first stage (`stage_layers` layers) is in, held back so that no later layer is late for the
    first pass, which computes a layer in `layer_compute_s`. Without `progressive`, when everything is in.
    """
    at = kv_bytes / bandwidth_bytes_per_s
    ends = []
    for size in layer_bytes:
        at += size / bandwidth_bytes_per_s
        ends.append(at)
    if not progressive or not ends:
        return Schedule(tuple(ends), at, at)
    front = ends[min(stage_layers, len(ends)) - 1]
    start = max([front, *(end - place * layer_compute_s for place, end in enumerate(ends) if place >= stage_layers)])
    return Schedule(tuple(ends), start, at)


def resumed(generated: Sequence[int], kept: Sequence[bool]) -> list[int]:
    """Tokens that each request computes again: none where its cache moved, all it had where it did not."""
    return [0 if moved else tokens for tokens, moved in zip(generated, kept, strict=True)]
