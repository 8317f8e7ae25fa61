"""Which steps and replicas of an operation table hold the same ops, each once: only those can be replayed together.

Every replica does in every step the same ops. The ops of most (step, replica) pairs are taken for that; where two
sets are as frequent, the larger. Then whatever is worst, a step or a replica, is left out until what remains is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError

_MOST_CELLS = 20_000_000


@dataclass(frozen=True, eq=False)
class UsablePart:
    """s steps and r replicas that have the same k ops."""

    steps: tuple[int, ...]
    replicas: tuple[int, ...]
    left_out_replicas: tuple[int, ...]
    keys: NDArray[np.int64]  # [k] ascending
    rows: NDArray[np.int64]  # [s, r, k] where in the table
    notes: tuple[str, ...]


def usable_part(
    path: Path,
    step: NDArray[np.int64],
    replica: NDArray[np.int64],
    key: NDArray[np.int64],
    shown: Callable[[int], str],
) -> UsablePart:
    """The largest part found; `key` tells the ops of a step apart, `shown` says one in words.

    Raises InputFileError: no step is complete.
    """
    steps, step_at = np.unique(step, return_inverse=True)
    replicas, replica_at = np.unique(replica, return_inverse=True)
    n_cells = len(steps) * len(replicas)
    if n_cells > _MOST_CELLS:
        raise InputFileError(
            path, f"has {len(steps):,} steps of {len(replicas):,} replicas in {len(step):,} rows", "give whole steps"
        )
    cell = step_at * len(replicas) + replica_at
    order = np.lexsort((key, cell))
    sorted_key, bounds = key[order], np.searchsorted(cell[order], np.arange(n_cells + 1))
    kinds: dict[bytes, list[int]] = {}
    for number in range(n_cells):
        ops = sorted_key[bounds[number] : bounds[number + 1]]
        if len(ops) and (np.diff(ops) > 0).all():
            kinds.setdefault(ops.tobytes(), []).append(number)
    if not kinds:
        raise InputFileError(path, "repeats ops in every step", "give every op once")
    usual = max(kinds, key=lambda ops: (len(kinds[ops]), len(ops)))
    keys = np.frombuffer(usual, dtype=sorted_key.dtype).astype(np.int64)
    is_usual = np.zeros(n_cells, np.bool_)
    is_usual[kinds[usual]] = True
    good = is_usual.reshape(len(steps), len(replicas))
    keep_step, keep_replica = _largest(good)
    bad_steps, bad_replicas = np.flatnonzero(~keep_step), np.flatnonzero(~keep_replica)

    def trouble(s: int, r: int) -> str:
        number = s * len(replicas) + r
        ops = sorted_key[bounds[number] : bounds[number + 1]]
        if not len(ops):
            return "has no op"
        lacking, extra = np.setdiff1d(keys, ops), np.setdiff1d(ops, keys)
        if len(lacking):
            return f"lacks {shown(int(lacking[0]))}"
        if len(extra):
            return f"has {shown(int(extra[0]))}, which most lack"
        return f"repeats {shown(int(ops[np.flatnonzero(np.diff(ops) == 0)[0]]))}"

    notes: list[str] = []
    if len(bad_replicas):
        r = int(bad_replicas[0])
        s = int(np.argmin(good[:, r]))
        notes.append(
            f"{len(bad_replicas)} of {len(replicas)} incomplete replicas left out, and waiting for them counts as "
            f"transfer: replica {replicas[r]} {trouble(s, r)} in step {steps[s]}"
        )
    if len(bad_steps):
        s = int(bad_steps[0])
        r = int(np.argmin(good[s] | ~keep_replica))
        first = f"in step {steps[s]} replica {replicas[r]} {trouble(s, r)}"
        if not keep_step.any():
            raise InputFileError(path, f"none of its {len(steps)} steps is complete: {first}", "give complete steps")
        notes.append(f"{len(bad_steps)} of {len(steps)} incomplete steps left out: {first}")
    cells = (np.flatnonzero(keep_step)[:, None] * len(replicas) + np.flatnonzero(keep_replica)).reshape(-1)
    rows = order[bounds[cells][:, None] + np.arange(len(keys))]
    return UsablePart(
        steps=tuple(steps[keep_step].tolist()),
        replicas=tuple(replicas[keep_replica].tolist()),
        left_out_replicas=tuple(replicas[~keep_replica].tolist()),
        keys=keys,
        rows=rows.reshape(int(keep_step.sum()), int(keep_replica.sum()), len(keys)),
        notes=tuple(notes),
    )


def _largest(good: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Steps and replicas such that every pair left is good: the worst row or column goes first, a step at equality."""
    steps: NDArray[np.bool_] = np.any(good, axis=1)
    replicas: NDArray[np.bool_] = np.any(good, axis=0)  # what is complete nowhere cannot be in the part
    while not good[np.ix_(steps, replicas)].all():
        bad = ~good & steps[:, None] & replicas
        of_step, of_replica = bad.sum(1) / max(1, replicas.sum()), bad.sum(0) / max(1, steps.sum())
        if of_step.max() >= of_replica.max():
            steps[int(np.argmax(of_step))] = False
        else:
            replicas[int(np.argmax(of_replica))] = False
        if not steps.any():
            break
    return steps, replicas
