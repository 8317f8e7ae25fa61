"""Interleaved 1F1B: each rank holds v pieces of the model and visits them in groups of micro-batches.

Chunk c of rank r is piece c*p + r. Micro-batches advance in groups of n: a rank runs a whole group through its chunk 0,
then through its chunk 1, and so on; backwards take the chunks in reverse. The warm-up of rank r is 2(p-1-r) + (v-1)n
forwards of one chunk, then one forward and one backward alternate. The bubble is (p-1)/(v m) of the work of one rank
where no group is smaller than p, and rank r holds at most min(m v, warm-up + 1) chunk activations.

A group smaller than p is a group of p of which some places stay empty: its first micro-batch is back at rank 0 after p
places only. Ranks idle there, and hold less.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
arXiv 2104.04473, section 2.2, with n = p; Megatron-LM's `microbatch_group_size_per_virtual_pipeline_stage`, at least p;
PyTorch's `ScheduleInterleaved1F1B` (2.13) and Llama 3's trainer (arXiv 2407.21783, figure 6), where it may be less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError
from windtunnel.studies.training.schedules.table import Kind, Schedule, in_line, stacked, table


def can_interleave(stages: int, micro_batches: int, chunks: int, group: int | None = None) -> None:
    """Raise LayoutError where it cannot be. Without `group` groups are of `stages`, and all whole."""
    if chunks < 2:
        raise LayoutError(
            f"the interleaved schedule needs at least 2 model chunks per rank, got {chunks}",
            "raise the number of virtual stages or choose 1f1b",
        )
    if group is not None:
        if group > micro_batches:
            raise LayoutError(
                f"groups of {group} micro-batches, but there are {micro_batches}",
                f"use micro_batch_group {micro_batches} or less, or leave it out",
            )
        return
    if stages > micro_batches:
        raise LayoutError(
            f"the interleaved schedule with {stages} stages and {micro_batches} micro-batches cannot run groups of"
            f" {stages} micro-batches",
            "it needs stages <= micro-batches: raise the global batch, use fewer stages or set micro_batch_group",
        )
    rest = micro_batches % stages
    if rest:
        raise LayoutError(
            f"{micro_batches} micro-batches leave a last group of {rest} after groups of {stages}, fewer than the"
            f" {stages} stages",
            f"make the micro-batches a multiple of {stages}, or set micro_batch_group",
        )


def equal_groups(stages: int, micro_batches: int) -> int:
    """Size of the groups into which PyTorch's `ScheduleInterleaved1F1B` cuts, if all micro-batches are in one."""
    return micro_batches // max(1, micro_batches // stages)


def _groups(stages: int, micro_batches: int, chunks: int, group: int) -> tuple[NDArray[np.int64], ...]:
    """Of each group: its micro-batches, the places that a chunk takes for them, the first place of its first chunk."""
    size = np.full(-(-micro_batches // group), group, np.int64)
    size[-1] = micro_batches - group * (len(size) - 1)
    width = np.maximum(size, stages)
    return size, width, chunks * (np.cumsum(width) - width)


def _warm_up(stages: int, chunks: int, group: int) -> NDArray[np.int64]:
    """Places that each rank takes before its first backward pass, but for the one that ends there."""
    return 2 * (stages - 1 - np.arange(stages)) + (chunks - 1) * max(group, stages)


def chunks_in_flight(stages: int, micro_batches: int, chunks: int, group: int) -> NDArray[np.int64]:
    """int64[stages, chunks]: forward passes that a rank has done when its first backward pass begins."""
    size, width, first = _groups(stages, micro_batches, chunks, group)
    forwards = _warm_up(stages, chunks, group)[:, None, None] + 1
    start = first + width * np.arange(chunks)[:, None]  # [chunks, groups]
    return np.asarray(np.clip(forwards - start, 0, size).sum(axis=2), np.int64)


def interleaved(stages: int, micro_batches: int, chunks: int, group: int | None = None) -> Schedule:
    """Micro-batches go through one chunk in groups of `group` (default: `stages`) before the next gets its turn."""
    can_interleave(stages, micro_batches, chunks, group)
    group = group or stages
    _, width, first = _groups(stages, micro_batches, chunks, group)
    micro_batch, chunk = (a.ravel() for a in np.meshgrid(np.arange(micro_batches), np.arange(chunks)))
    of, place = np.divmod(micro_batch, group)
    place = first[of] + width[of] * chunk + place  # in the order of a rank's forward passes
    rank, warm_up = np.arange(stages)[:, None], _warm_up(stages, chunks, group)[:, None]
    actions = stacked(
        (Kind.FORWARD, rank, 2 * place, chunk, micro_batch),
        (Kind.BACKWARD, rank, 2 * (place + warm_up) + 1, chunks - 1 - chunk, micro_batch),
    )
    return table("interleaved", micro_batches, in_line(stages, chunks), **actions)
