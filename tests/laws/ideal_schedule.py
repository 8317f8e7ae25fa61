"""A schedule when communication is free: its length and what each rank holds, in plain numpy, to hold laws against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from windtunnel.studies.training.schedules import Schedule, walk
from windtunnel.studies.training.schedules.ideal_times import Seconds


def durations(schedule: Schedule, forward: ArrayLike, backward_input: ArrayLike, backward_weight: ArrayLike) -> Seconds:
    """Cost of each action, from costs that broadcast to [stages, chunks]. A whole backward is input plus weight."""
    shape = (schedule.stages, schedule.chunks)
    f, b, w = (np.broadcast_to(np.asarray(c, np.float64), shape) for c in (forward, backward_input, backward_weight))
    by_kind = np.stack([f, b + w, b, w])  # in the order of Kind
    result: Seconds = by_kind[schedule.kind, schedule.rank, schedule.chunk]
    return result


def makespan(
    schedule: Schedule,
    forward: ArrayLike,
    backward_input: ArrayLike,
    backward_weight: ArrayLike,
    fused: float | None = None,
) -> float:
    """Seconds from the first start to the last end when communication is free. Costs broadcast to [stages, chunks].

    `fused` as in `walk`.
    """
    return float(walk(schedule, durations(schedule, forward, backward_input, backward_weight), fused).max())


def in_flight(schedule: Schedule, weight: ArrayLike = 1, kept_after_input: float = 0.0) -> Seconds:
    """Peak of the activations that each rank holds in program order, [stages], in activations of one chunk.

    `weight` broadcasts to [stages, chunks]: what one activation of that chunk counts (bytes, layers). An activation
    lives from its forward to its (input) backward; the share `kept_after_input` lives on until the weight gradient.
    """
    held = np.broadcast_to(np.asarray(weight, np.float64), (schedule.stages, schedule.chunks))
    change = np.array([1.0, -1.0, kept_after_input - 1.0, -kept_after_input])  # in the order of Kind
    level = np.cumsum(change[schedule.kind] * held[schedule.rank, schedule.chunk])
    start = schedule.rank_offset[:-1]
    before = np.concatenate([[0.0], level])[start]
    result: Seconds = np.maximum.reduceat(level, start) - before
    return result
