"""Compiled search for Pollux's allocation: NSGA-II over matrices of GPUs by job and node.

State: GPUs by job and node, eight nodes to a word of 64 bits, one byte each (`pack`): a row of 16 nodes is two words,
and is summed, counted, compared and capped as such. Two objectives, both larger is better: the harmonic mean over jobs
of speed-up x restart factor, and the sum of speed-ups over the GPUs of the nodes in use. Parents by binary tournament
(domination, then crowding) over random permutations, one-point crossover over jobs, mutation that resets, clears and
fills, and repair. Survivors by front, then by crowding distance; states of equal objectives count once in it.
Repair, as released: at most one multi-node job per node, and from the second such job on, nobody later in the order
gets that node; then each job's limit over nodes in random order; then the nodes' GPUs.
Source: K. Deb et al., "NSGA-II", 2002; operators: adaptdl, simulator/pollux.py (Apache-2.0) on pymoo 0.4, as rules.
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine.compiled import njit

Array: TypeAlias = NDArray[Any]
U = np.uint64
MOST_PER_NODE = 63  # GPUs: two states' bytes must add up below the top bit
CROSSOVER = 0.9  # of matings; pymoo's default
PER_32 = 2.0**32
# Of jobs: reset, cleared; of the cells of the latter: emptied. As chances in 2^-32.
RESET, CLEAR, CLEARED = U(0.1 * PER_32), U(0.1 * PER_32), U(0.1 * PER_32)
TINY = 1e-3  # added to each scaled speed-up before the mean
ATTEMPTS = 101  # rounds of mating in a generation until enough offspring differ; pymoo's default
ONE, SEVEN, EIGHT, HALF, TOP = U(1), U(7), U(8), U(32), U(56)
CELL, LOW_32 = U(0xFF), U(0xFFFFFFFF)
ONES, LOW_7, HIGH = U(0x0101010101010101), U(0x7F7F7F7F7F7F7F7F), U(0x8080808080808080)
EVEN, LANES, LAST_LANE = U(0x00FF00FF00FF00FF), U(0x0001000100010001), U(48)


def pack(counts: Array) -> Array:
    """GPUs by (..., node) as words (..., ceil(nodes / 8)). Counts up to `MOST_PER_NODE`."""
    nodes = counts.shape[-1]
    cells = np.zeros((*counts.shape[:-1], -(-nodes // 8) * 8), np.uint8)
    cells[..., :nodes] = counts
    return cells.view("<u8").astype(np.uint64)


def unpack(words: Array, nodes: int) -> Array:
    """The reverse of `pack`: uint8[..., nodes]."""
    cells: Array = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)[..., :nodes]
    return cells


@njit(cache=True)
def _next(random: Array) -> Any:
    """64 random bits, by SplitMix64 (G. L. Steele et al., OOPSLA 2014). `random`: u64[1], its state."""
    random[0] += U(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> U(30))) * U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U(27))) * U(0x94D049BB133111EB)
    return z ^ (z >> U(31))


@njit(cache=True)
def _below(n: int, random: Array) -> int:
    """A random number from 0 to n - 1."""
    return np.int64(((_next(random) >> HALF) * U(n)) >> HALF)  # type: ignore[return-value]


@njit(cache=True)
def _sum(word: Any) -> int:
    """GPUs of eight nodes."""
    pairs = (word & EVEN) + ((word >> EIGHT) & EVEN)
    return np.int64((pairs * LANES) >> LAST_LANE)  # type: ignore[return-value]


@njit(cache=True)
def _held(word: Any) -> Any:
    """1 in each byte that is not 0."""
    return ((word + LOW_7) & HIGH) >> SEVEN


@njit(cache=True)
def _count(ones: Any) -> int:
    """Bytes that are 1 in a word of 0 and 1."""
    return np.int64((ones * ONES) >> TOP)  # type: ignore[return-value]


@njit(cache=True)
def evaluate(x: Array, base: Array, speedup: Array, factor: Array, share: float, node_gpus: Array, out: Array) -> None:
    """Objectives of one state into out[2]. `speedup`: [job, on several nodes, GPUs]."""
    jobs, words = x.shape
    inverse = 0.0
    total = 0.0
    in_use = np.zeros(words, np.uint64)
    for job in range(jobs):
        gpus, on, moved = 0, 0, False
        for at in range(words):
            word = x[job, at]
            gpus += _sum(word)
            on += _count(_held(word))
            moved |= word != base[job, at]
            in_use[at] |= word
        gained = speedup[job, 1 if on > 1 else 0, gpus]
        total += gained
        inverse += 1.0 / (gained * share * (factor[job] if moved else 1.0) + TINY)
    used = 0
    for node in range(len(node_gpus)):
        held = (in_use[node >> 3] >> U((node & 7) << 3)) & CELL
        used += node_gpus[node] if held != U(0) else 0
    out[0] = jobs / inverse
    out[1] = total / used if used else 0.0


def some_of(jobs: int) -> Array:
    """How many of `jobs` are drawn where each is with chance 1 / `jobs`: distribution, in 2^-32, u64[counts]."""
    chance, total, rows = (1 - 1 / jobs) ** jobs if jobs > 1 else 0.0, 0.0, []
    for count in range(jobs + 1):
        total += chance
        rows.append(min(int(total * PER_32), int(PER_32)))
        if jobs == 1:
            chance = 1.0
            continue
        chance *= (jobs - count) / (count + 1) / (jobs - 1)
    return np.array(rows, np.uint64)


@njit(cache=True)
def mutate(x: Array, base: Array, node_gpus: Array, some: Array, on: Array, scratch: Array, random: Array) -> None:
    """Reset jobs to where they are, clear cells, then fill nodes that have room.

    On a node with room each job grows with chance 1 / jobs, and, apart from that, each job that is there with chance
    1 / (jobs there): to anything from what it has to all GPUs of the node. Scratch: `on` i64[2 jobs], `scratch`
    u64[3, words]. `some`: from `some_of`.
    """
    jobs, words = x.shape
    taken = scratch[0]
    taken[:] = U(0)
    for job in range(jobs):
        bits = _next(random)
        if bits & LOW_32 < RESET:
            for at in range(words):
                x[job, at] = base[job, at]
        if bits >> HALF < CLEAR:
            for at in range(words):
                for cell in range(8):
                    here = CELL << U(cell << 3)
                    if x[job, at] & here != U(0) and _next(random) >> HALF < CLEARED:
                        x[job, at] &= ~here
        for at in range(words):
            taken[at] += x[job, at]
    for node in range(len(node_gpus)):
        at, shift = node >> 3, U((node & 7) << 3)
        if np.int64((taken[at] >> shift) & CELL) >= node_gpus[node]:
            continue
        there = 0
        if (taken[at] >> shift) & CELL != U(0):
            for job in range(jobs):
                if (x[job, at] >> shift) & CELL != U(0):
                    on[there] = job
                    there += 1
        bits = _next(random)
        draws = 0
        while bits >> HALF >= some[draws]:
            draws += 1
        before = there
        for pick in range(draws):
            job = _below(jobs, random)
            known = True
            while known:  # each job at most once
                known = False
                for other in range(before, before + pick):
                    known |= on[other] == job
                if known:
                    job = _below(jobs, random)
            on[before + pick] = job
        for place in range(there):
            job = on[place]
            if _below(there, random) > 0:
                grows = False
                for other in range(before, before + draws):
                    grows |= on[other] == job
                if not grows:
                    continue
            _grow(x, job, at, shift, node_gpus[node], random)
        for place in range(before, before + draws):
            job = on[place]
            if (x[job, at] >> shift) & CELL == U(0):
                _grow(x, job, at, shift, node_gpus[node], random)


@njit(cache=True)
def _grow(x: Array, job: int, at: int, shift: Any, most: int, random: Array) -> None:
    """GPUs of one job on one node: as many as it has, or any more up to all of the node."""
    word = x[job, at]
    more = ((_next(random) >> HALF) * (U(most + 1) - ((word >> shift) & CELL))) >> HALF
    x[job, at] = word + (more << shift)


@njit(cache=True)
def repair(x: Array, most: Array, all_gpus: Array, order: Array, scratch: Array, random: Array) -> None:
    """Make a state possible. `all_gpus`: packed, of the nodes. Scratch: `order` i64[nodes], `scratch` u64[3, words]."""
    jobs, words = x.shape
    wide, closed, left = scratch[0], scratch[1], scratch[2]
    wide[:] = U(0)
    closed[:] = U(0)
    left[:] = all_gpus
    for job in range(jobs):
        on = 0
        for at in range(words):
            on += _count(_held(x[job, at]))
        if on == 0:
            continue
        gpus = 0
        for at in range(words):
            if on > 1:
                here = _held(x[job, at]) * CELL
                closed[at] |= wide[at] & here
                wide[at] |= here
            x[job, at] &= ~closed[at]
            gpus += _sum(x[job, at])
        if gpus > most[job]:
            _cut(x[job], most[job], order, random)
        for at in range(words):
            word = x[job, at]
            fits = ((((left[at] | HIGH) - word) & HIGH) >> SEVEN) * CELL
            word = (word & fits) | (left[at] & ~fits)
            x[job, at] = word
            left[at] -= word


@njit(cache=True)
def _cut(row: Array, most: int, order: Array, random: Array) -> None:
    """Limit a job's GPUs, over its nodes in random order."""
    count = 0
    for node in range(len(order)):
        if (row[node >> 3] >> U((node & 7) << 3)) & CELL != U(0):
            order[count] = node
            count += 1
    rest = most
    for at in range(count):
        pick = at + _below(count - at, random)
        node = order[pick]
        order[pick] = order[at]
        shift = U((node & 7) << 3)
        held: Any = np.int64((row[node >> 3] >> shift) & CELL)
        if held > rest:
            row[node >> 3] -= U(held - rest) << shift
            held = rest
        rest -= held


