"""Durations of the ops of a step whose micro-batches differ: the oracle of what is drawn for many at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.training.lowering.step import LoweredStep
from windtunnel.studies.training.workload.sequence_lengths import micro_batch_of


def op_durations(step: LoweredStep, segments_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[ops] of a step whose passes take `segments_ns`, int64[segments, micro-batches], in one replica.

    To the nanosecond, and the oracle of what `imbalance.packed` draws for many replicas and samples at once.
    """
    durations, micro_batch = step.duration_ns.copy(), micro_batch_of(step)
    passes = np.flatnonzero(micro_batch >= 0)
    action = np.searchsorted(step.action_first, passes, side="right") - 1
    segment = step.graph.category[passes]
    nominal = np.array([one.duration_ns for one in step.segments], np.int64)
    taken = segments_ns[segment, micro_batch[passes]]
    # A pass that is cut into buckets keeps its cuts, and its parts still sum to it.
    first = step.action_first[action]
    before = np.concatenate([[0], np.cumsum(durations)])
    start, end = before[passes] - before[first], before[passes + 1] - before[first]
    whole = np.maximum(nominal[segment], 1)
    done = [np.rint(taken * (part / whole)).astype(np.int64) for part in (start, end)]
    durations[passes] = done[1] - done[0]
    return durations
