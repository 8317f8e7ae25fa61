"""Tiers of KV cache below the GPU's: which prefixes they keep, and what it takes to bring one back.

    tiers    host and disk are a replica's own, a remote store is shared by all replicas of a run
    keep     full blocks of a prompt when their sequence gives its cache back, in every tier (write-through, as the
             backends of LMCache), the least recently used out first; of one prompt its tail goes before its head
    find     what follows the prefix that the GPU has, each name in the first tier that has it
    copy     layer by layer beside the step that computes the rest (SGLang's HiCache), which takes no less than
                 latency + bytes / bandwidth    of each tier, tiers side by side
             and only where that is less than what computing these tokens adds: an endlessly slow tier is none

Host memory is reached over PCIe, or Grace's link, by each GPU for its own part of the cache; a disk's and a store's
bandwidth is what a replica gets of them. Checked: 64k tokens of Qwen3-Coder-30B on an H20 (6.4 GB), vLLM 0.18: host
0.16 s above a hit on the GPU (here 0.12), a store over RDMA at 5 to 7 GB/s 0.86 s (0.9 to 1.3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import final

from windtunnel.errors import SpecError
from windtunnel.units import parse_bandwidth, parse_bytes, parse_time

NAMES = ("host", "disk", "remote")
LINK_SHARE = 0.84  # of the raw rate between GPU and host that long copies reach: 54 of 64 GB/s on an H20
Computing = Callable[[int, int], int]  # (tokens, tokens before them) -> ticks of a step


@dataclass(frozen=True, slots=True)
class Tier:
    """What a tier keeps, at which rate a replica reads it (None: over the GPUs' own links), and its latency."""

    name: str
    size_bytes: int
    bandwidth_bytes_per_s: float | None
    latency_s: float = 0.0


def tiers_of(text: str) -> tuple[Tier, ...]:
    """`host=200GB,disk=4TB@12GB/s,remote=20TB@6GB/s@2ms`, from the nearest to the farthest. Raises SpecError."""
    tiers: list[Tier] = []
    for part in text.split(","):
        name, equals, values = part.strip().partition("=")
        size, *more = values.split("@")
        if not equals or name not in NAMES or len(more) > 2 or not (more or name == "host"):
            raise SpecError("kv_tiers", text, "write host=200GB,disk=4TB@12GB/s,remote=20TB@6GB/s, any of them")
        rate = parse_bandwidth(more[0], "kv_tiers") if more else None
        if rate is not None and rate <= 0.0:
            raise SpecError("kv_tiers", text, "give a bandwidth above zero")
        latency_s = parse_time(more[1], "kv_tiers") if len(more) > 1 else 0.0
        tiers.append(Tier(name, parse_bytes(size, "kv_tiers"), rate, latency_s))
    places = [NAMES.index(tier.name) for tier in tiers]
    if places != sorted(set(places)):
        raise SpecError("kv_tiers", text, "name each tier once: host, then disk, then remote")
    return tuple(tiers)


@final
@dataclass(eq=False, slots=True)
class Store:
    """What one tier keeps. `blocks`: its room; `ticks` of a block's copy, and `latency` of any."""

    name: str
    blocks: int
    ticks: float
    latency: int = 0
    names: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def keep(self, names: Sequence[int], span: int) -> None:
        """These, each of `span` blocks, were used last, the first of them at the very last."""
        by_use, room = self.names, self.blocks // span
        for name in reversed(names):
            by_use[name] = None
            by_use.move_to_end(name)
        while len(by_use) > room:
            by_use.popitem(last=False)

    def copy_ticks(self, blocks: int) -> int:
        """Of so many at once."""
        return self.latency + round(self.ticks * blocks)


@final
class Tiers:
    """The stores that one replica reads, from the nearest on, and what its next step waits for."""

    __slots__ = ("_computing", "_waits", "found_blocks", "stores")

    def __init__(self, stores: Sequence[Store], computing: Computing) -> None:
        self.stores = stores
        self.found_blocks = [0] * len(stores)
        self._computing = computing
        self._waits = [0] * len(stores)  # blocks that the next step waits for

    def find(self, names: Sequence[int], span: int, tokens: int, past: int, length: int) -> list[int]:
        """The stores, by place, of leading names that are worth copying; `tokens` of a name.

        They follow the first `past` tokens of a prompt whose first `length` are to be there.
        """
        places: list[int] = []
        for name in names:
            place = next((place for place, store in enumerate(self.stores) if name in store.names), -1)
            if place < 0:
                break
            places.append(place)
        worth = 0
        for place, run in groupby(places):
            count = len(list(run))
            rest = past + count * tokens
            saved = self._computing(length - past, past) - self._computing(length - rest, rest)
            if self.stores[place].copy_ticks(count * span) >= saved:
                break
            worth, past = worth + count, rest
        return places[:worth]

    def take(self, places: Sequence[int], span: int) -> None:
        """Copy these."""
        for place in places:
            self.found_blocks[place] += span
            self._waits[place] += span

    def keep(self, names: Sequence[int], span: int) -> None:
        """A sequence gives these back."""
        for store in self.stores:
            store.keep(names, span)

    def waited(self) -> int:
        """Ticks that the step takes at least that needs what was copied for it."""
        if not any(self._waits):
            return 0
        least = max(store.copy_ticks(n) for store, n in zip(self.stores, self._waits, strict=True) if n)
        self._waits = [0] * len(self.stores)
        return least
