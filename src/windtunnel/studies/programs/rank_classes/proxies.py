"""Whom a virtual member of a group is like, where several members are real: what it holds is what that one holds.

The virtual members, in order, are cut into as many stretches as there are real members, as even as they come; the
first stretch is like the first real member, and so on. Every real member counts for itself and its stretch: the weights
add up to the group's size, and differ by one at most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


@dataclass(frozen=True)
class Proxies:
    """The real members of a group, as places in it."""

    size: int  # members of the group
    real: tuple[int, ...]  # in order

    @cached_property
    def like(self) -> tuple[tuple[int, ...], ...]:
        """For each real member the places that are like it, in order, its own left out."""
        virtual = [place for place in range(self.size) if place not in set(self.real)]
        count = len(self.real)
        cuts = [len(virtual) * at // count for at in range(count + 1)]
        return tuple(tuple(virtual[begin:end]) for begin, end in pairwise(cuts))

    @cached_property
    def runs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The same as stretches [first, last) of places next to each other."""
        return tuple(_runs(places) for places in self.like)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Members that hold what each real one holds, itself among them."""
        return tuple(1 + len(places) for places in self.like)

    @property
    def even(self) -> int:
        """The weight where all are equal, else 0."""
        return self.weights[0] if len(set(self.weights)) == 1 else 0

    @cached_property
    def of_place(self) -> dict[int, int]:
        """Place -> number of the real member that it is like."""
        numbers = {place: number for number, places in enumerate(self.like) for place in places}
        return numbers | {place: number for number, place in enumerate(self.real)}


def proxies_among(members: Sequence[int], real: Collection[int]) -> Proxies:
    """Of a group, by the global ranks of its members."""
    wanted = set(real)
    return Proxies(len(members), tuple(place for place, rank in enumerate(members) if rank in wanted))


def _runs(places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return tuple(runs)
