"""Which stage of its pipeline each rank of a captured job is in, and what its classes of ranks are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.programs.lowering.lower import PricedJob


def stage_of(priced: PricedJob) -> NDArray[np.int64]:
    """int64[world]: place of each rank in its pipeline; 0 where the script sends no messages."""
    family = pipeline_of(priced)
    return np.maximum(priced.places.place_of[family], 0) if family >= 0 else np.zeros(priced.job.world_size, np.int64)


def class_names(priced: PricedJob) -> tuple[str, ...]:
    """What a reader calls the ranks that run each captured program: by their stage where there is a pipeline."""
    if len(priced.templates) == 1:
        return ("every rank",)
    stage, runs = stage_of(priced), priced.job.runs
    captured = [template.program.rank for template in priced.templates]
    stages = [sorted(set(stage[runs == rank].tolist())) for rank in captured]
    names = []
    for rank, own in zip(captured, stages, strict=True):
        place = f"stage {own[0]}" if pipeline_of(priced) >= 0 and len(own) == 1 else ""
        names.append(place if place and stages.count(own) == 1 else f"{place + ', ' if place else ''}ranks like {rank}")
    return tuple(names)


def pipeline_of(priced: PricedJob) -> int:
    """The family over which messages go; -1 without one. By name, else the one with most messages."""
    counts: dict[int, int] = {}
    for template in priced.templates:
        for use in template.uses:
            slot = template.slots[use.slot]
            if slot.direction:
                counts[slot.family] = counts.get(slot.family, 0) + 1
    names = priced.job.families
    return max(counts, key=lambda number: (names[number].name.startswith("pp"), counts[number], -number), default=-1)
