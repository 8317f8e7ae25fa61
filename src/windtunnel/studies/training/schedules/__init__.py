"""Pipeline schedules as tables of actions; tests/laws/test_schedule_laws.py holds each to be complete and to end."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from windtunnel.errors import LayoutError, UnknownNameError
from windtunnel.studies.training.schedules.dual_pipe import can_pair, dual_pipe
from windtunnel.studies.training.schedules.dual_pipe_v import can_fill_v, dual_pipe_v
from windtunnel.studies.training.schedules.gpipe import gpipe
from windtunnel.studies.training.schedules.ideal_times import walk
from windtunnel.studies.training.schedules.interleaved import (
    can_interleave,
    chunks_in_flight,
    equal_groups,
    interleaved,
)
from windtunnel.studies.training.schedules.one_f_one_b import one_f_one_b
from windtunnel.studies.training.schedules.table import Kind, Schedule, in_line, stacked, table
from windtunnel.studies.training.schedules.traits import TRAITS, Traits
from windtunnel.studies.training.schedules.zb_v import zb_v
from windtunnel.studies.training.schedules.zero_bubble import zero_bubble

__all__ = [
    "NAMES",
    "TRAITS",
    "Kind",
    "Schedule",
    "Traits",
    "chunks_in_flight",
    "equal_groups",
    "legal",
    "schedule",
    "walk",
]

_MADE_BY = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zb-h1": zero_bubble,
    "zb-v": zb_v,
    "dualpipe": dual_pipe,
    "dualpipe-v": dual_pipe_v,
}
NAMES = tuple(TRAITS)


def legal(name: str, stages: int, micro_batches: int, chunks: int = 1, group: int | None = None) -> None:
    """Whether `schedule` would take these arguments, without making the table.

    Raises `UnknownNameError` and `LayoutError` as it does.
    """
    if name not in NAMES:
        raise UnknownNameError("pipeline schedule", name, NAMES)
    for what, value in (("stages", stages), ("micro-batches", micro_batches), ("model chunks per rank", chunks)):
        if value < 1:
            raise LayoutError(f"a pipeline schedule cannot have {value} {what}", f"give at least 1 for {what}")
    most = TRAITS[name].most_chunks
    if most is not None and chunks > most:
        raise LayoutError(
            f"the {name} schedule has {most} model chunk{'s' * (most - 1)} per rank, got {chunks}",
            "leave out the number of chunks, or choose interleaved",
        )
    if stages > 1:
        if name == "interleaved":
            can_interleave(stages, micro_batches, chunks, group)
        elif name == "dualpipe":
            can_pair(stages, micro_batches)
        elif name == "dualpipe-v":
            can_fill_v(stages, micro_batches)


@lru_cache(maxsize=256)
def schedule(name: str, stages: int, micro_batches: int, chunks: int = 1, group: int | None = None) -> Schedule:
    """The table of one schedule. The same arguments give the same object.

    `chunks`: model pieces per rank. The interleaved schedule needs it; zb-v, dualpipe and dualpipe-v always have two
    (1 then means "not said"), the others one. `group`: micro-batches that the interleaved schedule runs through one
    piece before the next (default: as many as stages).
    With one stage there is no pipeline: every schedule is then plain gradient accumulation.
    Raises `UnknownNameError` and `LayoutError`.
    """
    legal(name, stages, micro_batches, chunks, group)
    if stages == 1:
        return _accumulation(name, micro_batches, 2 if TRAITS[name].turns else chunks)
    if name == "interleaved":
        return interleaved(stages, micro_batches, chunks, group)
    return _MADE_BY[name](stages, micro_batches)


def _accumulation(name: str, micro_batches: int, chunks: int) -> Schedule:
    """One rank: each micro-batch forward through all chunks, then backward, then the next micro-batch."""
    chunk, i = np.arange(chunks)[:, None], np.arange(micro_batches)[None, :]
    actions = stacked(
        (Kind.FORWARD, 0, 2 * chunks * i + chunk, chunk, i),
        (Kind.BACKWARD, 0, 2 * chunks * (i + 1) - 1 - chunk, chunk, i),
    )
    return table(name, micro_batches, in_line(1, chunks), **actions)
