"""Compiled search for Pollux's allocation: GPUs by job and node with the largest harmonic mean of what jobs gain.

A job's gain is its speed-up times, where its GPUs are others than before, its restart factor; it hangs on the number
of GPUs and on whether they span nodes. At most one job that spans nodes is on a node. From the allocation held,
the best step is taken until none improves the mean: a job gets the GPUs that are best for it, of those free and of its
own; where no such step does, also of those that one other job leaves, which is placed anew on as many as it has or
fewer. Steps are ruled out by a bound that counts GPUs, before places are sought. Deterministic; of equal steps the
first is taken.
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

TINY = 1e-3  # added to each scaled speed-up before the mean
LEAST = 1e-9  # relative: a smaller improvement is none


@njit(cache=True)
def _placed(gpus: int, room: Array, spans: Array, row: Array) -> int:
    """Place a job in `row` and take its GPUs from `room`: on how many nodes; -1 where there is no place for it.

    On the node with least room that holds all; else over nodes that no job spans, emptiest first.
    """
    row[:] = 0
    rest, on = gpus, 0
    while rest > 0:
        chosen = -1
        for node in range(len(room)):
            if room[node] == 0 or row[node] > 0 or (rest < gpus and spans[node] > 0):
                continue
            if room[node] >= rest:
                if chosen < 0 or room[chosen] < rest or room[node] < room[chosen]:
                    chosen = node
            elif spans[node] == 0 and (chosen < 0 or room[node] > room[chosen]):
                chosen = node
        if chosen < 0:
            return -1
        row[chosen] = min(rest, room[chosen])
        rest -= row[chosen]
        room[chosen] -= row[chosen]
        on += 1
    if on > 1:
        for node in range(len(room)):
            spans[node] += row[node] > 0
    return on


@njit(cache=True)
def _without(job: int, x: Array, room: Array, spans: Array) -> None:
    """Give back what a job holds."""
    on = 0
    for node in range(len(room)):
        room[node] += x[job, node]
        on += x[job, node] > 0
    if on > 1:
        for node in range(len(room)):
            spans[node] -= x[job, node] > 0


@njit(cache=True)
def _step(
    other: int,
    gpus: int,
    job: int,
    x: Array,
    base: Array,
    price: Array,
    best: Array,
    stay: Array,
    most: Array,
    room: Array,
    spans: Array,
    rows: Array,
) -> float:
    """Price of both jobs after `other` (-1: none) is placed anew on `gpus` and `job` as is best for it; `rows`: where.

    `room` and `spans` are of the nodes before the step, and become those after it. Infinite where it cannot be.
    """
    nodes = len(room)
    total: float = 0.0
    _without(job, x, room, spans)
    if other >= 0:
        _without(other, x, room, spans)
        on = _placed(gpus, room, spans, rows[0])
        if on < 0:
            return np.inf
        total = price[other, int(on > 1), gpus]
    alone, across, on, back = 0, 0, 0, True
    for node in range(nodes):
        alone = max(alone, room[node])
        across += room[node] if spans[node] == 0 else 0
        on += base[job, node] > 0
    for node in range(nodes):
        back &= base[job, node] <= room[node] and (on < 2 or base[job, node] == 0 or spans[node] == 0)
    on_one, many = best[job, 0, min(alone, most[job])], best[job, 1, min(across, most[job])]
    least: float = price[job, 0, on_one]
    if many > alone and price[job, 1, many] < least:
        on_one, least = many, price[job, 1, many]
    if back and stay[job] <= least:
        for node in range(nodes):
            rows[1, node] = base[job, node]
            room[node] -= base[job, node]
            spans[node] += on > 1 and base[job, node] > 0
        total += stay[job]
        return total
    _placed(on_one, room, spans, rows[1])
    return total + least


@njit(cache=True)
def allocate(base: Array, speedup: Array, factor: Array, most: Array, node_gpus: Array, share: float, x: Array) -> None:
    """Fill `x`, GPUs [job, node], from `base`, which must fit. `most`: GPUs that a job may have at most."""
    jobs, nodes = base.shape
    width = speedup.shape[2]
    price = np.empty((jobs, 2, width))  # inverse gain after a move
    best = np.empty((jobs, 2, width), np.int64)  # which number of GPUs, of so many or fewer, costs least
    gpus_of, stay, now = np.zeros(jobs, np.int64), np.empty(jobs), np.empty(jobs)
    free, wide = node_gpus.copy(), np.zeros(nodes, np.int64)
    for job in range(jobs):
        for across in range(2):
            lowest = 0
            for gpus in range(most[job] + 1):
                price[job, across, gpus] = 1.0 / (speedup[job, across, gpus] * share * factor[job] + TINY)
                if price[job, across, gpus] < price[job, across, lowest]:
                    lowest = gpus
                best[job, across, gpus] = lowest
        on = 0
        for node in range(nodes):
            x[job, node] = base[job, node]
            gpus_of[job] += base[job, node]
            on += base[job, node] > 0
            free[node] -= base[job, node]
        if on > 1:
            for node in range(nodes):
                wide[node] += base[job, node] > 0
        stay[job] = now[job] = 1.0 / (speedup[job, int(on > 1), gpus_of[job]] * share + TINY)
    room, spans, rows = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.zeros((2, nodes), np.int64)
    while True:
        spare = free.sum()
        limit = -LEAST * now.sum()
        move = (-2, 0, -1)
        for other in range(-1, jobs):
            if other == 0 and move[2] >= 0:
                break
            for gpus in range(1 if other < 0 else gpus_of[other] + 1):
                loss, left = 0.0, spare
                if other >= 0:
                    loss = min(price[other, 0, gpus], price[other, 1, gpus]) - now[other]
                    left += gpus_of[other] - gpus
                for job in range(jobs):
                    if job == other:
                        continue
                    within = min(left + gpus_of[job], most[job])
                    least = min(price[job, 0, best[job, 0, within]], price[job, 1, best[job, 1, within]])
                    if loss + min(least, stay[job]) - now[job] >= limit:
                        continue
                    for node in range(nodes):
                        room[node], spans[node] = free[node], wide[node]
                    change = _step(other, gpus, job, x, base, price, best, stay, most, room, spans, rows)
                    change -= now[job] + (now[other] if other >= 0 else 0.0)
                    if change < limit:
                        limit, move = change, (other, gpus, job)
        other, gpus, job = move
        if job < 0:
            return
        after = _step(other, gpus, job, x, base, price, best, stay, most, free, wide, rows)
        if other >= 0:
            for node in range(nodes):
                x[other, node] = rows[0, node]
            gpus_of[other] = gpus
            now[other] = price[other, int((rows[0] > 0).sum() > 1), gpus]
            after -= now[other]
        for node in range(nodes):
            x[job, node] = rows[1, node]
        gpus_of[job], now[job] = rows[1].sum(), after
