"""The real rank's own time: the wall clock less what the virtual world computes on its thread.

A real library takes a call and returns in some tens of microseconds, and copies and adds on threads of its own; what it
costs the rank is calibrated. Here the rank's own thread says what the call is, moves the replay, and leaves what peers
would have left, which takes 0.2 to 3 ms. So the rank's clock stands still from when its thread enters a call until it
leaves it, and is behind the wall clock then. A wait makes up for that: it is over when the *wall* clock comes to what
the rank waits for. What is never made up lengthens the steps that the script sees, not those of the rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps


class ComputeTime:
    """Seconds of the thread that made this, on the epoch of `time.perf_counter`; never ahead of it."""

    def __init__(self) -> None:
        self.behind = 0.0  # the wall clock
        self.given_up = 0.0  # seconds that it was behind and that no wait is to make up for
        self._cpu_behind = 0.0
        self._stands: tuple[float, float] | None = None  # wall clock and processor time of the rank, inside a call
        self._thread = threading.get_ident()

    def rank_time_s(self) -> float:
        """The rank's time."""
        return self._stands[0] if self._stands is not None else time.perf_counter() - self.behind

    def cpu(self) -> float:
        """Processor seconds of the rank's thread."""
        return self._stands[1] if self._stands is not None else time.thread_time() - self._cpu_behind

    def reach(self, when: float) -> None:
        """The rank's time is `when` or later. Keeps the processor busy where the wall clock is not so far yet, inside a
        call when that is left.
        """
        if when > self.rank_time_s():
            self.be_at(when)

    def be_at(self, when: float) -> None:
        """The rank's time is `when`, whatever went by since: it waited, and that is when the wait was over."""
        if threading.get_ident() != self._thread:
            return
        if self._stands is not None:
            self._stands = (when, self._stands[1])
        else:
            self._set(when)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """It stands still in here, but for what `reach` and `be_at` say."""
        if self._stands is not None or threading.get_ident() != self._thread:
            yield
            return
        self._stands = (self.rank_time_s(), self.cpu())
        try:
            yield
        finally:
            when, cpu = self._stands
            self._stands = None
            self._set(when)
            self._cpu_behind = time.thread_time() - cpu

    def around(self, kernel: Callable[..., object]) -> Callable[..., object]:
        """The same answer to a call, in no time."""

        @wraps(kernel)
        def timeless(*args: object, **kwargs: object) -> object:
            with self.standing():
                return kernel(*args, **kwargs)

        return timeless

    def _set(self, when: float) -> None:
        while (wall := time.perf_counter()) < when:
            pass
        self.behind = wall - when
