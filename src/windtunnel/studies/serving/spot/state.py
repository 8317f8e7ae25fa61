"""What serving on spot machines is made of: events, changes of machines, batches, replicas, moves to another layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from windtunnel.studies.serving.spot.mapping import Position
from windtunnel.studies.serving.spot.reconfigure import Choice

Policy = Literal["spotserve", "reroute", "restart"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a policy does when machines come and go; one that does neither loads a new layout from storage."""

    migrates: bool = False  # looks ahead, stops in time, and moves weights and caches to the next layout
    adds_replicas: bool = False  # keeps the layout of a replica, and has as many as fit


TRAITS: Mapping[Policy, Traits] = {
    "spotserve": Traits(migrates=True),
    "reroute": Traits(adds_replicas=True),
    "restart": Traits(),
}

Kind = Literal["arrive", "notice", "gone", "ready", "done", "stop", "resume", "open"]
NS = 1e9
PLACES = 64  # a GPU is its machine times this, and its place there


@dataclass(frozen=True, slots=True)
class SpotEvent:
    """One event: `which` request, machine or replica."""

    kind: Kind
    which: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A machine comes (ready to launch) or gets notice, `at_s` seconds from the start; then gone at `gone_s`, if given.

    A machine comes once: the same name that is there again is another machine.
    """

    at_s: float
    machine: int
    comes: bool
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpotOutcome:
    """What came of it. Latencies in seconds, by request; infinite where one was never answered."""

    latency_s: tuple[float, ...]
    reconfigurations: int
    recomputed_tokens: int
    moved_bytes: float
    paused_s: float
    replicas_loaded: int = 0  # by re-routing, in place of those that went


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What the server before the replicas does. As it is: layouts for the load, a batch when a replica is free.

    SpotServe's own server plans for a rate it is told, so `plan` is all it needs: the layout for so many GPUs, of
    re-routing's first one too. It gives requests ahead: 1 for SpotServe, 2 for what it is compared with.
    """

    plan: Callable[[int], Choice | None] | None = None
    powers_of_two: bool = False  # batches of 1, 2, 4, ... only
    ahead: int = 0  # full batches that a replica may have, its running one included; 0: nothing before it is free


@dataclass(eq=False, slots=True)
class Batch:
    """Requests that one replica answers together."""

    requests: list[int]
    begun_ns: int = 0
    prompt_s: float = 0.0
    token_s: float = 0.0
    tokens: int = 0  # each of them had when this went on

    def now(self, now_ns: int, most: int) -> int:
        """Tokens that each has by now."""
        if self.token_s <= 0.0:
            return self.tokens
        spent = (now_ns - self.begun_ns) / NS - self.prompt_s
        return min(most, self.tokens + max(0, int(spent / self.token_s)))


@dataclass(eq=False, slots=True)
class Replica:
    """One copy of the model, and the machines it is on."""

    machines: frozenset[int]
    rank: int = 0  # its data rank in the layout
    open: bool = True
    batch: Batch | None = None
    ahead: list[int] = field(default_factory=list)  # requests that it got before it was free


@dataclass(frozen=True, slots=True)
class Move:
    """On the way to a layout: which GPU takes which position, which replica's batch goes on at which data rank."""

    plan: Choice
    targets: dict[int, Position]
    carried: dict[int, int]
    begun_ns: int
    serving_ns: int
    done_ns: int  # the last layer is in
    moved_bytes: float
    usable: frozenset[int]  # machines that could be used when it began
    from_storage: bool = False

    @property
    def machines(self) -> frozenset[int]:
        """That take part."""
        return frozenset(gpu // PLACES for gpu in self.targets)
