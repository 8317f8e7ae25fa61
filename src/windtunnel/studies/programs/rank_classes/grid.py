"""Ranks as points of a grid, found from the groups that one rank was seen in.

Layouts of parallel training are lattices: tensor-parallel groups are 8 neighbours, data-parallel groups lie 8 apart,
and so on. Every group whose members lie so adds two cuts, its stride and its stride times its size; where all cuts
divide one another, consecutive cuts are the dimensions:

    coordinate of rank r along dimension d = (r // stride_d) mod size_d

which needs no DeviceMesh, and finds Megatron's groups as well as torchtitan's. Meshes of the whole world add their cuts
and the dimensions' names. Groups that fit no lattice (first and last stage) take part as they are.

`RankAxes`: the grid split into dimensions that are run in full and axes along which programs change at few places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

Members = tuple[int, ...]
Mesh = tuple[tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Grid:
    """Dimensions from the slowest-varying to the fastest: the product of `sizes` is the world size."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between neighbours along each dimension."""
        strides, stride = [], 1
        for size in reversed(self.sizes):
            strides.append(stride)
            stride *= size
        return tuple(reversed(strides))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinates of one rank."""
        return tuple(rank // stride % size for stride, size in zip(self.strides, self.sizes, strict=True))

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank at these coordinates."""
        return sum(place * stride for place, stride in zip(coordinates, self.strides, strict=True))

    def span(self, members: Members) -> tuple[int, ...]:
        """Dimensions along which the members of a group differ."""
        return tuple(
            dimension
            for dimension, (stride, size) in enumerate(zip(self.strides, self.sizes, strict=True))
            if len({rank // stride % size for rank in members}) > 1
        )

    def members_for(self, rank: int, members: Members) -> Members:
        """The group that `rank` has where its representative has `members`: the same, moved to this rank's place."""
        strides, sizes = self.strides, self.sizes
        span = self.span(members)
        fixed = rank - sum(rank // strides[d] % sizes[d] * strides[d] for d in span)
        return tuple(fixed + sum(member // strides[d] % sizes[d] * strides[d] for d in span) for member in members)

    def label(self, rank: int) -> str:
        """`pp 3, dp 0, tp 7`."""
        pairs = zip(self.names, self.coordinates(rank), strict=True)
        return ", ".join(f"{name} {place}" for name, place in pairs)


def find_grid(world_size: int, groups: Iterable[Members], meshes: Iterable[Mesh] = ()) -> Grid:
    """The coarsest grid in which all these groups are lattices; of those that clash, the larger are kept."""
    whole = [(names, sizes) for names, sizes in meshes if prod(sizes) == world_size]
    cuts = {1, world_size}
    for members in sorted({tuple(group) for group in groups}, key=lambda group: (-len(group), group)):
        wanted = {cut for stride, size in _lattice(members) for cut in (stride, stride * size)}
        if _is_chain(cuts | wanted):
            cuts |= wanted
    for _, sizes in whole:
        wanted, cut = set(), world_size
        for size in sizes:
            cut //= max(size, 1)
            wanted.add(cut)
        if _is_chain(cuts | wanted):
            cuts |= wanted
    ordered = sorted(cuts, reverse=True)
    sizes = tuple(upper // lower for upper, lower in pairwise(ordered)) or (1,)
    return Grid(sizes, _names(world_size, sizes, ordered[1:] or [1], whole))


def _names(world_size: int, sizes: tuple[int, ...], strides: Sequence[int], whole: Sequence[Mesh]) -> tuple[str, ...]:
    name_of: dict[tuple[int, int], str] = {}
    for names, lengths in whole:
        stride = world_size
        for name, length in zip(names, lengths, strict=False):
            stride //= max(length, 1)
            name_of.setdefault((stride, length), name)
    if len(sizes) == 1:
        return (name_of.get((strides[0], sizes[0]), "rank"),)
    axis_names = [name_of.get((stride, size)) or f"by {stride}" for stride, size in zip(strides, sizes, strict=True)]
    return tuple(name if axis_names.count(name) == 1 else f"{name} #{at}" for at, name in enumerate(axis_names))


def _lattice(members: Members) -> tuple[tuple[int, int], ...]:
    """(stride, size) of each dimension of a group whose members are a full lattice, smallest stride first; else ()."""
    if len(members) < 2:
        return ()
    ordered = sorted(members)
    lattice: list[tuple[int, int]] = []
    at, length = 1, len(ordered)
    while at < length:  # ordered[:at] is a lattice already; how often is it repeated, and how far apart?
        stride = ordered[at] - ordered[0]
        repeats = 1
        while (repeats + 1) * at <= length and ordered[repeats * at] - ordered[0] == repeats * stride:
            repeats += 1
        block = [rank - ordered[0] for rank in ordered[:at]]
        for turn in range(1, repeats):
            start = ordered[0] + turn * stride
            if [rank - start for rank in ordered[turn * at : (turn + 1) * at]] != block:
                return ()
        if repeats < 2 or length % (at * repeats):
            return ()
        lattice.append((stride, repeats))
        at *= repeats
    return tuple(lattice)


def _is_chain(cuts: Iterable[int]) -> bool:
    ordered = sorted(cuts)
    return all(upper % lower == 0 for lower, upper in pairwise(ordered))


Place = tuple[int, ...]


@dataclass(frozen=True)
class RankAxes:
    """Which dimensions of the grid are run in full; the others are axes."""

    grid: Grid
    exact: tuple[int, ...]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that are not exact."""
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

    def places(self) -> Iterator[Place]:
        """Every combination of places along the axes."""
        return product(*map(range, self.lengths))

    def stages(self) -> list[Place]:
        """Every combination of exact coordinates."""
        return list(product(*(range(self.grid.sizes[d]) for d in self.exact)))
