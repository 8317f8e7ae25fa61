"""What disturbances do to the pace of every rank of a recorded program.

    gpu, random, thermal    a factor on the kernels of those ranks (thermal: hot, or heating up over the samples)
    stage                   the same for all ranks at one place of the pipeline's groups
    link, lost              a factor on what these ranks move between nodes; a collective goes at its slowest member
    pause, noise, jitter    drawn sample by sample: `samples.py`

Each rank is disturbed by itself, and who waits for whom follows from the captured program alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.physics.step.disturbances.disturbances import Disturbances, link_times
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.programs.lowering.lower import PricedJob
from windtunnel.studies.programs.lowering.placement import Pace
from windtunnel.studies.programs.lowering.stages import pipeline_of

HOT = ("gpu", "random", "thermal")
REFUSED = {
    "uplink": "flows of a captured script are not laid on single uplinks: use link=nodeN.nicM:SHARE for its nodes",
    "ecmp": "flows of a captured script are not hashed to single uplinks: leave it out",
}


def placed_on(priced: PricedJob, disturbances: Disturbances) -> Disturbances:
    """The same with the ranks of uneven stages. Raises SpecError on what a captured script has no place for."""
    slow = []
    for part in disturbances.slow:
        if part.kind in REFUSED:
            raise SpecError("slow", part.text, REFUSED[part.kind])
        slow.append(replace(part, gpus=_stage(priced, part)) if part.kind == "stage" else part)
    return replace(disturbances, slow=tuple(slow))


def pace_of(priced: PricedJob, slow: Sequence[Slow]) -> Pace:
    """Factors on each rank's kernels and links; what changes with time counts with what it comes to in the end."""
    pace = Pace.even(priced.job.world_size)
    for part in slow:
        if part.kind in HOT and part.gpus:
            gpus = list(part.gpus)  # each once: two faults of one GPU do not add up, the worse one counts
            pace.compute[gpus] = np.maximum(pace.compute[gpus], part.factor)
    for part in slow:
        if part.kind == "stage":  # more work on a slow GPU takes both times as long
            pace.compute[list(part.gpus)] *= part.factor
    for gpu, times in link_times(slow, priced.places.cluster).items():
        pace.links[gpu] = max(float(pace.links[gpu]), times)
    return pace


def _stage(priced: PricedJob, part: Slow) -> tuple[int, ...]:
    family = pipeline_of(priced)
    if family < 0:
        raise SpecError("slow", part.text, "this script sends no messages from stage to stage: use gpu=NUMBER:FACTOR")
    places = priced.places.place_of[family]
    if part.stage > places.max():
        raise SpecError("slow", part.text, f"pipeline stages are numbered 0 to {places.max()}")
    return tuple(np.flatnonzero(places == part.stage).tolist())
