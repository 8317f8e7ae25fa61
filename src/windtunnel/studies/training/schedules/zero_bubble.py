"""ZB-H1: 1F1B whose backward is split, the weight gradients moved into the bubbles, at no more activations than 1F1B.

Rank r warms up with p-1-r forwards as in 1F1B, then repeats forward, input gradient, weight gradient, the last of these
r micro-batches late, so that all ranks begin them in the same slot. With F, B, W the times of forward, input gradient
and weight gradient of one micro-batch the bubble is (p-1)(F + B - W), against (p-1)(F + B + W) of 1F1B: a third of it
where the three are equal.

Holds for micro-batches >= stages. An activation is held until its weight gradient; rank r holds at most min(m, p) then.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, sections 2.1 and 2.3 (handcrafted schedule).
"""

from __future__ import annotations

import numpy as np

from windtunnel.studies.training.schedules.table import Kind, Schedule, in_line, stacked, table


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """Slot i holds the forward of i, the input gradient of i - (p-1-r) and the weight gradient of i - (p-1)."""
    rank, i = np.arange(stages)[:, None], np.arange(micro_batches)[None, :]
    actions = stacked(
        (Kind.FORWARD, rank, 3 * i, 0, i),
        (Kind.BACKWARD_INPUT, rank, 3 * (i + stages - 1 - rank) + 1, 0, i),
        (Kind.BACKWARD_WEIGHT, rank, 3 * (i + stages - 1) + 2, 0, i),
    )
    return table("zb-h1", micro_batches, in_line(stages), **actions)
