"""A priced job under disturbances: the pace of every rank, the exactly folded graph, and samples of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from windtunnel.programs.disturbances.attribution import ranks_on, who_waits
from windtunnel.programs.disturbances.pace import pace_of
from windtunnel.programs.disturbances.samples import sampled
from windtunnel.programs.lowering.lower import CapturedGraph, PricedJob
from windtunnel.result import Disturbed
from windtunnel.step.disturbances.disturbances import Disturbances
from windtunnel.step.disturbances.disturbed_step import DisturbedStep
from windtunnel.step.disturbances.effect import effect_of
from windtunnel.step.disturbances.parse import Slow


def disturbed_job(priced: PricedJob, parts: Sequence[Slow]) -> DisturbedStep[CapturedGraph]:
    """A job under these disturbances or any of them."""
    return DisturbedStep(tuple(parts), lambda slow: priced.graph(pace_of(priced, slow)))


def disturb(priced: PricedJob, job: DisturbedStep[CapturedGraph], asked: Disturbances) -> tuple[int, Disturbed]:
    """The makespan under everything that was asked for, in nanoseconds, and what explains it.

    With samples it is their median, and every rank stands for itself: noise makes them differ.
    """
    world = priced.job.world_size

    def simulated(captured: CapturedGraph, with_samples: bool) -> tuple[int, tuple[int, ...]]:
        if with_samples:
            return world, (1,) * world
        return captured.step.graph.n_programs, tuple(np.bincount(captured.step.program_of).tolist())

    return effect_of(
        job,
        asked,
        sample=partial(sampled, priced, job.parts, asked.seed, job.makespan(()) / 1e9),
        explain=partial(who_waits, priced),
        place=ranks_on(priced, ()).place,
        simulated=simulated,
    )
