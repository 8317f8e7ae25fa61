"""Work queued on a GPU behind a kernel that only waits, so that what follows it runs without the host's gaps.

`torch.cuda._sleep(cycles)` spins one thread for `cycles` of the SM's clock. How long that is depends on the clock of
the moment, so each wait is timed by events around it and the next one uses what was found. Whether the wait was long
enough is asked of the device: when the host has queued everything, the event behind the wait must not have happened yet
(`Event.query`). If it has, the device may have run dry, and the times are worth nothing.

Follows the documentation of `torch.cuda.Event` and ATen's `Sleep.cu`. Not yet run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

    import torch

LEAST_WAIT_S, MOST_WAIT_S = 100e-6, 0.5
_SLOWEST_CLOCK, _FASTEST_CLOCK = 1e8, 5e9  # of an SM, in cycles per second: beyond is no clock


class Queued(NamedTuple):
    """How queueing went."""

    in_time: bool  # all was queued while the device still waited
    host_s: float  # that the host took to queue it
    gate: torch.cuda.Event  # the event that happened when the wait ended


@dataclass(slots=True)
class DeviceWait:
    """Waits on the current device."""

    cuda: ModuleType  # torch.cuda
    clock: Callable[[], float] = time.perf_counter
    cycles_per_s: float = 2e9

    def queued(self, seconds: float, queue: Callable[[object], object]) -> Queued:
        """Let the device wait for `seconds`, call `queue(gate)` meanwhile, and wait until all is done.

        `gate` is the event that happens when the wait ends.
        """
        cuda = self.cuda
        before, gate = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        cycles = self.cycles(min(max(seconds, LEAST_WAIT_S), MOST_WAIT_S))
        before.record()
        cuda._sleep(cycles)
        gate.record()
        begin_s = self.clock()
        queue(gate)
        host_s = self.clock() - begin_s
        in_time = not gate.query()
        cuda.synchronize()
        waited_s = before.elapsed_time(gate) / 1e3
        if waited_s > 0:
            self.cycles_per_s = min(max(cycles / waited_s, _SLOWEST_CLOCK), _FASTEST_CLOCK)
        return Queued(in_time, host_s, gate)

    def cycles(self, seconds: float) -> int:
        """Cycles of the SM's clock in `seconds`, as last seen."""
        return max(1, int(seconds * self.cycles_per_s))


def longer(seconds: float, queued: Queued) -> float:
    """How long to wait next when `seconds` was too short."""
    return min(2.0 * max(seconds, queued.host_s, LEAST_WAIT_S), MOST_WAIT_S)
