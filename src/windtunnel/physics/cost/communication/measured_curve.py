"""Seconds over bytes for one collective as timed on the device at hand.

Between sizes the time is a straight line in bytes, which latency plus bytes over bandwidth is; in the logs it would
bend (every other size of the NCCL tables hidden, the mean error is 3.1 to 6.2 % so, 3.9 to 7.1 % in the logs). It never
falls with the size: a smaller message that took longer was disturbed, and isotonic regression averages it with its
neighbours. Beyond the sizes the time follows
alpha + beta x bytes, fitted to all of them, from the last one on.

The band is that of single runs at the two neighbours, joined with how well points are predicted from their neighbours;
10 % more per factor e beyond the sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from windtunnel.physics.cost.measured.fitting import relative_nnls
from windtunnel.physics.cost.measured.interpolation import isotonic
from windtunnel.physics.hardware.calibration import Points

_RUN_TO_BAND = 1.645 / 1.282  # from the 10th and 90th percentile to the 5th and 95th
_OUTSIDE_BAND = 0.10


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """One collective on one number of ranks."""

    bytes_total: tuple[float, ...]
    seconds: tuple[float, ...]
    low: tuple[float, ...]  # log of the 5th percentile over the median
    high: tuple[float, ...]
    between: float  # log half-width: how far points lie from the line through their neighbours
    alpha_s: float
    beta_s_per_byte: float

    def at(self, size: float) -> tuple[float, float, tuple[float, float]]:
        """Seconds, distance beyond the measured sizes in logs, and the band as factors."""
        sizes = self.bytes_total
        if not sizes[0] <= size <= sizes[-1]:
            edge = 0 if size < sizes[0] else len(sizes) - 1
            near = max(self._line(sizes[edge]), 1e-30)
            seconds = max(self.seconds[edge] * self._line(size) / near, 0.5 * self.seconds[0])
            distance = abs(math.log(max(size, 1.0) / sizes[edge]))
            return seconds, distance, self._band(edge, edge, self.between + _OUTSIDE_BAND * distance)
        place = bisect_right(sizes, size)
        if sizes[place - 1] == size:
            return self.seconds[place - 1], 0.0, self._band(place - 1, place - 1, 0.0)
        weight = (size - sizes[place - 1]) / (sizes[place] - sizes[place - 1])
        seconds = (1.0 - weight) * self.seconds[place - 1] + weight * self.seconds[place]
        return seconds, 0.0, self._band(place - 1, place, self.between)

    def _line(self, size: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * size

    def _band(self, below: int, above: int, extra: float) -> tuple[float, float]:
        low = math.hypot(min(self.low[below], self.low[above]), extra)
        high = math.hypot(max(self.high[below], self.high[above]), extra)
        return math.exp(-low), math.exp(high)


def measured_curve(points: Points) -> MeasuredCurve:
    """The curve through measured sizes; rows that repeat a size count as their median."""
    sizes = np.unique(points.shapes[:, 0])
    rows = [np.flatnonzero(points.shapes[:, 0] == size) for size in sizes]
    logs = np.array([np.median(np.log(points.seconds[row])) for row in rows])
    low = [float(np.log(points.low[row] / points.seconds[row]).min()) * _RUN_TO_BAND for row in rows]
    high = [float(np.log(points.high[row] / points.seconds[row]).max()) * _RUN_TO_BAND for row in rows]
    x, smooth = np.log(sizes.astype(np.float64)), isotonic(logs, 0)
    between = 0.05
    if len(x) >= 3:
        times, bytes_ = np.exp(logs), np.exp(x)
        weight = (bytes_[1:-1] - bytes_[:-2]) / (bytes_[2:] - bytes_[:-2])
        off = np.abs(logs[1:-1] - np.log((1.0 - weight) * times[:-2] + weight * times[2:]))
        between = max(0.02, float(np.quantile(off, 0.9)))
    seconds = np.exp(smooth)
    terms = np.stack([np.ones(len(x)), np.exp(x)], axis=1)
    alpha, beta = relative_nnls(terms, seconds)
    return MeasuredCurve(
        tuple(float(size) for size in sizes),
        tuple(float(value) for value in seconds),
        tuple(low),
        tuple(high),
        between,
        float(alpha),
        float(beta),
    )
