"""What a policy made of the failures: where the wall time went, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Parts of the wall time, in the order in which reports show them. The first is what counts.
PARTS = (
    "productive",
    "checkpoint stall",
    "lost work",
    "detect",
    "localise",
    "schedule",
    "groups",
    "warm-up",
    "load",
    "fewer machines",
    "slow hosts",
)
PRODUCTIVE, STALL, LOST, FIRST_PHASE, FEWER, SLOW_HOSTS = 0, 1, 2, 3, 9, 10


@dataclass(frozen=True, slots=True)
class Saving:
    """When the job saves, in integer nanoseconds of its running time."""

    interval_ns: int  # of work between two checkpoints
    stall_ns: int
    persist_ns: int  # after the stall, until a checkpoint can be read

    def __post_init__(self) -> None:
        assert self.interval_ns > 0
        assert self.stall_ns >= 0
        assert self.persist_ns >= 0


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of one run spent on one part of the wall time."""

    begin_ns: int
    end_ns: int
    part: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs under one policy. `seconds` has the shape (seeds, PARTS); each row sums to the wall time."""

    seconds: NDArray[np.float64]
    interruptions: NDArray[np.int64]  # (seeds, causes)
    wall_s: float
    stops: Sequence[Episode]  # recoveries and pauses of the first run

    @property
    def ettr(self) -> NDArray[np.float64]:
        """Share of the wall time that was productive, one for each run."""
        return self.seconds[:, PRODUCTIVE] / self.wall_s
