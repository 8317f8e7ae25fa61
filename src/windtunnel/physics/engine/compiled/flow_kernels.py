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

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import float64, from_dtype, int64, types

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

NEVER = np.iinfo(np.int64).max
TOLERANCE = 1e-9  # by which a link may miss its capacity and still be full, and two levels differ and still be equal
ROUNDING_NS = 1e-6  # less than this over a whole nanosecond is rounding of float64, and no further nanosecond
ROUNDING_SHARE = 1e-14  # the same, as a share of what is left to wait


# Fields of one kind in one array of records: numba hands each array of an argument on as seven, in every call.
LINK = np.dtype(
    [
        ("capacity", "f8"),
        ("load", "f8"),  # capacity taken
        ("held", "f8"),  # capacity taken by flows that are not chosen
        ("left", "f8"),  # capacity left while filling; the new load after
        ("growth", "f8"),  # capacity that unfilled flows take per unit of level
        ("heap_key", "f8"),  # of the heap's place with this number
        ("first", "i8"),  # where its members begin
        ("heap_link", "i4"),
        ("present", "i4"),  # its first so many members are there now
        ("n_chosen", "i4"),
        ("n_unfilled", "i4"),
        ("dirty", "i4"),  # a list: full links that a flow joined or left
        ("touched", "i4"),  # a list: links of chosen flows
        ("is_dirty", "?"),
        ("is_touched", "?"),
    ],
    align=True,
)
FLOW = np.dtype(
    [
        ("weight", "f8"),
        ("level", "f8"),  # rate / weight
        ("old_level", "f8"),  # of a chosen flow, before
        ("first", "i8"),  # its entries
        ("end", "i8"),
        ("bottleneck", "i4"),  # -1: absent or not yet rated
        ("chosen", "i4"),  # a list: flows to rate anew
        ("is_chosen", "?"),
    ],
    align=True,
)
ENTRY = np.dtype(
    [
        ("need", "f8"),  # capacity taken per unit of the flow's level
        ("link", "i4"),
        ("flow", "i4"),
        ("member", "i4"),  # by link: the entries on it, from its `first` on
        ("slot", "i4"),  # place of an entry among its link's members
    ],
    align=True,
)


class Network(NamedTuple):
    """Flows on links: what is fixed, who is there now, and scratch. An *entry* is one link of one flow's path."""

    links: Array  # LINK[links]
    flows: Array  # FLOW[flows]
    entries: Array  # ENTRY[entries]
    size: Array  # i64[2] of the lists `chosen` and `dirty`


