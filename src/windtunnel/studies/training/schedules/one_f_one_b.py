"""1F1B: after a warm-up of p-1-r forwards, rank r alternates one forward and one backward.

Bubble (p-1)/m of the work of one rank, as GPipe; but rank r holds at most min(m, p-r) activations.
Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training" (PipeDream-Flush), arXiv 2006.09503;
Megatron-LM's non-interleaved schedule.
"""

from __future__ import annotations

import numpy as np

from windtunnel.studies.training.schedules.table import Kind, Schedule, in_line, stacked, table


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Slot i holds the forward of micro-batch i, and after it the backward of i - warm-up."""
    rank, i = np.arange(stages)[:, None], np.arange(micro_batches)[None, :]
    warm_up = stages - 1 - rank
    actions = stacked((Kind.FORWARD, rank, 2 * i, 0, i), (Kind.BACKWARD, rank, 2 * (i + warm_up) + 1, 0, i))
    return table("1f1b", micro_batches, in_line(stages), **actions)
