"""Which ranks to run, so that every rank's program is known: a few, found from groups of ranks and checked at random.

A first run of rank 0 shows its groups, hence the grid of ranks (`grid.py`). Along dimensions over which messages go
(pipeline stages) every coordinate is run. Along the others, the *axes*, programs change at few places: the first rank
logs, the last shards of uneven tensors are short or empty, each part of a context has a mask of its own. So for each
combination of exact coordinates, a *stage*:

    run the first rank of all axes
    run the last one of a stage of each kind (stages that do the same ops, in whatever order), and of all stages of a
    kind where that differs
    equal: the stage is one class; else it is cut into boxes of places that are (`search.py`), and equal ones are joined

Parts of a flat buffer are cut anywhere, so ranks between two equal ones may hold other pieces (`flat_buffers.py`):
where the one with the most pieces runs another program, one rank is run of all that hold alike pieces, and each of them
once two that do were found to differ.

What lies between two equal places is taken to be equal. Ranks drawn at random test that; one that differs is taken into
the search, which begins again, and only what holds against fresh draws is a fold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

from windtunnel.studies.programs.rank_classes.flat_buffers import (
    DIMENSIONS,
    TENSORS,
    AlikePlaces,
    FlatBuffer,
    RankParts,
    TestedRanks,
)
from windtunnel.studies.programs.rank_classes.grid import Grid, Place, RankAxes
from windtunnel.studies.programs.rank_classes.search import Box, Digests, Search, find_boxes, is_in
from windtunnel.studies.programs.rank_classes.uneven_shards import Tail, likely_cuts

MOST_EXACT = 64  # a dimension over which messages go is run at all its coordinates up to this size


@dataclass(frozen=True)
class Stage:
    """One combination of exact coordinates: where its axes are cut, and whom each cell's ranks equal."""

    exact: Place
    cuts: tuple[Place, ...]  # of each axis: first place of each interval, from 0
    cells: tuple[int, ...]  # row-major over intervals: the representative rank


@dataclass(frozen=True)
class Table:
    """Which representative every rank of the world equals, in a few numbers."""

    layout: RankAxes
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
                counts[representative] = counts.get(representative, 0) + prod(parts)
        return counts

    @cached_property
    def _stages(self) -> Mapping[Place, Stage]:
        return {stage.exact: stage for stage in self.stages}


def find_axes(grid: Grid, message_pairs: Iterable[tuple[int, int]]) -> RankAxes:
    """Exact dimensions from who sends to whom."""
    exact = set()
    for sender, receiver in message_pairs:
        pair = zip(grid.coordinates(sender), grid.coordinates(receiver), strict=True)
        exact |= {d for d, (own, other) in enumerate(pair) if own != other and grid.sizes[d] <= MOST_EXACT}
    return RankAxes(grid, tuple(sorted(exact)))


