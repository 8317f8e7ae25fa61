"""Compiled replay of a graph whose ops interfere; where its time goes is in `time_kernels.py`.

Each function's `.py_func` is the same code uncompiled, and serves as its oracle.

Ids are dense from 0. "-1" means none. Every kernel compiles once, from its explicit signature, and is cached on disk.

The replay keeps no successor lists: a stream whose head op is blocked hangs itself on *one* op that it waits for
(`waiters`/`next_waiter`, a linked list through streams) and is looked at again when that op ends. So a pass costs
O(ops + dependencies) and the memory it needs is two int32 per op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numba import float64, int32, int64, types, uint8, uint16
from numpy.typing import NDArray

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.interpreted import MALFORMED

# Names of dtypes for the reader; the type checker need not follow how compiled code mixes array elements and ints.
I32: TypeAlias = Array
I64: TypeAlias = Array
U8: TypeAlias = Array
F64: TypeAlias = Array


def _constant(scalar: types.Type, ndim: int = 1) -> types.Array:
    """A C-contiguous input that the kernel does not write; read-only and writable arrays both match it."""
    return types.Array(scalar, ndim, "C", readonly=True)


_U8, _U16, _I32, _I64, _F64, _F64_2D = (
    _constant(uint8),
    _constant(uint16),
    _constant(int32),
    _constant(int64),
    _constant(float64),
    _constant(float64, 2),
)

# Helpers have one signature each. Without, numba compiles one more for every literal and every width of int that they
# are called with.
_inner = partial(njit, cache=True, error_model="numpy", no_cfunc_wrapper=True)

_pair: Callable[[Sequence[object]], types.Type] = types.Tuple  # numba has no type for it

NEVER = np.iinfo(np.int64).max


@njit(cache=True, inline="always", error_model="numpy")
def _is_malformed(
    n: int, n_streams: int, stream: I32, dep_ptr: I64, dep_idx: I32, rendezvous: I32, duration: I64
) -> bool:
    """One cheap look at every index, because compiled code would follow a bad one out of its array."""
    bad: bool = False
    for i in range(n):
        bad |= stream[i] < 0 or stream[i] >= n_streams or rendezvous[i] >= n or duration[i] < 0
        bad |= dep_ptr[i] > dep_ptr[i + 1]
    bad |= dep_ptr[0] != 0 or dep_ptr[n] != len(dep_idx)
    for k in range(len(dep_idx)):
        bad |= dep_idx[k] < 0 or dep_idx[k] >= n
    return bad


# Arrays are made here and not where they are used: numba compiles each way of making one anew in every function.
@_inner(int32[::1](int64, int64))
def ints(n: int, value: int) -> I32:
    """int32[n], all `value`."""
    array = np.empty(n, np.int32)
    for i in range(n):
        array[i] = value
    return array


@_inner(int64[::1](int64, int64))
def longs(n: int, value: int) -> I64:
    """int64[n], all `value`."""
    array = np.empty(n, np.int64)
    for i in range(n):
        array[i] = value
    return array


@_inner(float64[::1](int64, float64))
def floats(n: int, value: float) -> F64:
    """float64[n], all `value`."""
    array = np.empty(n, np.float64)
    for i in range(n):
        array[i] = value
    return array


@_inner(types.boolean[::1](int64))
def flags(n: int) -> NDArray[np.bool_]:
    """bool[n], none set."""
    array = np.empty(n, np.bool_)
    for i in range(n):
        array[i] = False
    return array


@_inner(_pair((int32[::1], int32[::1]))(_I32, int64))
def _queues(stream: I32, n_streams: int) -> tuple[I32, I32]:
    """The first op of each stream, and the op after each op on its stream."""
    head = ints(n_streams, -1)
    following = ints(len(stream), -1)
    for i in range(len(stream) - 1, -1, -1):
        following[i] = head[stream[i]]
        head[stream[i]] = i
    return head, following


@_inner(int32[::1](_I32))
def _group_sizes(rendezvous: I32) -> I32:
    """Members of each rendezvous."""
    n_groups = 0
    for i in range(len(rendezvous)):
        n_groups = max(n_groups, rendezvous[i] + 1)
    sizes = ints(n_groups, 0)
    if n_groups > 0:
        for i in range(len(rendezvous)):
            if rendezvous[i] >= 0:
                sizes[rendezvous[i]] += 1
    return sizes


@_inner(types.void(int64[::1], int64, int64, int64))
def _put(tree: I64, leaves: int, p: int, time: int) -> None:
    """Set leaf `p` of a tree of minima (root at 1, leaves from `leaves` on)."""
    at = leaves + p
    tree[at] = time
    while at > 1:
        at >>= 1
        tree[at] = min(tree[2 * at], tree[2 * at + 1])


@_inner(float64(int64, int32[::1], _F64_2D))
def _rate(a: int, count: I32, factor: F64) -> float:
    """Rate of an op of class `a` on a program where count[b] ops of class b run, itself included."""
    extra = 0.0
    for b in range(1, len(count)):
        if count[b] > (1 if a == b else 0):
            extra += factor[a, b]
    return 1.0 / (1.0 + extra)


@_inner(int64(int64, int32[::1], types.boolean[::1], int64))
def _mark(p: int, dirty: I32, is_dirty: NDArray[np.bool_], n_dirty: int) -> int:
    """Note that what runs on program `p` has changed; returns the number of programs noted."""
    if not is_dirty[p]:
        is_dirty[p] = True
        dirty[n_dirty] = p
        n_dirty += 1
    return n_dirty


@_inner(types.void(int64, float64, int64, float64[::1], float64[::1], int64[::1], int64[::1]))
def _set_rate(s: int, r: float, now: int, rate: F64, work: F64, since: I64, key: I64) -> None:
    """The op that runs on stream `s` goes on at rate `r` from `now`."""
    if r != rate[s]:
        work[s] = max(0.0, work[s] - (now - since[s]) * rate[s])
        since[s] = now
        rate[s] = r
        key[s] = now + np.int64(work[s] / r + 0.5)


@njit(
    int64(_I32, _I32, int64, _I64, _I32, _I32, _I64, _U8, _F64_2D, int64[::1], int64[::1]),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def replay_rated(
    stream: I32,
    stream_rank: I32,
    n_programs: int,
    dep_ptr: I64,
    dep_idx: I32,
    rendezvous: I32,
    duration: I64,
    kind_class: U8,
    factor: F64,
    start: I64,
    end: I64,
) -> int:
    """Start and end of every op when ops that run at the same time on one program slow each other.

    An event loop over the instants at which an op of a non-zero class starts or ends ("rated" ops). At each instant all
    that ends there ends, then all that can start starts, then the rates of the touched programs are set anew: so the
    result does not depend on the order within an instant. Ops of class 0 have no part in that: their end is known when
    they become ready, even ahead of the clock. A rendezvous proceeds at the lowest of its running members' rates.

    Work is float64 nanoseconds; an end is rounded to the nearest one. An op whose rate never left 1 ends at exactly
    start + duration. Returns as `replay_fixed` does.
    """
    n, n_streams = len(stream), len(stream_rank)
    if _is_malformed(n, n_streams, stream, dep_ptr, dep_idx, rendezvous, duration):
        return MALFORMED
    for s in range(n_streams):
        if stream_rank[s] < 0 or stream_rank[s] >= n_programs:
            return MALFORMED
    head, following = _queues(stream, n_streams)
    missing = _group_sizes(rendezvous)
    n_groups = len(missing)
    arrived = ints(n_groups, -1)
    earlier = ints(n if n_groups else 0, -1)
    latest = longs(n_groups, 0)
    rated_group = flags(n_groups)  # one member has a class: then all members follow the common rate
    touched_at = longs(n_groups, -1)  # count of the instant at which it was last put into `touched`
    waiters = ints(n, -1)
    next_waiter = ints(n_streams, -1)
    cursor = longs(n_streams, -1)
    ready = longs(n_streams, 0)
    pending = ints(n_streams, -1)
    start[:] = -1
    end[:] = -1

    # The streams of each program on which a rated op may run.
    may_run = flags(n_streams)
    for i in range(n):
        may_run[stream[i]] |= kind_class[i] > 0 or rendezvous[i] >= 0
    first_stream = ints(n_programs, -1)
    next_stream = ints(n_streams, -1)
    for s in range(n_streams - 1, -1, -1):
        pending[n_streams - 1 - s] = s
        if may_run[s]:
            next_stream[s] = first_stream[stream_rank[s]]
            first_stream[stream_rank[s]] = s
    n_pending = n_streams

    # At most one rated op is under way on a stream, so its state is kept per stream.
    active = ints(n_streams, -1)  # the rated op that runs, or waits for its start
    running = flags(n_streams)
    key = longs(n_streams, NEVER)  # when it ends, or starts
    work = floats(n_streams, 0.0)  # left at `since`
    since = longs(n_streams, 0)
    rate = floats(n_streams, 1.0)
    own_rate = floats(n_streams, 1.0)  # what its own program would allow a member of a rendezvous
    count = np.zeros((n_programs, len(factor)), np.int32)  # rated ops that run, by program and class
    dirty = ints(n_programs, -1)
    is_dirty = flags(n_programs)
    n_dirty = 0
    touched = ints(2 * n_streams, -1)  # rendezvous of which a member started, ended or changed its rate
    n_touched = 0
    leaves = 1
    while leaves < n_programs:
        leaves *= 2
    soonest = longs(2 * leaves, NEVER)  # tree of minima: the next instant of each program
    ran = 0
    now = 0
    instant = 0
    while True:
        # 1. What can start, starts. Ops of class 0 are done at once, and may lead on to times after `now`.
        while n_pending > 0:
            n_pending -= 1
            s = pending[n_pending]
            while head[s] >= 0 and active[s] < 0:
                i = head[s]
                t = ready[s]
                k = dep_ptr[i] if cursor[s] < 0 else cursor[s]
                last = dep_ptr[i + 1]
                while k < last:
                    e = end[dep_idx[k]]
                    if e < 0:
                        break
                    t = max(t, e)
                    k += 1
                ready[s] = t
                cursor[s] = k
                if k < last:
                    next_waiter[s] = waiters[dep_idx[k]]
                    waiters[dep_idx[k]] = s
                    break
                g = rendezvous[i]
                is_rated = kind_class[i] > 0
                if g >= 0:
                    latest[g] = max(latest[g], t)
                    rated_group[g] |= is_rated
                    earlier[i] = arrived[g]
                    arrived[g] = i
                    missing[g] -= 1
                    if missing[g] > 0:
                        break
                    t = latest[g]
                    is_rated = rated_group[g]
                m = i
                while m >= 0:
                    q = stream[m]
                    start[m] = t
                    cursor[q] = -1
                    if is_rated and duration[m] > 0:
                        active[q] = m
                        key[q] = t
                        if t <= now:
                            running[q] = True
                            key[q] = t + duration[m]
                            work[q] = duration[m]
                            since[q] = t
                            rate[q] = 1.0
                            count[stream_rank[q], kind_class[m]] += 1
                        n_dirty = _mark(stream_rank[q], dirty, is_dirty, n_dirty)
                    else:
                        end[m] = t + duration[m]
                        ran += 1
                        ready[q] = end[m]
                        head[q] = following[m]
                        if q != s:
                            pending[n_pending] = q
                            n_pending += 1
                        w = waiters[m]
                        while w >= 0:
                            pending[n_pending] = w
                            n_pending += 1
                            w = next_waiter[w]
                    m = earlier[m] if g >= 0 else -1
        # 2. New rates where the set of running ops has changed.
        for j in range(n_dirty):
            p = dirty[j]
            s = first_stream[p]
            while s >= 0:
                if running[s]:
                    r = _rate(kind_class[active[s]], count[p], factor)
                    g = rendezvous[active[s]]
                    if g < 0:
                        _set_rate(s, r, now, rate, work, since, key)
                    else:
                        own_rate[s] = r
                        if touched_at[g] != instant:
                            touched_at[g] = instant
                            touched[n_touched] = g
                            n_touched += 1
                s = next_stream[s]
        for j in range(n_touched):
            lowest = 1.0
            m = arrived[touched[j]]
            while m >= 0:
                if active[stream[m]] == m:
                    lowest = min(lowest, own_rate[stream[m]])
                m = earlier[m]
            m = arrived[touched[j]]
            while m >= 0:
                if active[stream[m]] == m:
                    _set_rate(stream[m], lowest, now, rate, work, since, key)
                    n_dirty = _mark(stream_rank[stream[m]], dirty, is_dirty, n_dirty)
                m = earlier[m]
        for j in range(n_dirty):
            p = dirty[j]
            is_dirty[p] = False
            t = NEVER
            s = first_stream[p]
            while s >= 0:
                t = min(t, key[s])
                s = next_stream[s]
            if t != soonest[leaves + p]:
                _put(soonest, leaves, p, t)
        n_dirty = 0
        n_touched = 0
        instant += 1
        # 3. On to the next instant: all that ends there ends, all that was to start there starts.
        now = soonest[1]
        if now == NEVER:
            return ran
        while soonest[1] == now:
            at = 1
            while at < leaves:
                at = 2 * at if soonest[2 * at] == now else 2 * at + 1
            p = at - leaves
            _put(soonest, leaves, p, NEVER)
            n_dirty = _mark(p, dirty, is_dirty, n_dirty)
            s = first_stream[p]
            while s >= 0:
                i = active[s]
                if key[s] != now:
                    pass
                elif running[s]:
                    end[i] = now
                    ran += 1
                    running[s] = False
                    active[s] = -1
                    key[s] = NEVER
                    count[p, kind_class[i]] -= 1
                    g = rendezvous[i]
                    if g >= 0 and touched_at[g] != instant:
                        touched_at[g] = instant  # without this member the others may go faster
                        touched[n_touched] = g
                        n_touched += 1
                    ready[s] = now
                    head[s] = following[i]
                    pending[n_pending] = s
                    n_pending += 1
                    w = waiters[i]
                    while w >= 0:
                        pending[n_pending] = w
                        n_pending += 1
                        w = next_waiter[w]
                else:
                    running[s] = True
                    key[s] = now + duration[i]
                    work[s] = duration[i]
                    since[s] = now
                    rate[s] = 1.0
                    count[p, kind_class[i]] += 1
                s = next_stream[s]
