"""Leases of GPUs in a tree of resources. No two overlap (a law of the tests).

    path      (cloud, cluster, rack, node, device): as deep as is known
    gpus      how many of them, 0.25 for a quarter of one
    pool      whose they are: owner, price, privacy label, and the lender where they are on loan

Two leases overlap where, at some time, what is held at or below a place in the tree is more than the place has.
Over-subscribed leases live on what others hold and do not use, so they count apart: each place may be sold a second
time, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

Path = tuple[str, ...]
LEVELS = ("cloud", "cluster", "rack", "node", "device")


class Kind(Enum):
    """How a lease may end."""

    OWN = "own"  # until its work is done
    LOANED = "loaned"  # or until its lender asks for it back
    ELASTIC = "elastic"  # or until someone's base demand needs it
    SPOT = "spot"  # or until the provider takes it
    OVERSUBSCRIBED = "over-subscribed"  # or until who paid for it uses it


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal resources under one owner. `privacy`: the most secret label that may run here, 0 = public."""

    name: str
    owner: str
    price_per_gpu_s: float = 0.0
    privacy: int = 0
    lender: str | None = None


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
