"""What a collective adds to a step of a calibrated CPU, where `collectives` says what one usually takes alone.

In a step the library's threads compete with those that compute, and a sum of many follows the mean. Between sizes
straight lines, never falling with the size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.communication.collectives import calibrated_points
from windtunnel.physics.cost.measured.interpolation import isotonic
from windtunnel.physics.hardware.cluster import Cluster


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
    sizes = points.shapes[:, 0]
    return InAStep(*(_on_line(sizes, of, bytes_total) for of in (points.waited, points.beside, points.queued)))


def _on_line(sizes: NDArray[np.int64], seconds: NDArray[np.float64], bytes_total: float) -> float:
    order = np.argsort(sizes, kind="stable")
    x, y = sizes[order].astype(np.float64), isotonic(seconds[order], 0)
    time_s = float(np.interp(bytes_total, x, y))
    return time_s * max(1.0, bytes_total / float(x[-1]))
