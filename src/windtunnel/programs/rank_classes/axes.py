"""The grid of ranks, split into dimensions that are run in full and axes along which programs change at few places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from windtunnel.programs.rank_classes.grid import Grid

Place = tuple[int, ...]


@dataclass(frozen=True)
class RankAxes:
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
