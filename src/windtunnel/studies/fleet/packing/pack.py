"""Pods that arrive one by one and never end: which node each gets, and how much of the free GPUs typical pods can use.

Inflation: the list in order of its names, shuffled by the seed, then random pods of it until the GPU demand would pass
130 % of the cluster. A pod that does not fit is lost. Fragments of a node: sum over typical kinds of pod (the most
frequent that cover 95 %) of their frequency x (all free milli-GPUs where the kind cannot run or wants no GPU, else
those on GPUs with less left than it asks per GPU). FGD puts each pod where that grows least.
Source: Q. Weng et al., "Beware of Fragmentation", ATC 2023; hkust-adsl/kubernetes-scheduler-simulator (Apache-2.0), as
rules. Its random numbers are Go's; ours are others, so curves agree as means over seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.fleet.packing_kernels import Demand
    from windtunnel.physics.engine.compiled.fleet.packing_kernels import Nodes as Left

Integers = NDArray[np.int64]
POLICIES = {"random": 0, "bestfit": 1, "dotprod": 2, "gpupacking": 3, "gpuclustering": 4, "fgd": 5}
INFLATION = 1.3  # GPU demand over capacity at which a run ends
COVERED = 0.95  # of pods, by typical kinds


@dataclass(frozen=True)
class Pods:
    """A list of pods: `kinds` has distinct rows (cpu milli, memory MiB, gpus, milli per GPU, GPU models as bits)."""

    kinds: Integers
    kind_of: Integers  # by pod, in order of names


@dataclass(frozen=True)
class Nodes:
    """Unlike nodes, in order of names. `model`: number of the GPU model, the bit in a pod's models."""

    cpu: Integers
    memory: Integers
    gpus: Integers
    model: Integers

    @property
    def capacity_milli(self) -> int:
        """Capacity of all GPUs, in thousandths."""
        return int(self.gpus.sum()) * 1000

    def empty(self) -> Left:
        """All that they have, as the compiled loop takes it and writes to it."""
        from windtunnel.physics.engine.compiled.fleet.packing_kernels import WHOLE
        from windtunnel.physics.engine.compiled.fleet.packing_kernels import Nodes as Left

        left = np.where(np.arange(max(self.gpus.max(), 1)) < self.gpus[:, None], WHOLE, 0)
        none = np.zeros(len(self.cpu), np.int64)
        return Left(self.cpu.copy(), self.memory.copy(), self.gpus, self.model, left, none, np.zeros(len(none)))


@dataclass(frozen=True)
class Packing:
    """One run: pods in order of arrival, their nodes (-1: none), and the curves after each."""

    pods: Integers  # index in the list
    placed: Integers
    arrived: NDArray[np.float64]  # of capacity
    allocated: NDArray[np.float64]
    fragments: NDArray[np.float64]

    def curve(self) -> dict[int, tuple[float, float, float]]:
        """Means by whole per cent arrived: allocated %, fragments % of capacity, fragments % of what is free."""
        at = np.rint(self.arrived * 100).astype(int)
        free = np.maximum(1 - self.allocated, 1e-12)
        values = np.column_stack([self.allocated, self.fragments, self.fragments / free]) * 100
        totals = np.zeros((at.max() + 1, 3))
        np.add.at(totals, at, values)
        counts = np.bincount(at)
        return {int(pct): tuple(totals[pct] / counts[pct]) for pct in np.flatnonzero(counts)}


def typical_kinds(pods: Pods) -> tuple[Integers, NDArray[np.float64]]:
    """The most frequent kinds, memory aside, that cover 95 % of the pods, and their shares."""
    rows = pods.kinds[pods.kind_of].copy()
    rows[:, 1] = 0
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    enough = int(np.searchsorted(np.cumsum(counts[order]), COVERED * counts.sum())) + 1
    chosen = order[:enough]
    share: NDArray[np.float64] = counts[chosen] / counts[chosen].sum()
    return kinds[chosen], share


def inflated(pods: Pods, capacity_milli: int, seed: int) -> Integers:
    """Pods in order of arrival."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(pods.kind_of))
    gpu_milli = pods.kinds[:, 2] * pods.kinds[:, 3]
    demand = int(gpu_milli[pods.kind_of].sum())
    more: list[int] = []
    while True:
        pod = int(random.integers(len(pods.kind_of)))
        demand += int(gpu_milli[pods.kind_of[pod]])
        if demand > INFLATION * capacity_milli or len(more) > 100 * len(order):
            return np.concatenate([order, np.array(more, np.int64)])
        more.append(pod)


def demand_of(pods: Pods) -> Demand:
    """Kinds of pods as the compiled loop takes them."""
    from windtunnel.physics.engine.compiled.fleet.packing_kernels import Demand

    gpus, milli = pods.kinds[:, 2], pods.kinds[:, 3]
    affinity = np.where(milli < 1000, 0, np.minimum(gpus, 62)).astype(np.int64)
    return Demand(pods.kinds, affinity, *typical_kinds(pods))


def pack(policy: str, pods: Pods, nodes: Nodes, seed: int) -> Packing:
    """Pack an inflated list under one of `POLICIES`."""
    from windtunnel.physics.engine.compiled.fleet.packing_kernels import pack as compiled

    arrivals = inflated(pods, nodes.capacity_milli, seed)
    placed = np.empty(len(arrivals), np.int64)
    trace = np.empty((len(arrivals), 3))
    compiled(POLICIES[policy], pods.kind_of[arrivals], demand_of(pods), nodes.empty(), seed, placed, trace)
    trace /= nodes.capacity_milli
    return Packing(arrivals, placed, trace[:, 0], trace[:, 1], trace[:, 2])
