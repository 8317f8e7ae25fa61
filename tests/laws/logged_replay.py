"""Ops that share links, with every change of a speed: what a link carried when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine import Sharing, Slowdown, Timeline
from windtunnel.physics.engine.replay import _checked, _plain, _shared
from windtunnel.physics.engine.sharing import contenders
from windtunnel.physics.graph import Graph


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
