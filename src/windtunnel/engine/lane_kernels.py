"""The compiled loop that carries many samples of one graph through a single pass. See `engine/samples.py`."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import float32, float64, int32, int64, njit, types
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def _constant(scalar: types.Type, ndim: int = 1) -> types.Array:
    return types.Array(scalar, ndim, "C", readonly=True)


_I32, _I64, _F64, _F32_2D = _constant(int32), _constant(int64), _constant(float64), _constant(float32, 2)


@njit(
    types.void(_I64, _I32, _I64, _I32, _I32, _F64, _I32, _F32_2D, float64[:, ::1]),
    cache=True,
    nogil=True,
)
def replay_lanes(
    order: Array,
    previous: Array,
    dep_ptr: Array,
    dep_idx: Array,
    rendezvous: Array,
    duration: Array,
    noisy: Array,
    noise: Array,
    end: Array,
) -> None:
    """Fill `end[op, lane]` for every lane.

    `order`: ops such that what an op waits for comes before it and members of a rendezvous are neighbours. `previous`:
    the op before on the same stream, or -1. `noisy[op]`: its row in `noise[row, lane]` (factor on its duration), or -1.
    """
    n, lanes = len(order), end.shape[1]
    ready = np.empty(lanes, np.float64)
    at = 0
    while at < n:
        last = at
        group = rendezvous[order[at]]
        if group >= 0:
            while last + 1 < n and rendezvous[order[last + 1]] == group:
                last += 1
        ready[:] = 0.0
        for member in range(at, last + 1):
            op = order[member]
            if previous[op] >= 0:
                for lane in range(lanes):
                    ready[lane] = max(ready[lane], end[previous[op], lane])
            for k in range(dep_ptr[op], dep_ptr[op + 1]):
                before = dep_idx[k]
                for lane in range(lanes):
                    ready[lane] = max(ready[lane], end[before, lane])
        for member in range(at, last + 1):
            op = order[member]
            row = noisy[op]
            if row >= 0:
                for lane in range(lanes):
                    end[op, lane] = ready[lane] + duration[op] * noise[row, lane]
            else:
                for lane in range(lanes):
                    end[op, lane] = ready[lane] + duration[op]
        at = last + 1
