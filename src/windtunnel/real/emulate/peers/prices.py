"""What a communication of a running script takes on a cluster, once all its members are there: `cost.communication`.

Where the cluster is a CPU that was calibrated with its collectives: what one adds to a step that waits for it, what it
adds to computing that goes on beside it, and what it takes in a queue.
"""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.physics.cost.communication.collectives import Group, collective
from windtunnel.physics.cost.communication.in_a_step import in_a_step
from windtunnel.physics.hardware import Cluster
from windtunnel.studies.programs.communication import Communication

# `cost.communication` has no collective with a root but broadcast and reduce: the root moves what all would.
KIND = {"gather": "all_gather", "scatter": "reduce_scatter", "send": "send_recv", "recv": "send_recv"}


def seconds_on(cluster: Cluster, *, queued: bool = False) -> Callable[[Communication], float]:
    """Prices on this cluster, ranks laid on it in order; `queued`: the one before in the same group has just ended."""
    groups: dict[tuple[int, ...], Group] = {}
    seconds_by_key: dict[tuple[str, int, Group], float] = {}

    def seconds(call: Communication) -> float:
        members = tuple(sorted({call.members[call.position], call.peer})) if call.is_message else call.members
        group = groups.get(members)
        if group is None:
            group = groups[members] = group_on(members, cluster.scale_up_domain)
        key = (call.kind, _bytes(call), group)
        price = seconds_by_key.get(key)
        if price is None:
            kind, size = KIND.get(call.kind, call.kind), float(key[1])
            measured = in_a_step(kind, size, group.size, cluster)
            if measured is None:
                price = collective(kind, size, group, cluster).seconds
            else:
                price = measured.queued if queued else measured.waited
            seconds_by_key[key] = price
        return price

    return seconds


def seconds_beside_on(cluster: Cluster) -> Callable[[Communication], float]:
    """Seconds by which a communication delays what its ranks compute beside it; nothing where that was not measured."""

    seconds_by_key: dict[tuple[str, int, int], float] = {}

    def seconds(call: Communication) -> float:
        key = (call.kind, _bytes(call), 2 if call.is_message else len(call.members))
        if key not in seconds_by_key:
            measured = in_a_step(KIND.get(call.kind, call.kind), float(key[1]), key[2], cluster)
            seconds_by_key[key] = measured.beside if measured else 0.0
        return seconds_by_key[key]

    return seconds


def group_on(members: tuple[int, ...], domain: int) -> Group:
    """Where the members lie: how many share a scale-up domain at most, and how far apart they are."""
    if len(members) == 1:
        return Group(1, 1)
    inside: dict[int, int] = {}
    for rank in members:
        inside[rank // domain] = inside.get(rank // domain, 0) + 1
    return Group(len(members), max(inside.values()), 1, max(members) - min(members) + 1)


def _bytes(call: Communication) -> int:
    """Of an uneven all-to-all what the busier direction moves, as if all ranks did."""
    return max(call.bytes, sum(call.sent_bytes), sum(call.received_bytes))
