"""A torus of chips: the slice of it that a job gets, and how the members of a group lie on its axes.

A slice is a box of chips. An axis of it is a ring where it is as long as the torus, or, where optical switches join
cubes, in every slice of whole cubes; else it is a line, whose ends have one neighbour. Ranks follow chips along the
first axis, then the second. Google's shapes ("TPU v5p", "TPU v6e" in its documentation) are what `slice_of` gives: the
most compact box, of whole cubes where that can be.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

from windtunnel.errors import SpecError

SHAPE = re.compile(r"\d{1,5}(x\d{1,5}){0,2}")


class Links(Protocol):
    """What of a `cluster.Link` says how a torus is wired."""

    @property
    def torus(self) -> str | None:
        """Chips along each axis, as text."""

    @property
    def cube(self) -> int | None:
        """Chips of an axis of the cubes that switches join."""

    @property
    def slice(self) -> str | None:
        """The shape that was asked for."""

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """All links of a chip, one way."""

    @property
    def to_one_peer_bytes_per_s(self) -> float:
        """One link, one way."""


class Axis(NamedTuple):
    """Chips in a row, each with a link to the next one; bytes per second of one link, one way."""

    length: int
    bytes_per_s: float
    ring: bool


class Extent(NamedTuple):
    """How a group lies along one axis: every `gap`-th chip, `members` of them. Groups between them share its links."""

    members: int
    gap: int
    bytes_per_s: float  # of one link, one way, that are left to this group
    ring: bool

    @property
    def links(self) -> int:
        """Links of this axis that bring data to the worst member: two in a ring, one at the end of a line."""
        return 0 if self.members == 1 else 2 if self.ring else 1

    @property
    def hops(self) -> int:
        """Links between the two members that are furthest apart."""
        return self.gap * (self.members // 2 if self.ring else self.members - 1)

    @property
    def crossing(self) -> float:
        """Of what each member sends to all members alike, the part that the busiest link carries, one way."""
        n = self.members
        if self.ring:  # a quarter of the ring on average, over two links
            return (n * n - n % 2) / (8.0 * n)
        return (n // 2) * (n - n // 2) / n  # all from one half to the other


def shape_of(text: str, name: str) -> tuple[int, ...]:
    """`16x16` as numbers. Raises SpecError."""
    if not SHAPE.fullmatch(text) or not all(shape := tuple(map(int, text.split("x")))):
        raise SpecError(name, text[:40], "give the chips along each of one to three axes, such as 16x20x28")
    return shape


def axis_rates(link: Links) -> tuple[float, ...]:
    """Bytes per second of one link of each axis, one way: the last axis has what the others leave of `bandwidth`."""
    assert link.torus is not None
    axes = len(shape_of(link.torus, "torus"))
    fast = link.to_one_peer_bytes_per_s
    return (*[fast] * (axes - 1), link.bandwidth_bytes_per_s / 2.0 - (axes - 1) * fast)


def check_torus(link: Links) -> None:
    """Raise SpecError unless `torus`, `cube` and `slice` of a link fit its rates and each other."""
    for name in ("cube", "slice"):
        if link.torus is None and getattr(link, name) is not None:
            raise SpecError(name, getattr(link, name), "is of a torus; give `torus`, such as 16x16, as well")
    if link.torus is None:
        return
    if link.cube is not None and link.cube < 1:
        raise SpecError("cube", link.cube, "must be a whole number of at least 1")
    shape = shape_of(link.torus, "torus")
    rate = axis_rates(link)[-1]
    if not 0.0 < rate <= link.to_one_peer_bytes_per_s * 1.001:
        remedy = f"`bandwidth` is of two links on each of {len(shape)} axes, none of which is above `peer_bandwidth`"
        raise SpecError("torus", link.torus, remedy)
    if link.slice is not None:
        sides = shape_of(link.slice, "slice")
        longest = sorted(shape)
        if link.cube is not None and all(d % link.cube == 0 for d in sides):  # switches join cubes in any shape
            longest = [math.prod(shape) // math.prod(sides) * d for d in sorted(sides)]
        if len(sides) != len(shape) or any(d > most for d, most in zip(sorted(sides), longest, strict=True)):
            raise SpecError("slice", link.slice, f"does not lie in the torus, {link.torus}")


@lru_cache(maxsize=1024)
def slice_of(link: Links, chips: int) -> tuple[Axis, ...]:
    """The axes of the slice of `chips` chips: the one that `link.slice` says if it has as many, else the most compact.

    Axes that are slower than the first are filled last. Chips that fill no box lie in the smallest that holds them.
    """
    assert link.torus is not None
    shape, rates = shape_of(link.torus, "torus"), axis_rates(link)
    alike = math.isclose(rates[-1], rates[0], rel_tol=0.01)
    sides = None if link.slice is None else shape_of(link.slice, "slice")
    if sides is None or math.prod(sides) != chips:
        most = tuple(sorted(shape)) if alike else shape
        boxes: list[tuple[int, ...]] = []
        for size in itertools.count(min(chips, math.prod(shape))):
            boxes = [box for box in _boxes(size, most) if not alike or box == tuple(sorted(box))]
            if boxes:
                break
        cube = link.cube or 1
        sides = min(boxes, key=lambda box: (any(d % cube for d in box), 0 if alike else box[-1], sum(box)))
    whole = link.cube is not None and all(d % link.cube == 0 for d in sides)
    full = sorted(shape) if alike else shape
    return tuple(
        Axis(d, rate, d > 2 and (whole or (link.cube is None and d == most)))
        for d, rate, most in zip(sides, rates, full, strict=True)
    )


def _boxes(chips: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All boxes of exactly `chips`, no axis longer than `most`."""
    if len(most) == 1:
        if chips <= most[0]:
            yield (chips,)
        return
    for d in range(1, min(chips, most[0]) + 1):
        if chips % d == 0:
            for rest in _boxes(chips // d, most[1:]):
                yield (d, *rest)


def extents(axes: tuple[Axis, ...], members: int, stride: int) -> tuple[Extent, ...]:
    """How every `stride`-th chip, `members` of them, lie on each axis. Beside each such group lie others like it."""
    on_axes, before, left = [], 1, members
    for axis in axes:
        gap = max(1, stride // before)
        fit = 1 if gap >= axis.length else -(-axis.length // gap)
        here = min(left, fit)
        closed = axis.ring and here > 1 and here * gap >= axis.length
        on_axes.append(Extent(here, min(gap, axis.length), axis.bytes_per_s / min(gap, axis.length), closed))
        before, left = before * axis.length, -(-left // here)
    return tuple(on_axes)


def steps_between(axes: tuple[Axis, ...], distance: int) -> tuple[int, ...]:
    """Links on each axis on the shorter way from a chip to the one `distance` ranks on."""
    steps = []
    for axis in axes:
        distance, step = divmod(distance, axis.length)
        steps.append(min(step, axis.length - step) if axis.ring else step)
    return tuple(steps)
