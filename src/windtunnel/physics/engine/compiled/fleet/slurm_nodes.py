"""Nodes as bits and counts: whether a job fits, on which it runs, and when, if what runs ends at its limits.

Arrays are those of `slurm_kernels.py`.
"""

from __future__ import annotations

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.slurm_arrays import (
    BITS,
    BY_LIMIT,
    COMPLETING,
    CPUS,
    EACH,
    ENDING,
    FIRST,
    FREED,
    GPUS,
    LIMIT,
    NEVER,
    NOW,
    RUNNING,
    S_NS,
    START,
)


@njit(cache=True)
def _many(word: int) -> int:
    """Bits of a word."""
    word -= (word >> 1) & 0x5555555555555555
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    word += word >> 8
    word += word >> 16
    word += word >> 32
    return word & 0x7F


@njit(cache=True)
def set_free(free: Array, least: Array, node: int, count: int) -> None:
    """A node has so many GPUs free."""
    word, bit, before = node // BITS, 1 << (node % BITS), free[node]
    for size in range(before + 1, count + 1):
        least[size, word] |= bit
    for size in range(count + 1, before + 1):
        least[size, word] &= ~bit
    free[node] = count


@njit(cache=True)
def fits(least: Array, gpus: int, each: int, among: Array) -> bool:
    """Whether a job fits on some of these nodes."""
    whole, rest = gpus // each, gpus % each
    idle, some = 0, 0
    for word in range(len(among)):
        if whole:
            idle += _many(least[each, word] & among[word])
        if rest:
            some += _many(least[rest, word] & among[word])
    return idle >= whole and (rest == 0 or some > whole)


@njit(cache=True)
def _runs(mask: Array, spans: Array) -> int:
    """First and last of neighbours in a mask, to two rows; returns how many."""
    nodes = spans.shape[1]
    many, inside, node = 0, False, 0
    for word in range(len(mask)):
        left = mask[word]
        here = min(BITS, nodes - node)
        if left == 0:
            if inside:
                spans[1, many], inside = node - 1, False
                many += 1
            node += here
            continue
        for _ in range(here):
            if left & 1:
                if not inside:
                    spans[0, many], inside = node, True
            elif inside:
                spans[1, many], inside = node - 1, False
                many += 1
            left >>= 1
            node += 1
    if inside:
        spans[1, many] = node - 1
        many += 1
    return many


@njit(cache=True)
def _tightest(busy: Array, cpus: int, mask: Array, count: int, got: int, spans: Array) -> None:
    """So many nodes from the place `got` on: of the tightest run that is enough, else of the widest, and so on."""
    many = _runs(mask, spans)
    for at in range(many):
        idle = 0
        for node in range(spans[0, at], spans[1, at] + 1):
            idle += cpus - busy[node]
        spans[3, at] = idle
    end = got + count
    while got < end:
        left, best, is_enough = end - got, -1, False
        for at in range(many):
            length = spans[1, at] - spans[0, at] + 1
            if length == 0:
                continue
            enough, idle = length >= left, spans[3, at]
            if (
                best < 0
                or (enough and (not is_enough or idle < spans[3, best]))
                or (not enough and not is_enough and idle > spans[3, best])
            ):
                best, is_enough = at, enough
        begin, last = spans[0, best], spans[1, best]
        spans[1, best] = begin - 1
        if left == 1:
            for node in range(begin, last + 1):
                if busy[node] > busy[begin]:
                    begin = node
        for node in range(begin, min(begin + left, last + 1)):
            spans[2, got] = node
            got += 1


