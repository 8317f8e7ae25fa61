"""Interleaved 1F1B: each rank holds v pieces of the model and visits them in groups of micro-batches.

Chunk c of rank r is piece c*p + r. Micro-batches advance in groups of p: a rank runs a whole group through its chunk 0,
then through its chunk 1, and so on; backwards take the chunks in reverse. The warm-up of rank r is 2(p-1-r) + (v-1)p
forwards of one chunk, then one forward and one backward alternate. The bubble is (p-1)/(v m) of the work of one rank.

Rank r holds at most min(m v, warm-up + 1) chunk activations.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
arXiv 2104.04473, section 2.2; Megatron-LM's `microbatch_group_size_per_virtual_pipeline_stage` at its default.
"""

from __future__ import annotations

import numpy as np

from windtunnel.errors import LayoutError
from windtunnel.training.schedules.table import Kind, Schedule, in_line, stacked, table


def can_interleave(stages: int, micro_batches: int, chunks: int) -> None:
    """Raise LayoutError where it cannot be."""
    if chunks < 2:
        raise LayoutError(
            f"the interleaved schedule needs at least 2 model chunks per rank, got {chunks}",
            "raise the number of virtual stages or choose 1f1b",
        )
    if stages > micro_batches:
        raise LayoutError(
            f"the interleaved schedule with {stages} stages and {micro_batches} micro-batches cannot run groups of"
            f" {stages} micro-batches",
            "it needs stages <= micro-batches: raise the global batch or use fewer stages",
        )
    rest = micro_batches % stages
    if rest:
        raise LayoutError(
            f"{micro_batches} micro-batches leave a last group of {rest} after groups of {stages}, fewer than the"
            f" {stages} stages",
            f"make the micro-batches a multiple of {stages}",
        )


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Micro-batches go through one chunk in groups of `stages` before the next chunk gets its turn."""
    can_interleave(stages, micro_batches, chunks)
    # the order in which a rank visits its (micro-batch, chunk): by group, then chunk, then micro-batch
    micro_batch, chunk = (a.ravel() for a in np.meshgrid(np.arange(micro_batches), np.arange(chunks)))
    order = np.lexsort((micro_batch, chunk, micro_batch // stages))
    micro_batch, chunk = micro_batch[order][None, :], chunk[order][None, :]

    rank, visit = np.arange(stages)[:, None], np.arange(micro_batches * chunks)[None, :]
    warm_up = 2 * (stages - 1 - rank) + (chunks - 1) * stages
    actions = stacked(
        (Kind.FORWARD, rank, 2 * visit, chunk, micro_batch),
        (Kind.BACKWARD, rank, 2 * (visit + warm_up) + 1, chunks - 1 - chunk, micro_batch),
    )
    return table("interleaved", micro_batches, in_line(stages, chunks), **actions)
