"""What each choice is worth: the least that another value of one field costs, with all else chosen again.

A search leaves a queue of nodes, each with a bound that none of its plans beats. Of the nodes that still admit a value
the least key bounds every plan with that value, so its distance to the best plan is a regret *at least*. It becomes
exact by searching on among these nodes alone until a replayed plan comes up; that is done, cheapest first, for as long
as time is given.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from time import monotonic
from typing import Any

from windtunnel.planning.search import LEAF, ROUGH, Found, Node, Search
from windtunnel.planning.space import SAVINGS, STRUCTURE, SWITCHES, Space, savings, switches

FIELDS = (*STRUCTURE, *SAVINGS, *SWITCHES)
DISTANT = 1.0  # what is twice as slow and more is not told


@dataclass(frozen=True, slots=True)
class Choice:
    """Another value of one field of the best plan, and what the best plan with it costs beside the best of all."""

    field: str
    value: Any
    regret: float
    exact: bool  # else at least


def choices(search: Search, best: Found, within_s: float) -> tuple[Choice, ...]:
    """By field, in the order of regret. `search` has run; its prices are used and added to."""
    ends = monotonic() + within_s
    least: dict[tuple[str, Any], tuple[float, bool]] = {}
    for node in search.left():
        if node.key > (1.0 + DISTANT) * best.score_ns:
            continue
        for name in FIELDS:
            for value in _values(search.space, node, name):
                known = least.get((name, value))
                if known is None or node.key < known[0]:
                    least[name, value] = (node.key, node.found is not None)
    chosen = best.layout.plan
    others = {key: value for key, value in least.items() if key[1] is not None and getattr(chosen, key[0]) != key[1]}
    for (name, value), (_, exact) in sorted(others.items(), key=lambda one: one[1][0]):
        if exact or monotonic() > ends:
            continue
        others[name, value] = _searched(search, name, value, ends)
    found = [Choice(name, value, key / best.score_ns - 1.0, exact) for (name, value), (key, exact) in others.items()]
    return tuple(sorted(found, key=lambda one: (FIELDS.index(one.field), one.regret, str(one.value))))


def _searched(search: Search, name: str, value: Any, ends: float) -> tuple[float, bool]:
    """The best plan with this value, or when time is up the best bound."""
    heap = [node for node in search.left() if value in _values(search.space, node, name)]
    rest = [node for node in search.left() if value not in _values(search.space, node, name)]
    heapq.heapify(heap)
    least, exact = float("inf"), False
    while heap:
        node = heap[0]
        least, exact = node.key, node.found is not None
        if exact or monotonic() > ends:
            break
        heapq.heappop(heap)
        for child in search.expanded(node):
            if value in _values(search.space, child, name):
                heapq.heappush(heap, child)
            else:
                rest.append(child)
    search.put_back([*heap, *rest])
    return least, exact


def _values(space: Space, node: Node, name: str) -> tuple[Any, ...]:
    """The values of a field that plans under a node may have."""
    own = getattr(node.layout.plan, name)
    if name in SAVINGS and node.level < ROUGH:
        return tuple({saving.get(name, own) for saving in savings(space, node.layout)})
    if name in SWITCHES and node.level < LEAF:
        saving = node.saving or {"zero_stage": 1, "recompute": "none"}
        values = switches(space, node.layout, saving)[name]
        return tuple(own if value is None else value for value in values)
    return (own,)
