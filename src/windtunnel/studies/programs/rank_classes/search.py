"""Where programs change along the axes: boxes of places, in each of which all ranks run one program.

A box whose first and last rank run the same program is taken to be one class. Another is cut, and its parts are looked
at in turn: where shards are known to become shorter (`uneven_shards.py`), else where neighbours are found to differ, on
a path from its first place to its last along one axis after the other. Stages are searched together, so that those
which exchange messages run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple, NoReturn

from windtunnel.errors import UserError
from windtunnel.studies.programs.rank_classes.grid import Place, RankAxes

MOST_CUTS = 64  # of one axis at one stage; more are no structure but noise
MOST_UNEXPLAINED = 16  # of those that no shard explains, along an axis that is longer than MOST_CUTS

Point = tuple[Place, Place]  # (coordinates along exact dimensions, places along the axes)
Group = tuple[Hashable, ...]  # what its ranks are known by
Digests = Callable[[Sequence[int]], Mapping[int, str]]  # runs these ranks, and says which programs are equal
Box = tuple[Place, Place]  # its first place and its last


class NoClassesError(UserError):
    """Nearly every rank runs a program of its own, so a few say nothing about the others."""

    def __init__(self, one: int, other: int) -> None:
        self.one, self.other = one, other
        super().__init__(
            f"programs differ between too many neighbours to be explained, such as ranks {one} and {other}"
        )


class Search:
    """What is known so far."""

    def __init__(self, layout: RankAxes, digests: Digests) -> None:
        self.layout, self._digests = layout, digests
        self._by_place: dict[Place, dict[Place, str]] = {}
        self._like: dict[Point, Group] = {}
        self._programs_like: dict[Group, set[str]] = {}

    def take_alike(self, groups: Mapping[Group, Sequence[Point]]) -> None:
        """Ranks of a group are expected to run one program: the first is run, others where two that ran differ.

        What a group is known by ends with the parts that its ranks hold. Two that differ there show that those parts do
        not decide the program, and so all that hold them are run, of whichever group.
        """
        self._like |= {point: key for key, points in groups.items() for point in points}
        for point, key in self._like.items():
            if (digest := self._by_place.get(point[0], {}).get(point[1])) is not None:
                self._programs_like.setdefault(key, set()).add(digest)
        self.run((points[0] for points in groups.values()), expects=False)

    def run(self, points: Iterable[Point], *, expects: bool = True) -> None:
        """Know the programs of these ranks. `expects`: those of ranks like others that were run are taken from them."""
        fresh = dict.fromkeys(point for point in points if point[1] not in self._by_place.get(point[0], {}))
        expected = {}
        doubtful = {group[-1] for group, programs in self._programs_like.items() if len(programs) > 1}
        for point in fresh if expects else ():
            if (group := self._like.get(point)) is not None and group[-1] not in doubtful:
                (expected[point],) = self._programs_like[group]
        ranks = {point: self.layout.rank(*point) for point in fresh if point not in expected}
        digests = self._digests(list(ranks.values())) if ranks else {}
        for point, rank in ranks.items():
            if point in self._like:
                self._programs_like.setdefault(self._like[point], set()).add(digests[rank])
        for point in fresh:
            exact, along = point
            self._by_place.setdefault(exact, {})[along] = expected.get(point) or digests[ranks[point]]

    def at(self, exact: Place, along: Place) -> str:
        """The program of a rank that was run."""
        return self._by_place[exact][along]

    def places(self, exact: Place) -> Collection[Place]:
        """Those of a stage that were run."""
        return self._by_place[exact].keys()

    def odd_one(self, exact: Place, box: Box) -> Place | None:
        """A place in the box that is known to run another program than its first."""
        digests = self._by_place[exact]
        for along, digest in digests.items():
            if digest != digests[box[0]] and is_in(along, box):
                return along
        return None


class _Line(NamedTuple):
    """Places `low` to `high` along one axis, from a base; programs differ at its ends."""

    exact: Place
    box: Box
    axis: int
    base: Place
    low: int
    high: int


def is_in(place: Place, box: Box) -> bool:
    """Whether the box holds this place."""
    return all(low <= at <= high for low, at, high in zip(box[0], place, box[1], strict=True))


def find_boxes(search: Search, stages: Mapping[Place, Sequence[Collection[int]]]) -> dict[Place, list[Box]]:
    """Boxes that hold all places of these stages. Raises NoClassesError.

    `stages`: coordinates of each, and where along each axis its programs probably change.
    """
    layout = search.layout
    whole = (tuple(0 for _ in layout.axes), tuple(length - 1 for length in layout.lengths))
    boxes_of = {exact: [whole] for exact in stages}
    while True:
        search.run((exact, end) for exact, boxes in boxes_of.items() for box in boxes for end in box)
        mixed = [(exact, box) for exact, boxes in boxes_of.items() for box in boxes if _is_mixed(search, exact, box)]
        if not mixed:
            return boxes_of
        cuts = {(exact, box): _probable(box, stages[exact]) for exact, box in mixed}
        unexplained = [key for key, places in cuts.items() if not any(places)]
        for line, places in _changes(search, _lines(search, unexplained)).items():
            cuts[line.exact, line.box][line.axis] |= places
        for exact, box in mixed:
            boxes_of[exact].remove(box)
            boxes_of[exact] += split(box, cuts[exact, box])
        for exact, boxes in boxes_of.items():
            explained = [len(places) for places in stages[exact]]
            if any(len({box[0][axis] for box in boxes}) > MOST_CUTS + most for axis, most in enumerate(explained)):
                _refuse(search, exact)


def split(box: Box, cuts: Sequence[Collection[int]]) -> list[Box]:
    """The parts of a box that is cut before these places of each axis."""
    parts = []
    for low, high, places in zip(*box, cuts, strict=True):
        starts = [low, *sorted({at for at in places if low < at <= high}), high + 1]
        parts.append([(start, after - 1) for start, after in pairwise(starts)])
    return [(tuple(low for low, _ in part), tuple(high for _, high in part)) for part in product(*parts)]


def _is_mixed(search: Search, exact: Place, box: Box) -> bool:
    return search.at(exact, box[0]) != search.at(exact, box[1]) or search.odd_one(exact, box) is not None


def _probable(box: Box, likely: Sequence[Collection[int]]) -> list[set[int]]:
    """Likely cuts of the first axis that has some within the box: most boxes need no cut of a second one."""
    cuts: list[set[int]] = [set() for _ in likely]
    for axis, (low, high, places) in enumerate(zip(*box, likely, strict=True)):
        cuts[axis] = {at for at in places if low < at <= high}
        if cuts[axis]:
            break
    return cuts


def _lines(search: Search, boxes: Sequence[tuple[Place, Box]]) -> list[_Line]:
    """Steps on paths through the boxes at whose ends programs differ."""
    steps = []
    for exact, box in boxes:
        first, last = box
        odd = search.odd_one(exact, box) if search.at(exact, first) == search.at(exact, last) else None
        for start, goal in pairwise((first, last) if odd is None else (first, odd, last)):
            at = start
            for axis, place in enumerate(goal):
                if at[axis] != place:
                    steps.append(_Line(exact, box, axis, at, at[axis], place))
                    at = with_place(at, axis, place)
    _run_ends(search, steps)
    return [step for step in steps if _differs(search, step)]


def _changes(search: Search, lines: Sequence[_Line]) -> dict[_Line, set[int]]:
    """Places of each line at which the program is another than at the place before, found by halving."""
    changes: dict[_Line, set[int]] = {line: set() for line in lines}
    gaps = [(line, line) for line in lines]
    ends = [True, False]  # one alone is most often the last, a shorter shard, or the first, which writes: look there
    while gaps:
        halves = []
        for line, gap in gaps:
            if gap.high - gap.low == 1:
                changes[line].add(gap.high)
                continue
            last = search.layout.lengths[gap.axis] - 1
            middle = (gap.low + gap.high) // 2
            if ends and ends[0] and gap.high == last:
                middle = gap.high - 1
            elif ends and not ends[0] and gap.low == 0:
                middle = 1
            halves += [(line, gap._replace(high=middle)), (line, gap._replace(low=middle))]
        _run_ends(search, [half for _, half in halves])
        gaps = [(line, half) for line, half in halves if _differs(search, half)]
        ends = ends[1:]
        for line in lines:
            most = MOST_CUTS if line.high - line.low < MOST_CUTS else MOST_UNEXPLAINED
            if len(changes[line]) + sum(of is line for of, _ in gaps) > most:
                _refuse(search, line.exact)
    return changes


def _run_ends(search: Search, lines: Iterable[_Line]) -> None:
    search.run((line.exact, with_place(line.base, line.axis, at)) for line in lines for at in (line.low, line.high))


def _differs(search: Search, line: _Line) -> bool:
    low, high = (search.at(line.exact, with_place(line.base, line.axis, at)) for at in (line.low, line.high))
    return low != high


def _refuse(search: Search, exact: Place) -> NoReturn:
    """So many cuts that a few ranks explain nothing: name two that differ."""
    first, *others = search.places(exact)
    other = next(at for at in others if search.at(exact, at) != search.at(exact, first))
    raise NoClassesError(search.layout.rank(exact, first), search.layout.rank(exact, other))


def with_place(places: Place, axis: int, at: int) -> Place:
    """The same but along one axis."""
    return (*places[:axis], at, *places[axis + 1 :])
