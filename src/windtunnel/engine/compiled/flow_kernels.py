"""Compiled loops of shared links. Each function's `.py_func` is the same code uncompiled.

Max-min fairness has a local test: an allocation is max-min fair if and only if every flow has a *bottleneck*, a link
that is full and on which no flow has a higher level (Bertsekas and Gallager, "Data Networks", 6.5.2). Level means rate
over weight. So a change need not look at the whole network:

    chosen = what arrived, and the flows whose bottleneck was a link that a flow joined or left
    repeat: fill the chosen flows anew, all others held; a held flow that lost its bottleneck, or robs a chosen one of
            its own, is chosen too, with all flows of its bottleneck
    until every flow has a bottleneck again

The answer is the unique max-min allocation however far that spreads. Filling pops links by the level at which they
would be full; that level only rises while others fill, so a stale entry of the heap is put back, never missed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import float64, int32, int64, njit, types
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

NEVER = np.iinfo(np.int64).max
TOLERANCE = 1e-9  # by which a link may miss its capacity and still be full, and two levels differ and still be equal
ROUNDING_NS = 1e-6  # less than this over a whole nanosecond is rounding of float64, and no further nanosecond
ROUNDING_SHARE = 1e-14  # the same, as a share of what is left to wait


class Network(NamedTuple):
    """Flows on links: what is fixed, who is there now, and scratch. An *entry* is one link of one flow's path."""

    capacity: Array  # f64[links]
    flow_ptr: Array  # i64[flows + 1]
    link_of: Array  # i32[entries]
    need: Array  # f64[entries] capacity taken per unit of the flow's level
    weight: Array  # f64[flows]
    flow_of: Array  # i32[entries]
    link_ptr: Array  # i64[links + 1] where a link's members begin
    members: Array  # i32[entries] entries on each link; the first present[l] of link l are there now
    slot: Array  # i32[entries] place of an entry among its link's members
    present: Array  # i32[links]
    load: Array  # f64[links] capacity taken
    level: Array  # f64[flows] rate / weight
    bottleneck: Array  # i32[flows] -1: absent or not yet rated
    # Scratch of one re-rating.
    chosen: Array  # i32[flows]
    is_chosen: Array  # bool[flows]
    old_level: Array  # f64[flows] of a chosen flow, before
    dirty: Array  # i32[links] full links that a flow joined or left
    is_dirty: Array  # bool[links]
    touched: Array  # i32[links] links of chosen flows
    is_touched: Array  # bool[links]
    held: Array  # f64[links] capacity taken by flows that are not chosen
    n_chosen: Array  # i32[links]
    left: Array  # f64[links] capacity left while filling; the new load after
    growth: Array  # f64[links] capacity that unfilled flows take per unit of level
    n_unfilled: Array  # i32[links]
    heap_key: Array  # f64[links]
    heap_link: Array  # i32[links]
    size: Array  # i64[2] of `chosen` and `dirty`