@njit(cache=True)
def _hash(x: Array) -> Any:
    code = U(14695981039346656037)
    for job in range(x.shape[0]):
        for at in range(x.shape[1]):
            code = (code ^ x[job, at]) * U(0x9E3779B97F4A7C15)
            code ^= code >> HALF
    return code


@njit(cache=True)
def fronts(f: Array) -> Array:
    """Rank of each point of f64[n, 2], 0 the front that none dominates; larger is better.

    In falling order of the first objective, a point belongs to the first front whose largest second objective so far
    is below its own.
    """
    n = len(f)
    rank = np.empty(n, np.int64)
    order = np.argsort(-f[:, 0])
    top = np.empty(n)
    levels = 0
    begin = 0
    while begin < n:  # points of equal first objective, by falling second
        end = begin + 1
        while end < n and f[order[end], 0] == f[order[begin], 0]:
            end += 1
        for at in range(begin + 1, end):
            point, back = order[at], at
            while back > begin and f[order[back - 1], 1] < f[point, 1]:
                order[back] = order[back - 1]
                back -= 1
            order[back] = point
        for at in range(begin, end):
            point = order[at]
            if at > begin and f[point, 1] == f[order[at - 1], 1]:
                rank[point] = rank[order[at - 1]]
                continue
            low, high = 0, levels
            while low < high:
                middle = (low + high) // 2
                if top[middle] < f[point, 1]:
                    high = middle
                else:
                    low = middle + 1
            rank[point] = low
            top[low] = f[point, 1]
            levels = max(levels, low + 1)
        begin = end
    return rank


