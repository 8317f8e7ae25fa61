"""What pricing a technique gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.studies.techniques.flat import Lane, Task, Timeline


@dataclass(frozen=True, eq=False)
class TimelinePicture:
    """One timeline, for a picture."""

    tasks: tuple[Task, ...]
    played: Timeline
    lanes: Mapping[str, Lane]


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """What a rank's memory becomes where part of its state is elsewhere."""

    state_share: float  # of parameters, gradients and optimizer: what stays
    moving_share: float  # of the same: what is on its way in or out at the peak
    reserved_over_allocated: float


@dataclass(frozen=True, eq=False)
class TechniquePrice:
    """A step without and with a technique, by the same model."""

    without_s: float
    with_s: float
    parameters: Mapping[str, object]  # all of them, those that were left open as they were chosen
    details: Mapping[str, float]
    on_device: MemoryShares
    before: TimelinePicture
    after: TimelinePicture
