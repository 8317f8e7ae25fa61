"""Replays a priced graph: when does every op start and end?

Without slowdown one topological pass suffices: each op takes its duration, and starts at the latest end among its
predecessors. With slowdown the pass is an event loop, because how fast an op runs depends on what runs beside it:

    rate(op of class a) = 1 / (1 + sum over classes b that run at the same time on the same program of factor[a, b])

An op of duration d ends when the integral of its rate reaches d, so interference stretches the overlapped interval only
(Proteus and Echo model it so). Class b counts once, however many of its ops run; class a itself counts if another of
its ops runs. Members of a rendezvous go at the lowest rate among those of them that still run: with equal durations
they end together. The two passes give the same integers when every factor is zero.

With sharing ops also slow each other on links, on whatever GPU they run: `engine/sharing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import ScheduleError
from windtunnel.physics.engine.interpreted import MALFORMED, Interpreted, is_malformed, warm_up
from windtunnel.physics.engine.sharing import Contenders, Sharing, contenders
from windtunnel.physics.engine.timeline import Timeline
from windtunnel.physics.graph.deadlock import explain_deadlock
from windtunnel.physics.graph.program import Graph

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.arrays import Array


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Who slows whom on one GPU. Class 0 neither slows nor is slowed."""

    kind_class: NDArray[np.uint8]  # [n] interference class of each op
    factor: NDArray[np.float64]  # [k, k] extra time of class a (row) per unit of time beside class b (column)

    def __post_init__(self) -> None:
        k = len(self.factor)
        assert k > 0
        assert self.factor.shape == (k, k)
        for array, dtype in ((self.factor, np.float64), (self.kind_class, np.uint8)):
            assert array.dtype == dtype, f"must be {dtype.__name__}"
            assert array.flags.c_contiguous
        assert np.all((self.factor >= 0.0) & np.isfinite(self.factor)), "factors are finite and >= 0"
        zero = [*self.factor[0], *self.factor[:, 0]]
        assert not any(zero), "class 0 neither slows nor is slowed"
        assert int(self.kind_class.max(initial=0)) < k, "an interference class without a factor"


def replay(
    graph: Graph, duration_ns: NDArray[np.int64], slowdown: Slowdown | None = None, sharing: Sharing | None = None
) -> Timeline:
    """Start and end of every op, in integer nanoseconds from 0.

    `duration_ns`: int64[n], each op alone on its device and its links. `slowdown`: who slows whom on one GPU.
    `sharing`: who takes what of which links; it costs nothing where no link can be too narrow.
    Raises ScheduleError that names ops which can never start, SpecError where `sharing` contradicts itself.
    """
    durations = _checked(graph, duration_ns, slowdown, sharing)
    flows = None if sharing is None else contenders(graph, durations, sharing)
    plain = _plain(graph, durations, slowdown)
    if flows is None or flows.fit(plain.start_ns, plain.end_ns):
        return plain
    return _shared(graph, durations, slowdown, flows, False)[0]


def _checked(
    graph: Graph, duration_ns: NDArray[np.int64], slowdown: Slowdown | None, sharing: Sharing | None
) -> NDArray[np.int64]:
    n = graph.n_ops
    durations = np.ascontiguousarray(duration_ns, dtype=np.int64)
    assert len(durations) == n == len(graph.stream) == len(graph.rendezvous) == len(graph.dep_ptr) - 1
    assert slowdown is None or len(slowdown.kind_class) == n
    assert sharing is None or len(sharing.demand_of) == n
    return durations


def _plain(graph: Graph, durations: NDArray[np.int64], slowdown: Slowdown | None) -> Timeline:
    """Every op as if it met no other on its links."""
    if warm_up.takes(graph.n_ops):
        return _interpreted(graph, durations, slowdown)
    start, end = np.empty(graph.n_ops, np.int64), np.empty(graph.n_ops, np.int64)
    if slowdown is None:
        # Imported where it is needed: importing compiles, the first time on a machine.
        from windtunnel.physics.engine.compiled import fixed_kernels

        ran = fixed_kernels.replay_fixed(
            graph.stream, graph.n_streams, graph.dep_ptr, graph.dep_idx, graph.rendezvous, durations, start, end
        )
    else:
        from windtunnel.physics.engine.compiled import kernels

        ran = kernels.replay_rated(*_rated(graph, durations, slowdown), start, end)
    return _timeline(graph, durations, ran, start, end)


def _interpreted(graph: Graph, durations: NDArray[np.int64], slowdown: Slowdown | None) -> Timeline:
    if is_malformed(graph, durations):
        return _timeline(graph, durations, MALFORMED, durations, durations)
    slowdown = slowdown or Slowdown(np.zeros(graph.n_ops, np.uint8), np.zeros((1, 1)))
    run = Interpreted(graph, durations, slowdown.kind_class, slowdown.factor)
    ran = run.run()
    return _timeline(graph, durations, ran, np.array(run.start, np.int64), np.array(run.end, np.int64))


def _shared(
    graph: Graph, durations: NDArray[np.int64], slowdown: Slowdown | None, flows: Contenders, logs: bool
) -> tuple[Timeline, NDArray[np.float64]]:
    from windtunnel.physics.engine.compiled import shared_kernels

    start, end = np.empty(graph.n_ops, np.int64), np.empty(graph.n_ops, np.int64)
    if slowdown is None or not slowdown.factor.any():
        slowdown = Slowdown(np.zeros(graph.n_ops, np.uint8), np.zeros((1, 1)))
    rated = _rated(graph, durations, slowdown)
    ran, log = shared_kernels.replay_shared(*rated, flows.flow, flows.network(), start, end, logs)
    return _timeline(graph, durations, ran, start, end), log


def _rated(
    graph: Graph, durations: NDArray[np.int64], slowdown: Slowdown
) -> tuple[Array, Array, int, Array, Array, Array, Array, Array, Array]:
    """What the kernels take of ops that slow each other."""
    return (
        graph.stream,
        graph.stream_rank,
        graph.n_programs,
        graph.dep_ptr,
        graph.dep_idx,
        graph.rendezvous,
        durations,
        slowdown.kind_class,
        slowdown.factor,
    )


def _timeline(
    graph: Graph, durations: NDArray[np.int64], ran: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Timeline:
    """What a kernel found, or why it refused."""
    if ran == MALFORMED:
        negative = np.flatnonzero(durations < 0)
        assert not len(negative), f"negative duration {durations[negative[0]]} ns of {graph.name(int(negative[0]))}"
        raise AssertionError("an index of the graph points outside its array")
    if ran != graph.n_ops:
        raise ScheduleError(explain_deadlock(graph, end >= 0))
    return Timeline(start, end)
