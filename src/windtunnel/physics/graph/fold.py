"""Exact folding: ranks that no clock can tell apart are simulated once.

Colour refinement. Every rank starts with the colour of what it does itself. Then, until nothing splits any more, two
ranks keep the same colour only if in each communicator they see the same colours. At that fixed point ranks of one
colour have the same timeline: an op starts at the latest of what it waits for and goes at the lowest rate of whom it
meets. So one rank stands for all of its colour, and nothing is approximated.

`refine` does this before anything is priced. It counts how many of each colour a communicator holds, because prices
depend on that. The same for a priced graph, op by op, is tests/laws/exact_fold.py.
Sources: A. Cardon, M. Crochemore, "Partitioning a graph in O(|A| log2 |V|)", 1982; P. Buchholz, "Exact and ordinary
lumpability", 1994.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32] | NDArray[np.int64]


def refine(colour: Ints, communicators: Sequence[Ints]) -> NDArray[np.int64]:
    """int64[ranks]: the coarsest partition that refines `colour` and that no communicator can split further.

    `communicators`: one matrix [groups, size] of rank numbers per family (all tensor-parallel groups, say); a rank is
    in at most one group of a family, and all members of a group are alike. Classes are numbered by their first rank.
    """
    partition = numbered_by_first(colour)
    n_classes, unchanged = int(partition.max(initial=-1)) + 1, 0
    while unchanged < len(communicators):
        for groups in communicators:
            partition = paired(partition, _shown(partition, groups))
            before, n_classes = n_classes, int(partition.max(initial=-1)) + 1
            unchanged = unchanged + 1 if n_classes == before else 0
    return partition


def _shown(colour: NDArray[np.int64], groups: Ints) -> NDArray[np.int64]:
    """int64[ranks]: a number for the colours in each rank's group, each as often as it is there; -1 without a group."""
    assert not groups.size or np.bincount(groups.ravel()).max() == 1, "a rank is twice in one family"
    data = np.sort(colour[groups], axis=1).tobytes()
    width = colour.itemsize * groups.shape[1]
    number_of: dict[bytes, int] = {}  # contents are compared in full, never by a hash alone
    numbers = [number_of.setdefault(data[at : at + width], len(number_of)) for at in range(0, len(data), width)]
    shown = np.full(len(colour), -1, np.int64)
    shown[groups.ravel()] = np.repeat(numbers, groups.shape[1])
    return shown


def paired(partition: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The coarsest partition that refines both, numbered by first members; `other` may hold -1."""
    return numbered_by_first(partition * (int(other.max(initial=-1)) + 2) + other + 1)


def numbered_by_first(values: Ints) -> NDArray[np.int64]:
    """The same partition, its parts numbered by their first members."""
    _, first, part = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    renumbered: NDArray[np.int64] = number[part.ravel()]
    return renumbered