@njit(cache=True)
def _crowding(f: Array, members: Array) -> Array:
    """Crowding distance of the members of one front; of equal points all but the first get none."""
    n = len(members)
    distance = np.zeros(n)
    if n <= 2:
        distance[:] = np.inf
        return distance
    unique = np.empty(n, np.int64)
    count = 0
    for at in range(n):
        fresh = True
        for other in range(at):
            if f[members[at], 0] == f[members[other], 0] and f[members[at], 1] == f[members[other], 1]:
                fresh = False
                break
        if fresh:
            unique[count] = at
            count += 1
    for objective in range(2):
        values = np.empty(count)
        for at in range(count):
            values[at] = f[members[unique[at]], objective]
        order = np.argsort(values)
        spread = values[order[-1]] - values[order[0]]
        if spread > 0:
            distance[unique[order[0]]] = np.inf
            distance[unique[order[-1]]] = np.inf
            for at in range(1, count - 1):
                distance[unique[order[at]]] += (values[order[at + 1]] - values[order[at - 1]]) / spread
    return distance


@njit(cache=True)
def _permutations(n: int, length: int, random: Array) -> Array:
    """The first `length` entries of random permutations of `range(n)`, one after the other."""
    result = np.empty(length + n, np.int64)
    for begin in range(0, length, n):
        for at in range(n):
            pick = _below(at + 1, random)
            result[begin + at] = result[begin + pick]
            result[begin + pick] = at
    return result[:length]


