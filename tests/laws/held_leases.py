"""The law of leases: at no time is more held at or below a place than the place has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from windtunnel.fleet.capacity.leases import Kind, Lease, Path

ROUNDING = 1e-9  # of sums of fractions


@dataclass(frozen=True, slots=True)
class Overlap:
    """A place and a time at which more is held than there is, and the lease that was one too many."""

    path: Path
    time_ns: int
    held: float
    capacity: float
    lease: Lease


def first_overlap(leases: Iterable[Lease], capacity: Mapping[Path, float]) -> Overlap | None:
    """The earliest overlap at its deepest place, or None. KeyError for a path that is not in the tree. O(n log n) in
    leases.
    """
    moments: list[tuple[int, int, Lease]] = []
    for lease in leases:
        if lease.end_ns > lease.start_ns:
            moments.append((lease.start_ns, 1, lease))
            moments.append((lease.end_ns, 0, lease))
    moments.sort(key=lambda moment: (moment[0], moment[1]))  # what ends at a time makes room for what begins then
    held: dict[tuple[Path, bool], float] = {}
    for time_ns, begins, lease in moments:
        resold = lease.kind is Kind.OVERSUBSCRIBED
        found = None
        for depth in range(1, len(lease.path) + 1):
            place = lease.path[:depth]
            room = capacity[place]
            total = held.get((place, resold), 0.0) + (lease.gpus if begins else -lease.gpus)
            held[place, resold] = total
            if begins and total > room * (1 + ROUNDING) + ROUNDING:
                found = Overlap(place, time_ns, total, room, lease)
        if found is not None:
            return found
    return None
