"""AlpaServe's placement (OSDI '23): which models go on which groups of devices, by simulated attainment.

    greedy       simulate the load; the least loaded group that fits it gets the model with the most unserved requests;
                 until nothing fits, and the best placement on the way is kept                  (their fast heuristic)
    beam         the same, all (model, group) pairs tried by simulation, the best few kept at each step
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
class Found:
    """The best placement and how it was found."""

    groups: Groups
    attainment: float
    tried: int


Simulate = Callable[[Groups], Outcome]


def greedy(n_groups: int, memory: Sequence[float], capacity: float, simulate: Simulate) -> Found:
    """One model at a time, where it is missed most. `memory` of each model in a group of `capacity`."""
    groups: list[frozenset[int]] = [frozenset() for _ in range(n_groups)]
    tried = 1
    now = simulate(tuple(groups))
    best = Found(tuple(groups), now.attainment, tried)
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
            return Found(best.groups, best.attainment, tried)
        model, group = place
        groups[group] = groups[group] | {model}
        now = simulate(tuple(groups))
        tried += 1
        if now.attainment > best.attainment:
            best = Found(tuple(groups), now.attainment, tried)


def beam(n_groups: int, memory: Sequence[float], capacity: float, simulate: Simulate, width: int = 3) -> Found:
    """All pairs of a model and a group at each step, the best `width` placements kept."""
    front: list[Groups] = [tuple(frozenset() for _ in range(n_groups))]
    known: dict[tuple[tuple[int, ...], ...], float] = {}
    best = Found(front[0], simulate(front[0]).attainment, 1)
    while front:
        following: dict[tuple[tuple[int, ...], ...], tuple[float, Groups]] = {}
        for groups in front:
            for model in range(len(memory)):
                for group in range(n_groups):
                    if model in groups[group] or not _fits(groups[group], model, memory, capacity):
                        continue
                    changed = (*groups[:group], groups[group] | {model}, *groups[group + 1 :])
                    key = tuple(sorted(tuple(sorted(one)) for one in changed))  # groups are alike
                    if key not in known:
                        known[key] = simulate(changed).attainment
                        following[key] = (known[key], changed)
        ranked = sorted(following.items(), key=lambda item: (-item[1][0], item[0]))[:width]
        front = [groups for _, (_, groups) in ranked]
        if ranked and ranked[0][1][0] > best.attainment:
            best = Found(ranked[0][1][1], ranked[0][1][0], len(known) + 1)
    return Found(best.groups, best.attainment, len(known) + 1)


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
