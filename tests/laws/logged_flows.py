"""Flows on shared links with every change of a rate: by which laws see what a link carried when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.engine.flows import _paths, _replayed


class RateLog(NamedTuple):
    """Every change of a rate: from `time_ns` on, `flow` goes at `rate` (0: it has ended)."""

    time_ns: NDArray[np.int64]
    flow: NDArray[np.int64]
    rate: NDArray[np.float64]


def replay_flows_logged(
    arrival_ns: ArrayLike,
    bytes_total: ArrayLike,
    link_ptr: ArrayLike,
    link_idx: ArrayLike,
    capacity_bytes_per_s: ArrayLike,
    weight: ArrayLike | None = None,
    use: ArrayLike | None = None,
) -> tuple[NDArray[np.int64], RateLog]:
    """`replay_flows`, and every change of a rate in the order of time: what a link carried when."""
    paths = _paths(link_ptr, link_idx, weight, use)
    finish, log = _replayed(arrival_ns, bytes_total, capacity_bytes_per_s, paths, logs=True)
    return finish, RateLog(log[:, 0].astype(np.int64), log[:, 1].astype(np.int64), log[:, 2])
