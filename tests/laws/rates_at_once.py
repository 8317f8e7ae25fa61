"""Who goes how fast at one moment: rates that a replay sets anew at each change, without the replay."""

from __future__ import annotations

import numpy as np
from link_flows import paths_of
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.engine.coflows import Coflows, Queues, _check, _groups, _paths_of, _rule
from windtunnel.physics.engine.compiled import coflow_kernels as kernels
from windtunnel.physics.engine.compiled import flow_kernels
from windtunnel.physics.engine.compiled.coflow_kernels import Groups, Moment
from windtunnel.physics.engine.flows import network_of

Floats = NDArray[np.float64]


def share(
    capacity: ArrayLike,
    link_ptr: ArrayLike,
    link_idx: ArrayLike,
    weight: ArrayLike | None = None,
    use: ArrayLike | None = None,
) -> Floats:
    """Rate of every flow when all are there at once; infinite for a flow without links."""
    paths = paths_of(link_ptr, link_idx, weight, use)
    network = network_of(np.ascontiguousarray(capacity, np.float64), paths)
    lengths = np.diff(paths.link_ptr)
    for flow in np.flatnonzero(lengths):
        flow_kernels.arrive(network, flow)
    flow_kernels.rerate(network)
    return np.where(lengths == 0, np.inf, network.flows["level"] * network.flows["weight"])


def coflow_rates(
    coflows: Coflows, policy: str, bytes_left: ArrayLike | None = None, queues: Queues | None = None
) -> Floats:
    """Bytes per second of every flow when all coflows are there and `bytes_left` (default: all) of each flow is left.

    A flow with nothing left has rate 0. Raises as `replay_coflows`.
    """
    _check(coflows, policy)
    left = coflows.bytes_total if bytes_left is None else np.asarray(bytes_left, np.float64)
    if np.any(left > coflows.bytes_total) or np.any(left < 0):
        raise SpecError("bytes_left", "beyond the flow", "give from 0 to the bytes of each flow")
    if policy == "fair":
        rate = np.zeros(len(left))
        rows = np.flatnonzero((left > 0) & (np.diff(coflows.link_ptr) > 0))
        ptr, idx = _paths_of(coflows, rows)
        rate[rows] = share(coflows.capacity_bytes_per_s, ptr, idx)
        return rate
    groups, place, _ = _groups(coflows, queues or Queues())
    now = kernels.moment_of(groups)
    _set_left(groups, now, left[place])
    kernels.rate_all(groups, now, np.flatnonzero(now.n_there), _rule(policy))
    rate = np.empty(len(left))
    rate[place] = now.rate
    return rate


def _set_left(net: Groups, now: Moment, left: Floats) -> None:
    """Another moment: so much is left of every flow, and thresholds are where that puts them."""
    for g in range(len(net.group_ptr) - 1):
        kept = 0
        furthest = 0.0
        now.sent[g] = 0.0
        for f in range(net.group_ptr[g], net.group_ptr[g + 1]):
            now.left[f] = left[f]
            now.sent[g] += net.amount[f] - left[f]
            furthest = max(furthest, net.amount[f] - left[f])
            if left[f] > 0.0 and net.path_ptr[f] < net.path_ptr[f + 1]:
                now.there[net.group_ptr[g] + kept] = f
                kept += 1
        now.n_there[g] = kept
        kernels._cross(net, now, g, furthest)
