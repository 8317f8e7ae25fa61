"""Flows that share links max-min fairly: who gets how much, when each ends (docs/physics/contention.md).

* Paths are CSR: flow f uses `link_idx[link_ptr[f]:link_ptr[f + 1]]`, each link at most once.
* `use` (default 1) is the capacity that one unit of rate takes on that link: with it one flow can stand for a whole
  collective whose parts go in step. Rate and bytes may then be of any unit, as long as it is the same.
* A flow without links, or without bytes, ends when it arrives. A limit of its own is a link of its own.

`benchmarks/plain_flows.py` does the same from scratch in plain Python: the compiled code is held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from windtunnel.physics.engine.compiled.flow_kernels import Network

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Paths(NamedTuple):
    """Which links each flow uses, and how much of each."""

    link_ptr: NDArray[np.int64]  # [flows + 1]
    link_idx: NDArray[np.int32]  # [entries]
    use: Floats  # [entries] capacity taken per unit of the flow's rate
    weight: Floats  # [flows]


def replay_flows(
    arrival_ns: Ints, bytes_total: Floats, link_ptr: Ints, link_idx: NDArray[np.int32], capacity_bytes_per_s: Floats
) -> Ints:
    """When each flow ends, in ns, rounded up. A flow that meets no other takes bytes / least capacity of its path."""
    paths = Paths(link_ptr, link_idx, np.ones(len(link_idx)), np.ones(len(link_ptr) - 1))
    return _replayed(arrival_ns, bytes_total, capacity_bytes_per_s, paths, logs=False)[0]


def network_of(capacity: Floats, paths: Paths) -> Network:
    """The state that `flow_kernels.arrive`, `depart` and `rerate` work on: these links, no flow on them yet."""
    from windtunnel.physics.engine.compiled.flow_kernels import ENTRY, FLOW, LINK, Network

    n_links, n_flows, n_entries = len(capacity), len(paths.weight), len(paths.link_idx)
    flow_of = check_paths(n_links, paths)
    links, flows, entries = np.zeros(n_links, LINK), np.zeros(n_flows, FLOW), np.zeros(n_entries, ENTRY)
    links["capacity"] = capacity
    members = np.bincount(paths.link_idx, minlength=n_links)
    links["first"] = np.cumsum(members) - members
    flows["weight"], flows["bottleneck"] = paths.weight, -1
    flows["first"], flows["end"] = paths.link_ptr[:-1], paths.link_ptr[1:]
    entries["link"], entries["flow"] = paths.link_idx, flow_of
    entries["need"] = paths.use * paths.weight[flow_of]
    return Network(links, flows, entries, np.zeros(2, np.int64))


def check_paths(n_links: int, paths: Paths) -> NDArray[np.int32]:
    """The flow of each entry. AssertionError for a link that is not there, and for one that a flow uses twice."""
    flow_of = np.repeat(np.arange(len(paths.weight), dtype=np.int32), np.diff(paths.link_ptr))
    assert np.all((paths.link_idx >= 0) & (paths.link_idx < n_links)), f"links are numbered from 0 to {n_links - 1}"
    visits = np.sort(flow_of.astype(np.int64) * n_links + paths.link_idx)
    assert np.all(visits[1:] != visits[:-1]), "a flow uses a link twice: give it once with the sum of its `use`"
    return flow_of


def _replayed(
    arrival_ns: Ints, bytes_total: Floats, capacity: Floats, paths: Paths, *, logs: bool
) -> tuple[Ints, Floats]:
    from windtunnel.physics.engine.compiled import flow_kernels as kernels

    assert len(arrival_ns) == len(bytes_total) == len(paths.weight), "one arrival and one size per flow"
    network = network_of(capacity, paths)
    finish = np.empty(len(arrival_ns), np.int64)
    order = np.argsort(arrival_ns, kind="stable")
    log: Floats = kernels.replay(network, order, arrival_ns, bytes_total, finish, logs)
    return finish, log
