"""What a process asks of Linux about its relatives, so that none outlives the command that started it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeAlias

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37  # <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started this one goes, however it goes; on Linux only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != parent:  # it went before this was asked
        os._exit(137)


def dying_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """For `Popen(preexec_fn=...)`: the child gets this signal when this process goes, even while it is still starting.

    On Linux only. Whoever calls `Popen` must be a thread that lives as long as the child should.
    """
    if sys.platform != "linux":
        return lambda: None
    import ctypes

    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # nothing is loaded between fork and exec

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(137)

    return ask


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def adopting_orphans() -> Iterator[bool]:
    """Be the parent of descendants that lose theirs meanwhile; yields whether this system does that (Linux)."""
    before = _adopts()
    adopt_orphans()
    try:
        yield _adopts()
    finally:
        if not before:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _adopts() -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    answer = ctypes.c_int(0)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None  # of a signal; None: not Python's


@contextmanager
def terminated_is_an_end() -> Iterator[None]:
    """Being told to end (a scheduler, `timeout`, a closed terminal) cleans up as an interrupt does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Handler] = {}
    with suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


@contextmanager
def signals_after_a_fork() -> Iterator[None]:
    """Whoever ends this process is heard behind the block: the exception would be lost in it.

    Python runs hooks at a fork (those of `logging`, for one) and drops what they raise, and a signal that comes while
    the kernel forks is handled in them. `Popen` with a `preexec_fn` forks like that.
    """
    received: list[int] = []
    before: dict[int, Handler] = {}
    with suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):  # a default ends the process whatever runs
                before[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)
        for late in received:
            signal.raise_signal(late)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """No interrupt is heard meanwhile, so that cleaning up comes to its end."""
    before: Handler = None
    with suppress(ValueError):  # not the main thread: no interrupt comes here
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector off: it would walk millions of fresh containers, or stop a clockwork at random places."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def children_of(pid: int) -> list[int]:
    """Processes whose parent this is, as far as /proc tells (orphans below a subreaper become its children)."""
    return [child for child, parent, _ in processes() if parent == pid]


def processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, session) of every process that /proc shows; nothing where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                after_name = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                if after_name[0] != "Z":
                    yield int(name), int(after_name[1]), int(after_name[3])


def state_of(pid: int) -> tuple[str, float]:
    """("R" running or wanting to, "S" asleep, ...; "" unknown) and the seconds it has been on a core."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return "", 0.0


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
