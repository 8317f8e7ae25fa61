"""The usual traffic as transfers between ports of a switch: an all-to-all, a checkpoint, weights, a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.flows.trace import Transfer


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
