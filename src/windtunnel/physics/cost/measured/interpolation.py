"""Monotone interpolation of measured times on a grid, in log space.

A kernel's time is `speed-of-light / utilisation`. On a grid that is regular in the logarithm of its dimensions, linear
interpolation of log(utilisation) between neighbours is the same as linear interpolation of log(time), because the log
of the speed of light (2mnk FLOPs) is itself linear there. So times are stored, and two laws come for free:

* multilinear interpolation never falls along an axis if the grid never does, and the grid never does because it has
  passed through isotonic regression, axis by axis (least squares in log time; being order-preserving, the regression
  along one axis keeps the order along those before it);
* beyond the last node an axis continues with a fixed slope: 1 above (utilisation is clamped at the edge), 0 below
  (a tile is a tile: a smaller problem is no faster).

Measured times do fall here and there (wave quantisation, clocks, a lucky kernel choice). Isotonic regression averages
those over the neighbours; how far that moves a cell is part of the stated band.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable


Array = NDArray[np.float64]
BAND_EDGES_S = (20e-6, 200e-6)  # kernels shorter, between and longer scatter differently: one band each
# A band that is to hold 90 % of what it has not seen must hold more of what it was set by: where 8 % of that are left
# out, 8 to 9 % of bf16's held-out kernels lie outside (validation/kernels.py).
OUTER = 0.04


class Reading(NamedTuple):
    """What a grid says at one point."""

    log_value: float
    between: float  # 0 on a node, 1 half way between two nodes of the axis where that is worst
    outside: float  # how far beyond the grid, in log units summed over axes (log 2 = twice as large)


@dataclass(frozen=True, eq=False)
class LogGrid:
    """log(time in seconds) over the logs of its axes, never falling along any of them."""

    axes: tuple[tuple[float, ...], ...]  # node coordinates, already in log
    log_time: NDArray[np.float32]
    slopes_above: tuple[float, ...]  # d log time / d log x beyond the last node, by axis
    slopes_below: tuple[float, ...]  # and before the first

    @property
    def shortest_s(self) -> float:
        """Of all nodes: of a kernel that has next to nothing to do."""
        return math.exp(self._flat[0])

    @cached_property
    def _flat(self) -> list[float]:
        return [float(value) for value in self.log_time.ravel()]

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        shape = self.log_time.shape
        return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    def read(self, point: Sequence[float]) -> Reading:
        """The grid at `point` (log coordinates): multilinear inside, fixed slopes outside."""
        flat, base, outside, between, beyond = self._flat, 0, 0.0, 0.0, 0.0
        steps: list[tuple[int, float]] = []
        for axis, x in enumerate(point):
            nodes, stride = self.axes[axis], self._strides[axis]
            if x <= nodes[0]:
                outside += nodes[0] - x
                beyond += (x - nodes[0]) * self.slopes_below[axis]
            elif x >= nodes[-1]:
                outside += x - nodes[-1]
                beyond += (x - nodes[-1]) * self.slopes_above[axis]
                base += (len(nodes) - 1) * stride
            else:
                index = bisect_right(nodes, x) - 1
                base += index * stride
                weight = (x - nodes[index]) / (nodes[index + 1] - nodes[index])
                if weight > 0.0:
                    steps.append((stride, weight))
                    between = max(between, 2.0 * min(weight, 1.0 - weight))
        total = 0.0
        if len(steps) == 3:  # the common case, unrolled: a query must take microseconds
            (s0, w0), (s1, w1), (s2, w2) = steps
            for start, share in ((base, 1.0 - w2), (base + s2, w2)):
                low = (1.0 - w1) * flat[start] + w1 * flat[start + s1]
                high = (1.0 - w1) * flat[start + s0] + w1 * flat[start + s0 + s1]
                total += share * ((1.0 - w0) * low + w0 * high)
        else:
            for corner in product((0, 1), repeat=len(steps)):
                index, weight = base, 1.0
                for high, (stride, share) in zip(corner, steps, strict=True):
                    index += stride if high else 0
                    weight *= share if high else 1.0 - share
                total += weight * flat[index]
        return Reading(total + beyond, between, outside)


def isotonic(values: Array, axis: int) -> Array:
    """The closest (least squares) array that never falls along `axis`.

    By the min-max formula, over all other axes at once: fit[i] = max over a<=i of min over b>=i of mean(values[a..b]).
    """
    columns = np.moveaxis(values, axis, 0)
    length = columns.shape[0]
    sums = np.concatenate([np.zeros((1, *columns.shape[1:])), np.cumsum(columns, axis=0)])
    fit = np.full(columns.shape, -np.inf)
    for start in range(length):
        counts = np.arange(1, length - start + 1).reshape(-1, *([1] * (columns.ndim - 1)))
        means = (sums[start + 1 :] - sums[start]) / counts
        least = np.minimum.accumulate(means[::-1], axis=0)[::-1]
        fit[start:] = np.maximum(fit[start:], least)
    return np.moveaxis(fit, 0, axis)


def monotone(values: Array) -> Array:
    """`values` after isotonic regression along every axis in turn."""
    for axis in range(values.ndim):
        values = isotonic(values, axis)
    return values


def filled(values: Array, axes: Sequence[Array], along: Sequence[int]) -> Array:
    """`values` with each NaN replaced by the mean of linear interpolations along the axes in `along`.

    Beyond the outermost known node a line continues with slope 1 above and 0 below, as `LogGrid` does. A gap that no
    line crosses is filled on a later pass, from cells filled before it.
    """
    values = values.copy()
    for _ in range(values.size):
        if not np.isnan(values).any():
            return values
        total, count = np.zeros(values.shape), np.zeros(values.shape)
        for axis in along:
            guess = _along(values, np.asarray(axes[axis]), axis)
            has_guess = ~np.isnan(guess)
            total[has_guess] += guess[has_guess]
            count += has_guess
        gaps = np.isnan(values) & (count > 0)
        if not gaps.any():
            raise ValueError("nothing is known on any line through the gap")
        values[gaps] = total[gaps] / count[gaps]
    return values


def _along(values: Array, nodes: Array, axis: int) -> Array:
    """Linear interpolation of each line's gaps from its own known nodes; a line with none stays NaN."""
    lines = np.moveaxis(values, axis, -1)
    guess = np.full(lines.shape, np.nan)
    for place in np.ndindex(*lines.shape[:-1]):
        line = lines[place]
        has_value = ~np.isnan(line)
        if not has_value.any():
            continue
        if has_value.all():
            guess[place] = line
            continue
        line_guess = np.interp(nodes, nodes[has_value], line[has_value])
        last = int(np.flatnonzero(has_value)[-1])
        line_guess[last + 1 :] += nodes[last + 1 :] - nodes[last]
        guess[place] = line_guess
    return np.moveaxis(guess, -1, axis)


def quantile_pair(log_errors: Array) -> tuple[float, float]:
    """The band of some log errors, a share OUTER of them beyond either side; (0, 0) of none."""
    if log_errors.size == 0:
        return 0.0, 0.0
    low, high = np.quantile(log_errors, (OUTER, 1.0 - OUTER))
    return float(low), float(high)


def as_axis(values: Iterable[float]) -> tuple[float, ...]:
    """Node coordinates as plain floats, for `LogGrid.axes`."""
    return tuple(float(value) for value in values)
