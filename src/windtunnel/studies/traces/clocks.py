"""By how much the clocks of the workers differ, read off communication that ends everywhere at once.

A rendezvous ends for all its members at about the same instant; what their clocks say differs by the offset between
the clocks. The median over all rendezvous of a pair is that offset, to the spread of those ends (milliseconds). Pairs
form a graph; offsets follow along a breadth-first tree, so a worker needs a chain of partners to the first one.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray


def clock_offsets(
    worker: NDArray[np.int32], rendezvous: NDArray[np.int64], end_s: NDArray[np.float64], n_workers: int
) -> NDArray[np.float64]:
    """float64[workers]: seconds that each worker's clock is ahead of the median clock; nan where nothing ties it.

    One entry per communication op: its worker, an id that the members of one rendezvous share, and its end.
    """
    offsets = np.full(n_workers, np.nan)
    if len(worker) == 0:
        return offsets
    order = np.lexsort((worker, rendezvous))
    who, group, end = worker[order], rendezvous[order], end_s[order]
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    leader = np.repeat(first, np.diff(np.r_[first, len(group)]))
    apart = who != who[leader]
    a, b, gap = who[leader][apart], who[apart], (end - end[leader])[apart]
    edges: dict[int, list[tuple[int, float]]] = {}
    if len(a):
        pair = a.astype(np.int64) * n_workers + b
        by_pair = np.argsort(pair, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(pair[by_pair]) != 0])
        for members in np.split(by_pair, starts[1:]):
            u, v, ahead = int(a[members[0]]), int(b[members[0]]), float(np.median(gap[members]))
            edges.setdefault(u, []).append((v, ahead))
            edges.setdefault(v, []).append((u, -ahead))
    if not edges:
        return offsets
    root = max(edges, key=lambda u: (len(edges[u]), -u))
    offsets[root] = 0.0
    queue = deque([root])
    while queue:
        u = queue.popleft()
        for v, ahead in edges[u]:
            if np.isnan(offsets[v]):
                offsets[v] = offsets[u] + ahead
                queue.append(v)
    centred: NDArray[np.float64] = offsets - np.nanmedian(offsets)
    return centred
