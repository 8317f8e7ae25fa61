"""Which ranks to run, so that every rank's program is known: a few, found from rank 0's groups and checked at random.

A first run of rank 0 shows its groups, hence the grid of ranks (`grid.py`). Along dimensions over which messages go
(pipeline stages) every coordinate is run. Along the others, the *axes*, programs change at few places: the first rank
logs, the last shards of uneven tensors are short or empty, each part of a context has a mask of its own. So for each
combination of exact coordinates, a *stage*:

    run the first and (of three stages; of all, where one of those differs) the last rank of all axes; equal: one class
    else, along each axis, find where neighbours differ: a cut; before the last place, or by halving;
    again, from both ends of every interval of the other axes, until no cut is new
    run one rank of every combination of intervals, and join equal ones

What lies between two equal places is taken to be equal. Ranks drawn at random test that; one that differs is taken into
the search, which begins again, and only what holds against fresh draws is a fold.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from windtunnel.capture.script.grid import Grid
from windtunnel.errors import UserError

MOST_EXACT = 64  # a dimension over which messages go is run at all its coordinates up to this size
MOST_CUTS = 64  # of one axis at one stage; more are no structure but noise

Place = tuple[int, ...]
Digests = Callable[[Sequence[int]], Mapping[int, str]]  # runs these ranks, and says which programs are equal


class NoClassesError(UserError):
    """Nearly every rank runs a program of its own, so a few say nothing about the others."""

    def __init__(self, one: int, other: int) -> None:
        self.one, self.other = one, other
        super().__init__(f"programs differ between more than {MOST_CUTS} neighbours, such as ranks {one} and {other}")


@dataclass(frozen=True)
class Layout:
    """Which dimensions of the grid are run in full; the others are axes."""

    grid: Grid
    exact: tuple[int, ...]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The other dimensions."""
        return tuple(d for d in range(len(self.grid.sizes)) if d not in self.exact)

    @property
    def lengths(self) -> Place:
        """Places along each axis."""
        return tuple(self.grid.sizes[d] for d in self.axes)

    def place(self, rank: int) -> tuple[Place, Place]:
        """(coordinates along exact dimensions, places along the axes)."""
        coordinates = self.grid.coordinates(rank)
        return tuple(coordinates[d] for d in self.exact), tuple(coordinates[d] for d in self.axes)

    def rank(self, exact: Sequence[int], along: Sequence[int]) -> int:
        """The inverse of `place`."""
        coordinates = [0] * len(self.grid.sizes)
        for d, at in zip((*self.exact, *self.axes), (*exact, *along), strict=True):
            coordinates[d] = at
        return self.grid.rank(coordinates)

    def stages(self) -> list[Place]:
        """Every combination of exact coordinates."""
        return list(product(*(range(self.grid.sizes[d]) for d in self.exact)))


@dataclass(frozen=True)
class Stage:
    """One combination of exact coordinates: where its axes are cut, and whom each cell's ranks equal."""

    exact: Place
    cuts: tuple[Place, ...]  # of each axis: first place of each interval, from 0
    cells: tuple[int, ...]  # row-major over intervals: the representative rank


@dataclass(frozen=True)
class Table:
    """Which representative every rank of the world equals, in a few numbers."""

    layout: Layout
    stages: tuple[Stage, ...]

    def representative_of(self, rank: int) -> int:
        """The captured rank whose program this rank runs."""
        exact, along = self.layout.place(rank)
        stage = self._stages[exact]
        cell = 0
        for cuts, at in zip(stage.cuts, along, strict=True):
            cell = cell * len(cuts) + bisect_right(cuts, at) - 1
        return stage.cells[cell]

    def counts(self) -> dict[int, int]:
        """Ranks of each class, by representative."""
        counts: dict[int, int] = {}
        for stage in self.stages:
            widths = [
                [upper - lower for lower, upper in pairwise((*cuts, length))]
                for cuts, length in zip(stage.cuts, self.layout.lengths, strict=True)
            ]
            for representative, parts in zip(stage.cells, product(*widths), strict=True):
                counts[representative] = counts.get(representative, 0) + _product(parts)
        return counts

    @cached_property
    def _stages(self) -> Mapping[Place, Stage]:
        return {stage.exact: stage for stage in self.stages}


def find_layout(grid: Grid, message_pairs: Iterable[tuple[int, int]]) -> Layout:
    """Exact dimensions from who sends to whom."""
    exact = set()
    for sender, receiver in message_pairs:
        pair = zip(grid.coordinates(sender), grid.coordinates(receiver), strict=True)
        exact |= {d for d, (one, other) in enumerate(pair) if one != other and grid.sizes[d] <= MOST_EXACT}
    return Layout(grid, tuple(sorted(exact)))


