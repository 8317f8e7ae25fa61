"""What disturbances do to a step: how long it takes, what each costs, how it spreads over samples, who waits for whom.

A disturbance costs what the step takes less when it alone is mended (`without`), and adds what it does as the only one
(`alone`). What is random or heats up is followed from sample to sample, on the same draws with it and without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.step.disturbances.attribution import NOWHERE, Explanation, beyond
from windtunnel.physics.step.disturbances.disturbances import SAMPLES, Disturbances
from windtunnel.physics.step.disturbances.disturbed_step import DisturbedStep, Made, Replayed
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.result import Blame, Disturbed, Samples

BLAMED_AT_MOST = 64  # disturbances whose own cost is worked out: two replays each
SAMPLED_AT_MOST = 8  # disturbances whose cost is also followed from sample to sample

Sets = Sequence[frozenset[int]]


@dataclass(frozen=True, eq=False)
class _Sampled:
    """int64[samples] makespans: as asked, without one of the disturbances, and with one alone where chance is in it."""

    whole: NDArray[np.int64]
    without: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    alone: dict[int, NDArray[np.int64]] = field(default_factory=dict)


def effect_of(
    job: DisturbedStep[Made],
    disturbances: Disturbances,
    *,
    sample: Callable[[Sets, int], Sequence[NDArray[np.int64]]],
    explain: Callable[[Replayed[Made], Sequence[Slow]], Explanation],
    place: Callable[[int], tuple[int, int]],
    simulated: Callable[[Made, bool], tuple[int, tuple[int, ...]]],
) -> tuple[int, Disturbed]:
    """The makespan under all disturbances of `job` in nanoseconds, and what explains it; with samples, their median.

    Args:
        job: The step; its `parts` may hold more than `disturbances` does: what other modules draw.
        disturbances: Jitter, seed, and how many samples.
        sample: int64[count] makespans of each of some sets of disturbances, all on the same draws.
        explain: What every rank did in a replayed step, given what disturbs it.
        place: Stage and replica of a rank.
        simulated: How many programs were simulated and how many replicas each class has; with samples, or without.
    """
    calm, count = job.makespan(()), disturbances.samples or SAMPLES
    sampled = _sampled(job, count, disturbances.samples > 0, sample)
    if sampled is None:
        samples, final = None, job.makespan(job.everything)
    else:
        low, final, high = _percentiles(sampled.whole)
        samples = Samples(disturbances.jitter, count, disturbances.seed, low, final, high)
    steady = job.replayed(job.everything)
    explanation = explain(steady, job.parts)
    usual = explain(job.replayed(()), ()).waiting
    explanation = explanation._replace(waiting=beyond(explanation.waiting, usual))
    programs, sizes = simulated(steady.step, sampled is not None)
    blame = _blame(job, sampled, calm, place)
    return final, Disturbed(
        undisturbed_step_time_ns=calm,
        gpus_lost=len(steady.step.step.program_of) * (1.0 - calm / final) if final else 0.0,
        programs=programs,
        replica_classes=sizes,
        blame=tuple(sorted(blame, key=lambda cause: (-cause.without_ns, -cause.alone_ns, cause.what))),
        samples=samples,
        **explanation._asdict(),
    )


def _blame(
    job: DisturbedStep[Made], sampled: _Sampled | None, calm: int, place: Callable[[int], tuple[int, int]]
) -> list[Blame]:
    blame = []
    for number, part in enumerate(job.parts):
        at = (part.stage, NOWHERE) if part.kind == "stage" else place(part.gpus[0]) if part.gpus else (NOWHERE, NOWHERE)
        if sampled is not None and number in sampled.without:
            spread = _percentiles(sampled.whole - sampled.without[number])
            alone = int(np.median(sampled.alone[number])) if number in sampled.alone else job.makespan({number})
            blame.append(Blame(part.text, alone - calm, spread[1], *at, spread))
        elif number < BLAMED_AT_MOST and not part.random:
            mended = job.makespan(job.everything) - job.makespan(job.everything - {number})
            blame.append(Blame(part.text, job.makespan({number}) - calm, mended, *at))
    return blame


def _sampled(
    job: DisturbedStep[Made], count: int, warms: bool, sample: Callable[[Sets, int], Sequence[NDArray[np.int64]]]
) -> _Sampled | None:
    """None where no sample would differ from another. `warms`: what heats up does so over the samples."""
    random = [number for number, part in enumerate(job.parts) if part.random]
    varied = [number for number, part in enumerate(job.parts) if part.random or part.kind == "thermal"]
    if not random and not (varied and warms):
        return None
    steady = [number for number in range(len(job.parts)) if number not in varied]
    blamed = (varied + steady)[:SAMPLED_AT_MOST]
    alone = [number for number in blamed if number in varied]
    wanted = {
        job.everything,
        *(job.everything - {number} for number in blamed),
        *(frozenset({number}) for number in alone),
    }
    differing = sorted((numbers for numbers in wanted if numbers & set(varied)), key=sorted)
    makespans = dict(zip(differing, sample(differing, count), strict=True))
    makespans |= {numbers: np.full(count, job.makespan(numbers)) for numbers in wanted if numbers not in makespans}
    return _Sampled(
        makespans[job.everything],
        {number: makespans[job.everything - {number}] for number in blamed},
        {number: makespans[frozenset({number})] for number in alone},
    )


def _percentiles(values: NDArray[np.int64]) -> tuple[int, int, int]:
    low, middle, high = (int(value) for value in np.percentile(values, [5, 50, 95]))
    return low, middle, high
