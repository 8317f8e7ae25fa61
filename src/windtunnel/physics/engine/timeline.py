"""When every op ran, and what can be read off it: who owned each instant of each program, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.interpreted import split_time, warm_up
from windtunnel.physics.graph.program import Graph


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every op of a graph, int64[n] nanoseconds from the beginning of the step."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @property
    def makespan_ns(self) -> int:
        """The end of the last op; 0 without ops."""
        return int(self.end_ns.max()) if len(self.end_ns) else 0


@dataclass(frozen=True, eq=False)
class Exposure:
    """The makespan of every program, split by who owned each instant. All int64 nanoseconds.

    For each program the five parts sum to `total_ns` exactly. c counts `Graph.categories`.
    """

    total_ns: int
    compute_ns: NDArray[np.int64]  # [programs, c] a compute op runs: its category
    communication_ns: NDArray[np.int64]  # [programs, c] no compute, but a collective, send or recv runs: exposed
    host_ns: NDArray[np.int64]  # [programs, c] neither, but a host op runs
    idle_ns: NDArray[np.int64]  # [programs, c] nothing runs; by category of the op whose start ends the gap
    tail_ns: NDArray[np.int64]  # [programs] nothing runs any more


def exposed(timeline: Timeline, graph: Graph) -> Exposure:
    """Split [0, makespan] of each program by who owns each instant.

    An instant belongs to compute before communication before host; among ops of one sort to the one that started first,
    then to the lower index. Communication runs from the arrival of its last member, so waiting for others is idle time;
    it is booked under the op that ends the gap: communication before host before compute when several start together.
    """
    total = timeline.makespan_ns
    assert len(timeline.start_ns) == len(timeline.end_ns) == graph.n_ops
    c = len(graph.categories)
    # Compiled code would write outside its result.
    assert int(graph.category.max(initial=0)) < c, "a category without a name"
    assert int(graph.stream_rank.max(initial=0)) < graph.n_programs, "a stream without a program"
    split = _split_time(timeline, graph, total)
    return Exposure(total, split[:, 0, :c], split[:, 1, :c], split[:, 2, :c], split[:, 3, :c], split[:, 3, c])


def _split_time(timeline: Timeline, graph: Graph, horizon: int) -> NDArray[np.int64]:
    start, end = timeline.start_ns, timeline.end_ns
    if warm_up.takes(graph.n_ops):
        return split_time(graph, start, end, horizon)
    from windtunnel.physics.engine.compiled import time_kernels

    shape = (graph.kind, graph.category, len(graph.categories), graph.stream, graph.stream_rank, graph.n_programs)
    split: NDArray[np.int64] = time_kernels.split_time(*shape, start, end, horizon)
    return split


def critical_path(graph: Graph, timeline: Timeline) -> NDArray[np.int32]:
    """Indices of ops that tile [0, makespan] without a gap: each begins at the very end of the one before it.

    Walks back from the op that ends last. Where several predecessors bind, the one before it on its stream goes first,
    then the dependencies in their order; at a rendezvous the predecessors of all its members count.
    """
    from windtunnel.physics.engine.compiled import fixed_kernels

    assert len(timeline.start_ns) == len(timeline.end_ns) == graph.n_ops
    path: NDArray[np.int32] = fixed_kernels.binding_path(
        graph.stream,
        graph.n_streams,
        graph.dep_ptr,
        graph.dep_idx,
        graph.rendezvous,
        timeline.start_ns,
        timeline.end_ns,
    )
    return path
