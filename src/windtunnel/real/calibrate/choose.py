"""Which shape to measure next: the one whose interpolation is least certain, weighed by its share of a step.

Between measured points a reader interpolates the ratio of measured time to roofline time in the space of log2 of the
shape. How wrong that is grows with the distance to the nearest point and with how fast the ratio changes there:

    uncertainty = distance * (floor + min(|log ratio_a - log ratio_b| / distance_ab, cap))

with a, b the two nearest points. Distances are root mean squares over the dimensions, so that ops of five sizes
do not take everything; the cap is there because a slope above it is noise.

Large shapes are where a step's time goes, cheap ones are quick to measure, so

    score = weight * uncertainty * (seconds / longest)^0.2 / sqrt(seconds to measure it + a fixed part) / points^1.5

where `points` are those the curve has already: what is fitted to them gets better with each, everywhere.

A curve starts with its cheapest, its middle and its dearest affordable shape, so that measuring may stop at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.real.calibrate.kinds import KINDS, STORED_AS, Curve, Shape

_FLOOR = 0.05  # log-ratio change per octave that is assumed even where two points agree
_STEEPEST = 0.5  # log-ratio change per octave that is believed
_CROWDING = 1.5  # exponent of the number of points that a curve has
_MATRIX_KINDS = ("gemm", "grouped_gemm", "attention")
_LINEAR_SHARE = 0.4  # of the longest call, for ops whose time is plain proportion long before
_FIXED_S = 0.05  # of measuring a point, besides its calls
_CALLS = 6  # of a point, warm-up included
_SIZE_EXPONENT = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """What a single point may cost."""

    call_s: float
    held_bytes: float


@dataclass(frozen=True, slots=True)
class Rates:
    """First guesses of what the device reaches, from a probe."""

    flops_per_s: Mapping[str, float]  # by dtype
    bytes_per_s: float
    launch_s: float

    def roofline_s(self, curve: Curve, shape: Shape) -> float:
        """Seconds if every byte and FLOP ran at the probed rates."""
        flops, moved, _ = KINDS[curve.kind].cost(curve.phase, shape, curve.dtype)
        return (
            max(flops / self.flops_per_s[STORED_AS.get(curve.dtype, curve.dtype)], moved / self.bytes_per_s)
            + self.launch_s
        )


@dataclass(slots=True)
class Progress:
    """The measured points of one curve, and which of its shapes are still worth a measurement."""

    curve: Curve
    shapes: list[Shape]
    places: NDArray[np.float64]  # log2 of each shape
    roofline_s: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    seconds: dict[int, float] = field(default_factory=dict)  # shape index -> measured
    refused: set[int] = field(default_factory=set)  # out of memory
    _best: tuple[float, int] | None = None

    @classmethod
    def start(cls, curve: Curve, rates: Rates) -> Progress:
        """The progress of a curve with no points yet."""
        kind = KINDS[curve.kind]
        shapes = list(kind.shapes())
        return cls(
            curve,
            shapes,
            np.log2(np.array(shapes, dtype=np.float64)),
            np.array([rates.roofline_s(curve, shape) for shape in shapes]),
            np.array([kind.cost(curve.phase, shape, curve.dtype)[2] for shape in shapes]),
        )

    def add(self, shape: Shape, seconds: float | None) -> None:
        """A measured point, or None for a shape that did not fit in memory."""
        at = self.shapes.index(shape)
        if seconds is None:
            self.refused.add(at)
        else:
            self.seconds[at] = seconds
        self._best = None

    def expected_s(self) -> NDArray[np.float64]:
        """Seconds of every shape: roofline times the ratio of the nearest measured point, the largest early on."""
        if not self.seconds:
            return self.roofline_s * 4.0  # nothing known: be careful
        points = np.array(list(self.seconds))
        ratios = np.array([self.seconds[at] for at in points]) / self.roofline_s[points]
        if len(points) < 3:
            return np.asarray(self.roofline_s * max(float(ratios.max()), 1.5))
        distance = np.linalg.norm(self.places[:, None, :] - self.places[None, points, :], axis=-1)
        return np.asarray(self.roofline_s * ratios[distance.argmin(axis=1)])

    def best(self, limits: Limits) -> tuple[float, int] | None:
        """Score and index of the shape to measure next; None when no affordable shape is left."""
        if self._best is None:
            self._best = self._search(limits)
        return self._best if self._best[1] >= 0 else None

    def _search(self, limits: Limits) -> tuple[float, int]:
        expected = self.expected_s()
        longest = limits.call_s * (1.0 if self.curve.kind in _MATRIX_KINDS else _LINEAR_SHARE)
        open_ = (expected <= longest) & (self.held_bytes <= limits.held_bytes)
        for at in self.refused:  # neither that shape nor a larger one
            open_ &= ~(self.places >= self.places[at]).all(axis=1)
        open_[list(self.seconds)] = False
        if not open_.any():
            return (0.0, -1)
        weight = KINDS[self.curve.kind].weights[self.curve.phase]
        if len(self.seconds) < 3:  # the core: cheapest, dearest, middle
            order = np.flatnonzero(open_)[np.argsort(expected[open_], kind="stable")]
            at = (order[0], order[int(len(order) * 0.6)], order[-1])[len(self.seconds)]
            return (math.inf, int(at))
        cost = expected * _CALLS + _FIXED_S
        size = (expected / max(expected[open_].max(), 1e-9)) ** _SIZE_EXPONENT
        score = np.where(open_, weight * self.uncertainty() * size / np.sqrt(cost), -1.0)
        score /= len(self.seconds) ** _CROWDING
        at = int(score.argmax())
        return (float(score[at]), at)

    def uncertainty(self) -> NDArray[np.float64]:
        """How far off interpolation may be at each shape, in log time."""
        points = np.array(list(self.seconds))
        ratios = np.log(np.array([self.seconds[at] for at in points]) / self.roofline_s[points])
        distance = np.linalg.norm(self.places[:, None, :] - self.places[None, points, :], axis=-1)
        nearest = np.argsort(distance, axis=1, kind="stable")[:, :2]
        first, second = nearest[:, 0], nearest[:, 1]
        apart = np.linalg.norm(self.places[points[first]] - self.places[points[second]], axis=-1)
        slope = np.abs(ratios[first] - ratios[second]) / np.maximum(apart, 0.5)
        reach = distance[np.arange(len(distance)), first] / math.sqrt(self.places.shape[1])
        return np.asarray(reach * (_FLOOR + np.minimum(slope, _STEEPEST)))


def next_point(progress: Sequence[Progress], limits: Limits) -> tuple[Progress, Shape] | None:
    """The most useful point of all curves: cores first (fewest points first), then by score; None when all is done."""
    choice: tuple[tuple[float, float], Progress, int] | None = None
    for curve_progress in progress:
        best = curve_progress.best(limits)
        if best is None:
            continue
        score, at = best
        rank = (score, -float(len(curve_progress.seconds)) if math.isinf(score) else 0.0)
        if choice is None or rank > choice[0]:
            choice = (rank, curve_progress, at)
    return None if choice is None else (choice[1], choice[1].shapes[choice[2]])
