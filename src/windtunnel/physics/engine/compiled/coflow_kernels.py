"""Compiled loops of coflows on shared links: rates by policy, and a replay that re-rates whenever anything changes.

A *group* is one coflow: flows `group_ptr[g]:group_ptr[g + 1]`, done when its last flow is. `spot` are the distinct
links of a group; a flow's path is given as places among them (`path`), so that a group is looked at without the rest.
Rates are set coflow by coflow in the order of the policy, from what those before have left:

    clairvoyant  every flow just fast enough to end with its coflow's bottleneck; a coflow that needs a full link is
                 passed over; what is left goes to those passed over, in order, and then to all, in order
    PFP          not by coflow: of all flows the one with least left first, each as fast as its path has room
    D-CLAS       max-min fair inside the coflow
    Fai          D-CLAS, then each flow is slowed until it would reach the coflow's horizon with the slowest of them;
                 what that frees goes down the order, and what nobody takes comes back in order

Within a coflow every share of what is left is max-min fair (progressive filling), so no flow is favoured by its number,
and at every instant each flow has a full link on its path: no capacity idles that a flow could use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.flow_kernels import NEVER, ROUNDING_NS, ROUNDING_SHARE

PFP, BY_BOTTLENECK, BY_KEY, BY_BYTES_SENT, FAI = -1, 0, 1, 2, 3
NONE_FREE = 1e-9  # of a link's capacity: as good as full
LONGEST_NS = 2**61  # no wait is longer: the sum of a clock and a wait stays an int64
REACHED = 1e-9  # of a threshold: as good as crossed


class Groups(NamedTuple):
    """Coflows on links, as they do not change. Groups are in the order of their arrival."""

    group_ptr: Array  # i64[groups + 1]
    path_ptr: Array  # i64[flows + 1]
    path: Array  # i32[entries] place of a link among its group's
    spot_ptr: Array  # i64[groups + 1]
    spot_link: Array  # i32[spots]
    capacity: Array  # f64[links] bytes per second
    amount: Array  # f64[flows] bytes
    key: Array  # f64[groups] least first, for BY_KEY
    first_limit: float  # D-CLAS: bytes sent at which a coflow leaves the first queue
    limit_growth: float  # of each further queue
    first_horizon: float  # Fai: bytes that every flow is first taken to have


class Moment(NamedTuple):
    """What is left now, and scratch."""

    left: Array  # f64[flows]
    rate: Array  # f64[flows]
    there: Array  # i32[flows] of each group, the first n_there are its unfinished flows
    n_there: Array  # i64[groups]
    sent: Array  # f64[groups]
    queue: Array  # i64[groups]
    horizon: Array  # f64[groups] bytes
    free: Array  # f64[links]
    spot_need: Array  # f64[spots]
    spot_room: Array  # f64[spots]
    spot_count: Array  # i64[spots]
    spot_flows: Array  # i32[entries] flows of a spot, at its `spot_first`
    spot_first: Array  # i64[spots + 1]
    filling: Array  # bool[flows]
    before: Array  # f64[flows]


@njit(cache=True, error_model="numpy")
def moment_of(net: Groups) -> Moment:
    """Nothing is sent yet."""
    n_flows, n_groups, n_spots = len(net.amount), len(net.group_ptr) - 1, len(net.spot_link)
    first = np.zeros(n_spots + 1, np.int64)
    for g in range(n_groups):
        for f in range(net.group_ptr[g], net.group_ptr[g + 1]):
            for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
                first[net.spot_ptr[g] + net.path[e] + 1] += 1
    for s in range(n_spots):
        first[s + 1] += first[s]
    flows = np.empty(len(net.path), np.int32)
    filled = first[:-1].copy()
    there = np.empty(n_flows, np.int32)
    n_there = np.zeros(n_groups, np.int64)
    for g in range(n_groups):
        for f in range(net.group_ptr[g], net.group_ptr[g + 1]):
            for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
                s = net.spot_ptr[g] + net.path[e]
                flows[filled[s]] = f
                filled[s] += 1
            if net.amount[f] > 0.0 and net.path_ptr[f] < net.path_ptr[f + 1]:
                there[net.group_ptr[g] + n_there[g]] = f
                n_there[g] += 1
    return Moment(
        net.amount.copy(),
        np.zeros(n_flows),
        there,
        n_there,
        np.zeros(n_groups),
        np.zeros(n_groups, np.int64),
        np.full(n_groups, net.first_horizon),
        net.capacity.copy(),
        np.zeros(n_spots),
        np.zeros(n_spots),
        np.zeros(n_spots, np.int64),
        flows,
        first,
        np.zeros(n_flows, np.bool_),
        np.zeros(n_flows),
    )


@njit(cache=True, error_model="numpy")
def _need(net: Groups, now: Moment, g: int) -> None:
    """Bytes left on every link of a group."""
    base = net.spot_ptr[g]
    now.spot_need[base : net.spot_ptr[g + 1]] = 0.0
    for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
        f = now.there[i]
        for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
            now.spot_need[base + net.path[e]] += now.left[f]


@njit(cache=True, error_model="numpy")
def bottleneck_s(net: Groups, now: Moment, g: int) -> float:
    """Seconds that the group would take if it were alone."""
    _need(net, now, g)
    longest = 0.0
    for s in range(net.spot_ptr[g], net.spot_ptr[g + 1]):
        longest = max(longest, now.spot_need[s] / net.capacity[net.spot_link[s]])
    return longest


@njit(cache=True, error_model="numpy")
def _end_together(net: Groups, now: Moment, g: int) -> bool:
    """Rates with which all flows of a group end at its bottleneck in what is free; False where it needs a full link."""
    _need(net, now, g)
    longest = 0.0
    for s in range(net.spot_ptr[g], net.spot_ptr[g + 1]):
        if now.spot_need[s] > 0.0:
            link = net.spot_link[s]
            if now.free[link] <= NONE_FREE * net.capacity[link]:
                return False
            longest = max(longest, now.spot_need[s] / now.free[link])
    if longest <= 0.0:
        return True
    for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
        f = now.there[i]
        now.rate[f] = now.left[f] / longest
    for s in range(net.spot_ptr[g], net.spot_ptr[g + 1]):
        link = net.spot_link[s]
        now.free[link] = max(0.0, now.free[link] - now.spot_need[s] / longest)
    return True


@njit(cache=True, error_model="numpy")
def _fill(net: Groups, now: Moment, g: int) -> None:
    """Add to the rates of a group what is free, max-min fair among its flows."""
    first, last, base = net.spot_ptr[g], net.spot_ptr[g + 1], net.spot_ptr[g]
    for s in range(first, last):
        link = net.spot_link[s]
        now.spot_room[s] = now.free[link] if now.free[link] > NONE_FREE * net.capacity[link] else 0.0
        now.spot_count[s] = 0
    unfilled = 0
    for s in range(first, last):  # a flow with room on its whole path has room on its first link
        if now.spot_room[s] <= 0.0:
            continue
        for j in range(now.spot_first[s], now.spot_first[s + 1]):
            f = now.spot_flows[j]
            if now.left[f] <= 0.0 or base + net.path[net.path_ptr[f]] != s:
                continue
            can = True
            for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
                can = can and now.spot_room[base + net.path[e]] > 0.0
            if can:
                now.filling[f] = True
                unfilled += 1
                for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
                    now.spot_count[base + net.path[e]] += 1
    while unfilled > 0:
        level = np.inf
        for s in range(first, last):
            if now.spot_count[s] > 0:
                level = min(level, now.spot_room[s] / now.spot_count[s])
        level = max(0.0, level)
        for s in range(first, last):
            if now.spot_count[s] == 0 or now.spot_room[s] / now.spot_count[s] > level * (1.0 + 1e-12):
                continue
            for j in range(now.spot_first[s], now.spot_first[s + 1]):
                f = now.spot_flows[j]
                if not now.filling[f]:
                    continue
                now.filling[f] = False
                now.rate[f] += level
                unfilled -= 1
                for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
                    other = base + net.path[e]
                    now.spot_room[other] = max(0.0, now.spot_room[other] - level)
                    now.spot_count[other] -= 1
                    link = net.spot_link[other]
                    now.free[link] = max(0.0, now.free[link] - level)


@njit(cache=True, error_model="numpy")
def _slow_to_slowest(net: Groups, now: Moment, g: int) -> None:
    """Fai: no flow of the group faster than it takes to reach the horizon with the slowest; the rest is handed back.

    The horizon is what every flow is taken to have. A flow that gets nothing holds up all the others for good.
    """
    longest = 0.0
    for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
        f = now.there[i]
        away = now.horizon[g] - (net.amount[f] - now.left[f])
        longest = max(longest, away / now.rate[f] if now.rate[f] > 0.0 else np.inf)
    for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
        f = now.there[i]
        away = now.horizon[g] - (net.amount[f] - now.left[f])
        slow = min(now.rate[f], max(0.0, away) / longest)
        for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
            now.free[net.spot_link[net.spot_ptr[g] + net.path[e]]] += now.rate[f] - slow
        now.rate[f] = slow


@njit(cache=True, error_model="numpy")
def order_of(net: Groups, now: Moment, here: Array, policy: int) -> Array:
    """Groups `here`, first to be served first. Equals stay in the order of `here`, which is that of arrival."""
    key = np.empty(len(here))
    for i, g in enumerate(here):
        if policy == BY_BOTTLENECK:
            key[i] = bottleneck_s(net, now, g)
        elif policy == BY_KEY:
            key[i] = net.key[g]
        else:
            key[i] = now.queue[g]
    return here[np.argsort(key, kind="mergesort")]


@njit(cache=True, error_model="numpy")
def _rate_shortest_first(net: Groups, now: Moment, here: Array) -> None:
    flows, left, group = [0][:0], [0.0][:0], [0][:0]
    for g in here:
        for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
            flows.append(now.there[i])
            left.append(now.left[now.there[i]])
            group.append(g)
    for place in np.argsort(np.array(left), kind="mergesort"):
        f, base = flows[place], net.spot_ptr[group[place]]
        room = np.inf
        for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
            link = net.spot_link[base + net.path[e]]
            room = min(room, now.free[link] if now.free[link] > NONE_FREE * net.capacity[link] else 0.0)
        now.rate[f] = room
        for e in range(net.path_ptr[f], net.path_ptr[f + 1]):
            link = net.spot_link[base + net.path[e]]
            now.free[link] = max(0.0, now.free[link] - room)


@njit(cache=True, error_model="numpy")
def rate_all(net: Groups, now: Moment, here: Array, policy: int) -> None:
    """Set the rates of all flows of the groups `here`; what is `free` afterwards is what no flow can use."""
    for link in range(len(net.capacity)):
        now.free[link] = net.capacity[link]
    if policy == PFP:
        _rate_shortest_first(net, now, here)
        return
    order = order_of(net, now, here, policy)
    for g in order:
        for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
            now.rate[now.there[i]] = 0.0
    if policy == BY_BYTES_SENT:
        for g in order:
            _fill(net, now, g)
        return
    if policy == FAI:
        for g in order:
            _fill(net, now, g)
            _slow_to_slowest(net, now, g)
        for g in order:
            _fill(net, now, g)
        return
    passed_over = np.zeros(len(order), np.bool_)
    for i in range(len(order)):
        passed_over[i] = not _end_together(net, now, order[i])
    for i in range(len(order)):
        if passed_over[i]:
            _fill(net, now, order[i])
    for g in order:
        _fill(net, now, g)


@njit(cache=True, error_model="numpy")
def _cross(net: Groups, now: Moment, g: int, furthest: float) -> None:
    """Thresholds that a group has crossed; `furthest`: bytes sent by its flow that has sent most."""
    while now.sent[g] >= net.first_limit * net.limit_growth ** now.queue[g] * (1.0 - REACHED):
        now.queue[g] += 1
    while furthest >= now.horizon[g] * (1.0 - REACHED):
        now.horizon[g] *= 2.0


@njit(cache=True, error_model="numpy")
def _wait_ns(amount: float, rate: float) -> Any:
    wait = amount * 1e9 / rate
    if wait > LONGEST_NS:
        return np.int64(LONGEST_NS)
    return np.int64(np.ceil(max(0.0, wait - ROUNDING_NS - ROUNDING_SHARE * wait)))


@njit(cache=True, error_model="numpy")
def _next_change(net: Groups, now: Moment, here: Array, policy: int, clock: int, finish: Array) -> Any:
    """Set when every flow would end; returns when the first does, or a threshold is crossed."""
    soonest = NEVER
    for g in here:
        total = 0.0
        for i in range(net.group_ptr[g], net.group_ptr[g] + now.n_there[g]):
            f = now.there[i]
            rate = now.rate[f]
            finish[f] = NEVER
            if rate <= 0.0:
                continue
            total += rate
            finish[f] = clock + _wait_ns(now.left[f], rate)
            soonest = min(soonest, finish[f])
            if policy == FAI:
                away = now.horizon[g] - (net.amount[f] - now.left[f])
                soonest = min(soonest, clock + _wait_ns(max(0.0, away), rate))
        if policy >= BY_BYTES_SENT and total > 0.0:
            limit = net.first_limit * net.limit_growth ** now.queue[g]
            soonest = min(soonest, clock + _wait_ns(max(0.0, limit - now.sent[g]), total))
    return soonest


@njit(cache=True, error_model="numpy")
def _advance(net: Groups, now: Moment, here: Array, policy: int, elapsed_ns: int, until: int, finish: Array) -> None:
    """Let time pass: flows send, end, and coflows cross thresholds."""
    for g in here:
        first = net.group_ptr[g]
        n_left = 0
        furthest = 0.0
        for i in range(first, first + now.n_there[g]):
            f = now.there[i]
            done = finish[f] <= until
            moved = now.left[f] if done else min(now.left[f], now.rate[f] * elapsed_ns / 1e9)
            now.left[f] -= moved
            now.sent[g] += moved
            furthest = max(furthest, net.amount[f] - now.left[f])
            if not done:
                now.there[first + n_left] = f
                n_left += 1
        now.n_there[g] = n_left
        if policy >= BY_BYTES_SENT:
            _cross(net, now, g, furthest)


@njit(cache=True, error_model="numpy", nogil=True)
def replay(net: Groups, arrival: Array, policy: int, finish: Array) -> object:
    """Finish of every flow in ns, into `finish`; returns how often the rates were set.

    At each instant all that ends there ends, then all that arrives arrives, then the rates are set anew.
    """
    now = moment_of(net)
    here = np.empty(len(arrival), np.int64)
    n_here, following, clock, n_rated = 0, 0, 0, 0
    soonest = NEVER
    while following < len(arrival) or n_here > 0:
        until = soonest
        if following < len(arrival):
            until = min(until, arrival[following])
        _advance(net, now, here[:n_here], policy, until - clock, until, finish)
        clock = until
        n_left = 0
        for i in range(n_here):
            if now.n_there[here[i]] > 0:
                here[n_left] = here[i]
                n_left += 1
        n_here = n_left
        while following < len(arrival) and arrival[following] <= clock:
            g = following
            following += 1
            finish[net.group_ptr[g] : net.group_ptr[g + 1]] = clock
            if now.n_there[g] > 0:
                here[n_here] = g
                n_here += 1
        soonest = NEVER
        if n_here > 0:
            rate_all(net, now, here[:n_here], policy)
            n_rated += 1
            soonest = _next_change(net, now, here[:n_here], policy, clock, finish)
    return n_rated