def find_classes(
    layout: RankAxes,
    digests: Digests,
    ranks_run: Iterable[int] = (),
    *,
    kind_of: Callable[[int], object] = lambda rank: None,
    tails_of: Callable[[int], Iterable[Tail]] = lambda rank: (),
    buffers_of: Callable[[int], Iterable[FlatBuffer]] = lambda rank: (),
    tested: TestedRanks | None = None,
    detail: int = DIMENSIONS,
) -> Table:
    """Run what it takes to know every rank's program, if programs change where these and their neighbours do.

    Args:
        layout: the grid and its axes.
        digests: runs ranks.
        ranks_run: ranks to take into the search beside the first and the last of each stage.
        kind_of: of a rank that was run; stages whose first ranks are of one kind are taken to be cut alike.
        tails_of: of a rank that was run, where its shards become shorter among its peers.
        buffers_of: of a rank that was run, the flat buffers that it holds a part of.
        tested: tests of the source on which programs were found to hang.
        detail: what tells pieces of flat buffers apart, at least.

    Raises NoClassesError.
    """
    search = Search(layout, digests)
    first, last = tuple(0 for _ in layout.axes), tuple(length - 1 for length in layout.lengths)
    stages = layout.stages()
    odd = [layout.place(rank) for rank in ranks_run]
    search.run([*((exact, first) for exact in stages), *odd])
    kinds: dict[object, list[Place]] = {}
    for exact in stages:
        kinds.setdefault(kind_of(layout.rank(exact, first)), []).append(exact)
    probed = dict.fromkeys((stages[0], stages[len(stages) // 2], stages[-1], *(exact for exact, _ in odd)))
    probed |= dict.fromkeys(alike[len(alike) // 2] for alike in kinds.values())
    search.run((exact, last) for exact in probed)
    for alike in kinds.values():
        if any(search.at(exact, first) != search.at(exact, last) for exact in alike if exact in probed):
            probed |= dict.fromkeys(alike)
    tails = {exact: list(tails_of(layout.rank(exact, first))) for exact in stages}
    parts = _cut_parts(search, kinds.values(), buffers_of, tails, probed, tested, detail)
    probed |= dict.fromkeys(parts)
    search.take_alike({key: points for held in parts.values() for key, points in held.groups.items()})
    search.run(point for held in parts.values() for point in held.unusual)
    for exact, held in parts.items():
        tails[exact] += held.tails
    likely = {exact: likely_cuts(layout, tails[exact]) for exact in probed}
    boxes = find_boxes(search, likely)
    return Table(layout, tuple(_stage(search, exact, boxes.get(exact, [(first, last)])) for exact in stages))


def _cut_parts(
    search: Search,
    kinds: Iterable[Sequence[Place]],
    buffers_of: Callable[[int], Iterable[FlatBuffer]],
    tails: Mapping[Place, Iterable[Tail]],
    probed: Collection[Place],
    tested: TestedRanks | None,
    least: int,
) -> dict[Place, AlikePlaces]:
    """Who holds alike parts of flat buffers, for stages of each kind in which it makes a difference; and is tested."""
    layout, first = search.layout, tuple(0 for _ in search.layout.axes)

    def alike(exact: Place, detail: int | None, tested: TestedRanks | None = None) -> AlikePlaces | None:
        buffers = [] if detail is None else [*buffers_of(layout.rank(exact, first))]
        parts = RankParts(layout, [*buffers, *([tested] if tested else [])], detail or DIMENSIONS)
        return AlikePlaces(layout, exact, parts, likely_cuts(layout, tails[exact])) if parts.tails else None

    by_stage = {exact: held for exact in tails if (held := alike(exact, least)) is not None}
    search.run((exact, along) for exact in by_stage if exact in probed for along in by_stage[exact].extremes)
    detail: dict[Place, int] = {}  # of stages in which it makes a difference
    for stages in kinds:
        looked_at = [exact for exact in stages if exact in by_stage and exact in probed]
        programs = [[search.at(exact, along) for along in by_stage[exact].extremes] for exact in looked_at]
        if any(usual != later for usual, later, _ in programs):
            detail |= dict.fromkeys(stages, TENSORS)
        elif least or any(usual != most for usual, _, most in programs):
            detail |= dict.fromkeys(stages, least)
    parts = {exact: alike(exact, detail.get(exact), tested) for exact in tails if tested or exact in detail}
    return {exact: held for exact, held in parts.items() if held is not None}


def _stage(search: Search, exact: Place, boxes: Sequence[Box]) -> Stage:
    """Its boxes as cells between cuts, each with the first rank that runs its program."""
    cuts = tuple(tuple(sorted({box[0][axis] for box in boxes})) for axis in range(len(search.layout.axes)))
    by_digest: dict[str, int] = {}
    cells = []
    for cell in product(*cuts):
        start = next(box[0] for box in boxes if is_in(cell, box))
        cells.append(by_digest.setdefault(search.at(exact, start), search.layout.rank(exact, start)))
    return Stage(exact, cuts, tuple(cells))
