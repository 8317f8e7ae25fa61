"""The compiled replay of a graph whose ops share links. See `engine/sharing.py`.

It is `kernels.replay_rated` with one more reason for an op to slow down: the speed of a flow is its level in
`flow_kernels`, where a link of the flow's own has what interference leaves of its speed as capacity. Compiled at first
use, some 6 s once per machine. Numba links the functions of the other two files into the cached code, but looks at
this file alone to tell whether that is still good: after a change there, touch this file.
"""

from __future__ import annotations

import numpy as np
from numba import float64, int64, types

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.flow_kernels import (
    NETWORK,
    Network,
    _append,
    _choose,
    arrive,
    depart,
    rerate,
    settle,
)
from windtunnel.physics.engine.compiled.kernels import (
    _F64_2D,
    _I32,
    _I64,
    _U8,
    NEVER,
    _group_sizes,
    _inner,
    _is_malformed,
    _mark,
    _pair,
    _queues,
    _rate,
    _set_rate,
    flags,
    floats,
    ints,
    longs,
)
from windtunnel.physics.engine.interpreted import MALFORMED

GRAIN = 2.0**-40  # of speeds: what the order of sums changes in their last digits must not move an end


@_inner(float64(float64, float64))
def speed_of(level: float, cap: float) -> float:
    """A speed to 40 binary digits; `cap` itself, all of its digits, where it is that high."""
    if level >= cap * (1.0 - GRAIN):
        return cap
    shifted = level * (2.0**13 + 1.0)
    return shifted - (shifted - level)


@_inner(types.void(int64[::1], int64, int64, int64))
def _schedule(tree: Array, leaves: int, s: int, time: int) -> None:
    """Set leaf `s` of a tree of minima (root at 1, leaves from `leaves` on)."""
    at = leaves + s
    tree[at] = time
    while at > 1:
        at >>= 1
        lowest = min(tree[2 * at], tree[2 * at + 1])
        if tree[at] == lowest:
            break
        tree[at] = lowest


@_inner(types.void(NETWORK, int64, float64))
def _set_cap(net: Network, flow: int, cap: float) -> None:
    """From the next `rerate` on a flow that is there may go at `cap` at most."""
    own = len(net.links) - len(net.flows) + flow
    if net.links[own]["capacity"] != cap:
        net.links[own]["capacity"] = cap
        _choose(net, flow)


