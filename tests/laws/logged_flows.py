"""Flows on shared links, and ops that share them, with every change of a rate: what a link carried when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.engine import Sharing, Slowdown, Timeline
from windtunnel.engine.flows import _paths, _replayed
from windtunnel.engine.replay import _checked, _plain, _shared
from windtunnel.engine.sharing import contenders
from windtunnel.graph import Graph


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


class SpeedLog(NamedTuple):
    """Every change of a speed: from `time_ns` on, the flow of `op` (of a rendezvous: any member) goes at `speed`."""

    time_ns: NDArray[np.int64]
    op: NDArray[np.int64]
    speed: NDArray[np.float64]  # 1: as alone; 0: it has ended


def replay_logged(
    graph: Graph, duration_ns: NDArray[np.int64], slowdown: Slowdown | None, sharing: Sharing
) -> tuple[Timeline, SpeedLog]:
    """`replay` with sharing, and every change of a flow's speed in the order of time: what a link carried when.

    Follows all flows, also those that no other can slow, so it takes longer. Raises as `replay` does.
    """
    durations = _checked(graph, duration_ns, slowdown, sharing)
    found = contenders(graph, durations, sharing, all_links=True)
    if found is None:
        nothing = np.zeros(0, np.int64)
        return _plain(graph, durations, slowdown), SpeedLog(nothing, nothing, np.zeros(0))
    timeline, log = _shared(graph, durations, slowdown, found, True)
    return timeline, SpeedLog(log[:, 0].astype(np.int64), log[:, 1].astype(np.int64), log[:, 2])
