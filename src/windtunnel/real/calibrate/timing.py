"""How one op is timed: warm-up, then calls until the median is stable, with its spread.

The host clock (`perf_counter_ns`) times a CPU, whose ops are done when the call returns; such a time holds the op's
dispatch from Python. Device events time a GPU: the host first queues work behind a kernel that only waits, so that the
time between two events is the kernel's alone (`device_wait`). Python's garbage collector rests meanwhile.

On a shared CPU an op on all threads waits until the last of them is scheduled: milliseconds, for an op of microseconds.
Linux counts that wait (`/proc/self/task/*/schedstat`, second field). A repetition in which any thread waited for a CPU
is *disturbed*: it is made again after a pause, which also makes the scheduler prefer us, and left out of the median
unless there is nothing else; then the quickest third stands in.

The CUDA timer is written against the documentation of `torch.cuda.Event` and not yet run on a GPU.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from windtunnel.process import no_garbage_collection
from windtunnel.real.calibrate.device import gpu_errors
from windtunnel.real.calibrate.device_wait import DeviceWait, longer
from windtunnel.real.calibrate.torch_ops import Call

if TYPE_CHECKING:
    from types import ModuleType

STABLE = 0.01  # standard error of the median, relative to it, at which more repetitions add nothing
_NORMAL_WIDTH = 2.563  # p90 - p10 of a normal distribution, in standard deviations
_OUTLIER = 3.0  # times the median
_PATIENCE = 5.0  # times the usual effort, where other programs disturb
_WAITED_SHARE = 0.02  # of a repetition that a thread may wait for a CPU
_PAUSE_S = 0.02  # after a disturbed repetition
_HOST_S_PER_CALL, _HOST_MARGIN = 50e-6, 3.0  # first guess of what queueing a call takes, and how much longer to wait
_WAITS = 3  # tries to find a wait that is long enough
_EVENT_RESOLUTION_S = 0.5e-6  # of cudaEventElapsedTime


class Sample(NamedTuple):
    """One repetition."""

    seconds: float
    disturbed: bool = False


class Timer(Protocol):
    """Runs calls one after the other and says how long each took."""

    def samples(self, calls: Sequence[Call]) -> list[Sample]:
        """One sample for each call."""
        ...


def waited_ns() -> int:
    """Nanoseconds that all threads of this process have waited for a CPU so far; 0 where the system does not say."""
    total = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return total


def keep_pages() -> bool:
    """From here on the heap gives nothing back, so that an op's time holds no page faults; False where glibc is not.

    What a program's own faults cost is priced apart (`training/memory/new_pages.py`), because which of its tensors get
    new pages depends on all of them together.
    """
    import ctypes

    no_mapping, no_trimming = (-4, 0), (-1, 2**31 - 1)  # M_MMAP_MAX, M_TRIM_THRESHOLD
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(*no_mapping) and mallopt(*no_trimming))


def give_back_pages() -> None:
    """What a heap that keeps its pages does not use goes back to the system, once.

    It is full of holes that the next op's larger tensors do not fit, and grows by these.
    """
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


class HostTimer:
    """The host's clock around each call: for devices whose calls return when the work is done."""

    def __init__(self, waited: Callable[[], int] = waited_ns, pause: Callable[[float], None] = time.sleep) -> None:
        self._waited, self._pause = waited, pause

    def samples(self, calls: Sequence[Call]) -> list[Sample]:
        """One sample for each call; a pause after each that other programs disturbed."""
        clock, waited = time.perf_counter_ns, self._waited
        samples: list[Sample] = []
        result = None  # one result lives until the next is there, as activations do
        for at, call in enumerate(calls):
            if samples and samples[-1].disturbed:
                self._pause(_PAUSE_S)
                if samples[-1].seconds < _PAUSE_S:
                    calls[at - 1]()  # wakes the threads that slept meanwhile
            before = waited()
            begin_ns = clock()
            result = call()
            took = clock() - begin_ns
            samples.append(Sample(took / 1e9, waited() - before > _WAITED_SHARE * took))
        del result
        return samples