@njit(
    _pair((int64, float64[:, ::1]))(
        _I32,
        _I32,
        int64,
        _I64,
        _I32,
        _I32,
        _I64,
        _U8,
        _F64_2D,
        _I32,
        NETWORK,
        int64[::1],
        int64[::1],
        types.boolean,
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def replay_shared(
    stream: Array,
    stream_rank: Array,
    n_programs: int,
    dep_ptr: Array,
    dep_idx: Array,
    rendezvous: Array,
    duration: Array,
    kind_class: Array,
    factor: Array,
    flow: Array,
    net: Network,
    start: Array,
    end: Array,
    logs: bool,
) -> tuple[int, Array]:
    """`kernels.replay_rated` for ops that also share the links of `net`.

    `flow[op]`: which flow of `net` the op is, the same for all members of a rendezvous; -1: none. Two ops of one flow
    never run at once, members of a rendezvous excepted. The last links of `net` are each flow's own, its capacity the
    highest speed. `factor` of one class only: no op slows another but on links.

    Returns what `replay_rated` does, and where asked a row (ns, op, speed) for every change of a flow's speed, 0 when
    it ends. The op is any one of its members.
    """
    n, n_streams = len(stream), len(stream_rank)
    log = np.empty((0, 3), np.float64)
    n_log = 0
    if _is_malformed(n, n_streams, stream, dep_ptr, dep_idx, rendezvous, duration):
        return MALFORMED, log
    for s in range(n_streams):
        if stream_rank[s] < 0 or stream_rank[s] >= n_programs:
            return MALFORMED, log
    interferes = len(factor) > 1
    head, following = _queues(stream, n_streams)
    missing = _group_sizes(rendezvous)
    n_groups = len(missing)
    arrived = ints(n_groups, -1)
    earlier = ints(n if n_groups else 0, -1)
    latest = longs(n_groups, 0)
    timed_group = flags(n_groups)  # one member has a class or a flow: then all follow the common rate
    touched_at = longs(n_groups, -1)  # count of the instant at which it was last put into `touched`
    waiters = ints(n, -1)
    next_waiter = ints(n_streams, -1)
    cursor = longs(n_streams, -1)
    ready = longs(n_streams, 0)
    pending = ints(n_streams, -1)
    start[:] = -1
    end[:] = -1

    # The streams of each program on which ops may interfere.
    may_run = flags(n_streams)
    if interferes:
        for i in range(n):
            may_run[stream[i]] |= kind_class[i] > 0 or rendezvous[i] >= 0 or flow[i] >= 0
    first_stream = ints(n_programs, -1)
    next_stream = ints(n_streams, -1)
    for s in range(n_streams - 1, -1, -1):
        pending[n_streams - 1 - s] = s
        if may_run[s]:
            next_stream[s] = first_stream[stream_rank[s]]
            first_stream[stream_rank[s]] = s
    n_pending = n_streams

    # At most one timed op is under way on a stream, so its state is kept per stream.
    active = ints(n_streams, -1)  # the timed op that runs, or waits for its start
    running = flags(n_streams)
    key = longs(n_streams, NEVER)  # when it ends, or starts
    work = floats(n_streams, 0.0)  # left at `since`
    since = longs(n_streams, 0)
    rate = floats(n_streams, 1.0)
    own_rate = floats(n_streams, 1.0)  # what its own program would allow a member of a rendezvous
    count = np.zeros((n_programs, len(factor)), np.int32)  # timed ops that run, by program and class
    here = ints(len(net.flows), 0)  # ops of each flow that run
    member = ints(len(net.flows), -1)  # one of them
    speed = floats(len(net.flows), 0.0)
    leaving = ints(len(net.flows), -1)  # flows of which the last op ended now
    is_leaving = flags(len(net.flows))
    n_leaving = 0
    starting = ints(n_streams, -1)  # streams whose active op starts now
    n_starting = 0
    moved = ints(n_streams, -1)  # streams whose key has changed
    is_moved = flags(n_streams)
    n_moved = 0
    dirty = ints(n_programs, -1)  # programs of which the set of running ops has changed
    is_dirty = flags(n_programs)
    n_dirty = 0
    touched = ints(2 * n_streams, -1)  # rendezvous of which a member started, ended or changed its rate
    n_touched = 0
    leaves = 1
    while leaves < n_streams:
        leaves *= 2
    soonest = longs(2 * leaves, NEVER)  # tree of minima: the next instant of each stream
    ran = 0
    now = 0
    instant = 0
    while True:
        # 1. What can start, starts. Ops that nothing slows are done at once, and may lead on to times after `now`.
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
                is_timed = kind_class[i] > 0 or flow[i] >= 0
                if g >= 0:
                    latest[g] = max(latest[g], t)
                    timed_group[g] |= is_timed
                    earlier[i] = arrived[g]
                    arrived[g] = i
                    missing[g] -= 1
                    if missing[g] > 0:
                        break
                    t = latest[g]
                    is_timed = timed_group[g]
                m = i
                while m >= 0:
                    q = stream[m]
                    start[m] = t
                    cursor[q] = -1
                    if is_timed and duration[m] > 0:
                        active[q] = m
                        if t <= now:
                            starting[n_starting] = q
                            n_starting += 1
                        else:
                            key[q] = t
                            n_moved = _mark(q, moved, is_moved, n_moved)
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
        for j in range(n_starting):
            s = starting[j]
            i = active[s]
            running[s] = True
            key[s] = now + duration[i]
            work[s] = duration[i]
            since[s] = now
            rate[s] = 1.0
            n_moved = _mark(s, moved, is_moved, n_moved)
            if interferes:
                count[stream_rank[s], kind_class[i]] += 1
                n_dirty = _mark(stream_rank[s], dirty, is_dirty, n_dirty)
            f = flow[i]
            if f >= 0:
                here[f] += 1
                if here[f] == 1:
                    member[f] = i
                    if is_leaving[f]:  # relieved by the next op with that demand: nothing changes on the links
                        is_leaving[f] = False
                        if logs:
                            log = _append(log, n_log, now, i, speed[f])
                            n_log += 1
                    else:
                        speed[f] = 0.0
                        arrive(net, f)
                if speed[f] > 0.0:
                    _set_rate(s, speed[f], now, rate, work, since, key)
        n_starting = 0
        for j in range(n_leaving):
            f = leaving[j]
            if is_leaving[f]:
                is_leaving[f] = False
                depart(net, f)
        n_leaving = 0
        # 2. What interference allows, where the set of running ops has changed.
        for j in range(n_dirty):
            p = dirty[j]
            is_dirty[p] = False
            s = first_stream[p]
            while s >= 0:
                if running[s]:
                    i = active[s]
                    r = _rate(kind_class[i], count[p], factor)
                    g = rendezvous[i]
                    if g >= 0:
                        own_rate[s] = r
                        if touched_at[g] != instant:
                            touched_at[g] = instant
                            touched[n_touched] = g
                            n_touched += 1
                    elif flow[i] >= 0:
                        _set_cap(net, flow[i], r)
                    elif r != rate[s]:
                        _set_rate(s, r, now, rate, work, since, key)
                        n_moved = _mark(s, moved, is_moved, n_moved)
                s = next_stream[s]
        n_dirty = 0
        for j in range(n_touched):
            lowest = 1.0
            runs = False
            m = arrived[touched[j]]
            while m >= 0:
                if active[stream[m]] == m:
                    lowest = min(lowest, own_rate[stream[m]])
                    runs = True
                m = earlier[m]
            m = arrived[touched[j]]
            if runs and flow[m] >= 0:
                _set_cap(net, flow[m], lowest)
                runs = False
            while runs and m >= 0:
                s = stream[m]
                if active[s] == m and lowest != rate[s]:
                    _set_rate(s, lowest, now, rate, work, since, key)
                    n_moved = _mark(s, moved, is_moved, n_moved)
                m = earlier[m]
        n_touched = 0
        # 3. Of that, what links allow, where who uses them has changed.
        if net.size[0] > 0 or net.size[1] > 0:
            for j in range(rerate(net)):
                f = net.flows[j]["chosen"]
                r = speed_of(
                    net.flows[f]["level"] * net.flows[f]["weight"],
                    net.links[len(net.links) - len(net.flows) + f]["capacity"],
                )
                if r == speed[f]:
                    continue
                speed[f] = r
                m = member[f]
                if logs:
                    log = _append(log, n_log, now, m, r)
                    n_log += 1
                g = rendezvous[m]
                if g >= 0:
                    m = arrived[g]
                while m >= 0:
                    s = stream[m]
                    if active[s] == m and r != rate[s]:
                        _set_rate(s, r, now, rate, work, since, key)
                        n_moved = _mark(s, moved, is_moved, n_moved)
                    m = earlier[m] if g >= 0 else -1
            settle(net)
        for j in range(n_moved):
            is_moved[moved[j]] = False
            _schedule(soonest, leaves, moved[j], key[moved[j]])
        n_moved = 0
        instant += 1
        # 4. On to the next instant: all that ends there ends; what was to start there will, with what can now.
        now = soonest[1]
        if now == NEVER:
            return ran, log[:n_log]
        while soonest[1] == now:
            at = 1
            while at < leaves:
                at = 2 * at if soonest[2 * at] == now else 2 * at + 1
            s = at - leaves
            _schedule(soonest, leaves, s, NEVER)
            if not running[s]:
                starting[n_starting] = s
                n_starting += 1
                continue
            i = active[s]
            end[i] = now
            ran += 1
            running[s] = False
            active[s] = -1
            key[s] = NEVER
            if interferes:
                count[stream_rank[s], kind_class[i]] -= 1
                n_dirty = _mark(stream_rank[s], dirty, is_dirty, n_dirty)
                g = rendezvous[i]
                if g >= 0 and touched_at[g] != instant:
                    touched_at[g] = instant  # without this member the others may go faster
                    touched[n_touched] = g
                    n_touched += 1
            f = flow[i]
            if f >= 0:
                here[f] -= 1
                if here[f] == 0:
                    is_leaving[f] = True
                    leaving[n_leaving] = f
                    n_leaving += 1
                    if logs:
                        log = _append(log, n_log, now, member[f], 0.0)
                        n_log += 1
            ready[s] = now
            head[s] = following[i]
            pending[n_pending] = s
            n_pending += 1
            w = waiters[i]
            while w >= 0:
                pending[n_pending] = w
                n_pending += 1
                w = next_waiter[w]