@njit(cache=True)
def _winner(f: Array, crowding: Array, a: int, b: int, random: Array) -> int:
    if f[a, 0] >= f[b, 0] and f[a, 1] >= f[b, 1] and (f[a, 0] > f[b, 0] or f[a, 1] > f[b, 1]):
        return a
    if f[b, 0] >= f[a, 0] and f[b, 1] >= f[a, 1] and (f[b, 0] > f[a, 0] or f[b, 1] > f[a, 1]):
        return b
    if crowding[a] != crowding[b]:
        return a if crowding[a] > crowding[b] else b
    return a if _next(random) >> HALF < U(2**31) else b


@njit(cache=True)
def search(
    start: Array,
    base: Array,
    speedup: Array,
    factor: Array,
    most: Array,
    node_gpus: Array,
    share: float,
    some: Array,
    population: int,
    generations: int,
    patience: int,
    seed: int,
) -> tuple[Array, int]:
    """Evolve `start` until `patience` generations in a row have not improved the first objective, or all are done.

    `start` (packed, u64[n, jobs, words]; `some`: from `some_of`); returns the last front and the index of
    its best.
    """
    random = np.full(1, seed, np.uint64)
    jobs, words = base.shape
    order = np.empty(len(node_gpus), np.int64)
    scratch = np.empty((3, words), np.uint64)
    on = np.empty(2 * jobs, np.int64)
    all_gpus = np.zeros(words, np.uint64)
    for node in range(len(node_gpus)):
        all_gpus[node >> 3] |= U(node_gpus[node]) << U((node & 7) << 3)
    x = np.empty((2 * population, jobs, words), np.uint64)
    f = np.empty((2 * population, 2))
    code = np.empty(2 * population, np.uint64)
    crowding = np.zeros(2 * population)
    n = 0
    for at in range(len(start)):
        x[n] = start[at]
        repair(x[n], most, all_gpus, order, scratch, random)
        code[n] = _hash(x[n])
        fresh = True
        for other in range(n):
            fresh &= code[other] != code[n]
        if fresh:
            evaluate(x[n], base, speedup, factor, share, node_gpus, f[n])
            n += 1
    rank = fronts(f[:n])
    for level in range(n):
        members = np.flatnonzero(rank == level)
        if len(members) == 0:
            break
        crowding[members] = _crowding(f, members)
    record = f[:n, 0].max()
    stale = 0
    for _ in range(generations - 1):
        if stale >= patience:
            break
        alive = n
        for _ in range(ATTEMPTS):
            matings = (population - (n - alive) + 1) // 2
            drawn = _permutations(alive, 4 * matings, random)
            parents = np.empty(2 * matings, np.int64)
            for at in range(2 * matings):
                parents[at] = _winner(f, crowding, drawn[2 * at], drawn[2 * at + 1], random)
            points = np.empty(matings, np.int64)
            for at in range(matings):
                points[at] = _below(jobs, random) if _below(1000, random) < 1000 * CROSSOVER else 0
            for child in range(2):
                for at in range(matings):
                    if n - alive >= population:
                        break
                    one, two, point = parents[2 * at + child], parents[2 * at + 1 - child], points[at]
                    x[n, :point] = x[two, :point]
                    x[n, point:] = x[one, point:]
                    mutate(x[n], base, node_gpus, some, on, scratch, random)
                    repair(x[n], most, all_gpus, order, scratch, random)
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
        rank = fronts(f[:n])
        chosen = np.empty(keep, np.int64)
        distance = np.empty(keep)
        have, level = 0, 0
        while have < keep:
            members = np.flatnonzero(rank == level)
            spread = _crowding(f, members)
            if have + len(members) > keep:
                best = _by_crowding(spread, random)
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
        stale += 1
        if f[:n, 0].max() > record:
            record, stale = f[:n, 0].max(), 0
    front = np.flatnonzero(fronts(f[:n]) == 0)
    return x[front].copy(), int(np.argmax(f[front, 0]))


@njit(cache=True)
def _by_crowding(spread: Array, random: Array) -> Array:
    """Indices by falling crowding distance, equal ones in random order."""
    shuffled = _permutations(len(spread), len(spread), random)
    return shuffled[np.argsort(-spread[shuffled], kind="mergesort")]
