"""The best way to divide a cluster between generation and training, with bounds and a proof.

A candidate is a placement (colocated, or so many GPUs that generate), a generator's tensor parallelism and a bound on
staleness. The trainer's layout is the fastest that fits its GPUs: a step never becomes longer when its passes become
shorter, so no other can be better. Each candidate has a lower bound,

    in turn      update + between + passes + generation
    ahead        max(between + passes, generation) + update

(`bounds.py`), with the passes at the peak rate of the GPUs until a trainer's layout is sought. Candidates are simulated
in the order of their bounds until the next bound is not below the best step: that proves that no other is better. Where
that leaves out a kind (colocated, or pools apart), the one of it with the least bound is simulated as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from heapq import heapify, heappop, heappush

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.questions.asked.rl import Rl, RlPlan
from windtunnel.questions.header import Answer, band_entry
from windtunnel.studies.rl.bounds import bound_s
from windtunnel.studies.rl.job import Job, drafted, trainer_of, with_trainer
from windtunnel.studies.rl.learner import Trainer
from windtunnel.studies.rl.result import RlResult
from windtunnel.studies.rl.study import answered
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.units import format_time

SPLITS = 16  # of a cluster, evenly chosen
NEAR = 0.03  # steps that differ by less are called as good


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate: what it is, its bound, and its step where it was simulated."""

    words: str
    generate: int | None  # GPUs; None: colocated
    gen_tp: int
    async_steps: float
    bound_s: float
    step_s: float | None


@dataclass(frozen=True, eq=False)
class RlPlanned(Answer):
    """The answer to `rl plan`."""

    best: RlResult
    tried: tuple[Trial, ...]  # in the order of their steps, then of their bounds
    refused: int  # candidates that do not fit
    verdicts: tuple[str, ...]

    @property
    def band(self) -> dict[str, object]:
        """Of the best step."""
        return band_entry("best.step_time_s", self.best.p5_s, self.best.p95_s)

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What to mind."""
        return self.best.assumptions

    @property
    def proof(self) -> str:
        """Why no other candidate is better."""
        open_ = [trial for trial in self.tried if trial.step_s is None]
        done = len(self.tried) - len(open_)
        if not open_:
            return f"all {done} candidates that fit were simulated"
        least = min(trial.bound_s for trial in open_)
        return (
            f"{done} of {len(self.tried)} candidates were simulated; no other can take less than"
            f" {format_time(least, 4)}, which is not below the best, {format_time(self.best.step_time_s, 4)}"
        )

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        names = ("words", "generate", "gen_tp", "async_steps", "bound_s", "step_s")
        return {
            "best": self.best.to_dict(),
            "candidates": [{name: getattr(trial, name) for name in names} for trial in self.tried],
            "refused": self.refused,
            "proof": self.proof,
            "verdicts": list(self.verdicts),
        }


def answer(question: RlPlan) -> RlPlanned:
    """The best candidate. Raises UserError where none fits."""
    return search(question, prove=True)


def search(question: RlPlan, *, prove: bool) -> RlPlanned:
    """The best candidate; without `prove` all are simulated."""
    heap: list[tuple[float, int, bool, Job]] = []  # bound, number, whether the trainer has its layout
    refused, reason = 0, None
    trainers: dict[int | None, Trainer] = {}
    engines: dict[Deployment, Engine] = {}  # a generator is the same in every pool that holds it
    for candidate in candidates(question):
        try:
            draft = drafted(candidate, engines)
            heap.append((bound_s(draft, draft.trainer.peak_s), len(heap), False, draft))
        except (LayoutError, SpecError) as error:
            refused, reason = refused + 1, error
    heapify(heap)
    passed: list[tuple[float, Job]] = []  # what the proof leaves out, by bounds
    best: tuple[float, RlResult] | None = None
    trials: list[Trial] = []
    while heap:
        bound, number, laid_out, job = heappop(heap)
        if prove and best is not None and bound >= best[0]:
            passed.append((bound, job))
            continue
        if not laid_out:
            try:
                job = _laid_out(job, trainers)
                heappush(heap, (max(bound, bound_s(job, job.passes_s)), number, True, job))
            except (LayoutError, SpecError) as error:
                refused, reason = refused + 1, error
            continue
        rl_result = answered(job)
        if not rl_result.feasible:
            refused, reason = refused + 1, LayoutError(rl_result.reason, "give more GPUs")
            continue
        if best is None or rl_result.step_time_s < best[0]:
            best = (rl_result.step_time_s, rl_result)
        trials.append(_trial(job, bound, rl_result))
    if best is None:
        raise reason or UserError("no division of the cluster is possible")
    kinds = {trial.generate is None for trial in trials if trial.step_s is not None}
    for bound, job in passed:
        rival = None
        if job.colocated not in kinds:
            try:
                job = _laid_out(job, trainers)
                rival = answered(job)
            except (LayoutError, SpecError):
                pass
            if rival is None or not rival.feasible:
                refused += 1
                continue
            kinds.add(job.colocated)
        trials.append(_trial(job, bound, rival))
    trials.sort(key=lambda trial: (trial.step_s is None, trial.step_s or trial.bound_s))
    return RlPlanned(best[1], tuple(trials), refused, verdicts(trials, best[1], question.async_steps))


def _laid_out(job: Job, trainers: dict[int | None, Trainer]) -> Job:
    """With the fastest trainer that fits; `trainers`: by their GPUs, those that were sought. Raises UserError."""
    trainer = trainers.get(job.question.train) or trainer_of(job)
    trainers[job.question.train] = trainer
    return with_trainer(job, trainer)


def candidates(question: RlPlan) -> Iterator[Rl]:
    """Questions of `rl`, each with pools and a generator's size."""
    gpus = cluster_of(question.cluster).n_gpus
    node = cluster_of(question.cluster).gpus_per_node
    base = {field.name: getattr(question, field.name) for field in fields(Rl)}
    sizes = [question.rollout.gen_tp] if question.rollout.gen_tp else [1 << i for i in range(7) if 1 << i <= gpus]
    unit = node if gpus > node else 1
    parts = gpus // unit
    shares = sorted({max(1, round(parts * k / SPLITS)) for k in range(1, SPLITS)}) if parts > 1 else []
    ahead = sorted({0.0, min(1.0, question.async_steps), question.async_steps})
    for tp in sizes:
        rollout = replace(question.rollout, gen_tp=tp)
        if question.generate is None:
            yield Rl(**{**base, "rollout": rollout, "async_steps": 0.0, "hybrid": False})
        for share in shares if question.generate is None else [0]:
            generate = question.generate or share * unit
            train = question.train or gpus - generate
            if generate < tp or not 0 < train <= gpus - generate:
                continue
            for steps in ahead:
                pools = {"generate": generate, "train": train, "async_steps": steps}
                yield Rl(**{**base, "rollout": rollout, "hybrid": False, **pools})


