"""Threads of a script beside its main one, at the end of the last step: what they began, other ranks may wait for."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

from windtunnel.real.capture.processes import file_mailbox

PATIENCE_S = 2.0
_LOOK_S = 0.01
_LOOKS = 3  # in a row that find all at rest: a worker takes what is queued for it a little later
_RESTS = tuple(  # who stands in one of these files waits for work, or for another thread
    os.path.join(os.path.dirname(threading.__file__), *one)
    for one in (("threading.py",), ("queue.py",), ("concurrent", "futures", "thread.py"), ("selectors.py",))
)


def come_to_rest(patience_s: float = PATIENCE_S) -> bool:
    """Wait until no other thread has work, or stands where only another rank lets it go on; whether it came to that.

    A pool that checks between steps whether the job is to end calls a collective from a thread: it is late by as much
    as the machine is busy, and the ranks that came to it would be told that this one never does.
    """
    until = time.monotonic() + patience_s
    looks = 0
    while len(threading.enumerate()) > 1 and looks < _LOOKS:
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
        own = threading.get_ident()
        others = (frame for thread, frame in sys._current_frames().items() if thread != own)
        looks = looks + 1 if all(map(_is_at_rest, others)) else 0
    return True


def _is_at_rest(frame: FrameType | None) -> bool:
    if frame is not None and frame.f_code.co_filename in _RESTS:
        return True
    while frame is not None:
        if frame.f_code is file_mailbox.FileMailbox.get.__code__:
            return True
        frame = frame.f_back
    return False
