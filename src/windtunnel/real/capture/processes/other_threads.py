"""Threads of a script beside its main one, at the end of the last step: what they began, other ranks may wait for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from windtunnel.real.capture.processes import file_mailbox

PATIENCE_S = 2.0
_LOOK_S = 0.01
_LOOKS = 3  # in a row that find all at rest: a worker takes what is queued for it a little later
_RESTS = tuple(  # who stands in one of these files waits for work, or for another thread
    os.path.join(os.path.dirname(threading.__file__), *parts)
    for parts in (("threading.py",), ("queue.py",), ("concurrent", "futures", "thread.py"), ("selectors.py",))
)


def come_to_rest(patience_s: float = PATIENCE_S, is_let_go: Callable[[], bool] = lambda: True) -> bool:
    """Wait until no other thread has work, nor waits for another rank; whether it came to that.

    A pool that checks between steps whether the job is to end calls a collective from a thread: it is late by as much
    as the machine is busy, or as other ranks are, and those that come to it would be told that this one never does.

    Args:
        patience_s: for threads that work: seconds of theirs, not those in which they want a core and have none.
        is_let_go: whether what a thread waits for from another rank will never come.
    """
    spent_s, looks, has_left = 0.0, 0, False
    while len(threading.enumerate()) > 1 and looks < _LOOKS:
        if spent_s > patience_s:
            return False
        cpu_s = time.process_time()
        time.sleep(_LOOK_S)
        own = threading.get_ident()
        frames = sys._current_frames()
        others = [thread for thread in threading.enumerate() if thread.ident in frames and thread.ident != own]
        runnable = any(_wants_a_core(thread) for thread in others)
        places = [frames[thread.ident] for thread in others if thread.ident is not None]
        keys = [_asked_for(frame) for frame in places]
        waiting = any(key and not key.startswith(file_mailbox.STORE) for key in keys)  # a store is watched for ever
        if runnable:
            spent_s, looks = spent_s + time.process_time() - cpu_s, 0
        elif not all(key or _is_at_rest(frame) for key, frame in zip(keys, places, strict=True)):
            spent_s, looks = spent_s + _LOOK_S, 0
        elif waiting and not is_let_go():
            looks = 0
        else:
            looks, has_left = looks + 1, waiting
    return not has_left


def _is_at_rest(frame: FrameType) -> bool:
    return frame.f_code.co_filename in _RESTS


def _asked_for(frame: FrameType | None) -> str:
    """The key of the message that a thread waits for; "": it waits for none."""
    while frame is not None:
        if frame.f_code is file_mailbox.FileMailbox.get.__code__:
            return str(frame.f_locals["key"])
        frame = frame.f_back
    return ""


def _wants_a_core(thread: threading.Thread) -> bool:
    """Whether it runs, or would: one that was given work and has not come to it stands where it stood at rest."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    except OSError:  # it ended, or this is no Linux
        return False
    return text.rpartition(")")[2].split()[0] == "R"
