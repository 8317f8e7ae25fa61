"""What a collective adds to a step of a calibrated CPU, where `collectives` says what one usually takes alone.

In a step the library's threads compete with those that compute, and a sum of many follows the mean. Which of them wait
for the scheduler's tick (4 ms) is chance, and few dozens of repetitions at a size leave some tenths of a millisecond of
that. How often they do hardly changes from one size to the next, so what is added beyond the quickest tenth alone is
averaged with its neighbours, an octave up and down, in units of these seconds and a millisecond.

Between sizes straight lines, never falling with the size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.collectives import calibrated_points
from windtunnel.cost.interpolation import isotonic
from windtunnel.hardware.cluster import Cluster

_REACH = 1.0  # octaves, of the average
_CHANCE_S = 1e-3  # chance scatters a short one by a constant time, a long one by a share of its own

Array = NDArray[np.float64]


class InAStep(NamedTuple):
    """Seconds that a collective adds to a step."""

    waited: float  # by a rank that stands still for it
    beside: float  # to what a rank computes meanwhile
    queued: float  # to a queue of its group, whose threads are awake


def in_a_step(kind: str, bytes_total: float, size: int, cluster: Cluster) -> InAStep | None:
    """What a collective of so many bytes on so many ranks adds to a step, where that was measured."""
    points = None if cluster.calibration is None else calibrated_points(kind, size, cluster.calibration)
    if points is None or points.waited is None or points.beside is None or points.queued is None:
        return None
    order = np.argsort(points.shapes[:, 0], kind="stable")
    sizes, alone = points.shapes[order, 0].astype(np.float64), points.low[order]
    added = (averaged(sizes, of[order], alone) for of in (points.waited, points.beside, points.queued))
    return InAStep(*(_on_line(sizes, seconds, bytes_total) for seconds in added))


def averaged(sizes: Array, added: Array, alone: Array) -> Array:
    """`added` seconds of each size, with what is beyond `alone` averaged over neighbouring sizes."""
    octaves, unit = np.log2(sizes), alone + _CHANCE_S
    weights = np.exp(-0.5 * ((octaves[:, None] - octaves[None, :]) / _REACH) ** 2)
    beyond = weights @ ((added - alone) / unit) / weights.sum(axis=1)
    return np.asarray(np.maximum(0.0, alone + beyond * unit))


def _on_line(sizes: Array, seconds: Array, bytes_total: float) -> float:
    found = float(np.interp(bytes_total, sizes, isotonic(seconds, 0)))
    return found * max(1.0, bytes_total / float(sizes[-1]))
