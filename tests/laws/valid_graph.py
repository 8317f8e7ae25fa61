"""Whether a graph is one: lengths and indices fit together, and every op can run. The oracle of replays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import ScheduleError, SpecError
from windtunnel.physics.graph.deadlock import explain_deadlock
from windtunnel.physics.graph.program import Graph, OpKind

_PER_OP = ("kind", "stream", "rendezvous", "label", "category", "flops", "bytes")


def validate(graph: Graph) -> None:
    """Raise SpecError for lengths or indices that do not fit together, ScheduleError for a cycle or deadlock."""
    n = graph.n_ops
    for name in _PER_OP:
        _length(name, getattr(graph, name), n)
    _length("dep_ptr", graph.dep_ptr, n + 1)
    if graph.stream_names:
        _length("stream_names", graph.stream_names, graph.n_streams)
    if graph.dep_ptr[0] != 0 or graph.dep_ptr[-1] != len(graph.dep_idx) or np.any(np.diff(graph.dep_ptr) < 0):
        raise SpecError(
            "graph.dep_ptr",
            [int(graph.dep_ptr[0]), "...", int(graph.dep_ptr[-1])],
            f"must rise from 0 to the number of dependencies, {len(graph.dep_idx)}",
        )
    _within("kind", graph.kind, 0, len(OpKind))
    _within("stream", graph.stream, 0, graph.n_streams)
    _within("stream_rank", graph.stream_rank, 0, graph.n_programs)
    _within("dep_idx", graph.dep_idx, 0, n)
    _within("rendezvous", graph.rendezvous, -1, n)
    _within("label", graph.label, 0, len(graph.labels))
    _within("category", graph.category, 0, len(graph.categories))
    _within("multiplicity", graph.multiplicity, 1, None)
    done = runnable(graph)
    if not done.all():
        raise ScheduleError(explain_deadlock(graph, done))


def runnable(graph: Graph) -> NDArray[np.bool_]:
    """bool[n]: True for every op that ends if durations are finite; all True when the graph has no deadlock."""
    n = graph.n_ops
    queues: list[list[int]] = [[] for _ in range(graph.n_streams)]
    for op, stream in enumerate(graph.stream.tolist()):
        queues[stream].append(op)
    after: list[int] = graph.dep_ptr.tolist()
    deps: list[int] = graph.dep_idx.tolist()
    rendezvous: list[int] = graph.rendezvous.tolist()
    missing = [0] * n  # members of each rendezvous that have not arrived yet
    for group in rendezvous:
        if group >= 0:
            missing[group] += 1
    arrived: dict[int, list[int]] = {}
    done = [False] * n
    waiting: dict[int, list[int]] = {}  # op -> streams whose head waits for it
    head = [0] * graph.n_streams
    pending = list(range(graph.n_streams))
    while pending:
        stream = pending.pop()
        while head[stream] < len(queues[stream]):
            op = queues[stream][head[stream]]
            blocker = next((d for d in deps[after[op] : after[op + 1]] if not done[d]), None)
            if blocker is not None:
                waiting.setdefault(blocker, []).append(stream)
                break
            group = rendezvous[op]
            started = [op]
            if group >= 0:
                members = arrived.setdefault(group, [])
                members.append(op)
                missing[group] -= 1
                if missing[group]:
                    break
                started = members
            for member in started:
                done[member] = True
                owner = int(graph.stream[member])
                head[owner] += 1
                if owner != stream:
                    pending.append(owner)
                pending.extend(waiting.pop(member, ()))
    return np.array(done, dtype=np.bool_)


def _length(name: str, values: Any, expected: int) -> None:
    if len(values) != expected:
        raise SpecError(f"graph.{name}", f"{len(values)} entries", f"must have {expected} entries")


def _within(name: str, values: NDArray[Any], low: int, high: int | None) -> None:
    bad = values < low
    if high is not None:
        bad |= values >= high
    if bad.any():
        at = int(np.argmax(bad))
        limits = f"at least {low}" if high is None else f"from {low} to {high - 1}"
        raise SpecError(f"graph.{name}[{at}]", int(values[at]), f"must be {limits}")
