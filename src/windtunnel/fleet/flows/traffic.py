"""A trace of shuffles as coflows between ports of a switch.

The switch is not blocking: port p sends on link 2 p and receives on link 2 p + 1, each at the rate of the port. A flow
from a port to itself takes both, as any other. Whatever runs on other links gives `engine.coflows.Coflows` itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.engine.coflows import MIB, Coflows
from windtunnel.errors import SpecError
from windtunnel.fleet.flows.trace import Trace


class Transfer(NamedTuple):
    """One coflow: `bytes_total[i]` go from port `source[i]` to port `target[i]`, from `arrival_ns` on."""

    arrival_ns: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    bytes_total: NDArray[np.float64]


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
