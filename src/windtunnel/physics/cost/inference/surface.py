"""Times over one or two sizes, straight lines between the measured sizes.

A memory-bound kernel is a + b x bytes, and bytes grow with the product of batch and context: bilinear interpolation in
the sizes themselves gives that back exactly, where logs would bend it. Measured times are made monotone first: a
larger batch or a longer context never takes less. Beyond the last node a line goes on as it came from a quarter of it,
since two neighbours alone may be noise, and at half of its mean at least: work is still work there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.measured.interpolation import monotone

Array = NDArray[np.float64]
FAR_BATCH, FAR_CONTEXT = 16384.0, float(1 << 24)
STRETCH = 0.25  # of the last node: where the line that goes on beyond it comes from


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds over one size."""

    nodes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, size: float) -> float:
        """Seconds at `size`; the first node's below it."""
        nodes, seconds = self.nodes, self.seconds
        if size <= nodes[0] or len(nodes) == 1:
            return seconds[0] * max(1.0, size / nodes[0]) if len(nodes) == 1 else seconds[0]
        if size > nodes[-1]:
            before = max(0, bisect_right(nodes, STRETCH * nodes[-1]) - 1)
            slope = (seconds[-1] - seconds[before]) / (nodes[-1] - nodes[before])
            return seconds[-1] + max(slope, 0.5 * seconds[-1] / nodes[-1]) * (size - nodes[-1])
        place = min(bisect_right(nodes, size), len(nodes) - 1)
        low, high = nodes[place - 1], nodes[place]
        slope = (seconds[place] - seconds[place - 1]) / (high - low)
        return seconds[place - 1] + slope * (size - low)


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds over batch and context: one `Curve` over the context for each batch that was timed."""

    batches: tuple[float, ...]
    curves: tuple[Curve, ...]

    def at(self, batch: float, context: float) -> float:
        """Seconds at a batch and a mean context; between two batches on the straight line."""
        batches, curves = self.batches, self.curves
        if batch <= batches[0] or len(batches) == 1:
            return curves[0].at(context) * (max(1.0, batch / batches[0]) if len(batches) == 1 else 1.0)
        place = min(bisect_right(batches, batch), len(batches) - 1)
        low, high = curves[place - 1].at(context), curves[place].at(context)
        share = (batch - batches[place - 1]) / (batches[place] - batches[place - 1])
        return max(low, low + share * (high - low))


def at_least(table: Surface, seconds_per_token: float) -> Surface:
    """The same, but nowhere faster than batch x context x `seconds_per_token`: both are straight between nodes.

    Beyond the last nodes, too, where a short last stretch would be drawn out: one more batch and one more context.
    """
    batches = (*table.batches, max(FAR_BATCH, 2.0 * table.batches[-1]))
    floored = []
    for batch, own in zip(batches, (*table.curves, table.curves[-1]), strict=True):
        nodes = tuple(sorted({*own.nodes, FAR_CONTEXT}))
        floored.append(Curve(nodes, tuple(max(table.at(batch, n), batch * n * seconds_per_token) for n in nodes)))
    return Surface(batches, tuple(floored))


def curve(sizes: Array, seconds: Array) -> Curve:
    """The fastest time of each size, made monotone."""
    nodes = np.unique(sizes)
    best = np.array([seconds[sizes == node].min() for node in nodes])
    smooth = np.exp(monotone(np.log(best)))
    return Curve(tuple(map(float, nodes)), tuple(map(float, smooth)))


def fastest(curves: Sequence[Curve]) -> Curve:
    """The least of several at every size that any of them was timed at."""
    if len(curves) == 1:
        return curves[0]
    nodes = tuple(sorted({node for line in curves for node in line.nodes}))
    return Curve(nodes, tuple(min(line.at(node) for line in curves) for node in nodes))


def surface(batches: Array, contexts: Array, seconds: Array) -> Surface:
    """The fastest time of each (batch, context), made monotone along the context and then along the batch."""
    rows = np.unique(batches)
    curves = [curve(contexts[batches == row], seconds[batches == row]) for row in rows]
    risen: list[Curve] = []
    for line in curves:
        if risen:
            below, points = risen[-1], zip(line.nodes, line.seconds, strict=True)
            line = Curve(line.nodes, tuple(max(s, below.at(n)) if n <= below.nodes[-1] else s for n, s in points))
        risen.append(line)
    return Surface(tuple(map(float, rows)), tuple(risen))
