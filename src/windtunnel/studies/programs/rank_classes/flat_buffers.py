"""Which ranks hold alike parts of a flat buffer: one tensor in which many lie, and that a group cuts evenly.

Optimizers that are distributed (Megatron's, DeepSpeed's ZeRO) put all parameters end to end, and each member of a group
steps an equal part, wherever one tensor ends and the next begins. So ranks differ by which tensors lie in their part,
and in nothing else: one piece of a matrix, or the end of one, two biases and the start of another. Those that hold
as much of matrices and of vectors, in pieces in the same order, run the same ops, on pieces of other lengths. Where
each buffer is a few layers' and comes by itself (Megatron's FSDP), which of the tensors they are pieces of counts, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import prod
from typing import NamedTuple

from windtunnel.studies.programs.rank_classes.grid import Members, Place, RankAxes
from windtunnel.studies.programs.rank_classes.uneven_shards import Tail

Pieces = tuple[tuple[int, ...], ...]  # of each buffer: what `FlatBuffer.pieces` gives


class FlatBuffer(NamedTuple):
    """A buffer of a group, as one member saw it."""

    members: Members
    part: int  # bytes that each member holds
    tensors: tuple[tuple[int, int, int], ...]  # first byte, the one behind the last, dimensions; in order

    def pieces(self, place: int, *, which: bool = False) -> tuple[int, ...]:
        """Bytes of a member's part in which tensors lie, by number of dimensions (optimizers decay matrices alone), and
        the dimensions of each, or `which` they are.
        """
        low, high = place * self.part, (place + 1) * self.part
        start = max(0, bisect_right(self.tensors, (low, low, 0)) - 1)
        tensors = []
        covered: dict[int, int] = {}
        for number, (begin, end, count) in enumerate(self.tensors[start:], start):
            if begin >= high:
                break
            if end > low:
                covered[count] = covered.get(count, 0) + min(end, high) - max(begin, low)
                tensors.append(number if which else count)
        return *(covered[count] for count in sorted(covered)), *tensors

    def tail(self, *, which: bool = False) -> Tail:
        """The places from which on members hold other pieces than the one before."""
        held = [self.pieces(place, which=which) for place in range(len(self.members))]
        return self.members, [place for place in range(1, len(held)) if held[place] != held[place - 1]]


class RankParts:
    """What each rank holds of the buffers of a stage."""

    def __init__(self, layout: RankAxes, buffers: Iterable[FlatBuffer], *, which: bool = False) -> None:
        self._layout = layout
        sizes = layout.grid.sizes
        self._held: list[tuple[tuple[int, ...], Callable[[int], tuple[int, ...]]]] = []  # (dimensions of the group, ..)
        self.tails: list[Tail] = []
        for buffer in dict.fromkeys(buffers):
            span = layout.grid.span(buffer.members)
            is_lattice = prod(sizes[d] for d in span) == len(buffer.members) and list(buffer.members) == sorted(
                buffer.members
            )
            if is_lattice and (tail := buffer.tail(which=which))[1]:
                self.tails.append(tail)
                self._held.append((span, cache(partial(buffer.pieces, which=which))))

    def of_rank(self, rank: int) -> Pieces:
        """The pieces of each buffer."""
        sizes, coordinates = self._layout.grid.sizes, self._layout.grid.coordinates(rank)
        pieces = []
        for span, held in self._held:
            place = 0
            for d in span:
                place = place * sizes[d] + coordinates[d]
            pieces.append(held(place))
        return tuple(pieces)


class AlikePlaces:
    """Places of a stage by what their ranks hold.

    Apart are the first and the last of each axis, and what lies on two sides of a cut that is made for another reason.
    """

    def __init__(self, layout: RankAxes, exact: Place, parts: RankParts, cuts: Sequence[Iterable[int]]) -> None:
        starts = [sorted({1, length - 1, *places}) for places, length in zip(cuts, layout.lengths, strict=True)]
        groups: dict[tuple[Place, Pieces], list[Place]] = {}
        for along in layout.places():
            sides = tuple(bisect_right(of, at) for of, at in zip(starts, along, strict=True))
            groups.setdefault((sides, parts.of_rank(layout.rank(exact, along))), []).append(along)
        usual = max(groups, key=lambda key: len(groups[key]))
        most = max((key for key in groups if key[0] == usual[0]), key=lambda key: sum(map(len, key[1])))
        # The first and the last that hold what most do, and one that holds the most pieces.
        self.extremes = (groups[usual][0], groups[usual][-1], groups[most][0])
        self.tails = parts.tails
        self.groups = {(exact, *key): [(exact, along) for along in places] for key, places in groups.items()}
        self.unusual = [(exact, along) for key, places in groups.items() if key[1] != usual[1] for along in places]
