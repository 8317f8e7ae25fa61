"""A sentence that says why some ops of a graph can never run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.program import Graph


def explain_deadlock(graph: Graph, done: NDArray[np.bool_]) -> str:
    """One message for a graph of which only the ops in `done` can run: names the ops that wait for each other."""
    stuck = np.flatnonzero(~done)
    first: dict[int, int] = {}  # stream -> its first op that never runs
    for op in stuck.tolist():
        first.setdefault(int(graph.stream[op]), op)
    path: list[tuple[int, str]] = []
    seen: dict[int, int] = {}
    op = int(stuck[0])
    while op not in seen:
        seen[op] = len(path)
        blocker, reason = _waits_for(graph, done, first, op)
        path.append((op, reason))
        op = blocker
    cycle = path[seen[op] :]
    shown = [f"{graph.name(member)} waits for {reason}" for member, reason in cycle[:6]]
    if len(cycle) > 6:
        shown.append(f"... {len(cycle) - 6} more")
    return f"deadlock: {len(stuck)} of {graph.n_ops} ops can never start; " + "; ".join(shown)


def _waits_for(graph: Graph, done: NDArray[np.bool_], first: dict[int, int], op: int) -> tuple[int, str]:
    """One op that must run before `op` can, and the words for it. `op` never runs."""
    head = first[int(graph.stream[op])]
    if head != op:
        return head, f"{graph.name(head)} before it on its stream"
    for dep in graph.dep_idx[graph.dep_ptr[op] : graph.dep_ptr[op + 1]].tolist():
        if not done[dep]:
            return dep, graph.name(dep)
    group = int(graph.rendezvous[op])
    for member in np.flatnonzero(graph.rendezvous == group).tolist():
        if member == op:
            continue
        owner = first[int(graph.stream[member])]
        if owner != member:
            return owner, f"{graph.name(owner)} ahead of its rendezvous partner {graph.name(member)}"
        for dep in graph.dep_idx[graph.dep_ptr[member] : graph.dep_ptr[member + 1]].tolist():
            if not done[dep]:
                return dep, f"{graph.name(dep)} through its rendezvous partner {graph.name(member)}"
    raise AssertionError(f"{graph.name(op)} is not blocked")
