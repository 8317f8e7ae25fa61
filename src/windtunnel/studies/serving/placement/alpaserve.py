"""AlpaServe's placement (OSDI '23): which models go on which groups of devices, by simulated attainment.

    greedy       simulate the load; the least loaded group that fits it gets the model with the most unserved requests;
                 until nothing fits, and the best placement on the way is kept                  (their fast heuristic)
    group sizes  every power of two and every (op, pp) of that size, uniform groups; the best by attainment

Simulation comes as a callable of the groups' models, so the search is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Groups = tuple[frozenset[int], ...]  # models of each group


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation says of a placement."""

    attainment: float
    unserved: tuple[int, ...]  # requests that missed their limit, by model
    busy: tuple[float, ...]  # load of each group


@dataclass(frozen=True, slots=True)
class GreedyPlacement:
    """The best placement and how it was found."""

    groups: Groups
    attainment: float
    attempts: int


Simulate = Callable[[Groups], Outcome]


def greedy(n_groups: int, memory: Sequence[float], capacity: float, simulate: Simulate) -> GreedyPlacement:
    """One model at a time, where it is missed most. `memory` of each model in a group of `capacity`."""
    groups: list[frozenset[int]] = [frozenset() for _ in range(n_groups)]
    attempts = 1
    now = simulate(tuple(groups))
    best = GreedyPlacement(tuple(groups), now.attainment, attempts)
    while True:
        place = None
        for model in sorted(range(len(memory)), key=lambda m: (-now.unserved[m], m)):
            if not now.unserved[model]:
                break
            for group in sorted(range(n_groups), key=lambda g: (now.busy[g], g)):
                if model not in groups[group] and _fits(groups[group], model, memory, capacity):
                    place = (model, group)
                    break
            if place is not None:
                break
        if place is None:
            return GreedyPlacement(best.groups, best.attainment, attempts)
        model, group = place
        groups[group] = groups[group] | {model}
        now = simulate(tuple(groups))
        attempts += 1
        if now.attainment > best.attainment:
            best = GreedyPlacement(tuple(groups), now.attainment, attempts)


def group_layouts(devices: int, largest_op: int = 4, largest_pp: int = 8) -> Iterator[tuple[int, int, int]]:
    """(groups, op, pp) of uniform partitions into powers of two."""
    size = 1
    while size <= devices:
        op = 1
        while op <= min(size, largest_op):
            pp = size // op
            if op * pp == size and pp <= largest_pp:
                yield devices // size, op, pp
            op *= 2
        size *= 2


def _fits(group: frozenset[int], model: int, memory: Sequence[float], capacity: float) -> bool:
    return sum(memory[m] for m in group) + memory[model] <= capacity
