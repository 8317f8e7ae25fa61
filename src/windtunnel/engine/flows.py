"""Flows that share links: who gets how much, and when each ends.

    rate(flow) = weight x level;   sum over flows on a link of use x rate <= capacity

Max-min fair: no level can rise without lowering one that is not higher. It is what per-connection fair queueing tends
to, and what flow-level simulators of data-centre networks assume; source, limits and known error:
docs/physics/contention.md. A flow takes all its links at once and at one rate, re-rated at every arrival and departure.

* Paths are CSR: flow f uses `link_idx[link_ptr[f]:link_ptr[f + 1]]`, each link at most once.
* `use` (default 1) is the capacity that one unit of rate takes on that link: with it one flow can stand for a whole
  collective whose parts go in step. Rate and bytes may then be of any unit, as long as it is the same.
* A flow without links, or without bytes, ends when it arrives. A limit of its own is a link of its own.

`benchmarks/plain_flows.py` does the same from scratch in plain Python: the compiled code is held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import SpecError

if TYPE_CHECKING:
    from windtunnel.engine.compiled.flow_kernels import Network

Floats = NDArray[np.float64]


class Paths(NamedTuple):
    """Which links each flow uses, and how much of each."""

    link_ptr: NDArray[np.int64]  # [flows + 1]
    link_idx: NDArray[np.int32]  # [entries]
    use: Floats  # [entries] capacity taken per unit of the flow's rate
    weight: Floats  # [flows]


def replay_flows(
    arrival_ns: ArrayLike,
    bytes_total: ArrayLike,
    link_ptr: ArrayLike,
    link_idx: ArrayLike,
    capacity_bytes_per_s: ArrayLike,
    weight: ArrayLike | None = None,
    use: ArrayLike | None = None,
) -> NDArray[np.int64]:
    """When each flow ends, in ns, rounded up. A flow that meets no other takes bytes / least capacity of its path.

    Raises SpecError for a capacity, weight or use that is not positive and finite, and for bytes or a time below zero.
    """
    paths = _paths(link_ptr, link_idx, weight, use)
    return _replayed(arrival_ns, bytes_total, capacity_bytes_per_s, paths, logs=False)[0]


def network_of(capacity: Floats, paths: Paths) -> Network:
    """The state that `flow_kernels.arrive`, `depart` and `rerate` work on: these links, no flow on them yet."""
    from windtunnel.engine.compiled.flow_kernels import ENTRY, FLOW, LINK, Network

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
    """The flow of each entry. Raises SpecError for a link that is not there, and for one that a flow uses twice."""
    flow_of = np.repeat(np.arange(len(paths.weight), dtype=np.int32), np.diff(paths.link_ptr))
    if len(paths.link_idx) and (int(paths.link_idx.min()) < 0 or int(paths.link_idx.max()) >= n_links):
        wrong = next(link for link in paths.link_idx.tolist() if not 0 <= link < n_links)
        raise SpecError("link_idx", wrong, f"links are numbered from 0 to {n_links - 1}")
    visits = np.sort(flow_of.astype(np.int64) * n_links + paths.link_idx)
    if np.any(visits[1:] == visits[:-1]):
        twice = int(visits[1:][visits[1:] == visits[:-1]][0])
        remedy = f"flow {twice // n_links} uses it twice; give it once with the sum of its `use`"
        raise SpecError("link_idx", twice % n_links, remedy)
    return flow_of


def _replayed(
    arrival_ns: ArrayLike, bytes_total: ArrayLike, capacity: ArrayLike, paths: Paths, *, logs: bool
) -> tuple[NDArray[np.int64], Floats]:
    from windtunnel.engine.compiled import flow_kernels as kernels

    network = network_of(_positive("capacity_bytes_per_s", capacity), paths)
    arrival = np.ascontiguousarray(arrival_ns, dtype=np.int64)
    amount = np.ascontiguousarray(bytes_total, dtype=np.float64)
    assert len(arrival) == len(amount) == len(paths.weight), "one arrival and one size per flow"
    for name, array in (("arrival_ns", arrival), ("bytes_total", amount)):
        bad = ~np.isfinite(array) | (array < 0)
        if bad.any():
            raise SpecError(name, array[bad][0].item(), "must be zero or more, and finite")
    finish = np.empty(len(arrival), np.int64)
    order = np.argsort(arrival, kind="stable")
    log: Floats = kernels.replay(network, order, arrival, amount, finish, logs)
    return finish, log


def _paths(link_ptr: ArrayLike, link_idx: ArrayLike, weight: ArrayLike | None, use: ArrayLike | None) -> Paths:
    ptr = np.ascontiguousarray(link_ptr, dtype=np.int64)
    idx = np.ascontiguousarray(link_idx, dtype=np.int32)
    assert len(ptr) > 0
    assert ptr[0] == 0
    assert ptr[-1] == len(idx), "CSR: the last pointer is the number of entries"
    assert np.all(np.diff(ptr) >= 0)
    paths = Paths(
        ptr,
        idx,
        np.ones(len(idx)) if use is None else _positive("use", use),
        np.ones(len(ptr) - 1) if weight is None else _positive("weight", weight),
    )
    assert len(paths.use) == len(idx), "one use per entry"
    assert len(paths.weight) == len(ptr) - 1, "one weight per flow"
    return paths


def _positive(name: str, given: Any) -> Floats:
    array = np.ascontiguousarray(given, dtype=np.float64)
    bad = ~np.isfinite(array) | (array <= 0.0)
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        remedy = "must be above zero and finite; what is lost is left out of every path, not given no capacity"
        raise SpecError(f"{name}[{where}]", array[where].item(), remedy)
    return array
