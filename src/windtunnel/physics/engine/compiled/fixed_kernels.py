"""Compiled replay of a graph whose ops take exactly their durations, and the path that decided its end.

In a file of its own, because a prediction needs neither, and numba compiles what is imported. Numba links the helpers
of `kernels.py` into the cached code, but looks at this file alone to tell whether that is still good: after a change
there, touch this file.
"""

from __future__ import annotations

import numpy as np
from numba import int32, int64

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.kernels import (
    _I32,
    _I64,
    I32,
    I64,
    _group_sizes,
    _is_malformed,
    _queues,
)
from windtunnel.physics.engine.interpreted import MALFORMED


@njit(int64(_I32, int64, _I64, _I32, _I32, _I64, int64[::1], int64[::1]), cache=True, nogil=True, error_model="numpy")
def replay_fixed(
    stream: I32, n_streams: int, dep_ptr: I64, dep_idx: I32, rendezvous: I32, duration: I64, start: I64, end: I64
) -> int:
    """Start and end of every op when each takes exactly its duration.

    start = max(end of the previous op of the stream, ends of the dependencies, readiness of the last member of the
    rendezvous). `start` and `end` hold -1 where an op never runs. Returns the number of ops that ran, or MALFORMED.

    On large graphs the time goes into fetching from memory what belongs to an op. So an op that has not ended yet keeps
    in `end` who waits for it, as -2 - stream; a rendezvous keeps its state in one place; and starts come last.
    """
    n = len(stream)
    if _is_malformed(n, n_streams, stream, dep_ptr, dep_idx, rendezvous, duration):
        return MALFORMED
    head, following = _queues(stream, n_streams)
    sizes = _group_sizes(rendezvous)
    group = np.empty((len(sizes), 2), np.int32)  # members still missing, and the one that arrived last
    for k in range(len(sizes)):  # copied by hand: numba compiles 2 s of error messages for an array into a slice
        group[k, 0], group[k, 1] = sizes[k], -1
    earlier = np.empty(n if len(sizes) else 0, np.int32)  # member -> the one that arrived before it
    end[:] = -1
    next_waiter = np.empty(n_streams, np.int32)
    cursor = np.full(n_streams, -1, np.int64)  # dependency at which a blocked head goes on; -1: from its first
    ready = np.zeros(n_streams, np.int64)  # of the head: the maximum so far; of a fresh head: end of the one before
    pending = np.empty(n_streams, np.int32)  # streams to look at; a stream is in here at most once
    for s in range(n_streams):
        pending[s] = n_streams - 1 - s
    n_pending = n_streams
    ran = 0
    while n_pending > 0:
        n_pending -= 1
        s = pending[n_pending]
        i = head[s]
        t = ready[s]
        k = cursor[s]
        while i >= 0:
            if k < 0:
                k = dep_ptr[i]
            last = dep_ptr[i + 1]
            while k < last:
                e = end[dep_idx[k]]
                if e < 0:
                    break
                if e > t:
                    t = e
                k += 1
            if k < last:
                next_waiter[s] = -2 - end[dep_idx[k]]
                end[dep_idx[k]] = -2 - s
                break
            k = -1
            g = rendezvous[i]
            if g < 0:
                w = -2 - end[i]
                t += duration[i]
                end[i] = t
                ran += 1
                while w >= 0:
                    pending[n_pending] = w
                    n_pending += 1
                    w = next_waiter[w]
                i = following[i]
                continue
            ready[s] = t
            earlier[i] = group[g, 1]
            group[g, 1] = i
            group[g, 0] -= 1
            if group[g, 0] > 0:
                break  # the last member to arrive will move this stream on
            m = i
            while m >= 0:
                t = max(t, ready[stream[m]])
                m = earlier[m]
            m = i
            while m >= 0:
                q = stream[m]
                w = -2 - end[m]
                end[m] = t + duration[m]
                ran += 1
                ready[q] = end[m]
                head[q] = following[m]
                cursor[q] = -1
                if q != s:
                    pending[n_pending] = q
                    n_pending += 1
                while w >= 0:
                    pending[n_pending] = w
                    n_pending += 1
                    w = next_waiter[w]
                m = earlier[m]
            i = head[s]
            t = ready[s]
        head[s] = i
        ready[s] = t
        cursor[s] = k
    for i in range(n):
        if end[i] < 0:
            end[i] = -1
            start[i] = -1
        else:
            start[i] = end[i] - duration[i]
    return ran


@njit(int32[::1](_I32, int64, _I64, _I32, _I32, _I64, _I64), cache=True, nogil=True, error_model="numpy")
def binding_path(stream: I32, n_streams: int, dep_ptr: I64, dep_idx: I32, rendezvous: I32, start: I64, end: I64) -> I32:
    """From the op that ends last back to time 0, always to a predecessor whose end is the op's start; in time order."""
    n = len(stream)
    last = np.full(n_streams, -1, np.int32)
    before = np.empty(n, np.int32)  # the op before this one on its stream
    first_member = np.full(len(_group_sizes(rendezvous)), -1, np.int32)
    next_member = np.full(n, -1, np.int32)
    final = 0
    for i in range(n):
        before[i] = last[stream[i]]
        last[stream[i]] = i
        if end[i] > end[final]:
            final = i
    for i in range(n - 1, -1, -1):
        if rendezvous[i] >= 0:
            next_member[i] = first_member[rendezvous[i]]
            first_member[rendezvous[i]] = i
    path = np.empty(n, np.int32)
    length = 0
    i = final if n > 0 else -1
    while i >= 0:
        path[n - 1 - length] = i
        length += 1
        predecessor = -1
        m = i if rendezvous[i] < 0 else first_member[rendezvous[i]]
        while m >= 0 and predecessor < 0 and start[i] > 0:
            if before[m] >= 0 and end[before[m]] == start[i]:
                predecessor = before[m]
            k = dep_ptr[m]
            while predecessor < 0 and k < dep_ptr[m + 1]:
                if end[dep_idx[k]] == start[i]:
                    predecessor = dep_idx[k]
                k += 1
            m = next_member[m]
        i = predecessor
    return path[n - length :].copy()
