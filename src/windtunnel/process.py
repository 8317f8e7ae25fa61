"""What a process asks of Linux about its relatives, so that none outlives the command that started it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>


def die_with_parent(parent: int) -> None:
    """Be killed when the process that started this one goes, however it goes; on Linux only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform == "linux" and os.getppid() != parent:  # it went before this was asked
        os._exit(137)


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