_named: Callable[[Sequence[object], type], types.Type] = types.NamedTuple  # numba has no type for it
# As numba knows it.
NETWORK = _named([*(from_dtype(record)[::1] for record in (LINK, FLOW, ENTRY)), int64[::1]], Network)
# One signature each, as in `kernels.py`; what only compiled code calls needs no wrapper for Python.
_inner = partial(njit, cache=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@njit(cache=True, error_model="numpy", inline="always")
def _is_full(net: Network, link: int, load: float) -> bool:
    full: bool = load >= net.links[link]["capacity"] * (1.0 - TOLERANCE)
    return full


@_inner(types.void(NETWORK, int64))
def _choose(net: Network, flow: int) -> None:
    if not net.flows[flow]["is_chosen"]:
        net.flows[flow]["is_chosen"] = True
        net.flows[flow]["old_level"] = net.flows[flow]["level"]
        net.flows[net.size[0]]["chosen"] = flow
        net.size[0] += 1


@_inner(types.void(NETWORK, int64))
def _choose_group(net: Network, link: int) -> None:
    """All flows whose bottleneck is `link`."""
    first = net.links[link]["first"]
    for i in range(first, first + net.links[link]["present"]):
        flow = net.entries[net.entries[i]["member"]]["flow"]
        if net.flows[flow]["bottleneck"] == link:
            _choose(net, flow)


@_inner(types.void(NETWORK, int64))
def _mark_if_full(net: Network, link: int) -> None:
    if not net.links[link]["is_dirty"] and _is_full(net, link, net.links[link]["load"]):
        net.links[link]["is_dirty"] = True
        net.links[net.size[1]]["dirty"] = link
        net.size[1] += 1


@njit(types.void(NETWORK, int64), cache=True, error_model="numpy")
def arrive(net: Network, flow: int) -> None:
    """Put a flow on its links, at level 0 until the next `rerate`."""
    net.flows[flow]["level"] = 0.0
    net.flows[flow]["bottleneck"] = -1
    for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
        link = net.entries[e]["link"]
        _mark_if_full(net, link)
        net.entries[e]["slot"] = net.links[link]["present"]
        net.entries[net.links[link]["first"] + net.links[link]["present"]]["member"] = e
        net.links[link]["present"] += 1
    _choose(net, flow)


@njit(types.void(NETWORK, int64), cache=True, error_model="numpy")
def depart(net: Network, flow: int) -> None:
    """Take a flow that has been rated off its links."""
    for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
        link = net.entries[e]["link"]
        _mark_if_full(net, link)
        net.links[link]["present"] -= 1
        last = net.entries[net.links[link]["first"] + net.links[link]["present"]]["member"]
        net.entries[net.links[link]["first"] + net.entries[e]["slot"]]["member"] = last
        net.entries[last]["slot"] = net.entries[e]["slot"]
        net.links[link]["load"] = (
            net.links[link]["load"] - net.entries[e]["need"] * net.flows[flow]["level"]
            if net.links[link]["present"]
            else 0.0
        )
    net.flows[flow]["bottleneck"] = -1


@_inner(types.void(NETWORK, int64, int64))
def _sink(net: Network, i: int, n: int) -> None:
    """Restore the heap of minima, `n` links by the level at which each would be full, below place `i`."""
    k, x = net.links[i]["heap_key"], net.links[i]["heap_link"]
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and net.links[child + 1]["heap_key"] < net.links[child]["heap_key"]:
            child += 1
        if net.links[child]["heap_key"] >= k:
            break
        net.links[i]["heap_key"] = net.links[child]["heap_key"]
        net.links[i]["heap_link"] = net.links[child]["heap_link"]
        i = child
    net.links[i]["heap_key"], net.links[i]["heap_link"] = k, x


@_inner(float64(NETWORK, int64))
def _exact_level(net: Network, link: int) -> float:
    """Level at which `link` would be full, from its members alone; sets what is left and its growth to match."""
    load, growth = 0.0, 0.0
    first = net.links[link]["first"]
    for i in range(first, first + net.links[link]["present"]):
        e = net.entries[i]["member"]
        flow = net.entries[e]["flow"]
        if net.flows[flow]["is_chosen"] and net.flows[flow]["bottleneck"] < 0:
            growth += net.entries[e]["need"]
        else:
            load += net.entries[e]["need"] * net.flows[flow]["level"]
    net.links[link]["left"] = max(0.0, net.links[link]["capacity"] - load)
    net.links[link]["growth"] = growth
    level: float = net.links[link]["left"] / growth
    return level


@_inner(types.void(NETWORK, int64))
def _fill(net: Network, n_touched: int) -> None:
    """Progressive filling of the chosen flows in what the others leave."""
    n = net.size[0]
    for i in range(n_touched):
        link = net.links[i]["touched"]
        alone = net.links[link]["n_chosen"] == net.links[link]["present"]
        net.links[link]["left"] = (
            net.links[link]["capacity"] if alone else max(0.0, net.links[link]["capacity"] - net.links[link]["held"])
        )
        net.links[link]["growth"] = 0.0
        net.links[link]["n_unfilled"] = net.links[link]["n_chosen"]
    for i in range(n):
        flow = net.flows[i]["chosen"]
        net.flows[flow]["bottleneck"] = -1
        for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
            net.links[net.entries[e]["link"]]["growth"] += net.entries[e]["need"]
    for i in range(n_touched):
        link = net.links[i]["touched"]
        net.links[i]["heap_key"] = net.links[link]["left"] / net.links[link]["growth"]
        net.links[i]["heap_link"] = link
    for i in range(n_touched // 2 - 1, -1, -1):
        _sink(net, i, n_touched)
    unfilled = n
    size = n_touched
    while unfilled > 0:
        link = net.links[0]["heap_link"]
        if net.links[link]["n_unfilled"] > 0:
            level = net.links[link]["left"] / net.links[link]["growth"] if net.links[link]["growth"] > 0.0 else 0.0
            if level <= net.links[0]["heap_key"] * (1.0 + 1e-12):
                level = _exact_level(net, link)  # differences of sums lose digits
            if level > net.links[0]["heap_key"] * (1.0 + 1e-12):
                net.links[0]["heap_key"] = level
                _sink(net, 0, size)
                continue
            first = net.links[link]["first"]
            for i in range(first, first + net.links[link]["present"]):
                flow = net.entries[net.entries[i]["member"]]["flow"]
                if net.flows[flow]["is_chosen"] and net.flows[flow]["bottleneck"] < 0:
                    net.flows[flow]["level"] = level
                    net.flows[flow]["bottleneck"] = link
                    unfilled -= 1
                    for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
                        other = net.entries[e]["link"]
                        growth = net.entries[e]["need"]
                        net.links[other]["left"] = max(0.0, net.links[other]["left"] - growth * level)
                        net.links[other]["growth"] -= growth
                        net.links[other]["n_unfilled"] -= 1
        size -= 1
        net.links[0]["heap_key"], net.links[0]["heap_link"] = net.links[size]["heap_key"], net.links[size]["heap_link"]
        _sink(net, 0, size)


@_inner(types.void(NETWORK, int64))
def _choose_more(net: Network, n_touched: int) -> None:
    """Choose the held flows that have no bottleneck any more, or because of which a chosen one has none."""
    for i in range(n_touched):
        link = net.links[i]["touched"]
        net.links[link]["left"] = (
            0.0 if net.links[link]["n_chosen"] == net.links[link]["present"] else net.links[link]["held"]
        )
    for i in range(net.size[0]):
        flow = net.flows[i]["chosen"]
        for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
            net.links[net.entries[e]["link"]]["left"] += net.entries[e]["need"] * net.flows[flow]["level"]
    for i in range(n_touched):
        link = net.links[i]["touched"]
        full = _is_full(net, link, net.links[link]["left"])
        if net.links[link]["n_chosen"] == net.links[link]["present"] or not (
            full or _is_full(net, link, net.links[link]["load"])
        ):
            continue
        highest, mine, theirs = 0.0, -1.0, -1.0  # levels: of all, of chosen and of held flows whose bottleneck is here
        first, last = net.links[link]["first"], net.links[link]["first"] + net.links[link]["present"]
        for j in range(first, last):
            flow = net.entries[net.entries[j]["member"]]["flow"]
            highest = max(highest, net.flows[flow]["level"])
            if net.flows[flow]["bottleneck"] == link:
                if net.flows[flow]["is_chosen"]:
                    mine = net.flows[flow]["level"]
                else:
                    theirs = net.flows[flow]["level"]
        limit = highest * (1.0 - TOLERANCE)
        if theirs >= 0.0 and (not full or theirs < limit):
            _choose_group(net, link)
        if 0.0 <= mine < limit:
            for j in range(first, last):
                flow = net.entries[net.entries[j]["member"]]["flow"]
                if not net.flows[flow]["is_chosen"] and net.flows[flow]["level"] * (1.0 - TOLERANCE) > mine:
                    _choose_group(net, net.flows[flow]["bottleneck"])


@njit(int64(NETWORK), cache=True, error_model="numpy")
def rerate(net: Network) -> int:
    """Max-min levels again after any number of `arrive` and `depart`.

    Returns how many flows were looked at: the first so many of `chosen`, their levels of before in `old_level`. Call
    `settle` when they have been read.
    """
    for i in range(net.size[1]):
        _choose_group(net, net.links[i]["dirty"])
        net.links[net.links[i]["dirty"]]["is_dirty"] = False
    net.size[1] = 0
    n_seen = 0
    n_touched = 0
    while n_seen < net.size[0]:
        for i in range(n_seen, net.size[0]):
            flow = net.flows[i]["chosen"]
            for e in range(net.flows[flow]["first"], net.flows[flow]["end"]):
                link = net.entries[e]["link"]
                if not net.links[link]["is_touched"]:
                    net.links[link]["is_touched"] = True
                    net.links[n_touched]["touched"] = link
                    n_touched += 1
                    net.links[link]["held"] = net.links[link]["load"]
                    net.links[link]["n_chosen"] = 0
                net.links[link]["held"] -= net.entries[e]["need"] * net.flows[flow]["level"]
                net.links[link]["n_chosen"] += 1
        n_seen = net.size[0]
        _fill(net, n_touched)
        _choose_more(net, n_touched)
    for i in range(n_touched):
        link = net.links[i]["touched"]
        net.links[link]["is_touched"] = False
        net.links[link]["load"] = net.links[link]["left"]
    return n_seen


@njit(types.void(NETWORK), cache=True, error_model="numpy")
def settle(net: Network) -> None:
    """Forget which flows were chosen."""
    for i in range(net.size[0]):
        net.flows[net.flows[i]["chosen"]]["is_chosen"] = False
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
            if work[flow] > 0.0 and net.flows[flow]["first"] < net.flows[flow]["end"]:
                since[flow] = now
                finish[flow] = NEVER
                _place(heap, place, finish, size, size + 1, flow)
                size += 1
                arrive(net, flow)
        for i in range(rerate(net)):
            flow = net.flows[i]["chosen"]
            if net.flows[flow]["level"] == net.flows[flow]["old_level"]:
                continue
            weight = net.flows[flow]["weight"]
            rate = net.flows[flow]["level"] * weight
            work[flow] = max(0.0, work[flow] - (now - since[flow]) * (net.flows[flow]["old_level"] * weight) / 1e9)
            since[flow] = now
            wait = work[flow] * 1e9 / rate
            finish[flow] = now + np.int64(np.ceil(max(0.0, wait - ROUNDING_NS - ROUNDING_SHARE * wait)))
            _place(heap, place, finish, place[flow], size, flow)
            if logs:
                log = _append(log, n_log, now, flow, rate)
                n_log += 1
        settle(net)
    return log[:n_log]
