"""One sharding for each operator of a block: Alpa's intra-operator integer programme (OSDI 2022, 4.2), by HiGHS.

Operator v has strategies with costs c (compute and communication inside it) and bytes m; an edge (u, v) costs R[i, j]
to reshard between strategy i of u and j of v. One strategy each, so that

    sum c + sum R is least,   and   sum m <= the memory, if one is given

The choice of strategies is binary; the pairs of an edge may be continuous: with binary ends they are binary themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from windtunnel.errors import UserError

Edge = tuple[int, int]
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Sharding:
    """The strategy of each operator, and what they cost together."""

    strategies: tuple[int, ...]
    cost: float


def cost_of(strategies: Sequence[int], costs: Matrix, edges: Mapping[Edge, Matrix]) -> float:
    """Of a choice."""
    inside = sum(costs[v][i] for v, i in enumerate(strategies))
    return inside + sum(matrix[strategies[u]][strategies[v]] for (u, v), matrix in edges.items())


def best_sharding(
    costs: Matrix,
    edges: Mapping[Edge, Matrix],
    memory: Matrix | None = None,
    most_bytes: float | None = None,
) -> Sharding | None:
    """The cheapest choice; None where no choice fits. Raises UserError where highspy is not installed."""
    try:
        import highspy
    except ImportError:
        raise UserError("highspy is not installed: pip install 'windtunnel[plan]'") from None
    made: Any = highspy.Highs  # without types
    solver = made()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    chosen = [[solver.addBinary(obj=float(cost)) for cost in each] for each in costs]
    for each in chosen:
        solver.addConstr(sum(each) == 1)
    for (u, v), matrix in edges.items():
        pairs = [[solver.addVariable(lb=0.0, ub=1.0, obj=float(cost)) for cost in row] for row in matrix]
        for i, row in enumerate(pairs):
            solver.addConstr(sum(row) == chosen[u][i])
        for j in range(len(chosen[v])):
            solver.addConstr(sum(row[j] for row in pairs) == chosen[v][j])
    if memory is not None and most_bytes is not None:
        used = [m * s for each, size in zip(chosen, memory, strict=True) for s, m in zip(each, size, strict=True)]
        solver.addConstr(sum(used) <= most_bytes)
    solver.minimize()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    values = solver.getSolution().col_value
    strategies = tuple(max(range(len(each)), key=lambda i: values[each[i].index]) for each in chosen)
    return Sharding(strategies, cost_of(strategies, costs, edges))


def best_by_trying_all(
    costs: Matrix, edges: Mapping[Edge, Matrix], memory: Matrix | None = None, most_bytes: float | None = None
) -> Sharding | None:
    """The same by enumeration, for small blocks."""
    best: Sharding | None = None
    for strategies in product(*(range(len(each)) for each in costs)):
        used = 0.0 if memory is None else sum(memory[v][i] for v, i in enumerate(strategies))
        if most_bytes is not None and used > most_bytes:
            continue
        cost = cost_of(strategies, costs, edges)
        if best is None or cost < best.cost:
            best = Sharding(strategies, cost)
    return best
