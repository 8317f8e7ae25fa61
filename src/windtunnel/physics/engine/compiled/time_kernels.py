"""Where the time of a played graph goes, compiled. Ids are dense from 0, "-1" means none, as in `kernels.py`."""

from __future__ import annotations

import numpy as np
from numba import int64

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.kernels import (
    _I32,
    _I64,
    _U8,
    _U16,
    I32,
    I64,
    U8,
    _inner,
    _queues,
    ints,
)


@_inner(int64(int64))
def _claim(kind: int) -> int:
    """Who owns an instant at which several ops run: compute 0, communication 1, host and bookkeeping 2."""
    if kind == 0:
        return 0
    return 1 if kind <= 3 else 2


@njit(
    int64[:, :, ::1](_U8, _U16, int64, _I32, _I32, int64, _I64, _I64, int64),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def split_time(
    kind: U8,
    category: U8,
    n_categories: int,
    stream: I32,
    stream_rank: I32,
    n_programs: int,
    start: I64,
    end: I64,
    horizon: int,
) -> I64:
    """int64[programs, 4, categories + 1]: [0, horizon] of each program by who owns each instant; rows sum to it.

    Rows 0-2: by `_claim`, then the op that started first, then the lower index. Row 3: nothing runs; in the column of
    the op whose start ends the gap (communication before host before compute, then the lower index), or in the last
    column after the program's last op. A sweep over the boundaries of each program: its streams are in time order.
    """
    result = np.zeros((n_programs, 4, n_categories + 1), np.int64)
    head, following = _queues(stream, len(stream_rank))
    first_stream = ints(n_programs, -1)
    next_stream = ints(len(stream_rank), -1)
    for s in range(len(stream_rank) - 1, -1, -1):
        next_stream[s] = first_stream[stream_rank[s]]
        first_stream[stream_rank[s]] = s
    for p in range(n_programs):
        t = 0
        while t < horizon:
            until = horizon
            owner, claim = -1, 3
            waker = -1
            s = first_stream[p]
            while s >= 0:
                i = head[s]
                while i >= 0 and end[i] <= t:
                    i = following[i]
                head[s] = i
                if i >= 0:
                    c = _claim(kind[i])
                    if start[i] <= t:
                        until = min(until, end[i])
                        if c < claim or (
                            c == claim and (start[i] < start[owner] or (start[i] == start[owner] and i < owner))
                        ):
                            owner, claim = i, c
                    else:
                        until = min(until, start[i])
                        order = (start[i], (c + 2) % 3, i)  # communication, then host, then compute
                        if waker < 0 or order < (start[waker], (_claim(kind[waker]) + 2) % 3, waker):
                            waker = i
                s = next_stream[s]
            booked = owner if owner >= 0 else waker
            if booked >= 0:
                result[p, claim, category[booked]] += until - t
            else:
                result[p, claim, n_categories] += until - t
            t = until
    return result
