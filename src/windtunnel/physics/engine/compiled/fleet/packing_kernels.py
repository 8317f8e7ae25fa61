"""Compiled packing of pods (CPU, memory, fractions of GPUs) onto nodes, one after the other, none ever ends.

Scores are kept by (kind of pod, node) and made anew only for nodes that changed since the kind was last asked for; one
node changes per pod. The highest integer score wins, ties go to the first node. The rules are in `fleet/packing/`.
Each function's `.py_func` is the same code uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

RANDOM, BEST_FIT, DOT_PRODUCT, GPU_PACKING, GPU_CLUSTERING, FGD = range(6)
WHOLE = 1000  # milli-GPUs
MOST_CPU, MOST_GPU = 128_000.0, 8_000.0  # by which scores are normalised, as published


class Demand(NamedTuple):
    """Kinds of pods as rows (cpu, memory, gpus, milli per GPU, models as bits); typical ones, and their shares."""

    kinds: Array  # i64[kinds, 5]
    affinity: Array  # i64[kinds]
    typical: Array  # i64[typical, 5]
    share: Array  # f64[typical]


class Nodes(NamedTuple):
    """What nodes have left."""

    cpu: Array  # i64[nodes]
    memory: Array  # i64[nodes]
    gpus: Array  # i64[nodes] how many
    model: Array  # i64[nodes]
    gpu_left: Array  # i64[nodes, gpus] milli
    affinities: Array  # i64[nodes] of pods on it, as bits
    lost: Array  # f64[nodes] milli-GPUs that typical pods cannot use


@njit(cache=True)
def fits(nodes: Nodes, node: int, kind: Array) -> bool:
    """Whether a pod of a kind fits on a node."""
    if nodes.cpu[node] < kind[0] or nodes.memory[node] < kind[1]:
        return False
    if kind[2] == 0:
        return True
    if kind[4] != 0 and not (kind[4] >> nodes.model[node]) & 1:
        return False
    room = 0
    for gpu in range(nodes.gpus[node]):
        room += nodes.gpu_left[node, gpu] >= kind[3]
    enough: bool = room >= kind[2]
    return enough


@njit(cache=True)
def fragments(cpu: int, gpu_left: Array, gpus: int, model: int, typical: Array, share: Array) -> float:
    """Milli-GPUs that typical pods cannot use: the expectation over their kinds."""
    free = 0
    for gpu in range(gpus):
        free += gpu_left[gpu]
    if free == 0:
        return 0.0
    total = 0.0
    for at in range(len(typical)):
        need, milli, models = typical[at, 2], typical[at, 3], typical[at, 4]
        lost = free
        if need > 0 and cpu >= typical[at, 0] and (models == 0 or (models >> model) & 1):
            room, scraps = 0, 0
            for gpu in range(gpus):
                if gpu_left[gpu] >= milli:
                    room += 1
                else:
                    scraps += gpu_left[gpu]
            if room >= need:
                lost = scraps
        total += share[at] * lost
    return total


@njit(cache=True)
def _tightest(gpu_left: Array, gpus: int, milli: int) -> int:
    best = -1
    for gpu in range(gpus):
        if gpu_left[gpu] >= milli and (best < 0 or gpu_left[gpu] < gpu_left[best]):
            best = gpu
    return best


@njit(cache=True)
def _packing_score(gpu_left: Array, gpus: int, kind: Array) -> int:
    whole = 0
    for gpu in range(gpus):
        whole += gpu_left[gpu] == WHOLE
    if whole == gpus:
        return max(33 - whole, whole)
    need, used_free, ratio = kind[2], 0, 0
    for left in np.sort(gpu_left[:gpus]):
        if need > 0 and left >= kind[3]:
            need -= 1
            used_free += left == WHOLE
            ratio += left * 100 // WHOLE
    if used_free > 0:
        return max(50 - used_free, 33)
    return max(100 - ratio // 10, 50)


@njit(cache=True)
def _fgd_score(before: float, after: float) -> int:
    return int(100.0 / (1.0 + np.exp(-(before - after) / 1000.0)))


@njit(cache=True)
def score(policy: int, demand: Demand, which: int, nodes: Nodes, node: int) -> tuple[int, int]:
    """(score, GPU for a partial pod) on a node where a pod of kind `which` fits."""
    kind, affinity, typical, share = demand.kinds[which], demand.affinity[which], demand.typical, demand.share
    cpu, gpu_left, gpus, model = nodes.cpu[node], nodes.gpu_left[node], nodes.gpus[node], nodes.model[node]
    affinities, fragments_now = nodes.affinities[node], nodes.lost[node]
    partial = kind[2] == 1 and kind[3] < WHOLE
    gpu = _tightest(gpu_left, gpus, kind[3]) if partial else -1
    free = 0
    for at in range(gpus):
        free += gpu_left[at]
    gpu_demand = kind[2] * kind[3]
    if policy == BEST_FIT:
        return int(100.0 * (1.0 - ((cpu - kind[0]) / MOST_CPU + (free - gpu_demand) / MOST_GPU) / 2.0)), gpu
    if policy == DOT_PRODUCT:
        return int(
            100.0 * (1.0 - (cpu / MOST_CPU * (kind[0] / MOST_CPU) + free / MOST_GPU * (gpu_demand / MOST_GPU)) / 2.0)
        ), gpu
    if policy == GPU_PACKING:
        return (_packing_score(gpu_left, gpus, kind) if kind[2] > 0 else 0), gpu
    if policy == GPU_CLUSTERING:
        if kind[2] == 0:
            return 0, gpu
        fuller = 25 * (8000 - free) // 8000
        if affinities == 1 << affinity:
            return fuller + 75, gpu
        if (affinities >> affinity) & 1:
            return fuller + 50, gpu
        return (fuller + 25 if affinities == 0 else fuller), gpu
    if policy == FGD:
        left = gpu_left[:gpus].copy()
        if not partial:
            need = kind[2]
            for at in range(gpus):
                if need > 0 and left[at] >= kind[3]:
                    left[at] -= kind[3]
                    need -= 1
            after = fragments(cpu - kind[0], left, gpus, model, typical, share)
            return _fgd_score(fragments_now, after), -1
        best, chosen = 0, -1
        for at in range(gpus):
            if left[at] < kind[3]:
                continue
            left[at] -= kind[3]
            value = _fgd_score(fragments_now, fragments(cpu - kind[0], left, gpus, model, typical, share))
            left[at] += kind[3]
            if chosen < 0 or value > best:
                best, chosen = value, at
        return best, chosen
    return 0, gpu


@njit(cache=True)
def _fragments_of(demand: Demand, nodes: Nodes, node: int) -> float:
    return fragments(
        nodes.cpu[node], nodes.gpu_left[node], nodes.gpus[node], nodes.model[node], demand.typical, demand.share
    )


@njit(cache=True)
def pack(policy: int, pods: Array, demand: Demand, there: Nodes, seed: int, placed: Array, trace: Array) -> None:
    """Place pods in order, on empty nodes; what is left of those is kept up to date in `there`.

    `pods`: kinds. `placed`: i64[pods], node or -1. `trace`: f64[pods, 3], milli-GPUs come, held, lost.
    """
    np.random.seed(seed)
    nodes, count = len(there.cpu), len(pods)
    for node in range(nodes):
        there.lost[node] = _fragments_of(demand, there, node)
    total_lost = there.lost.sum()
    scores = np.full((len(demand.kinds), nodes), -1, np.int64)
    gpu_of = np.full((len(demand.kinds), nodes), -1, np.int64)
    asked_at = np.full(len(demand.kinds), -1, np.int64)
    changed = np.empty(count, np.int64)
    changes = 0
    arrived = allocated = 0
    for at in range(count):
        which = pods[at]
        kind = demand.kinds[which]
        first = asked_at[which]
        for step in range(nodes if first < 0 else changes - first):
            node = step if first < 0 else changed[first + step]
            scores[which, node] = -1
            if fits(there, node, kind):
                scores[which, node], gpu_of[which, node] = score(policy, demand, which, there, node)
        asked_at[which] = changes
        chosen, best, fitting = -1, -1, 0
        for node in range(nodes):
            value = scores[which, node]
            if value < 0:
                continue
            if policy == RANDOM:
                fitting += 1
                if np.random.randint(fitting) == 0:
                    chosen = node
            elif value > best:
                chosen, best = node, value
        arrived += kind[2] * kind[3]
        placed[at] = chosen
        if chosen >= 0:
            node, gpu_left = chosen, there.gpu_left[chosen]
            there.cpu[node] -= kind[0]
            there.memory[node] -= kind[1]
            need = kind[2]
            if need == 1 and kind[3] < WHOLE:
                gpu = gpu_of[which, node]
                if policy == RANDOM:
                    fitting = 0
                    for number in range(there.gpus[node]):
                        if gpu_left[number] >= kind[3]:
                            fitting += 1
                            if np.random.randint(fitting) == 0:
                                gpu = number
                gpu_left[gpu] -= kind[3]
            else:
                for gpu in range(there.gpus[node]):
                    if need > 0 and gpu_left[gpu] >= kind[3]:
                        gpu_left[gpu] -= kind[3]
                        need -= 1
            allocated += kind[2] * kind[3]
            if kind[2] > 0:
                there.affinities[node] |= 1 << demand.affinity[which]
            after = _fragments_of(demand, there, node)
            total_lost += after - there.lost[node]
            there.lost[node] = after
            changed[changes] = node
            changes += 1
        trace[at, 0], trace[at, 1], trace[at, 2] = arrived, allocated, total_lost
