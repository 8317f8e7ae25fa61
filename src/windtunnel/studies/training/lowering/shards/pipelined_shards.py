"""FSDP2 in a pipeline: what is gathered and reduced once in a step rather than in every pass, and when.

`torch.distributed.pipelining` (PyTorch 2.13) tells FSDP2 to keep a stage's parameters gathered behind a backward pass
and to sum its gradients up, unsharded, until the stage's last one (`stage.py`, `backward_maybe_with_nosync`). Then all
of them are reduced, and the rank computes nothing until they are (`perform_reduce_grad`). That parameters also stay
gathered behind a forward pass is up to the script; torchtitan lets them stay where there is a pipeline.

With one stage per rank layers are gathered as the first forward pass comes to them. With several a runtime fetches
whole stages ahead, those that the next actions need, three at most (`schedules.py`, `_add_unshard_reshard`).

ZeRO-2 beside a Megatron-like pipeline is the same with less waiting: parameters are gathered once and stay, a stage's
gradients are summed up whole from its first backward pass to its last, and reduced under what follows. Where all
micro-batches of a stage run in a row, one or two stages' gradients are whole at a time (Llama 3, arXiv 2407.21783,
section 3.3.2, on 16,384 GPUs).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.training.schedules import Kind, Schedule

FETCHED_AT_MOST = 3  # stages of one rank


class Fetch(NamedTuple):
    """A chunk that is gathered, by places in its rank's program."""

    before: int  # action before which it is asked for
    used: int  # action that needs it first
    chunk: int


def _next_use(schedule: Schedule, rank: int) -> NDArray[np.int64]:
    """int64[actions of the rank, chunks]: where each chunk is needed next; the number of actions where it is not."""
    chunk = schedule.chunk[schedule.of_rank(rank)]
    n = len(chunk)
    place = np.where(chunk[:, None] == np.arange(schedule.chunks), np.arange(n)[:, None], n)
    return np.minimum.accumulate(place[::-1], axis=0)[::-1]


def gathered_chunks(schedule: Schedule, rank: int) -> NDArray[np.bool_]:
    """bool[actions of the rank, chunks]: which chunks' parameters are there, whole, during each action."""
    ahead = _next_use(schedule, rank)
    last = np.sort(ahead, axis=1)[:, min(FETCHED_AT_MOST, schedule.chunks) - 1]
    there: NDArray[np.bool_] = (ahead <= last[:, None]) & (ahead < len(ahead))
    return there


def summed_chunks(schedule: Schedule, rank: int) -> NDArray[np.bool_]:
    """bool[actions of the rank, chunks]: which chunks' gradients are there, unsharded, at some time of each action."""
    window = schedule.of_rank(rank)
    kind, chunk = schedule.kind[window], schedule.chunk[window]
    makes = ((kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_WEIGHT))[:, None]
    makes = makes & (chunk[:, None] == np.arange(schedule.chunks))
    so_far = np.logical_or.accumulate(makes, axis=0)
    to_come = np.logical_or.accumulate(makes[::-1], axis=0)[::-1]
    there: NDArray[np.bool_] = so_far & to_come
    return there


def fetches(schedule: Schedule, rank: int) -> list[Fetch]:
    """What a rank gathers in a step, in the order in which it is asked for."""
    there, ahead = gathered_chunks(schedule, rank), _next_use(schedule, rank)
    new = there.copy()
    new[1:] &= ~there[:-1]
    gathers = [Fetch(int(before), int(ahead[before, chunk]), int(chunk)) for before, chunk in np.argwhere(new)]
    return sorted(gathers)


def unmerged_chunks(schedule: Schedule, rank: int) -> NDArray[np.bool_]:
    """bool[actions of the rank, chunks]: which chunks have one micro-batch's weight gradients as an action begins.

    Where the backward is split, these stay as the second half left them until the next micro-batch's first half, whose
    hooks add them to the sum.
    """
    window = schedule.of_rank(rank)
    kind, chunk = schedule.kind[window], schedule.chunk[window]
    own = chunk[:, None] == np.arange(schedule.chunks)
    place = np.arange(1, len(kind) + 1)[:, None]
    last_made, merged = (
        np.maximum.accumulate(np.where(np.isin(kind, kinds)[:, None] & own, place, 0))
        for kinds in ((Kind.BACKWARD_WEIGHT,), (Kind.BACKWARD_INPUT, Kind.BACKWARD))
    )
    there: NDArray[np.bool_] = np.zeros(own.shape, bool)
    there[1:] = (last_made > merged)[:-1]
    return there