class CudaTimer:
    """Device events around each call, behind a kernel that waits until the host has queued all of them.

    If the wait was too short, the times may hold the host's gaps: it is done again with a longer one. A driver queues
    some thousand launches at most, so calls that are too many together are then made one by one. A call that itself
    waits for the device (a copy from pageable memory) is never queued in time, and stands with its host's part.
    """

    def __init__(self, torch: ModuleType, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._cuda, self._device = torch.cuda, device
        self._wait = DeviceWait(torch.cuda, clock)
        self._host_s = _HOST_S_PER_CALL

    def samples(self, calls: Sequence[Call]) -> list[Sample]:
        """One sample for each call, on the device."""
        with gpu_errors(), self._cuda.device(self._device):
            samples, in_time = self._together(calls)
            if not in_time and len(calls) > 1:
                return [sample for call in calls for sample in self._together([call])[0]]
            return samples

    def _together(self, calls: Sequence[Call]) -> tuple[list[Sample], bool]:
        """Samples of `calls` behind one wait, and whether that was long enough."""
        marks = [self._cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]

        def queue(gate: object) -> None:
            result = None  # one result lives until the next is there, as activations do
            marks[0].record()
            for call, mark in zip(calls, marks[1:], strict=True):
                result = call()
                mark.record()
            del result  # memory goes back in the order of the stream: what is queued keeps it

        wait_s, in_time = _HOST_MARGIN * self._host_s * len(calls), False
        for _ in range(_WAITS):
            queued = self._wait.queued(wait_s, queue)
            if queued.in_time:
                self._host_s, in_time = queued.host_s / len(calls), True
                break
            wait_s = longer(wait_s, queued)
        return [
            Sample(max(begin.elapsed_time(other) / 1e3, _EVENT_RESOLUTION_S)) for begin, other in pairwise(marks)
        ], in_time


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time one point may take."""

    seconds: float  # of repetitions, after the warm-up
    least: int = 3
    most: int = 60


@dataclass(frozen=True, slots=True)
class Timing:
    """What one point took: seconds of a call."""

    median_s: float
    p10_s: float
    p90_s: float
    repetitions: int
    outliers: int  # repetitions above three times the median
    disturbed: int = 0  # repetitions left out because other programs held the CPU; all of them if equal to repetitions


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the order statistics."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summary(samples: Sequence[Sample], taken_off_s: float = 0.0, least: int = 3) -> Timing:
    """Median and spread of what was not disturbed, else of the quickest third.

    `taken_off_s` is what each call costs besides the op; at most half of the median goes.
    """
    clean = [sample.seconds for sample in samples if not sample.disturbed]
    ordered = sorted(sample.seconds for sample in samples)
    seconds = clean if len(clean) >= min(least, len(ordered)) else ordered[: max(1, len(ordered) // 3)]
    median = quantile(seconds, 0.5)
    less = min(taken_off_s, median / 2)
    low, high = quantile(seconds, 0.1), quantile(seconds, 0.9)
    outliers = sum(value > _OUTLIER * median for value in seconds)
    disturbed = len(ordered) - len(seconds) if seconds is clean else len(ordered)
    return Timing(median - less, max(low - less, low / 2), high - less, len(ordered), outliers, disturbed)


def measure(calls: Sequence[Call], timer: Timer, effort: Effort, taken_off_s: float = 0.0) -> Timing:
    """Time `calls` in turn until the median is stable, `effort` is spent, or enough repetitions are made."""
    with no_garbage_collection():
        warm = max(timer.samples([calls[0]])[0].seconds, 1e-9)
        more = int(min(effort.seconds, 0.1) / warm)
        if more:  # the rest of the ring as well, so that its memory is there
            timer.samples([calls[at % len(calls)] for at in range(min(len(calls), more))])
        samples: list[Sample] = []
        begin_s, turn, clean = time.monotonic(), 0, 0
        while clean < effort.most:
            batch = 1 if warm * effort.least > effort.seconds else 4
            new = timer.samples([calls[(turn + at) % len(calls)] for at in range(batch)])
            turn += batch
            samples += new
            clean = sum(not sample.disturbed for sample in samples)
            spent = time.monotonic() - begin_s
            if clean >= effort.least and (spent >= effort.seconds or _stable(samples)):
                break
            if len(samples) >= effort.least and spent >= _PATIENCE * effort.seconds:
                break
    return summary(samples, taken_off_s, effort.least)


def _stable(samples: Sequence[Sample]) -> bool:
    seconds = [sample.seconds for sample in samples if not sample.disturbed]
    if len(seconds) < 8:
        return False
    median = quantile(seconds, 0.5)
    deviation = (quantile(seconds, 0.9) - quantile(seconds, 0.1)) / _NORMAL_WIDTH
    return 1.2533 * deviation / math.sqrt(len(seconds)) < STABLE * median
