"""What a communication gives back: a `Work` that is done at a given time, and futures done by one timer thread.
Imports torch.

A `Work` has a Python half and a C++ half. C++ callers (functional collectives, DDP's reducer) keep the C++ half only,
and a call on it whose Python half is gone falls through to a base class that waits for ever. So the Python half is
kept until somebody has waited, and for a while longer: a coalesced call is waited for once per tensor. It keeps no
tensors: memory would be held that the real library gives back.

Python callers are handed a `Handle` on it, which nobody but they hold; it keeps the tensors until they drop it, as the
real library's does.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    from datetime import timedelta

SPIN_S = 300e-6  # `time.sleep` comes back up to this late; the rest is spun
TIMER_SPIN_S = 80e-6  # less on the timer thread: while it spins nobody else runs Python
KEPT_WORKS = 65_536  # works that nobody waits for are dropped, oldest first
KEPT_WAITED = 4_096  # the same, of those that were waited for


class Completion(Protocol):
    """When a call is done, where that is found out while the script goes on."""

    def end_s(self) -> float | None:
        """The time, on `time.perf_counter`'s clock; None: not known yet."""

    def seconds_left(self) -> float:
        """Seconds until then, asked by a thread that waits; while that is not known, seconds until it asks again."""


Due = float | Completion | None  # a time on `time.perf_counter`'s clock; None: at once


def wait_until(due: Due) -> None:
    """Return at `due`, some tens of microseconds late at most."""
    while (left := _left(due)) > 0:
        if left > SPIN_S:
            time.sleep(left - SPIN_S)


def _left(due: Due) -> float:
    if due is None:
        return 0.0
    return due - time.perf_counter() if isinstance(due, float) else due.seconds_left()


def _is_over(due: Due) -> bool:
    if due is None or isinstance(due, float):
        return due is None or time.perf_counter() >= due
    at = due.end_s()
    return at is not None and time.perf_counter() >= at


@dataclass(frozen=True)
class _AllOf:
    """Done when all are. Satisfies `Completion`."""

    dues: tuple[Due, ...]

    def end_s(self) -> float | None:
        times = [due if isinstance(due, float) else due.end_s() for due in self.dues if due is not None]
        return None if None in times else max(times, default=-math.inf)  # type: ignore[type-var]

    def seconds_left(self) -> float:
        return max(map(_left, self.dues))


