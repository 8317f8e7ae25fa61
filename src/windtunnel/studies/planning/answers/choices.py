"""What each choice is worth: the least that another value of one field costs, with all else chosen again.

A search leaves a queue of nodes, each with a bound that none of its plans beats. Of the nodes that still admit a value
the least key bounds every plan with that value, so its distance to the best plan is a regret *at least*. It becomes
exact by searching on among these nodes alone until a replayed plan comes up; that is done, cheapest first, for so many
looks: a count and not a time, so that the same question has the same answer on a busy machine.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from windtunnel.studies.planning.search.best_first import (
    LEAF,
    LOOKS_OF_A_REPLAY,
    PLAN,
    ROUGH,
    UNSAVED,
    FittingPlan,
    Node,
    Search,
)
from windtunnel.studies.planning.space.plan_space import (
    PIPELINE,
    SAVINGS,
    STRUCTURE,
    SWITCHES,
    Space,
    savings,
    switches,
)

FIELDS = (*STRUCTURE, *SAVINGS, *SWITCHES)
DISTANT = 1.0  # what is twice as slow and more is not told
LOOKS = 800  # about a second of a core


@dataclass(frozen=True, slots=True)
class Choice:
    """Another value of one field of the best plan, and what the best plan with it costs beside the best of all."""

    field: str
    value: object
    regret: float
    exact: bool  # else at least


@dataclass(slots=True)
class Budget:
    """How many nodes may still be looked at, and the moment at which it is over however many are left."""

    looks: int
    ends_s: float

    def take(self, node: Node) -> bool:
        """Whether this node may be looked at; it counts."""
        self.looks -= LOOKS_OF_A_REPLAY if node.level == PLAN else 1
        return self.looks >= 0 and monotonic() < self.ends_s


def choices(search: Search, best: FittingPlan, budget: Budget) -> tuple[Choice, ...]:
    """By field, in the order of regret. `search` has run; its prices are used and added to.

    None where time was too short to list the space: what was not listed may be better with any of them.
    """
    if not search.listed:
        return ()
    nodes = sorted(search.open_nodes())
    least: dict[tuple[str, object], tuple[float, bool]] = {}
    seen: dict[Hashable, object] = {}
    for node in nodes:
        if node.key > (1.0 + DISTANT) * best.score_ns:
            break
        for name, values in _values(search.space, node, seen):
            for value in values:
                least.setdefault((name, value), (node.key, node.result is not None))
    chosen = best.layout.plan
    others = {key: value for key, value in least.items() if key[1] is not None and getattr(chosen, key[0]) != key[1]}
    for (name, value), (_, exact) in sorted(others.items(), key=lambda choice: choice[1][0]):
        if not exact and budget.looks > 0:
            others[name, value] = _searched(search, nodes, name, value, budget)
    search.put_back(nodes)
    regrets = [Choice(name, value, key / best.score_ns - 1.0, exact) for (name, value), (key, exact) in others.items()]
    return tuple(sorted(regrets, key=lambda choice: (FIELDS.index(choice.field), choice.regret, str(choice.value))))


def _searched(search: Search, nodes: list[Node], name: str, value: object, budget: Budget) -> tuple[float, bool]:
    """The best plan with this value, or when the budget is used up the best bound. `nodes`: sorted, and kept so."""
    at, least = 0, float("inf")
    while at < len(nodes):
        node = nodes[at]
        if not _admits(search.space, node, name, value):
            at += 1
            continue
        least, exact = node.key, node.result is not None
        if exact or not budget.take(node):
            return least, exact
        del nodes[at]
        for child in search.expanded(node):  # none of them is before its parent's place
            insort(nodes, child)
    return least, False  # nothing with it fits


def _admits(space: Space, node: Node, name: str, value: object) -> bool:
    """Whether plans under a node may have this value."""
    if node.family is not None and name in PIPELINE:
        return any(pipeline[PIPELINE.index(name)] == value for pipeline in node.family.pipelines)
    if name in SAVINGS and node.level < ROUGH:
        own = getattr(node.layout.plan, name)
        return any(saving.get(name, own) == value for several in _savings(space, node) for saving in several)
    if name in SWITCHES and node.level < LEAF:
        own = getattr(node.layout.plan, name)
        open_values = switches(space, node.layout, node.saving or UNSAVED)[name]
        return any((own if open_value is None else open_value) == value for open_value in open_values)
    return bool(getattr(node.layout.plan, name) == value)


def _savings(space: Space, node: Node) -> list[tuple[dict[str, object], ...]]:
    """Those of each structure under a node; one without any where the node has one itself."""
    if node.level >= ROUGH:
        return [()]
    sizes = (None,) if node.family is None else dict.fromkeys(node.family.largest)
    return [savings(space, node.layout, size) for size in sizes]


def _values(space: Space, node: Node, entry: dict[Hashable, object]) -> Iterator[tuple[str, Iterable[object]]]:
    """The values of each field that plans under a node may have, where a node before had others."""
    plan = node.layout.plan
    for name in STRUCTURE:
        yield name, (getattr(plan, name),)
    if node.family is not None:
        for name, values in zip(PIPELINE, zip(*node.family.pipelines, strict=True), strict=True):
            yield name, dict.fromkeys(values)
    own = tuple(getattr(plan, name) for name in SAVINGS)
    for several in _savings(space, node):
        if (id(several), own) not in entry:  # savings are remembered, so equal ones are one object
            entry[id(several), own] = several
            for name, usual in zip(SAVINGS, own, strict=True):
                yield name, dict.fromkeys(saving.get(name, usual) for saving in several or ({},))
    open_values = switches(space, node.layout, node.saving or UNSAVED) if node.level < LEAF else {}
    own = tuple(getattr(plan, name) for name in SWITCHES)
    if (tuple(open_values.values()), own) not in entry:
        entry[tuple(open_values.values()), own] = None
        for name, usual in zip(SWITCHES, own, strict=True):
            yield name, tuple(usual if value is None else value for value in open_values.get(name, (usual,)))
