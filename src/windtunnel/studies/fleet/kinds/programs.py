"""The two programs behind Gavel and Sia, solved exactly by HiGHS.

    shares    LP     max t with g_j sum_m X_jm T_jm / n_j >= t for each job j, sum_m X_jm <= 1, sum_j g_j X_jm <= C_m;
                     then, at that t, the largest sum of g_j sum_m X_jm T_jm / n_j
    choices   ILP    min sum of costs of chosen columns + `unallocated` for each job with none; one column a job at
                     most, GPUs of each kind within its capacity

n_j = sum_m T_jm C_m / sum C: throughput if time were shared by the sizes of the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError

if TYPE_CHECKING:
    import highspy

Floats = NDArray[np.float64]
SLACK = 1e-7  # relative, by which the second stage may fall short of the first


def _solver() -> highspy.Highs:
    try:
        import highspy
    except ImportError:
        raise UserError("highspy is not installed: pip install 'windtunnel[fleet]'") from None

    class Silent(highspy.Highs):
        """HiGHS 1.16 prints its name as soon as it has callbacks, which its constructor gives it."""

        def enableCallbacks(self) -> None:  # noqa: N802 - its name there
            self.setOptionValue("output_flag", False)
            enable: Callable[[], None] = super().enableCallbacks
            enable()

    make_solver: Callable[[], highspy.Highs] = Silent
    solver = make_solver()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    # Not "threads": HiGHS keeps one pool a process, and refuses to solve where another user's pool has another size.
    solver.setOptionValue("parallel", "off")
    return solver


def _values(solver: highspy.Highs) -> Sequence[float]:
    """Values of all variables. Raises UserError where HiGHS found no optimum."""
    status = str(solver.getModelStatus()).rsplit(".", 1)[-1]
    if status != "kOptimal":
        raise UserError(f"HiGHS ended with {status} instead of an optimum of the shares of GPUs")
    values: Sequence[float] = solver.getSolution().col_value
    return values


def shares(speed: Floats, gpus: Sequence[int], capacity: Sequence[int]) -> Floats:
    """Time shares X [job, kind]. `speed` [job, kind]: steps/s on `gpus` of a kind, 0 where the job cannot run.

    Jobs that run nowhere get nothing.
    """
    jobs, kinds = speed.shape
    time_shares = np.zeros((jobs, kinds))
    usable = (speed > 0) & (np.array(capacity) >= np.array(gpus)[:, None])
    rows = np.flatnonzero(usable.any(axis=1)).tolist()
    if not len(rows):
        return time_shares
    worth = speed * usable
    worth = worth / np.maximum((worth * np.array(capacity) / max(sum(capacity), 1)).sum(axis=1, keepdims=True), 1e-300)
    worth *= np.array(gpus)[:, None]
    solver = _solver()
    x = {(j, m): solver.addVariable(lb=0.0, ub=1.0) for j in rows for m in range(kinds) if usable[j, m]}
    least = solver.addVariable(lb=0.0)
    gained = {j: sum(worth[j, m] * x[j, m] for m in range(kinds) if usable[j, m]) for j in rows}
    for j in rows:
        solver.addConstr(sum(x[j, m] for m in range(kinds) if usable[j, m]) <= 1.0)
        solver.addConstr(gained[j] - least >= 0.0)
    for m in range(kinds):
        users = [gpus[j] * x[j, m] for j in rows if usable[j, m]]
        if users:
            solver.addConstr(sum(users) <= float(capacity[m]))
    solver.maximize(least)
    top = _values(solver)[least.index]
    solver.changeColBounds(least.index, top * (1 - SLACK), top)
    solver.maximize(sum(gained.values()))
    values = _values(solver)
    for (j, m), variable in x.items():
        time_shares[j, m] = min(max(values[variable.index], 0.0), 1.0)
    return time_shares


def choices(
    costs: Sequence[Sequence[float]],
    uses: Sequence[Sequence[tuple[int, int]]],
    capacity: Sequence[int],
    unallocated: float,
) -> list[int | None]:
    """The column of each job, None for no GPU. `costs[j][c]`; `uses[j][c]`: (kind, GPUs)."""
    if not any(costs):
        return [None] * len(costs)
    solver = _solver()
    chosen = [[solver.addBinary(obj=float(cost) - unallocated) for cost in each] for each in costs]
    for each in chosen:
        if each:
            solver.addConstr(sum(each) <= 1)
    for m, most in enumerate(capacity):
        used = [
            gpus * column
            for each, use in zip(chosen, uses, strict=True)
            for column, (kind, gpus) in zip(each, use, strict=True)
            if kind == m
        ]
        if used:
            solver.addConstr(sum(used) <= most)
    solver.minimize()
    values = _values(solver)
    return [next((c for c, column in enumerate(each) if values[column.index] > 0.5), None) for each in chosen]
