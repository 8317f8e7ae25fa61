"""What a search finds not to fit in memory, and which of it needs least."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from windtunnel.errors import UserError
from windtunnel.studies.planning.oracle import Layout, laid_out
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Family, Space, members, savings


@dataclass(frozen=True, slots=True)
class Missed:
    """A structure with a saving that does not fit, and how much it needs."""

    layout: Layout
    needed_bytes: int
    exact: bool  # else at least


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """What does not fit by its state alone: a structure with a saving, with any, or a whole family with any."""

    layout: Layout
    needed_bytes: int  # at least
    saving: dict[str, object] | None = None
    family: Family | None = None


@dataclass(eq=False)
class Misfits:
    """Plans of one search that do not fit. `capacity_bytes` and `head_room` are those of the search."""

    space: Space
    bounds: Bounds
    capacity_bytes: int | None
    head_room: float
    all: list[Missed | Unmeasured] = field(default_factory=list)
    _even_states: dict[tuple[int, ...], int] = field(default_factory=dict)  # bytes, by degrees

    def add(self, unfit: Missed | Unmeasured) -> None:
        """Take one in."""
        self.all.append(unfit)

    def capacity(self, layout: Layout) -> int:
        """Bytes that a plan may take on a GPU."""
        usable = int(layout.cluster.gpu.usable_memory_bytes * (1.0 - self.head_room))
        return usable if self.capacity_bytes is None else min(usable, self.capacity_bytes)

    def nearest(self, most: int) -> list[Missed]:
        """After a run: what does not fit, that which needs least first, one of each choice of degrees.

        What is known by its state alone is looked at more closely once no other may need less.
        """
        seen: set[tuple[int, ...]] = set()
        missed = list(self.all)
        order = [(unfit.needed_bytes, isinstance(unfit, Missed), place) for place, unfit in enumerate(missed)]
        heapq.heapify(order)
        nearest: list[Missed] = []
        while order and len(nearest) < most:
            unfit = missed[heapq.heappop(order)[2]]
            if _degrees(unfit.layout) in seen:
                continue
            if isinstance(unfit, Missed):
                seen.add(_degrees(unfit.layout))
                nearest.append(unfit)
                continue
            for closer in self._closer(unfit):
                heapq.heappush(order, (closer.needed_bytes, isinstance(closer, Missed), len(missed)))
                missed.append(closer)
        return nearest

    def _closer(self, unfit: Unmeasured) -> Iterator[Missed | Unmeasured]:
        """The structures of a family, or the savings of a structure with what each needs at least."""
        layout = unfit.layout
        if unfit.family is not None:
            for structure in members(self.space, unfit.family):
                yield Unmeasured(structure, self.least_state(structure, self.bounds.state_bytes))
            return
        for saving in savings(self.space, layout) if unfit.saving is None else (unfit.saving,):
            laid = laid_out(layout.model, layout.cluster, layout.user_plan.with_fields(saving))
            yield Missed(laid, self.bounds.memory_bytes(laid), exact=False)

    def even_state(self, layout: Layout) -> int:
        """The least state, however layers lie on stages: the degrees alone decide it."""
        degrees = _degrees(layout)
        if degrees not in self._even_states:
            self._even_states[degrees] = self.least_state(layout, self.bounds.even_state_bytes)
        return self._even_states[degrees]

    def least_state(self, layout: Layout, state: Callable[[Layout], int]) -> int:
        """Bytes that parameters and optimizer take with any saving, at least; 0 where one of them may be refused.

        The first that fits is enough: savings that shard most are looked at first.
        """
        if layout.plan.offload_activations and layout.plan.lora_rank:  # only checkpoints of frozen layers can go
            return 0
        least: dict[tuple[object, object], int] = {}
        for saving in reversed(savings(self.space, layout)):
            sharded = (saving["zero_stage"], saving.get("shard_group"))
            if sharded in least:
                continue
            try:
                least[sharded] = state(laid_out(layout.model, layout.cluster, layout.user_plan.with_fields(saving)))
            except UserError:
                return 0
            if least[sharded] <= self.capacity(layout):
                break
        return min(least.values())


def _degrees(layout: Layout) -> tuple[int, ...]:
    plan = layout.plan
    return plan.tp, plan.pp, plan.cp, plan.ep, layout.etp
