"""Compiled loops of the spot study: mean cost of a move over many draws of lost nodes, and the search over layouts.

Sizes here are parameters, times milliseconds. A kernel's `.py_func` is the same code uncompiled, and its oracle.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

F64: TypeAlias = Array
I64: TypeAlias = Array


@njit(cache=True)
def transfer_ms(volume: float, sizes: F64, times: F64) -> float:
    """Time of a message: straight lines between measured sizes; `times` in microseconds."""
    at = np.searchsorted(sizes, volume)
    if at == 0:
        return float(times[0] / 1000.0)
    if at >= len(sizes):
        return float(volume / sizes[-1] * times[-1] / 1000.0)
    left = at - 1
    slope = (times[at] - times[left]) / (sizes[at] - sizes[left])
    return float((times[left] + slope * (volume - sizes[left])) / 1000.0)


@njit(cache=True)
def mean_move_ms(
    d: int, p: int, lost: int, draws: I64, targets: I64, old: I64, own_ms: F64,
    cuts: I64, spread: F64, added: F64, removed: F64, inside: F64, prefix: F64, sizes: F64, times: F64, bytes_each:
    float,
) -> F64:  # fmt: skip
    """Mean over `draws` of the cost of moving from layout (d, p) to each of `targets` when `lost` of the nodes go.

    draws (n, lost): node numbers; node i < d p works in stage i mod p, the others are idle. old (p + 1): edges of the
    stages in layers; own_ms (p): time to send each. cuts (depth, depth + 1): edges at each depth; spread (depth):
    time to broadcast the largest stage; added, removed, inside (targets): restart when nodes come, when they go, and
    regrouping.
    """
    out = np.zeros(len(targets))
    dead = np.zeros(max(d * p, 1), np.bool_)
    replicas = np.zeros(max(p, 1), np.int64)
    next_free = np.zeros(max(p, 1), np.int64)
    for draw in range(len(draws)):
        dead[:] = False
        replicas[:] = d
        for i in range(lost):
            node = draws[draw, i]
            if node < d * p:
                dead[node] = True
                replicas[node % p] -= 1
        fewest = d
        for stage in range(p):
            fewest = min(fewest, replicas[stage])
        for t in range(len(targets)):
            dp, pp = targets[t, 0], targets[t, 1]
            restart = added[t] if dp * pp > d * p - lost else removed[t]
            if pp == p:
                if lost == 0 and dp == d:
                    continue
                if fewest >= dp:
                    out[t] += inside[t]
                    continue
                # Different stages are sent at the same time; those with no source left come one after the other.
                longest = together = 0.0
                for stage in range(pp):
                    short = dp - replicas[stage]
                    if short > 0:
                        longest = max(longest, own_ms[stage])
                        if short == dp or (stage == pp - 1 and short == dp - 1):
                            together += own_ms[stage]
                out[t] += max(longest, together) + restart
                continue
            # Each new stage takes the free survivor that lacks least of it; of equals, the one with the least number.
            for stage in range(p):
                next_free[stage] = stage
                while next_free[stage] < d * p and dead[next_free[stage]]:
                    next_free[stage] += p
            missing = 0.0
            for stage in range(pp):
                low, high = cuts[pp, stage], cuts[pp, stage + 1]
                whole = prefix[high] - prefix[low]
                best, least = -1, 1e300
                for was in range(p):
                    node = next_free[was]
                    if node >= d * p:
                        continue
                    first, last = max(low, old[was]), min(high, old[was + 1])
                    lacks = whole - (prefix[last] - prefix[first]) if last > first else whole
                    if lacks < least - 1e-6 or (lacks < least + 1e-6 and node < next_free[best]):
                        best, least = was, lacks
                if best >= 0:
                    missing = least  # the last stage's alone counts, as Parcae's code has it
                    next_free[best] += p
                    while next_free[best] < d * p and dead[next_free[best]]:
                        next_free[best] += p
            moved = transfer_ms(missing * bytes_each, sizes, times)
            out[t] += moved + (spread[pp] if dp > 1 else 0.0) + restart
    return out / len(draws)


@njit(cache=True)
def best_first_move(
    start: int, left_ms: float, fits: I64, cost: F64, rates: F64, depth: I64, again: F64, interval_ms: float
) -> int:
    """The layout to take now, for the most samples over the minutes ahead.

    fits (minutes, layouts): 1 where a layout fits after that minute's events. cost (minutes, layouts, layouts): of each
    move in that minute. rates, depth, again (layouts): samples a second, stages, restart without new nodes. A state
    is a layout and whether its move is still under way (layouts + layout). Value: samples, then least time left; of
    equal values a state keeps the first it met, or that which comes from a shallower layout.
    """
    minutes, layouts = fits.shape
    samples = np.full((minutes + 1, 2 * layouts), -1.0)
    left = np.full((minutes + 1, 2 * layouts), np.inf)
    back = np.full((minutes + 1, 2 * layouts), -1, np.int64)
    order = np.zeros((minutes + 1, 2 * layouts), np.int64)
    count = np.zeros(minutes + 1, np.int64)
    state = start + (layouts if left_ms > 0 else 0)
    samples[0, state], left[0, state], order[0, 0], count[0] = 0.0, left_ms, state, 1
    for m in range(minutes):
        for k in range(count[m]):
            state = order[m, k]
            moving, layout = state >= layouts, state % layouts
            had, under_way = samples[m, state], left[m, state]
            for to in range(layouts):
                if not fits[m, to]:
                    continue
                price = cost[m, layout, to]
                total = price
                if moving:
                    total = price + again[to] if price > 0 else under_way
                if total <= interval_ms:
                    key, value, rest = to, had + rates[to] * (interval_ms - total) / 1000.0, 0.0
                    new = back[m + 1, key] < 0
                    better = value > max(samples[m + 1, key], 0.0)
                    if not new and value == samples[m + 1, key] and depth[back[m + 1, key] % layouts] > depth[layout]:
                        better = True
                    if new and not better:  # worth nothing, but a way to be there
                        better = samples[m + 1, key] < 0
                else:
                    key, value, rest = to + layouts, had, total - interval_ms
                    was = max(samples[m + 1, key], 0.0)
                    better = value > was or (value == was and rest < left[m + 1, key])
                if better:
                    if back[m + 1, key] < 0:
                        order[m + 1, count[m + 1]] = key
                        count[m + 1] += 1
                    samples[m + 1, key], left[m + 1, key], back[m + 1, key] = value, rest, state
    last = order[minutes, 0]
    for k in range(1, count[minutes]):
        state = order[minutes, k]
        if samples[minutes, state] > samples[minutes, last] or (
            samples[minutes, state] == samples[minutes, last] and left[minutes, state] < left[minutes, last]
        ):
            last = state
    for m in range(minutes, 1, -1):
        last = back[m, last]
    return int(last % layouts)
