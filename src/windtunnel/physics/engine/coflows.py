"""Coflows on shared links: groups of flows that are done when the last is, and policies of who goes first.

A collective, a shuffle, a checkpoint, the weights of a replica or the KV cache of a request is one coflow. Links are
whatever has a capacity: the two directions of a port, a NIC, a rail, a disk. `replay_coflows` says when each flow
ends, re-rated whenever a coflow arrives, a flow ends or a threshold is crossed.

Policies: `sebf` (least time alone first, by what is left; Varys), `keyed` (by a key of yours, least first), `d-clas`
(queues by bytes sent, first come first served in each; Aalo), `fai` (d-clas that slows flows to their coflow's
slowest), `fair` (max-min over flows, `engine/flows.py`), `pfp` (the flow with least left first, whosever it is). How
each shares: `engine/compiled/coflow_kernels.py`, docs/flows.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.engine.flows import replay_flows

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.coflow_kernels import Groups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIB = 1048576.0
POLICIES = ("sebf", "keyed", "d-clas", "fai", "fair", "pfp")


class Coflows(NamedTuple):
    """Flows in groups. Flow f is of coflow `coflow[f]`, and takes links `link_idx[link_ptr[f]:link_ptr[f + 1]]`."""

    arrival_ns: Ints  # [coflows]
    coflow: Ints  # [flows]
    bytes_total: Floats  # [flows]
    link_ptr: Ints  # [flows + 1]
    link_idx: NDArray[np.int32]  # [entries] each link at most once in a path
    capacity_bytes_per_s: Floats  # [links]
    key: Floats | None = None  # [coflows], for `keyed`


class Queues(NamedTuple):
    """What D-CLAS and Fai decide by: queue k holds coflows that have sent less than first_limit x growth^k bytes.

    Aalo's own numbers. `first_horizon_bytes`: what Fai first takes every flow to have; it doubles when one has sent so
    much.
    """

    first_limit_bytes: float = 10 * MIB
    limit_growth: float = 10.0
    first_horizon_bytes: float = MIB


class Finish(NamedTuple):
    """When flows and coflows end, in ns. A coflow without flows ends when it arrives."""

    flow_ns: Ints
    coflow_ns: Ints


def replay_coflows(coflows: Coflows, policy: str, queues: Queues | None = None) -> Finish:
    """When every flow and every coflow ends under one of `POLICIES`.

    Raises SpecError for amounts, times, capacities or limits that cannot be, UnknownNameError for an unknown policy.
    """
    from windtunnel.physics.engine.compiled import coflow_kernels as kernels

    _check(coflows, policy)
    if policy == "fair":
        links = (coflows.link_ptr, coflows.link_idx, coflows.capacity_bytes_per_s)
        flow_ns = replay_flows(coflows.arrival_ns[coflows.coflow], coflows.bytes_total, *links)
    else:
        groups, place, order = _groups(coflows, queues or Queues())
        finish = np.empty(len(place), np.int64)
        kernels.replay(groups, coflows.arrival_ns[order], _rule(policy), finish)
        flow_ns = np.empty_like(finish)
        flow_ns[place] = finish
    coflow_ns = coflows.arrival_ns.copy()
    np.maximum.at(coflow_ns, coflows.coflow, flow_ns)
    return Finish(flow_ns, coflow_ns)


def _rule(policy: str) -> int:
    from windtunnel.physics.engine.compiled import coflow_kernels as kernels

    rules = {"pfp": kernels.PFP, "keyed": kernels.BY_KEY, "d-clas": kernels.BY_BYTES_SENT, "fai": kernels.FAI}
    return rules.get(policy, kernels.BY_BOTTLENECK)


def _check(coflows: Coflows, policy: str) -> None:
    if policy not in POLICIES:
        raise UnknownNameError("policy of coflows", policy, POLICIES)
    n_flows, n_coflows = len(coflows.bytes_total), len(coflows.arrival_ns)
    assert len(coflows.coflow) == n_flows == len(coflows.link_ptr) - 1, "one coflow, size and path per flow"
    for name, array, least in (
        ("bytes_total", coflows.bytes_total, 0.0),
        ("arrival_ns", coflows.arrival_ns, 0.0),
        ("capacity_bytes_per_s", coflows.capacity_bytes_per_s, np.nextafter(0.0, 1.0)),
    ):
        bad = ~np.isfinite(array) | (array < least)
        if bad.any():
            raise SpecError(name, array[bad][0].item(), "must be finite, and not below zero; a capacity above zero")
    if n_flows and not (coflows.coflow.min() >= 0 and coflows.coflow.max() < n_coflows):
        raise SpecError("coflow", int(coflows.coflow.max()), f"coflows are numbered from 0 to {n_coflows - 1}")
    n_links = len(coflows.capacity_bytes_per_s)
    if len(coflows.link_idx) and not (coflows.link_idx.min() >= 0 and coflows.link_idx.max() < n_links):
        raise SpecError("link_idx", int(coflows.link_idx.max()), f"links are numbered from 0 to {n_links - 1}")
    if policy == "keyed" and (coflows.key is None or len(coflows.key) != n_coflows):
        raise SpecError("key", None, "policy `keyed` orders coflows by a key: give one for each")


def _paths_of(coflows: Coflows, rows: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """Paths of the flows `rows`, as CSR."""
    lengths = np.diff(coflows.link_ptr)[rows]
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    entries = np.repeat(coflows.link_ptr[rows] - ptr[:-1], lengths) + np.arange(ptr[-1])
    return ptr, coflows.link_idx[entries]


def _groups(coflows: Coflows, queues: Queues) -> tuple[Groups, Ints, Ints]:
    """The kernels' form; which flow each of its flows is; which coflow each of its groups is (in order of arrival)."""
    from windtunnel.physics.engine.compiled.coflow_kernels import Groups

    for name, value, least in zip(queues._fields, queues, (0.0, 1.0, 0.0), strict=True):
        if not (np.isfinite(value) and value > least):
            raise SpecError(name, value, f"must be finite and above {least:g}")
    n_coflows, n_links = len(coflows.arrival_ns), len(coflows.capacity_bytes_per_s)
    order = np.argsort(coflows.arrival_ns, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(n_coflows)
    group = rank[coflows.coflow]
    place = np.argsort(group, kind="stable")
    path_ptr, links = _paths_of(coflows, place)
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=n_coflows))]).astype(np.int64)
    group_of_entry = np.repeat(group[place], np.diff(path_ptr))
    pairs, spot = np.unique(group_of_entry * max(1, n_links) + links, return_inverse=True)
    spot_group = pairs // max(1, n_links)
    spot_ptr = np.concatenate([[0], np.cumsum(np.bincount(spot_group, minlength=n_coflows))]).astype(np.int64)
    groups = Groups(
        group_ptr,
        path_ptr,
        (spot - spot_ptr[group_of_entry]).astype(np.int32),
        spot_ptr,
        (pairs % max(1, n_links)).astype(np.int32),
        np.ascontiguousarray(coflows.capacity_bytes_per_s, np.float64),
        np.ascontiguousarray(coflows.bytes_total[place], np.float64),
        np.zeros(n_coflows) if coflows.key is None else np.ascontiguousarray(coflows.key[order], np.float64),
        *(float(value) for value in queues),
    )
    return groups, place, order
