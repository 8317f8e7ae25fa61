"""Cells: which of them feel what disturbs some GPUs, links or moments.

A tensor-parallel group waits for its slowest member at every collective, so one slow GPU slows its whole *cell*: the
ranks that share a pipeline stage and a replica. Experts spread over replicas, and sharded parameters, tie more cells
together: those wait for each other layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.step.disturbances.disturbances import Disturbances, link_times
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.studies.training.layout import Layout

Floats: TypeAlias = NDArray[np.float64]


def placed(disturbances: Disturbances, layout: Layout) -> Disturbances:
    """The same with the GPUs of uneven stages. Raises SpecError on a stage that the pipeline lacks."""
    stages = layout.plan.pp
    gpus = layout.cluster.n_gpus // stages
    slow = []
    for disturbance in disturbances.slow:
        if disturbance.kind == "stage":
            if disturbance.stage >= stages:
                raise SpecError("slow", disturbance.text, f"pipeline stages are numbered 0 to {stages - 1}; see --pp")
            disturbance = replace(
                disturbance, gpus=tuple(range(disturbance.stage * gpus, (disturbance.stage + 1) * gpus))
            )
        slow.append(disturbance)
    return replace(disturbances, slow=tuple(slow))


def cell_factors(layout: Layout, slow: Sequence[Slow]) -> tuple[Floats, Floats]:
    """Factors on compute and on NICs of each cell, float64[replicas, stages]; 1 where nothing is slow.

    What changes with time counts with what it comes to in the end.
    """
    stages, replicas = layout.plan.pp, layout.dp
    compute, links = np.ones((replicas, stages)), np.ones((replicas, stages))
    hot = [disturbance for disturbance in slow if disturbance.kind in ("gpu", "random", "thermal")]
    gpus = [gpu for disturbance in hot for gpu in disturbance.gpus]
    # Two slow GPUs of one cell do not add up: the cell waits for the slower.
    factors = np.repeat([disturbance.factor for disturbance in hot], [len(disturbance.gpus) for disturbance in hot])
    np.maximum.at(compute, cells_of(layout, gpus), factors)
    for gpu, times in link_times(slow, layout.cluster).items():
        np.maximum.at(links, cells_of(layout, (gpu,)), times)
    return in_step(layout, compute) * stage_times(layout, slow), in_step(layout, links)


def in_step(layout: Layout, factors: Floats) -> Floats:
    """Factors by cell, [replicas, stages], those that wait for each other at the pace of the slowest."""
    block = tied_replicas(layout)
    if block == 1:
        return factors
    grouped = factors.reshape(layout.dp // block, block, -1).max(axis=1)
    return np.repeat(grouped, block, axis=0)


def stage_times(layout: Layout, slow: Iterable[Slow]) -> Floats:
    """float64[stages]: how much longer each stage computes because it has more to do than the others."""
    times = np.ones(layout.plan.pp)
    for disturbance in slow:
        if disturbance.kind == "stage":
            times[disturbance.stage] *= disturbance.factor  # more work on a slow GPU takes both times as long
    return times


def cells_of(layout: Layout, gpus: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Replica and stage of each GPU."""
    cell = layout.plan.tp * layout.plan.cp
    stage, within = np.divmod(np.array(gpus, np.int64), cell * layout.dp)
    return within // cell, stage


def tied_replicas(layout: Layout) -> int:
    """How many neighbouring replicas wait for each other inside a pass: through experts or sharded parameters."""
    plan = layout.plan
    tied = 1
    if plan.ep > 1:
        tied = max(tied, plan.ep * layout.etp // (plan.tp * plan.cp))
    if layout.reduces_in_passes:
        tied = max(tied, layout.shard_group // plan.cp)
    return tied if tied > 0 and layout.dp % tied == 0 else layout.dp