def find_classes(layout: Layout, digests: Digests, known: Iterable[int] = ()) -> Table:
    """Run what it takes to know every rank's program, if programs change where these and their neighbours do.

    `known`: ranks to take into the search beside the first and the last of each stage. Raises NoClassesError.
    """
    search = _Search(layout, digests)
    first, last = tuple(0 for _ in layout.axes), tuple(length - 1 for length in layout.lengths)
    stages = layout.stages()
    probes: dict[Place, list[Place]] = {exact: [first] for exact in stages}
    for rank in known:
        exact, along = layout.place(rank)
        probes[exact].append(along)
    search.run([layout.rank(exact, along) for exact, several in probes.items() for along in several])
    few = list(dict.fromkeys((stages[0], stages[len(stages) // 2], stages[-1])))
    search.run([layout.rank(exact, last) for exact in few])
    if any(search.at(exact, first) != search.at(exact, last) for exact in few):
        few = stages
        search.run([layout.rank(exact, last) for exact in stages])
    for exact in few:
        probes[exact].append(last)
    # Stages go through the search together, so that those that exchange messages run at the same time.
    cuts = {exact: [{0} for _ in layout.axes] for exact in probes}
    uneven = {
        exact: several for exact, several in probes.items() if len({search.at(exact, along) for along in several}) > 1
    }
    before = -1
    while before != (before := sum(len(places) for exact in uneven for places in cuts[exact])):
        for axis in range(len(layout.axes)):
            _cut(search, axis, uneven, cuts)
    cells = {exact: list(product(*(sorted(places) for places in cuts[exact]))) for exact in probes}
    search.run([layout.rank(exact, along) for exact in probes for along in cells[exact]])
    found = []
    for exact in probes:
        by_digest: dict[str, int] = {}
        chosen = [by_digest.setdefault(search.at(exact, at), layout.rank(exact, at)) for at in cells[exact]]
        found.append(Stage(exact, tuple(tuple(sorted(places)) for places in cuts[exact]), tuple(chosen)))
    return Table(layout, tuple(found))


def draw(layout: Layout, count: int, seed: int, known: Iterable[int]) -> list[int]:
    """Ranks to verify with, drawn at random among those not run yet: `count` of them, or all there are.

    Stages at one place along the axes are drawn together: where they exchange messages, none runs without the others.
    """
    taken = set(known)
    chosen: list[int] = []
    stages, lengths = layout.stages(), layout.lengths
    places = _product(lengths)
    order = random.Random(seed)
    tried: set[int] = set()
    while len(chosen) < count and len(tried) < places:
        at = order.randrange(places)
        if at in tried:
            continue
        tried.add(at)
        along = []
        for length in reversed(lengths):
            at, place = divmod(at, length)
            along.append(place)
        fresh = [rank for exact in stages if (rank := layout.rank(exact, along[::-1])) not in taken]
        chosen += order.sample(fresh, min(len(fresh), count - len(chosen)))
    return sorted(chosen)


def _cut(
    search: _Search, axis: int, probes: Mapping[Place, Sequence[Place]], cuts: Mapping[Place, Sequence[set[int]]]
) -> None:
    """Find the cuts of one axis, of all stages, seen from both ends of every interval of the other axes."""
    layout = search.layout
    length = layout.lengths[axis]
    gaps: list[tuple[Place, int, int, Place]] = []
    for exact, several in probes.items():
        along_others = [_ends(places, size) for places, size in zip(cuts[exact], layout.lengths, strict=True)]
        along_others[axis] = [0]
        bases = dict.fromkeys((*product(*along_others), *(_with(place, axis, 0) for place in several)))
        stops = sorted({*cuts[exact][axis], 0, length - 1, *(place[axis] for place in several)})
        gaps += [(exact, low, high, base) for base in bases for low, high in pairwise(stops)]
    tail = True  # the last shard is the short one more often than not: look there first
    while gaps:
        ends = [(exact, _with(base, axis, at)) for exact, low, high, base in gaps for at in (low, high)]
        search.run([layout.rank(exact, along) for exact, along in ends])
        halves = []
        for exact, low, high, base in gaps:
            if search.at(exact, _with(base, axis, low)) == search.at(exact, _with(base, axis, high)):
                continue
            if high - low == 1:
                cuts[exact][axis].add(high)
                continue
            middle = high - 1 if tail and high == length - 1 else (low + high) // 2
            halves += [(exact, low, middle, base), (exact, middle, high, base)]
        if len(halves) > 2 * MOST_CUTS * len(probes) or any(len(cuts[exact][axis]) > MOST_CUTS for exact in probes):
            exact, low, _, base = (halves or gaps)[0]
            raise NoClassesError(*(layout.rank(exact, _with(base, axis, at)) for at in (low, low + 1)))
        gaps, tail = halves, False


class _Search:
    """What is known so far."""

    def __init__(self, layout: Layout, digests: Digests) -> None:
        self.layout, self.digests = layout, digests
        self.known: dict[int, str] = {}

    def run(self, ranks: Sequence[int]) -> None:
        fresh = [rank for rank in dict.fromkeys(ranks) if rank not in self.known]
        if fresh:
            found = self.digests(fresh)
            self.known.update({rank: found[rank] for rank in fresh})

    def at(self, exact: Sequence[int], along: Sequence[int]) -> str:
        return self.known[self.layout.rank(exact, along)]


def _ends(cuts: Iterable[int], length: int) -> list[int]:
    """First and last place of every interval."""
    starts = sorted(cuts)
    return sorted({*starts, *(start - 1 for start in starts[1:]), length - 1})


def _with(places: Place, axis: int, at: int) -> Place:
    return (*places[:axis], at, *places[axis + 1 :])


def _product(sizes: Iterable[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