_FIELD = {"f64": float64[::1], "i64": int64[::1], "i32": int32[::1], "bool": types.boolean[::1]}
_KINDS = """
    f64 i64 i32 f64 f64 i32 i64 i32 i32 i32 f64 f64 i32
    i32 bool f64 i32 bool i32 bool f64 i32 f64 f64 i32 f64 i32 i64
"""
_named: Any = types.NamedTuple  # numba has no type for it
NETWORK = _named([_FIELD[kind] for kind in _KINDS.split()], Network)  # as numba knows it
# One signature each, as in `kernels.py`; what only compiled code calls needs no wrapper for Python.
_inner = partial(njit, cache=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@njit(cache=True, error_model="numpy", inline="always")
def _is_full(net: Network, link: int, load: float) -> Any:
    return load >= net.capacity[link] * (1.0 - TOLERANCE)


@_inner(types.void(NETWORK, int64))
def _choose(net: Network, flow: int) -> None:
    if not net.is_chosen[flow]:
        net.is_chosen[flow] = True
        net.old_level[flow] = net.level[flow]
        net.chosen[net.size[0]] = flow
        net.size[0] += 1


@_inner(types.void(NETWORK, int64))
def _choose_group(net: Network, link: int) -> None:
    """All flows whose bottleneck is `link`."""
    first = net.link_ptr[link]
    for i in range(first, first + net.present[link]):
        flow = net.flow_of[net.members[i]]
        if net.bottleneck[flow] == link:
            _choose(net, flow)


@_inner(types.void(NETWORK, int64))
def _mark_if_full(net: Network, link: int) -> None:
    if not net.is_dirty[link] and _is_full(net, link, net.load[link]):
        net.is_dirty[link] = True
        net.dirty[net.size[1]] = link
        net.size[1] += 1


@njit(types.void(NETWORK, int64), cache=True, error_model="numpy")
def arrive(net: Network, flow: int) -> None:
    """Put a flow on its links, at level 0 until the next `rerate`."""
    net.level[flow] = 0.0
    net.bottleneck[flow] = -1
    for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
        link = net.link_of[e]
        _mark_if_full(net, link)
        net.slot[e] = net.present[link]
        net.members[net.link_ptr[link] + net.present[link]] = e
        net.present[link] += 1
    _choose(net, flow)


@njit(cache=True, error_model="numpy")
def arrive_all(net: Network, flows: Array) -> None:
    """`arrive` for each of `flows`."""
    for flow in flows:
        arrive(net, flow)


@njit(types.void(NETWORK, int64), cache=True, error_model="numpy")
def depart(net: Network, flow: int) -> None:
    """Take a flow that has been rated off its links."""
    for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
        link = net.link_of[e]
        _mark_if_full(net, link)
        net.present[link] -= 1
        last = net.members[net.link_ptr[link] + net.present[link]]
        net.members[net.link_ptr[link] + net.slot[e]] = last
        net.slot[last] = net.slot[e]
        net.load[link] = net.load[link] - net.need[e] * net.level[flow] if net.present[link] else 0.0
    net.bottleneck[flow] = -1


@_inner(types.void(float64[::1], int32[::1], int64, int64))
def _sink(key: Array, item: Array, i: int, n: int) -> None:
    """Restore a heap of minima below place `i`."""
    k, x = key[i], item[i]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and key[child + 1] < key[child]:
            child += 1
        if key[child] >= k:
            break
        key[i], item[i] = key[child], item[child]
        i = child
    key[i], item[i] = k, x


@_inner(float64(NETWORK, int64))
def _exact_level(net: Network, link: int) -> Any:
    """Level at which `link` would be full, from its members alone; sets what is left and its growth to match."""
    taken, growth = 0.0, 0.0
    first = net.link_ptr[link]
    for i in range(first, first + net.present[link]):
        e = net.members[i]
        flow = net.flow_of[e]
        if net.is_chosen[flow] and net.bottleneck[flow] < 0:
            growth += net.need[e]
        else:
            taken += net.need[e] * net.level[flow]
    net.left[link] = max(0.0, net.capacity[link] - taken)
    net.growth[link] = growth
    return net.left[link] / growth


@_inner(types.void(NETWORK, int64))
def _fill(net: Network, n_touched: int) -> None:
    """Progressive filling of the chosen flows in what the others leave."""
    n = net.size[0]
    for i in range(n_touched):
        link = net.touched[i]
        alone = net.n_chosen[link] == net.present[link]
        net.left[link] = net.capacity[link] if alone else max(0.0, net.capacity[link] - net.held[link])
        net.growth[link] = 0.0
        net.n_unfilled[link] = net.n_chosen[link]
    for i in range(n):
        flow = net.chosen[i]
        net.bottleneck[flow] = -1
        for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
            net.growth[net.link_of[e]] += net.need[e]
    for i in range(n_touched):
        link = net.touched[i]
        net.heap_key[i] = net.left[link] / net.growth[link]
        net.heap_link[i] = link
    for i in range(n_touched // 2 - 1, -1, -1):
        _sink(net.heap_key, net.heap_link, i, n_touched)
    unfilled = n
    size = n_touched
    while unfilled > 0:
        link = net.heap_link[0]
        if net.n_unfilled[link] > 0:
            level = net.left[link] / net.growth[link] if net.growth[link] > 0.0 else 0.0
            if level <= net.heap_key[0] * (1.0 + 1e-12):
                level = _exact_level(net, link)  # differences of sums lose digits
            if level > net.heap_key[0] * (1.0 + 1e-12):
                net.heap_key[0] = level
                _sink(net.heap_key, net.heap_link, 0, size)
                continue
            first = net.link_ptr[link]
            for i in range(first, first + net.present[link]):
                flow = net.flow_of[net.members[i]]
                if net.is_chosen[flow] and net.bottleneck[flow] < 0:
                    net.level[flow] = level
                    net.bottleneck[flow] = link
                    unfilled -= 1
                    for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
                        other = net.link_of[e]
                        growth = net.need[e]
                        net.left[other] = max(0.0, net.left[other] - growth * level)
                        net.growth[other] -= growth
                        net.n_unfilled[other] -= 1
        size -= 1
        net.heap_key[0], net.heap_link[0] = net.heap_key[size], net.heap_link[size]
        _sink(net.heap_key, net.heap_link, 0, size)


@_inner(types.void(NETWORK, int64))
def _choose_more(net: Network, n_touched: int) -> None:
    """Choose the held flows that have no bottleneck any more, or because of which a chosen one has none."""
    for i in range(n_touched):
        link = net.touched[i]
        net.left[link] = 0.0 if net.n_chosen[link] == net.present[link] else net.held[link]
    for i in range(net.size[0]):
        flow = net.chosen[i]
        for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
            net.left[net.link_of[e]] += net.need[e] * net.level[flow]
    for i in range(n_touched):
        link = net.touched[i]
        full = _is_full(net, link, net.left[link])
        if net.n_chosen[link] == net.present[link] or not (full or _is_full(net, link, net.load[link])):
            continue
        highest, mine, theirs = 0.0, -1.0, -1.0  # levels: of all, of chosen and of held flows whose bottleneck is here
        first, last = net.link_ptr[link], net.link_ptr[link] + net.present[link]
        for j in range(first, last):
            flow = net.flow_of[net.members[j]]
            highest = max(highest, net.level[flow])
            if net.bottleneck[flow] == link:
                if net.is_chosen[flow]:
                    mine = net.level[flow]
                else:
                    theirs = net.level[flow]
        limit = highest * (1.0 - TOLERANCE)
        if theirs >= 0.0 and (not full or theirs < limit):
            _choose_group(net, link)
        if 0.0 <= mine < limit:
            for j in range(first, last):
                flow = net.flow_of[net.members[j]]
                if not net.is_chosen[flow] and net.level[flow] * (1.0 - TOLERANCE) > mine:
                    _choose_group(net, net.bottleneck[flow])


@njit(int64(NETWORK), cache=True, error_model="numpy")
def rerate(net: Network) -> int:
    """Max-min levels again after any number of `arrive` and `depart`.

    Returns how many flows were looked at: the first so many of `chosen`, their levels of before in `old_level`. Call
    `settle` when they have been read.
    """
    for i in range(net.size[1]):
        _choose_group(net, net.dirty[i])
        net.is_dirty[net.dirty[i]] = False
    net.size[1] = 0
    n_seen = 0
    n_touched = 0
    while n_seen < net.size[0]:
        for i in range(n_seen, net.size[0]):
            flow = net.chosen[i]
            for e in range(net.flow_ptr[flow], net.flow_ptr[flow + 1]):
                link = net.link_of[e]
                if not net.is_touched[link]:
                    net.is_touched[link] = True
                    net.touched[n_touched] = link
                    n_touched += 1
                    net.held[link] = net.load[link]
                    net.n_chosen[link] = 0
                net.held[link] -= net.need[e] * net.level[flow]
                net.n_chosen[link] += 1
        n_seen = net.size[0]
        _fill(net, n_touched)
        _choose_more(net, n_touched)
    for i in range(n_touched):
        link = net.touched[i]
        net.is_touched[link] = False
        net.load[link] = net.left[link]
    return n_seen


@njit(types.void(NETWORK), cache=True, error_model="numpy")
def settle(net: Network) -> None:
    """Forget which flows were chosen."""
    for i in range(net.size[0]):
        net.is_chosen[net.chosen[i]] = False
    net.size[0] = 0


@njit(cache=True, error_model="numpy")
def _place(heap: Array, place: Array, key: Array, i: int, n: int, flow: int) -> None:
    """Put `flow` where it belongs in a heap of minima with a gap at `i`."""
    k = key[flow]
    while i > 0 and key[heap[(i - 1) >> 1]] > k:
        heap[i] = heap[(i - 1) >> 1]
        place[heap[i]] = i
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[heap[child]] >= k:
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = flow
    place[flow] = i


@njit(float64[:, ::1](float64[:, ::1], int64, float64, int64, float64), cache=True, error_model="numpy")
def _append(log: Array, n: int, time: float, flow: int, rate: float) -> Array:
    if n == len(log):
        longer = np.empty((2 * n + 64, 3), np.float64)
        for i in range(n):  # copied by hand: numba compiles 3 s of error messages for an array into a slice
            longer[i, 0], longer[i, 1], longer[i, 2] = log[i, 0], log[i, 1], log[i, 2]
        log = longer
    log[n, 0] = time
    log[n, 1] = flow
    log[n, 2] = rate
    return log


@njit(cache=True, error_model="numpy", nogil=True)
def replay(net: Network, order: Array, arrival: Array, amount: Array, finish: Array, logs: bool) -> Array:
    """Finish of every flow, and where asked a row (ns, flow, rate) for every change of a rate.

    `order`: flows by arrival. At each instant all that ends there ends, then all that arrives arrives, then the rates
    are set anew: the result does not depend on the order within an instant. An end is rounded up to a nanosecond: a
    link never carries more than its capacity.
    """
    n = len(order)
    work = amount.copy()  # left at `since`
    since = np.zeros(n, np.int64)
    heap = np.empty(n, np.int32)
    place = np.empty(n, np.int32)
    size = 0
    log = np.empty((0, 3), np.float64)
    n_log = 0
    following = 0
    while following < n or size > 0:
        now = NEVER if size == 0 else finish[heap[0]]
        if following < n:
            now = min(now, arrival[order[following]])
        while size > 0 and finish[heap[0]] <= now:
            flow = heap[0]
            size -= 1
            if size > 0:
                _place(heap, place, finish, 0, size, heap[size])
            if logs:
                log = _append(log, n_log, now, flow, 0.0)
                n_log += 1
            depart(net, flow)
        while following < n and arrival[order[following]] <= now:
            flow = order[following]
            following += 1
            finish[flow] = now
            if work[flow] > 0.0 and net.flow_ptr[flow] < net.flow_ptr[flow + 1]:
                since[flow] = now
                finish[flow] = NEVER
                _place(heap, place, finish, size, size + 1, flow)
                size += 1
                arrive(net, flow)
        for i in range(rerate(net)):
            flow = net.chosen[i]
            if net.level[flow] == net.old_level[flow]:
                continue
            weight = net.weight[flow]
            rate = net.level[flow] * weight
            work[flow] = max(0.0, work[flow] - (now - since[flow]) * (net.old_level[flow] * weight) / 1e9)
            since[flow] = now
            wait = work[flow] * 1e9 / rate
            finish[flow] = now + np.int64(np.ceil(max(0.0, wait - ROUNDING_NS - ROUNDING_SHARE * wait)))
            _place(heap, place, finish, place[flow], size, flow)
            if logs:
                log = _append(log, n_log, now, flow, rate)
                n_log += 1
        settle(net)
    return log[:n_log]
