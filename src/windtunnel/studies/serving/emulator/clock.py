"""The wall clock, sped up: simulated nanoseconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final


@final
class Clock:
    """`speed` simulated seconds pass in one real second; it starts at zero."""

    def __init__(self, speed: float = 1.0, wall_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.speed = speed
        self._wall_ns = wall_ns
        self._start = wall_ns()

    def now_ns(self) -> int:
        """Simulated nanoseconds since the start."""
        past = self._wall_ns() - self._start
        return past if self.speed == 1.0 else int(past * self.speed)

    def real_s(self, ns: int) -> float:
        """Real seconds until a simulated time; not above zero where it has passed."""
        return (ns - self.now_ns()) * 1e-9 / self.speed
