"""Compiled event loops of rigid gangs in one queue on one cluster: first come, shortest first, skipping, EASY backfill.

At one time ends come before submissions, then one pass over the queue in order of `rank`:

    block       the head starts while it fits, and blocks the rest where it does not
    skip        every job that fits starts
    easy        the first that does not fit is reserved at t*, when enough running jobs have ended (taken one by one by
                end, then rank); spare = GPUs free at t* beyond its own. A later job starts if it fits and ends by t*,
                or needs no more than spare, which it then reduces

Within a pass GPUs and spare only shrink, so whoever was skipped stays so, and the pass is "take the first of the queue
that may start" repeated: a minimum over gang sizes of a search tree over waiting durations. Room is a count of GPUs, or
real nodes: a gang up to a node on the fitting node with least free GPUs, a larger one on free nodes and its remainder
as a small gang on another node; ties to the lowest index. Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

NEVER = np.iinfo(np.int64).max
BLOCK, SKIP, EASY = 0, 1, 2
WORD = 64


class Nodes(NamedTuple):
    """Free GPUs by node, and for each count of free GPUs the set of nodes that have it, as bits in two levels."""

    free: Array  # i64[nodes]
    bits: Array  # u64[per node + 1, words]
    summary: Array  # u64[per node + 1, words of words]
    many: Array  # i64[per node + 1], nodes in each set
    chain: Array  # i64[nodes], the next whole node of the same gang


def empty_nodes(nodes: int, per_node: int) -> Nodes:
    """A cluster on which nothing runs."""
    words = -(-nodes // WORD)
    state = Nodes(
        np.zeros(nodes, np.int64),
        np.zeros((per_node + 1, words), np.uint64),
        np.zeros((per_node + 1, -(-words // WORD)), np.uint64),
        np.zeros(per_node + 1, np.int64),
        np.full(nodes, -1, np.int64),
    )
    fill_nodes(state, per_node)
    return state


@njit(cache=True)
def fill_nodes(nodes: Nodes, per_node: int) -> None:
    """All GPUs of all nodes are free."""
    for node in range(len(nodes.free)):
        _enter(nodes, node, per_node)


@njit(cache=True)
def _enter(nodes: Nodes, node: int, free: int) -> None:
    nodes.free[node] = free
    nodes.many[free] += 1
    word = node // WORD
    nodes.bits[free, word] |= np.uint64(1) << np.uint64(node % WORD)
    nodes.summary[free, word // WORD] |= np.uint64(1) << np.uint64(word % WORD)


@njit(cache=True)
def _leave(nodes: Nodes, node: int) -> None:
    free = nodes.free[node]
    nodes.many[free] -= 1
    word = node // WORD
    nodes.bits[free, word] &= ~(np.uint64(1) << np.uint64(node % WORD))
    if nodes.bits[free, word] == 0:
        nodes.summary[free, word // WORD] &= ~(np.uint64(1) << np.uint64(word % WORD))


@njit(cache=True)
def _lowest_bit(word: np.uint64) -> int:
    at = 0
    for width in (32, 16, 8, 4, 2, 1):
        if word & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)) == 0:
            word >>= np.uint64(width)
            at += width
    return at


@njit(cache=True)
def _first(nodes: Nodes, free: int) -> int:
    """The lowest node with so many free GPUs; there must be one."""
    for high in range(nodes.summary.shape[1]):
        if nodes.summary[free, high] != 0:
            word = high * WORD + _lowest_bit(nodes.summary[free, high])
            return word * WORD + _lowest_bit(nodes.bits[free, word])
    return -1


@njit(cache=True)
def fits(nodes: Nodes, gpus: int, per_node: int) -> bool:
    """Whether a gang finds room on real nodes."""
    whole, rest = gpus // per_node, gpus % per_node
    if nodes.many[per_node] < whole:
        return False
    if rest == 0 or nodes.many[per_node] > whole:
        return True
    partly = 0
    for free in range(rest, per_node):
        partly += nodes.many[free]
    return partly > 0


@njit(cache=True)
def take(nodes: Nodes, gpus: int, per_node: int) -> tuple[int, int]:
    """Place a gang that fits; returns (first of its whole nodes, node of the rest), -1 for none."""
    whole, rest = gpus // per_node, gpus % per_node
    head = -1
    for _ in range(whole):
        node = _first(nodes, per_node)
        _leave(nodes, node)
        _enter(nodes, node, 0)
        nodes.chain[node] = head
        head = node
    part = -1
    if rest:
        for free in range(rest, per_node + 1):
            if nodes.many[free] > 0:
                part = _first(nodes, free)
                _leave(nodes, part)
                _enter(nodes, part, free - rest)
                break
    return head, part


@njit(cache=True)
def give_back(nodes: Nodes, head: int, part: int, gpus: int, per_node: int) -> None:
    """Undo `take`."""
    while head >= 0:
        _leave(nodes, head)
        _enter(nodes, head, per_node)
        head = nodes.chain[head]
    if part >= 0:
        free = nodes.free[part] + gpus % per_node
        _leave(nodes, part)
        _enter(nodes, part, free)


@njit(cache=True)
def _sift_up(keys: Array, items: Array, at: int) -> None:
    key, item = keys[at], items[at]
    while at > 0:
        above = (at - 1) >> 1
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@njit(cache=True)
def _pop(keys: Array, items: Array, size: int) -> None:
    """Remove the least of a heap of `size` entries."""
    size -= 1
    key, item = keys[size], items[size]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (keys[other] < keys[below] or (keys[other] == keys[below] and items[other] < items[below])):
            below = other
        if key < keys[below] or (key == keys[below] and item < items[below]):
            break
        keys[at], items[at] = keys[below], items[below]
        at = below
    keys[at], items[at] = key, item


@njit(cache=True)
def _set_leaf(tree: Array, base: int, leaves: int, leaf: int, value: int) -> None:
    at = leaves + leaf
    tree[base + at] = value
    at >>= 1
    while at >= 1:
        left, right = tree[base + 2 * at], tree[base + 2 * at + 1]
        least = left if left < right else right
        if tree[base + at] == least:
            break
        tree[base + at] = least
        at >>= 1


@njit(cache=True)
def _first_leaf(tree: Array, base: int, leaves: int, limit: int) -> int:
    """The first leaf with a value of at most `limit`, or -1."""
    if tree[base + 1] > limit:
        return -1
    at = 1
    while at < leaves:
        at *= 2
        if tree[base + at] > limit:
            at += 1
    return at - leaves


@njit(cache=True)
def run(
    submit: Array,
    duration: Array,
    gpus: Array,
    arrival: Array,
    order: Array,
    size_of: Array,
    leaf_of: Array,
    job_at: Array,
    base: Array,
    leaves: Array,
    job_base: Array,
    size_gpus: Array,
    nodes: Nodes,
    per_node: int,
    capacity: int,
    mode: int,
    start: Array,
    placed: Array,
) -> None:
    """Run the trace; `start` (i64 ns) and `placed` (i64[jobs, 2], as `take` returns) are filled by job.

    `arrival`: jobs by (submit, row). `order`: rank of each job in the queue. `size_of`, `leaf_of`: the gang size of a
    job as a number, and its place by rank among those of its size; `job_at[job_base[size] + leaf]` is the inverse.
    `base` and `leaves`: each size's tree in one array. `per_node` 0: GPUs are a count.
    """
    jobs, sizes = len(submit), len(size_gpus)
    tree = np.full(base[sizes], NEVER, np.int64)
    heap_end, heap_job = np.empty(jobs, np.int64), np.empty(jobs, np.int64)
    running = 0
    queue, queue_job = (
        np.empty(jobs if mode == BLOCK else 0, np.int64),
        np.empty(jobs if mode == BLOCK else 0, np.int64),
    )
    waiting = 0
    free = capacity
    next_arrival = 0
    while next_arrival < jobs or running > 0:
        now = NEVER
        if running > 0:
            now = heap_end[0]
        if next_arrival < jobs and submit[arrival[next_arrival]] < now:
            now = submit[arrival[next_arrival]]
        while running > 0 and heap_end[0] == now:
            job = heap_job[0]
            _pop(heap_end, heap_job, running)
            running -= 1
            free += gpus[job]
            if per_node:
                give_back(nodes, placed[job, 0], placed[job, 1], gpus[job], per_node)
        while next_arrival < jobs and submit[arrival[next_arrival]] == now:
            job = arrival[next_arrival]
            next_arrival += 1
            if mode == BLOCK:
                queue[waiting], queue_job[waiting] = order[job], job
                _sift_up(queue, queue_job, waiting)
            else:
                size = size_of[job]
                _set_leaf(tree, base[size], leaves[size], leaf_of[job], duration[job])
            waiting += 1
        limit, spare, reserved = NEVER - 1, NEVER, False
        while waiting > 0:
            chosen, chosen_order, from_size = -1, NEVER, -1
            if mode == BLOCK:
                chosen = queue_job[0]
                room = fits(nodes, gpus[chosen], per_node) if per_node else gpus[chosen] <= free
                if not room:
                    break
                _pop(queue, queue_job, waiting)
            else:
                for size in range(sizes):
                    need = size_gpus[size]
                    room = fits(nodes, need, per_node) if per_node else need <= free
                    if not room and (mode == SKIP or reserved):
                        continue
                    within = NEVER - 1 if need <= spare else limit
                    leaf = _first_leaf(tree, base[size], leaves[size], within)
                    if leaf >= 0:
                        job = job_at[job_base[size] + leaf]
                        if order[job] < chosen_order:
                            chosen, chosen_order, from_size = job, order[job], size
                if chosen < 0:
                    break
                if mode == EASY and not reserved:
                    need = gpus[chosen]
                    room = fits(nodes, need, per_node) if per_node else need <= free
                    if not room:
                        reserved = True
                        until, at_then = _reservation(heap_end, heap_job, running, gpus, free, need)
                        limit, spare = until - now, at_then - need
                        continue
                if mode == EASY and reserved and duration[chosen] > limit:
                    spare -= gpus[chosen]
                _set_leaf(tree, base[from_size], leaves[from_size], leaf_of[chosen], NEVER)
            waiting -= 1
            start[chosen] = now
            free -= gpus[chosen]
            if per_node:
                placed[chosen, 0], placed[chosen, 1] = take(nodes, gpus[chosen], per_node)
            heap_end[running], heap_job[running] = now + duration[chosen], chosen
            _sift_up(heap_end, heap_job, running)
            running += 1


@njit(cache=True)
def _reservation(ends: Array, jobs: Array, running: int, gpus: Array, free: int, need: int) -> tuple[int, int]:
    """(when `need` GPUs will be free if nothing else starts, GPUs free then): the least of the heap, one by one.

    A second heap walks the first from its root, so that only what has to end is looked at. Its rows: end, job, entry.
    """
    frontier = np.empty((64, 3), np.int64)
    frontier[0, 0], frontier[0, 1], frontier[0, 2] = ends[0], jobs[0], 0
    size = 1
    until = NEVER - 1
    while size > 0 and free < need:
        until = frontier[0, 0]
        free += gpus[frontier[0, 1]]
        entry = frontier[0, 2]
        size -= 1
        at = 0
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            if below + 1 < size and _before(frontier, below + 1, below):
                below += 1
            if _before(frontier, size, below):
                break
            for column in range(3):
                frontier[at, column] = frontier[below, column]
            at = below
        for column in range(3):
            frontier[at, column] = frontier[size, column]
        if size + 2 > len(frontier):
            wider = np.empty((2 * len(frontier), 3), np.int64)
            for at in range(len(frontier)):
                for column in range(3):
                    wider[at, column] = frontier[at, column]
            frontier = wider
        for child in (2 * entry + 1, 2 * entry + 2):
            if child < running:
                frontier[size, 0], frontier[size, 1], frontier[size, 2] = ends[child], jobs[child], child
                at = size
                while at > 0 and _before(frontier, at, (at - 1) >> 1):
                    above = (at - 1) >> 1
                    for column in range(3):
                        frontier[at, column], frontier[above, column] = frontier[above, column], frontier[at, column]
                    at = above
                size += 1
    return until, free


@njit(cache=True)
def _before(rows: Array, a: int, b: int) -> bool:
    less: bool = rows[a, 0] < rows[b, 0] or (rows[a, 0] == rows[b, 0] and rows[a, 1] < rows[b, 1])
    return less
