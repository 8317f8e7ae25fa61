"""Leases of GPUs in a tree of resources, and their law: at no time is more held at or below a place than it has.

    path      (cloud, cluster, rack, node, device): as deep as is known
    gpus      how many of them, 0.25 for a quarter of one

Over-subscribed leases live on what others hold and do not use, so they count apart: each place may be sold a second
time, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

Path = tuple[str, ...]
LEVELS = ("cloud", "cluster", "rack", "node", "device")

ROUNDING = 1e-9  # of sums of fractions


class Kind(Enum):
    """How a lease may end."""

    OWN = "own"  # until its work is done
    LOANED = "loaned"  # or until its lender asks for it back
    ELASTIC = "elastic"  # or until someone's base demand needs it
    SPOT = "spot"  # or until the provider takes it
    OVERSUBSCRIBED = "over-subscribed"  # or until who paid for it uses it


@dataclass(frozen=True, slots=True)
class Lease:
    """GPUs at a place, held from `start_ns` to before `end_ns`."""

    path: Path
    gpus: float
    holder: str
    start_ns: int
    end_ns: int
    pool: str = ""
    kind: Kind = Kind.OWN

    @property
    def gpu_s(self) -> float:
        """GPU-seconds held."""
        return self.gpus * (self.end_ns - self.start_ns) * 1e-9


def tree(leaves: Mapping[Path, float]) -> dict[Path, float]:
    """GPUs of every place, from those of the leaves."""
    capacity: dict[Path, float] = {}
    for path, gpus in leaves.items():
        assert 1 <= len(path) <= len(LEVELS), f"{path} is no path of {', '.join(LEVELS)}"
        for depth in range(1, len(path) + 1):
            capacity[path[:depth]] = capacity.get(path[:depth], 0.0) + gpus
    return capacity


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
