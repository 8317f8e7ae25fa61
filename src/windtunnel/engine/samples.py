"""Many samples of one step in one pass: every op's duration is a vector, one entry ("lane") per sample.

The structure of a graph does not depend on its durations, so its ops are put in order once and each op is then computed
for all lanes together: the cost of a sample is a few additions and maxima per op. Noise is lognormal with mean 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine.replay import replay
from windtunnel.graph.program import Graph

LANES = 128  # of one block: its ends of 100,000 ops take 100 MB


def sample_makespans(
    graph: Graph, duration_ns: NDArray[np.int64], noisy: NDArray[np.bool_], sigma: float, samples: int, seed: int
) -> NDArray[np.int64]:
    """int64[samples]: the makespan when each op in `noisy` (bool[n]) takes its duration times a lognormal factor.

    `sigma`: relative standard deviation of the factor. The same seed gives the same samples, in whatever number: sample
    i does not depend on how many are asked for.
    """
    from windtunnel.engine import lane_kernels

    order = topological_order(graph)
    previous = _previous(graph)
    row = np.full(graph.n_ops, -1, np.int32)
    rows = np.flatnonzero(noisy)
    row[rows] = np.arange(len(rows), dtype=np.int32)
    spread = np.sqrt(np.log1p(sigma * sigma))
    durations = duration_ns.astype(np.float64)
    found = np.empty(samples, np.int64)
    for block in range(0, samples, LANES):
        lanes = min(LANES, samples - block)
        generator = np.random.default_rng((seed, block))
        drawn = generator.standard_normal((len(rows), LANES), dtype=np.float32)[:, :lanes]
        noise = np.ascontiguousarray(np.exp(spread * drawn - spread * spread / 2.0), dtype=np.float32)
        end = np.empty((graph.n_ops, lanes))
        lane_kernels.replay_lanes(
            order, previous, graph.dep_ptr, graph.dep_idx, graph.rendezvous, durations, row, noise, end
        )
        found[block : block + lanes] = np.rint(end.max(axis=0)).astype(np.int64)
    return found


def topological_order(graph: Graph) -> NDArray[np.int64]:
    """Ops such that each comes after all that it waits for, and members of a rendezvous are neighbours."""
    # When every op takes one unit, an op starts strictly after what it waits for, and a rendezvous starts as one.
    steps = replay(graph, np.ones(graph.n_ops, np.int64)).start_ns
    return np.lexsort((np.arange(graph.n_ops), graph.rendezvous, steps)).astype(np.int64)


def _previous(graph: Graph) -> NDArray[np.int32]:
    order = np.argsort(graph.stream, kind="stable")
    previous = np.full(graph.n_ops, -1, np.int32)
    same = graph.stream[order[1:]] == graph.stream[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous
