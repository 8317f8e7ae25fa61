"""ZB-V: two chunks per rank laid out as a V, backward split, no bubble where F = B = W, at 1F1B's peak memory.

Rank r holds pieces r and 2p-1-r, so the last piece is on rank 0 and a micro-batch turns round on rank p-1 without a
transfer. In the steady state a rank repeats F0 I0 W0 F1 I1 W1. With equal forward, input and weight gradient times and
at least 2p-1 micro-batches no rank idles between its first and its last action; ranks start r chunk-forwards apart.
Unequal times bring bubbles back (the paper then searches for an order; this is the handcrafted one that PyTorch runs).
At most 2p chunk activations, which is the p stage activations of 1F1B.

Fewer micro-batches run the order for 2p-1 with the missing ones left out.
Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6; PyTorch's `ScheduleZBVZeroBubble`.
"""

from __future__ import annotations

from windtunnel.studies.training.schedules.motif import from_programs, program
from windtunnel.studies.training.schedules.table import Schedule, in_v


def zb_v(stages: int, micro_batches: int) -> Schedule:
    """Fill the V, drain it with input gradients first, weight gradients wherever there is room."""
    n = max(micro_batches, 2 * stages - 1)
    programs = []
    for rank in range(stages):
        left = stages - rank
        programs.append(
            program(
                [
                    (2 * left - 1, "F0"),  # until the first micro-batch comes back up the V
                    (rank, "F1 F0"),
                    (left, "F1 I1 W1"),
                    (n - stages - left + 1, "F0 I0 W0 F1 I1 W1"),
                    (left - 1, "I0 W0 F1 I1 W1"),
                    (rank, "I0 I1"),
                    (left, "I0 W0"),
                    (rank, "W1"),
                    (rank, "W0"),
                ]
            )
        )
    return from_programs("zb-v", micro_batches, in_v(stages), programs)
