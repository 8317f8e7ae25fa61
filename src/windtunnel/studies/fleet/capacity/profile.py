"""Free GPUs of a pool over the time to come, as a step function: where a job fits, and what it then takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Profile:
    """`gpus` free for ever at first; times in ns. Reservations are kept, so each job is placed around all before it."""

    def __init__(self, gpus: int) -> None:
        self.times = [0]
        self.free = [gpus]
        self.gpus = gpus

    def earliest(self, from_ns: int, gpus: int, lasts_ns: int) -> int:
        """The first time from which so many GPUs are free for so long. AssertionError for more than there are."""
        assert gpus <= self.gpus
        at = bisect_right(self.times, from_ns) - 1
        start = from_ns
        while True:
            if self.free[at] < gpus:
                at += 1  # the last step has all free again
                start = self.times[at]
                continue
            last = at
            while last + 1 < len(self.times) and self.times[last + 1] < start + lasts_ns:
                last += 1
                if self.free[last] < gpus:
                    at, start = last, self.times[last]
                    break
            else:
                return start

    def take(self, start_ns: int, end_ns: int, gpus: int) -> None:
        """Reserve; they must be free."""
        if end_ns <= start_ns:
            return
        first, last = self._cut(start_ns), self._cut(end_ns)
        for at in range(first, last):
            assert self.free[at] >= gpus, "reserved more GPUs than are free"
            self.free[at] -= gpus

    def forget(self, before_ns: int) -> None:
        """What lies before a time is no longer asked for."""
        at = bisect_right(self.times, before_ns) - 1
        if at > 64:  # seldom, so that it costs little
            del self.times[:at], self.free[:at]

    def _cut(self, time_ns: int) -> int:
        at = bisect_left(self.times, time_ns)
        if at == len(self.times) or self.times[at] != time_ns:
            self.times.insert(at, time_ns)
            self.free.insert(at, self.free[at - 1])
        return at