def _trial(job: Job, bound: float, result: RlResult | None) -> Trial:
    steps = job.rules.async_steps
    pools = "colocated" if job.colocated else f"{job.question.generate} generate, {job.question.train} train"
    mode = "in turn" if not steps else f"{steps:g} ahead"
    words = f"{pools}, generators tp{job.engine.deployment.tp}, {mode}"
    step = None if result is None else result.step_time_s
    return Trial(words, job.question.generate, job.engine.deployment.tp, steps, bound, step)


def verdicts(trials: list[Trial], best: RlResult, async_steps: float) -> tuple[str, ...]:
    """What the search shows, in sentences; `async_steps`: as far ahead as it looked."""
    done = [trial for trial in trials if trial.step_s is not None]
    first = done[0]
    sentences = []
    name, other = ("Colocated", "pools apart") if first.generate is None else ("Pools apart", "colocated")
    rivals = [trial for trial in trials if (trial.generate is None) != (first.generate is None)]
    rival = next((trial for trial in rivals if trial.step_s is not None), None)
    if rival is not None and rival.step_s is not None:
        least = min(trial.bound_s if trial.step_s is None else trial.step_s for trial in rivals)
        takes = f"the best of {other} that was simulated ({rival.words}) takes {format_time(rival.step_s, 4)}"
        takes += f", and none can take less than {format_time(least, 4)}" if least < rival.step_s else ""
        if least <= best.p95_s:
            band = f"{format_time(best.p5_s, 4)} to {format_time(best.p95_s, 4)}"
            sentences.append(f"{name} is ahead, but not told apart: {takes}, within the band of the best, {band}.")
        else:
            sentences.append(f"{name} wins: {takes}, beyond the band of the best, {format_time(best.p95_s, 4)}.")
    elif first.generate is None:
        sentences.append("Colocated: no pools apart fit.")
    if not async_steps and (first.generate is not None or rivals):
        sentences.append("Searched in turn only; with --async-steps 1 pools apart may overlap and be faster: ask.")
    near = (1 + NEAR) * best.step_time_s
    flat = [trial for trial in done if trial.generate is not None and trial.step_s and trial.step_s <= near]
    if len({trial.generate for trial in flat}) > 1:
        sizes = [trial.generate for trial in flat if trial.generate]
        sentences.append(
            f"From {min(sizes)} to {max(sizes)} GPUs that generate, steps are within {NEAR:.0%} of the best."
        )
    return (*sentences, *best.verdicts)
