"""What the virtual world itself computes on the real rank's thread, and how that is kept out of the rank's time.

A real library takes a call and returns in some tens of microseconds, and copies and adds on threads of its own. Here
the rank's own thread says what the call is, moves the replay, and leaves what peers would have left. So the rank
arrives when its thread enters the call, not when all that is done; and what a communication beside computing costs the
rank's core, which calibration knows, is less by what was spent in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from windtunnel.capture.script.communication import Communication

_NEWEST = 0.2  # share of the newest in the running mean


class OwnTime:
    """Running means, by kind and bytes."""

    def __init__(self) -> None:
        self.entered: tuple[float, float] | None = None  # the call under way: wall clock, processor time of the thread
        self._call: Communication | None = None
        self._seconds: dict[tuple[str, int], float] = {}

    def around(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The same answer to a call, watched."""

        @wraps(kernel)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.entered = entered = (time.perf_counter(), time.thread_time())
            self._call = None
            try:
                return kernel(*args, **kwargs)
            finally:
                self.entered = None
                if self._call is not None:
                    key, spent = (self._call.kind, self._call.bytes), time.perf_counter() - entered[0]
                    before = self._seconds.get(key, spent)
                    self._seconds[key] = before + _NEWEST * (spent - before)

        return watched

    def began(self, call: Communication) -> tuple[float, float]:
        """The call under way is this one. When the thread entered it: wall clock and processor time."""
        self._call = call
        return self.entered or (time.perf_counter(), time.thread_time())

    def off(self, takes: Callable[[Communication], float]) -> Callable[[Communication], float]:
        """`takes` less what was spent already."""
        return lambda call: max(0.0, takes(call) - self._seconds.get((call.kind, call.bytes), 0.0))
