"""DualPipeV: DualPipe cut in half. Two chunks per rank as a V, forward of one overlapped with backward of the other.

Rank r holds pieces r and 2p-1-r, each once. In the main phase a forward of chunk 0 runs together with a backward of
chunk 1, then a forward of chunk 1 with a backward of chunk 0, so that the transfers of one hide behind the computation
of the other. Only at both ends are backwards split, to let weight gradients fill bubbles.

With F, B, W the times of forward, whole backward and weight gradient of one chunk and F&B of an overlapped pair the
bubble is (p-1)(F&B + B - 3W), exactly so where forward, input gradient and weight gradient take equally long. Needs at
least 2p micro-batches.
Source: DeepSeek-AI, DualPipe repository (MIT) and "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1; the
V form after Qi et al.; PyTorch's `ScheduleDualPipeV`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError
from windtunnel.studies.training.schedules.motif import from_programs, program
from windtunnel.studies.training.schedules.table import Schedule, in_v


def half_program(stages: int, rank: int, micro_batches: int) -> NDArray[np.int64]:
    """Program of one rank of a V of `stages` ranks: chunk 0 on the way down, chunk 1 on the way up."""
    left, turn = stages - 1 - rank, rank == stages - 1
    main = micro_batches - 2 * stages + rank + 1
    # halfway through the drain backwards begin to be split; an even rank splits between its two chunks
    whole, middle = (rank + 1) // 2, 1 - rank % 2
    return program(
        [
            (2 * left, "F0"),
            (rank + 1, "F0 F1"),
            (left, "I1 W F1"),
            # at the turn the very first pair is not overlapped, which shortens the fill
            (int(turn), "F0 B1 F1&B0"),
            (main - int(turn), "F0&B1 F1&B0"),
            (left, "B1 F1&B0"),
            (whole, "B1 B0"),
            (middle, "B1 I0"),
            (rank + 1 - whole - middle, "I1 I0"),
            (left, "W I0"),
            (rank + 1, "W"),
        ]
    )


def can_fill_v(stages: int, micro_batches: int) -> None:
    """Raise LayoutError where it cannot be."""
    if micro_batches < 2 * stages:
        raise LayoutError(
            f"the dualpipe-v schedule with {stages} stages needs at least {2 * stages} micro-batches,"
            f" got {micro_batches}",
            "raise the global batch, use fewer stages, or choose zb-v",
        )


def dual_pipe_v(stages: int, micro_batches: int) -> Schedule:
    """Each rank once down and once up the V."""
    can_fill_v(stages, micro_batches)
    programs = [half_program(stages, rank, micro_batches) for rank in range(stages)]
    return from_programs("dualpipe-v", micro_batches, in_v(stages), programs)
