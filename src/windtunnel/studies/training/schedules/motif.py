"""A rank's program written as repeated motifs, for the schedules whose order follows no single slot rule.

A motif is a few tokens: F, B, I, W (forward, whole backward, input gradient, weight gradient) and a chunk, 0 or 1.
`(5, "F0 I1 W1")` says these three, five times. Micro-batches are not written: the n-th F0 is micro-batch n, backwards
of a chunk likewise, and the n-th W0 belongs to the n-th I0. A bare `W` takes the oldest input gradient of either chunk
that has not had its weight gradient yet; a program uses either bare or numbered ones. `F0&B1` are two actions that run
at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.studies.training.schedules.table import Kind, Schedule, table

Phrases = Sequence[tuple[int, str]]
_KINDS = {"F": Kind.FORWARD, "B": Kind.BACKWARD, "I": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT}


@lru_cache(maxsize=256)
def _tokens(motif: str) -> NDArray[np.int64]:
    """Rows of (kind, chunk or -1, runs with the next)."""
    rows = []
    for together in motif.split():
        group = together.split("&")
        rows += [(_KINDS[t[0]], int(t[1:] or -1), i + 1 < len(group)) for i, t in enumerate(group)]
    return np.array(rows, np.int64)


def program(phrases: Phrases) -> NDArray[np.int64]:
    """Rows kind, chunk, micro-batch, runs-with-next, each [actions], in program order."""
    parts = [np.tile(_tokens(motif), (times, 1)) for times, motif in phrases if times > 0]
    kind, chunk, with_next = np.concatenate(parts).T
    micro_batch = np.zeros_like(kind)
    forward, split, weight = kind == Kind.FORWARD, kind == Kind.BACKWARD_INPUT, kind == Kind.BACKWARD_WEIGHT
    backward = split | (kind == Kind.BACKWARD)
    for c in (0, 1):
        here = chunk == c
        for mask in (forward & here, backward & here):
            micro_batch[mask] = np.arange(np.count_nonzero(mask))
        if np.any(weight & here):
            micro_batch[weight & here] = micro_batch[split & here]
    bare = weight & (chunk < 0)
    if np.any(bare):
        micro_batch[bare], chunk[bare] = micro_batch[split], chunk[split]
    return np.stack([kind, chunk, micro_batch, with_next])


def from_programs(
    name: str,
    micro_batches: int,
    virtual_stage: ArrayLike,
    programs: Sequence[NDArray[np.int64]],
) -> Schedule:
    """Join the programs of all ranks. Actions on micro-batches beyond the last are dropped."""
    length = [p.shape[1] for p in programs]
    kind, chunk, micro_batch, with_next = np.concatenate(programs, axis=1)
    rank = np.repeat(np.arange(len(programs)), length)
    key = np.concatenate([np.arange(n) for n in length])
    keep = micro_batch < micro_batches
    return table(
        name,
        micro_batches,
        virtual_stage,
        rank=rank[keep],
        key=key[keep],
        kind=kind[keep],
        chunk=chunk[keep],
        micro_batch=micro_batch[keep],
        with_next=with_next[keep],
    )
