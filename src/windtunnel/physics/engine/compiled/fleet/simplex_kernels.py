"""Compiled linear interpolation over triangulations of points in space, as scipy's `LinearNDInterpolator` does it.

The same simplex as scipy's is found, by the same walk: at a point on the border of several, values can differ where one
of them is nearly flat. Source: scipy, spatial/_qhull.pyx `_find_simplex` (BSD), as rules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array

INSIDE, NEARLY = 100 * 2.220446049250313e-16, 1.4901161193847656e-08  # of a simplex, or of one beside a flat one
D = 3


class Surfaces(NamedTuple):
    """Triangulations one after the other: scipy's `Delaunay` arrays, neighbours counted from the first."""

    transforms: Array  # f64[n, 4, 3]
    planes: Array  # f64[n, 5]
    neighbours: Array  # i64[n, 4]; -1: none
    values: Array  # f64[n, 4, 2]: two values at each corner
    lifts: Array  # f64[surfaces, 2]: scale and shift of the paraboloid
    begins: Array  # i64[surfaces + 1]


@njit(cache=True)
def _weight(t: Array, x: Array, k: int, c: Array) -> None:
    """Coordinate `k` of a point in a simplex, after those before it."""
    if k == D:
        c[D] = 1.0
        for at in range(D):
            c[D] -= c[at]
        return
    c[k] = 0.0
    for at in range(D):
        c[k] += t[k, at] * (x[at] - t[D, at])


@njit(cache=True)
def _holds(s: Surfaces, at: int, beside: int, x: Array, c: Array) -> bool:
    """Whether a simplex holds a point, towards the flat one `beside` (-1: none) also one that lies a little outside."""
    inside = True
    for k in range(D + 1):
        _weight(s.transforms[at], x, k, c)
        inside &= -(NEARLY if beside >= 0 and s.neighbours[at, k] == beside else INSIDE) <= c[k] <= 1.0 + INSIDE
    return inside


@njit(cache=True)
def _search(s: Surfaces, which: int, x: Array, c: Array) -> int:
    """Try all simplices, and in a flat one's place those beside it."""
    for at in range(s.begins[which], s.begins[which + 1]):
        if not np.isnan(s.transforms[at, 0, 0]):
            if _holds(s, at, -1, x, c):
                return at
            continue
        for k in range(D + 1):
            near: int = s.neighbours[at, k]
            if near >= 0 and not np.isnan(s.transforms[near, 0, 0]) and _holds(s, near, at, x, c):
                return near
    return -1


@njit(cache=True)
def _height(s: Surfaces, at: int, x: Array, lifted: float) -> float:
    """Of a point of the paraboloid over the plane of a simplex."""
    height: float = s.planes[at, D + 1]
    for axis in range(D):
        height += s.planes[at, axis] * x[axis]
    height += s.planes[at, D] * lifted
    return height


@njit(cache=True)
def _find(s: Surfaces, which: int, x: Array, c: Array) -> int:
    """The simplex that holds a point, -1 where there is none; its weights go into `c`."""
    at, end = s.begins[which], s.begins[which + 1]
    lifted = (x * x).sum() * s.lifts[which, 0] + s.lifts[which, 1]
    best, changed = _height(s, at, x, lifted), True
    while changed and best <= 0:
        changed = False
        for k in range(D + 1):
            near = s.neighbours[at, k]  # of the one moved to meanwhile
            if near >= 0 and _height(s, near, x, lifted) > best + INSIDE * (1.0 + abs(best)):
                at, changed = near, True
                best = _height(s, at, x, lifted)
    for _ in range(1 + (end - s.begins[which]) // 4):
        moved, inside = False, True
        for k in range(D + 1):
            _weight(s.transforms[at], x, k, c)
            if c[k] < -INSIDE:
                at, moved = s.neighbours[at, k], True
                break
            inside &= c[k] <= 1.0 + INSIDE  # not where it is flat: not a number
        if at < 0:
            return -1
        if not moved:
            return at if inside else _search(s, which, x, c)
    return _search(s, which, x, c)


@njit(cache=True)
def interpolate(s: Surfaces, which: int, x: Array, out: Array) -> None:
    """Two values at a point, f64[3], into `out`: not a number outside the points."""
    out[:] = np.nan
    if s.begins[which] == s.begins[which + 1]:
        return
    c = np.empty(D + 1)
    at = _find(s, which, x, c)
    if at >= 0:
        for column in range(2):
            out[column] = 0.0
            for k in range(D + 1):
                out[column] += c[k] * s.values[at, k, column]
