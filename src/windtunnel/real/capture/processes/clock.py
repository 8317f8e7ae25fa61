"""A clock that goes faster: what hangs on the time of one rank alone shows within a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable


def quicken_clock(factor: float) -> None:
    """Have the time of day, and that for measuring, go so many times as fast; `time.monotonic` does not."""
    for name in ("time", "perf_counter"):
        clock: Callable[[], float] = getattr(time, name)
        begun = clock()
        setattr(time, name, lambda clock=clock, begun=begun: begun + factor * (clock() - begun))
