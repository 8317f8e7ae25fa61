"""GPipe: all forwards, then all backwards.

Bubble (p-1)/m of the work of one rank; every rank holds the activations of all m micro-batches.
Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
arXiv 1811.06965. Backwards run first in, first out, as PyTorch's `ScheduleGPipe` does.
"""

from __future__ import annotations

import numpy as np

from windtunnel.studies.training.schedules.table import Kind, Schedule, in_line, stacked, table


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Slots 0..m-1 forward, m..2m-1 backward."""
    rank, i = np.arange(stages)[:, None], np.arange(micro_batches)[None, :]
    actions = stacked((Kind.FORWARD, rank, i, 0, i), (Kind.BACKWARD, rank, i + micro_batches, 0, i))
    return table("gpipe", micro_batches, in_line(stages), **actions)
