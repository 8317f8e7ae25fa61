"""A clock that goes faster: what hangs on the time of one rank alone shows within a few steps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

FASTER = 10**6


def quicken_clock(places: Sequence[tuple[str, int]]) -> None:
    """Have the time go so many times as fast for whoever looks at it at one of these (path, line); for no others."""
    where = {(path, line) for path, line in places}
    paths: dict[str, str] = {}

    def quickened(clock: Callable[[], float]) -> Callable[[], float]:
        begun = clock()

        def look() -> float:
            now, frame = clock(), sys._getframe(1)
            name = frame.f_code.co_filename
            path = paths.get(name) or paths.setdefault(name, os.path.abspath(name))
            return begun + FASTER * (now - begun) if (path, frame.f_lineno) in where else now

        return look

    for name in ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns"):
        setattr(time, name, quickened(getattr(time, name)))
