"""DualPipe: two chains of all the stages through the same ranks in opposite directions, forward against backward.

Rank r holds stage r of the chain that runs down the ranks and stage p-1-r of the one that runs up: parameters twice.
Each chain takes half of the micro-batches: 0..m/2-1 down, the rest up. By symmetry ranks r and p-1-r do the same, and
each half of the ranks is a DualPipeV of p/2 ranks and m/2 micro-batches whose turn is the middle of the pipeline.

With F, B, W the times of forward, whole backward and weight gradient of one stage and F&B of an overlapped pair the
bubble is (p/2-1)(F&B + B - 3W), exactly so where forward, input gradient and weight gradient take equally long, and a
rank holds at most p+1 activations. Needs an even number of stages and an even number of at least 2p micro-batches.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1 and table 2; their DualPipe
repository (MIT).
"""

from __future__ import annotations

import numpy as np

from windtunnel.errors import LayoutError
from windtunnel.studies.training.schedules.dual_pipe_v import half_program
from windtunnel.studies.training.schedules.motif import from_programs
from windtunnel.studies.training.schedules.table import Schedule


def can_pair(stages: int, micro_batches: int) -> None:
    """Raise LayoutError where it cannot be."""
    if stages % 2:
        raise LayoutError(
            f"the dualpipe schedule pairs rank r with rank p-1-r and cannot use {stages} stages",
            "choose an even number of stages, or dualpipe-v",
        )
    if micro_batches % 2 or micro_batches < 2 * stages:
        raise LayoutError(
            f"the dualpipe schedule with {stages} stages needs an even number of at least {2 * stages} micro-batches,"
            f" got {micro_batches}",
            "change the global batch, use fewer stages, or choose zb-v",
        )


def dual_pipe(stages: int, micro_batches: int) -> Schedule:
    """Chunk 0 belongs to the chain down, chunk 1 to the chain up."""
    can_pair(stages, micro_batches)
    half = micro_batches // 2
    programs = []
    for rank in range(stages):
        lower = rank >= stages // 2
        kind, chunk, micro_batch, with_next = half_program(stages // 2, min(rank, stages - 1 - rank), half)
        if lower:  # the chain up enters here: it is the one that goes towards the middle first
            chunk = 1 - chunk
        programs.append(np.stack([kind, chunk, micro_batch + half * chunk, with_next]))
    down = np.arange(stages)
    pieces = np.stack([down, stages - 1 - down], axis=1)
    return from_programs("dualpipe", micro_batches, pieces, programs)
