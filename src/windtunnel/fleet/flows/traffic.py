"""Traffic as coflows: a trace of shuffles, an all-to-all, a checkpoint, weights, a KV cache, between ports of a switch.

The switch is not blocking: port p sends on link 2 p and receives on link 2 p + 1, each at the rate of the port. A flow
from a port to itself takes both, as any other. Whatever runs on other links gives `engine.coflows.Coflows` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.engine.coflows import MIB, Coflows
from windtunnel.errors import SpecError
from windtunnel.fleet.flows.trace import Trace


class Transfer(NamedTuple):
    """One coflow: `bytes_total[i]` go from port `source[i]` to port `target[i]`, from `arrival_ns` on."""

    arrival_ns: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bytes_total: NDArray[np.float64]


def all_to_all(arrival_ns: int, ports: Sequence[int], bytes_of: ArrayLike) -> Transfer:
    """Every port to every other; `bytes_of[i, j]` from `ports[i]` to `ports[j]` (expert skew is in it)."""
    amount = np.asarray(bytes_of, np.float64)
    if amount.shape != (len(ports), len(ports)):
        raise SpecError("bytes_of", amount.shape, f"give a matrix of {len(ports)} x {len(ports)}, or fewer ports")
    i, j = np.nonzero(~np.eye(len(ports), dtype=bool) & (amount > 0))
    names = np.asarray(ports, np.int64)
    return Transfer(arrival_ns, names[i], names[j], amount[i, j])


def gather(arrival_ns: int, sources: Sequence[int], target: int, bytes_each: float) -> Transfer:
    """Many ports to one: a checkpoint that goes to one store."""
    return paired(arrival_ns, sources, [target] * len(sources), bytes_each)


def spread(arrival_ns: int, source: int, targets: Sequence[int], bytes_each: float) -> Transfer:
    """One port to many: the weights of replicas that start."""
    return paired(arrival_ns, [source] * len(targets), targets, bytes_each)


def paired(arrival_ns: int, sources: Sequence[int], targets: Sequence[int], bytes_each: float) -> Transfer:
    """Port i of one list to port i of another: the KV cache of a request between the ranks of two replicas."""
    if len(sources) != len(targets):
        raise SpecError("targets", len(targets), f"give one for each of {len(sources)} sources")
    n = len(sources)
    return Transfer(
        arrival_ns, np.asarray(sources, np.int64), np.asarray(targets, np.int64), np.full(n, float(bytes_each))
    )


def on_switch(transfers: Iterable[Transfer], n_ports: int, port_bytes_per_s: float) -> Coflows:
    """The coflows of these transfers on a switch. Raises SpecError for a port that is not there."""
    given = list(transfers)
    source = np.concatenate([np.zeros(0, np.int64), *(t.source for t in given)])
    target = np.concatenate([np.zeros(0, np.int64), *(t.target for t in given)])
    for ports in (source, target):
        wrong = ports[(ports < 0) | (ports >= n_ports)]
        if len(wrong):
            raise SpecError("port", int(wrong[0]), f"ports are numbered from 0 to {n_ports - 1}")
    return Coflows(
        np.array([t.arrival_ns for t in given], np.int64),
        np.repeat(np.arange(len(given)), [len(t.source) for t in given]).astype(np.int64),
        np.concatenate([np.zeros(0), *(t.bytes_total for t in given)]),
        2 * np.arange(len(source) + 1, dtype=np.int64),
        np.stack([2 * source, 2 * target + 1], axis=1).astype(np.int32).reshape(-1),
        np.full(2 * n_ports, float(port_bytes_per_s)),
    )


def of_trace(trace: Trace, port_bytes_per_s: float) -> Coflows:
    """A trace as it is written: real arrivals, amounts not rounded. One flow for each pair of ports of a coflow."""
    transfers = []
    for shuffle in trace.shuffles:
        senders = np.array(sorted(set(shuffle.mappers)), np.int64)
        received: dict[int, float] = {}
        for port, mib in shuffle.reducers:
            received[port] = received.get(port, 0.0) + mib
        targets = np.array(list(received), np.int64)
        amount = np.array(list(received.values())) * MIB / max(1, len(senders))
        n = len(senders)
        transfers.append(
            Transfer(
                shuffle.arrival_ms * 1_000_000,
                np.tile(senders, len(targets)),
                np.repeat(targets, n),
                np.repeat(amount, n),
            )
        )
    return on_switch(transfers, trace.n_ports, port_bytes_per_s)
