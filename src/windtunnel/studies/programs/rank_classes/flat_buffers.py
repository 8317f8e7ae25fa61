"""Which ranks hold alike parts of a flat buffer: one tensor in which many lie, and that a group cuts evenly.

Optimizers that are distributed (Megatron's, DeepSpeed's ZeRO) put all parameters end to end, and each member of a group
steps an equal part, wherever one tensor ends and the next begins. So ranks differ by which tensors lie in their part,
and in nothing else: one piece of a matrix, or the end of one, two biases and the start of another. Those that hold
as much of matrices and of vectors, in pieces in the same order, run the same ops, on pieces of other lengths. Where
each buffer is a few layers' and comes by itself (Megatron's FSDP), which of the tensors they are pieces of counts, too;
and where ranks with alike pieces were found to differ, how long those tensors are, or then which.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.programs.rank_classes.grid import Grid, Members, Place, RankAxes
from windtunnel.studies.programs.rank_classes.uneven_shards import Tail

DIMENSIONS, LENGTHS, TENSORS = range(3)  # what tells pieces apart: of the tensor that they are of, or the tensor itself

MOST_DIMENSIONS = 64  # of a tensor

Pieces = tuple[tuple[int, ...], ...]  # of each buffer: what `FlatBuffer.pieces` gives


class FlatBuffer(NamedTuple):
    """A buffer of a group, as one member saw it."""

    members: Members
    part: int  # bytes that each member holds
    tensors: tuple[tuple[int, int, int], ...]  # first byte, the one behind the last, dimensions; in order

    def pieces(self, place: int, detail: int = DIMENSIONS) -> tuple[int, ...]:
        """Bytes of a member's part in which tensors lie, by number of dimensions (optimizers decay matrices alone), and
        what tells each from others.
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
                tensors.append((count, (end - begin) * MOST_DIMENSIONS + count, number)[detail])
        return *(covered[count] for count in sorted(covered)), *tensors

    def kinds(self) -> list[frozenset[tuple[int, int]]]:
        """Of each member's part the bytes and dimensions of tensors that lie in it, wherever they begin."""
        kinds: list[set[tuple[int, int]]] = [set() for _ in self.members]
        for begin, end, count in self.tensors:
            for held in kinds[begin // self.part : -(-end // self.part)]:
                held.add((end - begin, count))
        return [frozenset(held) for held in kinds]

    def is_lattice(self, grid: Grid) -> bool:
        """Whether its members are all ranks along some dimensions, in order."""
        full = prod(grid.sizes[d] for d in grid.span(self.members)) == len(self.members)
        return full and list(self.members) == sorted(self.members)

    def tail(self, detail: int = DIMENSIONS) -> Tail:
        """The places from which on members hold other pieces than the one before."""
        held = [self.pieces(place, detail) for place in range(len(self.members))]
        return self.members, [place for place in range(1, len(held)) if held[place] != held[place - 1]]


class TestedRanks(NamedTuple):
    """What tests of the source give on each rank, in place of what lies in its part of a buffer."""

    members: Members  # all ranks
    truths: tuple[tuple[int, ...], ...]

    def pieces(self, place: int, detail: int = DIMENSIONS) -> tuple[int, ...]:
        """Of one rank."""
        return self.truths[place]

    def is_lattice(self, grid: Grid) -> bool:
        """The world is one."""
        return True

    def tail(self, detail: int = DIMENSIONS) -> Tail:
        """The ranks on which a test gives something else than on the one before."""
        return self.members, [at for at in self.members[1:] if self.truths[at] != self.truths[at - 1]]


class RankParts:
    """What each rank holds of the buffers of a stage."""

    def __init__(self, layout: RankAxes, buffers: Iterable[FlatBuffer | TestedRanks], detail: int = DIMENSIONS) -> None:
        self._layout = layout
        self._held: list[tuple[tuple[int, ...], Callable[[int], tuple[int, ...]]]] = []  # (dimensions of the group, ..)
        self.tails: list[Tail] = []
        for buffer in dict.fromkeys(buffers):
            span = layout.grid.span(buffer.members)
            if buffer.is_lattice(layout.grid) and (tail := buffer.tail(detail))[1]:
                self.tails.append(tail)
                self._held.append((span, cache(partial(buffer.pieces, detail=detail))))

    def of_rank(self, rank: int) -> Pieces:
        """The pieces of each buffer."""
        grid = self._layout.grid
        coordinates = np.array(grid.coordinates(rank))
        return tuple(held(int(place_in(grid, span, coordinates))) for span, held in self._held)


def place_in(grid: Grid, span: Iterable[int], coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of ranks, by their coordinates, in their group along these dimensions."""
    place = np.zeros(coordinates.shape[:-1], np.int64)
    for d in span:
        place = place * grid.sizes[d] + coordinates[..., d]
    return place


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