class Timer:
    """One thread that completes futures when they are due; it starts with the first and ends with `stop`."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Due, Callable[[], None]]] = []
        self._stopped = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def at(self, due: Due, job: Callable[[], None]) -> None:
        """Call `job` at `due`, on the timer's thread."""
        with self._wake:
            self._jobs.append((due, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="windtunnel-timer", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self) -> None:
        """End the thread; what is not due yet is done now, so that nobody waits for ever."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._stopped:
                    self._wake.wait()
                if not self._jobs:
                    return
                # Times become known, and change, while jobs wait: none is first for good.
                left, number = min((_left(due), number) for number, (due, _) in enumerate(self._jobs))
                if left > TIMER_SPIN_S and not self._stopped:
                    self._wake.wait(left - TIMER_SPIN_S)
                    continue
                due, job = self._jobs.pop(number)
            while not self._stopped and _left(due) > 0:
                pass
            job()
            del job  # else this thread holds the last bucket until the next one is due


class VirtualWork(dist.Work):  # type: ignore[misc]
    """One call, or several that a coalescing manager made one, done at `due`."""

    def __init__(
        self,
        calls: tuple[Communication, ...],
        due: Due,
        outputs: Iterable[torch.Tensor],
        works: Works,
        source: int = -1,
        ending: Callable[[], None] | None = None,
    ) -> None:
        """`ending`: what is left to be done by whoever waits first, where other real ranks share the call."""
        super().__init__()
        self.calls, self.due, self._works, self._source = calls, due, works, source
        self._outputs = [weakref.ref(tensor) for tensor in outputs]
        self._waited = False
        self.ending = Once(ending) if ending is not None else None
        works.keep(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is done, then tell the listener, once."""
        wait_until(self.due)
        if self.ending is not None:
            self.ending()
        self._works.settle(self)
        if not self._waited:
            self._waited = True
            for call in self.calls:
                self._works.on_wait(call)
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether it is done by now: who is told so need not wait."""
        if is_over := _is_over(self.due):
            self._works.settle(self)
        return is_over

    def is_success(self) -> bool:
        """Virtual peers do not fail."""
        return True

    def exception(self) -> None:
        """Virtual peers do not fail."""

    def source_rank(self) -> int:
        """Group rank of the sender, of a receive from any source."""
        return self._source

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """The output tensors that are still there."""
        return [tensor for tensor in (output() for output in self._outputs) if tensor is not None]

    def get_future(self) -> torch.futures.Future:
        """A future of the output tensors. Callbacks run on the timer's thread, as elsewhere on the backend's."""
        outputs = self.result()
        devices = sorted({tensor.device for tensor in outputs if tensor.device.type == "cuda"}, key=str)
        real = bool(devices) and not any(isinstance(tensor, compat.fake_tensor_class()) for tensor in outputs)
        future = torch.futures.Future(devices=devices) if real else torch.futures.Future()
        self._works.settle(self)
        if self.ending is None and _is_over(self.due):
            future.set_result(outputs)
        else:
            self._works.timer.at(self.due, _completion(future, outputs, self.ending, self._works))
        return future


class Handle(dist.Work):  # type: ignore[misc]
    """What Python is handed of a `VirtualWork`: it holds the outputs as long as Python holds it."""

    def __init__(self, work: VirtualWork) -> None:
        super().__init__()
        self._work, self._held = work, work.result()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it is done."""
        return self._work.wait(timeout)

    def synchronize(self) -> None:
        """The same as `wait`."""
        self._work.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether it is done by now."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Virtual peers do not fail."""
        return True

    def exception(self) -> None:
        """Virtual peers do not fail."""

    def source_rank(self) -> int:
        """Group rank of the sender, of a receive from any source."""
        return self._work.source_rank()

    _source_rank = source_rank

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return list(self._held)

    def get_future(self) -> torch.futures.Future:
        """A future of the output tensors."""
        return self._work.get_future()


class Once:
    """Something that is done by whoever comes first; others wait until it is done."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what: Callable[[], None] | None = what
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Do it, or wait for whoever does."""
        with self._lock:
            what, self._what = self._what, None
            if what is not None:
                what()


def _completion(
    future: torch.futures.Future, outputs: list[torch.Tensor], ending: Callable[[], None] | None, works: Works
) -> Callable[[], None]:
    def complete() -> None:
        if ending is not None and not works.closing:
            try:
                ending()
            except RuntimeError as error:  # the real rank at the other end is gone: whoever waits is told
                future.set_exception(error)
                return
        with contextlib.suppress(RuntimeError):  # the script may have set it itself
            future.set_result(outputs)

    return complete


class Works:
    """All works of a world: keeps those that nobody waited for, and passes waits on."""

    def __init__(self, on_wait: Callable[[Communication], None]) -> None:
        self.timer = Timer()
        self.on_wait = on_wait
        self.closing = False  # nobody is waited for any more
        self._kept: dict[int, VirtualWork] = {}
        self._waited: deque[VirtualWork] = deque(maxlen=KEPT_WAITED)

    def keep(self, work: VirtualWork) -> None:
        """Hold the Python half until it is waited for."""
        self._kept[id(work)] = work
        if len(self._kept) > KEPT_WORKS:
            self._kept.pop(next(iter(self._kept)), None)

    def is_unwaited(self, call: Communication) -> bool:
        """Whether nobody has waited for a call, nor has its future."""
        return any(other is call for work in self._kept.values() for other in work.calls)

    def settle(self, work: VirtualWork) -> None:
        """Somebody waits for it, or has its future: let it go before long."""
        if self._kept.pop(id(work), None) is not None:
            self._waited.append(work)

    def join(self, works: Sequence[VirtualWork]) -> VirtualWork:
        """One work that is done when all are."""
        for work in works:
            self.settle(work)
        due = _AllOf(tuple(work.due for work in works)) if works else None
        calls = tuple(call for work in works for call in work.calls)
        endings = [work.ending for work in works if work.ending is not None]

        def end() -> None:
            for ending in endings:
                ending()

        outputs = [tensor for work in works for tensor in work.result()]
        return VirtualWork(calls, due, outputs, self, ending=end if endings else None)
