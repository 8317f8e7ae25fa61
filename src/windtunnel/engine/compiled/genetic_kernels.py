"""Compiled search for Pollux's allocation: NSGA-II over matrices of GPUs by job and node.

State: x[job, node] GPUs. Two objectives, both larger is better: the harmonic mean over jobs of speed-up x restart
factor, and the sum of speed-ups over the GPUs of the nodes in use. Selection by binary tournament (domination, then
crowding), one-point crossover over jobs, mutation that resets, clears and fills, repair that enforces one multi-node
job per node, each job's limit and the nodes' GPUs, in that order. Survivors by front, then by crowding distance.
Source: K. Deb et al., "NSGA-II", 2002; operators: adaptdl, simulator/pollux.py (Apache-2.0), as rules.
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
CROSSOVER = 0.9  # of matings; pymoo's default
RESET, CLEAR, CLEARED = 0.1, 0.1, 0.1  # of jobs that mutation resets, or clears, and of the cells of the latter
TINY = 1e-3  # added to each scaled speed-up before the mean
ATTEMPTS = 100  # rounds of mating in a generation until enough offspring differ; pymoo's default


@njit(cache=True)
def evaluate(x: Array, base: Array, speedup: Array, factor: Array, share: float, node_gpus: Array, out: Array) -> None:
    """Objectives of one state into out[2]. `speedup`: [job, on several nodes, GPUs]."""
    jobs, nodes = x.shape
    inverse = 0.0
    total = 0.0
    for job in range(jobs):
        gpus, on, moved = 0, 0, False
        for node in range(nodes):
            held = x[job, node]
            gpus += held
            on += held > 0
            moved |= held != base[job, node]
        gained = speedup[job, 1 if on > 1 else 0, gpus]
        total += gained
        scaled = gained * share * (factor[job] if moved else 1.0)
        inverse += 1.0 / (scaled + TINY)
    used = 0
    for node in range(nodes):
        for job in range(jobs):
            if x[job, node] > 0:
                used += node_gpus[node]
                break
    out[0] = jobs / inverse
    out[1] = total / used if used else 0.0


@njit(cache=True)
def mutate(x: Array, base: Array, node_gpus: Array) -> None:
    """Reset jobs to where they are, clear cells, then fill nodes that have room."""
    jobs, nodes = x.shape
    for job in range(jobs):
        if np.random.random() < RESET:
            for node in range(nodes):
                x[job, node] = base[job, node]
        if np.random.random() < CLEAR:
            for node in range(nodes):
                if np.random.random() < CLEARED:
                    x[job, node] = 0
    room = np.empty(nodes, np.int64)
    roomy = 0
    for node in range(nodes):
        left = node_gpus[node]
        for job in range(jobs):
            left -= x[job, node]
        room[node] = left
        roomy += left >= 1
    if roomy == 0:
        return
    first = 1.0 / roomy
    for job in range(jobs):
        held = 0
        for node in range(nodes):
            held += x[job, node] > 0 and room[node] >= 1
        second = 1.0 / max(held, 1)
        for node in range(nodes):
            if room[node] < 1:
                continue
            chance = first + second - first * second if x[job, node] > 0 else first
            if np.random.random() < chance:
                x[job, node] = np.random.randint(x[job, node], node_gpus[node] + 1)


@njit(cache=True)
def repair(x: Array, most: Array, node_gpus: Array, order: Array) -> None:
    """Make a state possible. `order` is scratch, i64[nodes]."""
    jobs, nodes = x.shape
    taken = np.zeros(nodes, np.bool_)
    left = node_gpus.copy()
    for job in range(jobs):
        on = 0
        gpus = 0
        for node in range(nodes):
            on += x[job, node] > 0
        if on > 1:
            for node in range(nodes):
                if x[job, node] > 0:
                    if taken[node]:
                        x[job, node] = 0
                    taken[node] = True
        for node in range(nodes):
            gpus += x[job, node]
        if gpus > most[job]:
            for node in range(nodes):
                order[node] = node
            rest = most[job]
            for at in range(nodes):
                pick = np.random.randint(at, nodes)
                node = order[pick]
                order[pick] = order[at]
                if x[job, node] > rest:
                    x[job, node] = rest
                rest -= x[job, node]
        for node in range(nodes):
            if x[job, node] > left[node]:
                x[job, node] = left[node]
            left[node] -= x[job, node]


@njit(cache=True)
def _hash(x: Array) -> int:
    code = np.uint64(14695981039346656037)
    for value in x.flat:
        code = (code ^ np.uint64(value + 1)) * np.uint64(1099511628211)
    positive: int = np.int64(code >> np.uint64(1))  # type: ignore[assignment]
    return positive


@njit(cache=True)
def _fronts(f: Array, enough: int) -> Array:
    """Rank of each point, 0 the front that none dominates; points beyond `enough` may stay at a high rank."""
    n = len(f)
    rank = np.full(n, n, np.int64)
    order = np.argsort(-f[:, 0])
    done, level = 0, 0
    while done < enough:
        front_size = 0
        for a in range(n):
            i = order[a]
            if rank[i] < n:
                continue
            dominated = False
            for b in range(n):
                j = order[b]
                if f[j, 0] < f[i, 0]:
                    break
                alive = rank[j] == n or rank[j] == level
                if alive and f[j, 1] >= f[i, 1] and (f[j, 0] > f[i, 0] or f[j, 1] > f[i, 1]):
                    dominated = True
                    break
            if not dominated:
                rank[i] = level
                front_size += 1
        done += front_size
        level += 1
    return rank


@njit(cache=True)
def _crowding(f: Array, members: Array) -> Array:
    """Crowding distance of the members of one front."""
    n = len(members)
    distance = np.zeros(n)
    if n <= 2:
        distance[:] = np.inf
        return distance
    for objective in range(2):
        values = np.empty(n)
        for at in range(n):
            values[at] = f[members[at], objective]
        order = np.argsort(values)
        spread = values[order[-1]] - values[order[0]]
        distance[order[0]] = np.inf
        distance[order[-1]] = np.inf
        if spread > 0:
            for at in range(1, n - 1):
                distance[order[at]] += (values[order[at + 1]] - values[order[at - 1]]) / spread
    return distance


@njit(cache=True)
def _tournament(f: Array, crowding: Array, n: int) -> int:
    a, b = np.random.randint(n), np.random.randint(n)
    if f[a, 0] >= f[b, 0] and f[a, 1] >= f[b, 1] and (f[a, 0] > f[b, 0] or f[a, 1] > f[b, 1]):
        return a
    if f[b, 0] >= f[a, 0] and f[b, 1] >= f[a, 1] and (f[b, 0] > f[a, 0] or f[b, 1] > f[a, 1]):
        return b
    if crowding[a] > crowding[b]:
        return a
    if crowding[b] > crowding[a]:
        return b
    return a if np.random.random() < 0.5 else b


@njit(cache=True)
def search(
    start: Array,
    base: Array,
    speedup: Array,
    factor: Array,
    most: Array,
    node_gpus: Array,
    share: float,
    population: int,
    generations: int,
    seed: int,
) -> tuple[Array, int]:
    """Evolve `start` (i16[n, jobs, nodes]); returns the last population and the index of its best first objective."""
    np.random.seed(seed)
    jobs, nodes = base.shape
    order = np.empty(nodes, np.int64)
    x = np.empty((2 * population, jobs, nodes), np.int16)
    f = np.empty((2 * population, 2))
    code = np.empty(2 * population, np.int64)
    crowding = np.zeros(2 * population)
    n = 0
    for at in range(len(start)):
        x[n] = start[at]
        repair(x[n], most, node_gpus, order)
        code[n] = _hash(x[n])
        fresh = True
        for other in range(n):
            fresh &= code[other] != code[n]
        if fresh:
            evaluate(x[n], base, speedup, factor, share, node_gpus, f[n])
            n += 1
    rank = _fronts(f[:n], n)
    for level in range(n):
        members = np.flatnonzero(rank == level)
        if len(members) == 0:
            break
        crowding[members] = _crowding(f, members)
    for _ in range(generations - 1):
        alive = n
        for _ in range(ATTEMPTS):
            for _ in range((population - (n - alive) + 1) // 2):
                a, b = _tournament(f, crowding, alive), _tournament(f, crowding, alive)
                point = np.random.randint(jobs) if np.random.random() < CROSSOVER else 0
                for child in range(2):
                    if n - alive >= population:
                        break
                    one, two = (a, b) if child == 0 else (b, a)
                    x[n, :point] = x[two, :point]
                    x[n, point:] = x[one, point:]
                    mutate(x[n], base, node_gpus)
                    repair(x[n], most, node_gpus, order)
                    code[n] = _hash(x[n])
                    fresh = True
                    for other in range(n):
                        if code[other] == code[n]:
                            fresh = False
                            break
                    if fresh:
                        evaluate(x[n], base, speedup, factor, share, node_gpus, f[n])
                        n += 1
            if n - alive >= population:
                break
        keep = min(population, n)
        rank = _fronts(f[:n], keep)
        chosen = np.empty(keep, np.int64)
        distance = np.empty(keep)
        have, level = 0, 0
        while have < keep:
            members = np.flatnonzero(rank == level)
            spread = _crowding(f, members)
            if have + len(members) > keep:
                jitter = np.random.random(len(members))
                best = _by_crowding(spread, jitter)
                members, spread = members[best[: keep - have]], spread[best[: keep - have]]
            for at in range(len(members)):
                chosen[have] = members[at]
                distance[have] = spread[at]
                have += 1
            level += 1
        x[:keep] = x[chosen]
        f[:keep] = f[chosen]
        code[:keep] = code[chosen]
        crowding[:keep] = distance
        n = keep
    return x[:n].copy(), int(np.argmax(f[:n, 0]))


@njit(cache=True)
def _by_crowding(spread: Array, jitter: Array) -> Array:
    """Indices by falling crowding distance, equal ones in random order."""
    shuffled = np.argsort(jitter)
    return shuffled[np.argsort(-spread[shuffled], kind="mergesort")]