@njit(cache=True)
def by_limit(jobs: Array, job: int) -> int:
    """When a running job is foreseen to end; it began in a whole second, as in Slurm."""
    return int(jobs[START, job] // S_NS * S_NS + jobs[LIMIT, job])


@njit(cache=True)
def load(jobs: Array, busy: Array, job: int, node: int, count: int, sign: int) -> None:
    """CPUs of so many of a job's GPUs on a node are in use, or no longer."""
    cpus, gpus = jobs[CPUS, job], jobs[GPUS, job]
    busy[node] += sign * ((cpus * count + gpus - 1) // gpus if cpus else count)


@njit(cache=True)
def unload(jobs: Array, job_nodes: Array, busy: Array, job: int) -> None:
    """A job's CPUs are no longer in use."""
    left, each = jobs[GPUS, job], jobs[EACH, job]
    for at in range(jobs[FIRST, job], jobs[FIRST, job + 1]):
        load(jobs, busy, job, job_nodes[at], min(left, each), -1)
        left -= each


@njit(cache=True)
def choose(busy: Array, cpus: int, least: Array, gpus: int, each: int, among: Array, mask: Array, spans: Array) -> int:
    """Nodes for a job that fits, to the last row; returns how many: whole ones, then that of the rest."""
    whole, rest = gpus // each, gpus % each
    if whole:
        for word in range(len(mask)):
            mask[word] = least[each, word] & among[word]
        _tightest(busy, cpus, mask, whole, 0, spans)
    if rest == 0:
        return whole
    for word in range(len(mask)):
        mask[word] = least[rest, word] & among[word]
    for at in range(whole):
        mask[spans[2, at] // BITS] &= ~(1 << (spans[2, at] % BITS))
    _tightest(busy, cpus, mask, 1, whole, spans)
    return whole + 1


@njit(cache=True)
def count_free(free: Array, least: Array, gpus: int, each: int) -> None:
    """The sets of nodes that `choose` asks for are made of free GPUs."""
    rest = gpus % each
    least[each] = 0
    least[rest] = 0
    for node in range(len(free)):
        word, bit = node // BITS, 1 << (node % BITS)
        if free[node] >= rest:
            least[rest, word] |= bit
        if free[node] >= each:
            least[each, word] |= bit


@njit(cache=True)
def give_back(jobs: Array, job_nodes: Array, free: Array, least: Array, job: int) -> None:
    """The GPUs of a job are free."""
    left, each = jobs[GPUS, job], jobs[EACH, job]
    for at in range(jobs[FIRST, job], jobs[FIRST, job + 1]):
        node, count = job_nodes[at], min(left, each)
        set_free(free, least, node, free[node] + count)
        left -= count


@njit(cache=True)
def _on(jobs: Array, array: Array, job: int, among: Array) -> bool:
    """Whether a running job has one of these nodes."""
    for at in range(jobs[FIRST, job], jobs[FIRST, job + 1]):
        node = array[at]
        if (among[node // BITS] >> (node % BITS)) & 1:
            return True
    return False


@njit(cache=True)
def future(
    now: Array,
    batch: int,
    jobs: Array,
    lists: Array,
    job_nodes: Array,
    free: Array,
    least: Array,
    gpus: int,
    each: int,
    among: Array,
) -> int:
    """When a job fits on these nodes, if those that run end at their limits, some at once; -1: never.

    What is free then is in the second row of `free`; at once: in the first.
    """
    time = now[NOW] // S_NS * S_NS
    if fits(least[0], gpus, each, among):
        return int(time)
    whole, rest = gpus // each, gpus % each
    nodes, idle, some = 0, 0, 0
    for word in range(len(among)):
        nodes += _many(among[word])
        idle += _many(among[word] & least[0, each, word])
        some += _many(among[word] & least[0, rest, word])
    if nodes < whole + (rest > 0):
        return -1
    free[1], free[3] = free[0], free[2]
    window, barrier, at, done, last, has_barrier, is_here = batch, 0, 0, 0, 0, False, False
    while True:
        job, end = -1, NEVER
        if not batch:
            while at < now[RUNNING] and not _on(jobs, job_nodes, lists[BY_LIMIT, at], among):
                at += 1
            while done < now[COMPLETING] and not _on(jobs, job_nodes, lists[ENDING, done], among):
                done += 1
        if at < now[RUNNING]:
            job = lists[BY_LIMIT, at]
            end = by_limit(jobs, job)
        completes = done < now[COMPLETING] and lists[FREED, done] < end
        if completes:
            job, end = lists[ENDING, done], lists[FREED, done]
        if job < 0 or (is_here and end > barrier + window):
            if has_barrier and idle >= whole and (rest == 0 or some > whole):
                return int(max(last, time + S_NS))
            if job < 0:
                return -1
            window *= 2
            while end > barrier + window:
                if window:
                    window *= 2
                else:
                    barrier = end
        # Whether a batch ends is asked behind a job on these nodes, of the next job of all.
        is_here = _on(jobs, job_nodes, job, among)
        if not is_here:
            if completes:
                done += 1
            else:
                at += 1
            continue
        if not has_barrier:
            has_barrier = True
            barrier = end + (window - end % window if window else 0)
        left = jobs[GPUS, job]
        for place in range(jobs[FIRST, job], jobs[FIRST, job + 1]):
            node, count = job_nodes[place], min(left, jobs[EACH, job])
            left -= count
            free[1, node] += count
            if not completes:
                load(jobs, free[3], job, node, count, -1)
            if (among[node // BITS] >> (node % BITS)) & 1:
                idle += free[1, node] >= each and free[1, node] - count < each
                some += free[1, node] >= rest and free[1, node] - count < rest
        last = end
        if completes:
            done += 1
        else:
            at += 1
