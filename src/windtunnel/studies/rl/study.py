"""The answer to `rl`: a question settled (`job.py`), run as events (`clock.py`), read (`reading.py`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from windtunnel.questions.asked.rl import Rl
from windtunnel.studies.rl.anchor import Anchor, anchor_of, anchor_on, anchored, read_log
from windtunnel.studies.rl.job import Job, job_of, run_of
from windtunnel.studies.rl.reading import infeasible, memory_of, read_run
from windtunnel.studies.rl.result import RlResult

ROUNDS, CLOSE, FURTHEST = 6, 0.01, 8.0  # in search of a factor of generation: its steps, relative error, and range
SEEN = 0.02  # share of a step for which a learner must wait, so that generation shows
STEPS, MOST_SAMPLES = 3, 24_000  # measured steps; samples after which fewer are


def answer(question: Rl) -> RlResult:
    """How long a step is. Raises UserError."""
    job = job_of(question)
    beside = job.question.beside
    if beside.anchor is not None:
        return answered(anchored(job, anchor_of(beside.anchor), carried=True))
    if beside.log is None:
        return answered(job)
    logged = read_log(Path(beside.log))
    first = answered(job, it_ran=True)
    anchor = anchor_on(logged, first.phases, first.step_time_s)
    if anchor.generation is None and anchor.learner is not None and "step" in logged:
        anchor = replace(anchor, generation=hidden_generation(job, anchor, logged["step"]))
    return answered(anchored(job, anchor), it_ran=True)


def hidden_generation(job: Job, anchor: Anchor, step_s: float) -> float | None:
    """The factor of generation with which pools that overlap take `step_s`; None where the learner alone decides it."""
    factor = 1.0
    for _ in range(ROUNDS):
        rl_result = answered(anchored(job, replace(anchor, generation=factor)), it_ran=True)
        if rl_result.phases.exposed_generation_s < SEEN * rl_result.step_time_s and step_s <= rl_result.step_time_s:
            return None
        if abs(step_s / rl_result.step_time_s - 1.0) < CLOSE:
            break
        longer = (step_s - rl_result.step_time_s) / rl_result.phases.generation_s
        if not rl_result.phases.exposed_generation_s:  # all of it is hidden: it shows where it is as long as the step
            longer = max(longer, step_s / rl_result.phases.generation_s - 1.0)
        factor = min(FURTHEST, max(1.0 / FURTHEST, factor * (1.0 + max(longer, -0.5))))
    return factor


def answered(job: Job, *, it_ran: bool = False) -> RlResult:
    """A settled job, run and read. `it_ran`: it is known to fit, whatever memory is predicted."""
    memory = memory_of(job)
    for name, side in memory.items():
        if not (side.fits or it_ran):
            needs, has = side.needed_bytes / 2**30, side.capacity_bytes / 2**30
            return infeasible(job, memory, f"{name} needs {needs:.1f} GiB of a GPU's {has:.1f}")
    warm, measured = window(job)
    run = run_of(job, job.engine, job.replicas, job.rules, job.times, warm + measured)
    return read_run(job, run, warm, memory)


def window(job: Job) -> tuple[int, int]:
    """Steps that are set aside, and steps that are measured."""
    oldest = job.rules.oldest
    warm = 0 if oldest == 0 else oldest + 1
    return warm, max(2, min(STEPS + oldest, MOST_SAMPLES // (job.rules.groups * job.rules.samples) - warm))
