"""A prediction anchored on measured phases: of a framework's own log, or as an anchor that was found before.

    generation, learner    measured over predicted seconds, a factor each
    logprob                the same of log-probs, where they are logged apart from training; else the learner's
    refit, between         measured seconds: weights; what is left of the step
    step                   measured over predicted seconds of a step whose phases nobody logged

Phases are medians over the logged steps, the first apart where there are more than two. An anchor found for one layout
holds for another of the same framework, release and machines: `--anchor` takes what the answer prints. A step alone
does not part generation from learning: half of its factor's logarithm is carried (docs/accuracy-rl.md: 92 pairs of one
release, model and GPU are 11.8 % off without, 10.9 % with half and 13.4 % with the whole of it).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.studies.rl.job import Job
from windtunnel.studies.rl.result import Phases

# By phase: its names in logs of verl, NeMo RL, SkyRL, slime and prime-rl.
NAMES: Mapping[str, tuple[str, ...]] = {
    "step": (
        *("timing_s/step", "total step time", "timing/train/total_step_time", "timing/step", "perf/step_time"),
        "time/step",
    ),
    "generation": ("timing_s/gen", "generation", "timing/train/generation", "timing/generate", "perf/rollout_time"),
    "logprob": (
        *("timing_s/old_log_prob", "policy_and_reference_logprobs", "timing/train/policy_and_reference_logprobs"),
        *("timing/fwd_logprobs_values_reward", "perf/log_probs_time"),
    ),
    "reference": ("timing_s/ref", "perf/ref_log_probs_time"),
    "training": (
        *("timing_s/update_actor", "policy_training", "timing/train/policy_training", "timing/policy_train"),
        *("timing/train_critic_and_policy", "perf/actor_train_time", "time/forward_backward"),
    ),
    "refit": (
        *("timing_s/update_weights", "weight_sync", "timing/train/weight_sync", "timing/sync_weights"),
        *("perf/update_weights_time", "time/broadcast_weights"),
    ),
}
NUMBER = r"[\"']?\s*[:=]\s*(?:np\.float64\()?(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
WORDS = ("generation", "learner", "refit", "between", "step", "logprob")
CARRIED = 0.5  # of the logarithm of a step's factor, to another question


@dataclass(frozen=True, slots=True)
class Anchor:
    """What was measured, as factors and seconds; None where it was not."""

    generation: float | None = None
    learner: float | None = None
    refit_s: float | None = None
    between_s: float | None = None
    step: float | None = None
    logprob: float | None = None

    @property
    def words(self) -> str:
        """As `--anchor` takes it."""
        values = (self.generation, self.learner, self.refit_s, self.between_s, self.step, self.logprob)
        entries = zip(WORDS, values, strict=True)
        return ",".join(f"{name}={value:.4g}" for name, value in entries if value is not None)


def anchor_of(text: str) -> Anchor:
    """Of `generation=1.2,learner=0.9,refit=3,between=2`, or `step=1.1`: of another run. Raises SpecError."""
    seconds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in WORDS or not re.fullmatch(r"\s*\d+(\.\d*)?(e[-+]?\d+)?\s*", value):
            raise SpecError("anchor", part, f"use {', '.join(f'{word}=' for word in WORDS)} and numbers")
        seconds[name.strip()] = float(value)
    return Anchor(*(seconds.get(word) for word in WORDS))


def read_log(path: Path) -> dict[str, float]:
    """Seconds by phase. Raises InputFileError where the log has none."""
    text = read_text(path, "give the log of a run")
    seconds_of_phase = {}
    for phase, names in NAMES.items():
        for name in names:
            pattern = rf"(?<![\w/]){re.escape(name)}{NUMBER}"
            values = [float(value) for value in re.findall(pattern, text, re.IGNORECASE)]
            if values:
                seconds_of_phase[phase] = statistics.median(values[1:] if len(values) > 2 else values)
                break
    if not seconds_of_phase:
        raise InputFileError(path, "holds no phase of a step", "give a log with timing_s/gen, timing/step or the like")
    return seconds_of_phase


def anchor_on(logged: Mapping[str, float], predicted: Phases, step_s: float) -> Anchor:
    """The anchor that makes a prediction what was logged."""
    forward_s = predicted.logprob_s + predicted.ref_logprob_s
    measured = [logged[name] for name in ("logprob", "reference", "training") if name in logged]
    hidden = predicted.exposed_generation_s < 0.95 * predicted.generation_s  # pools overlap: a log has the wait alone
    generation = None if hidden or "generation" not in logged else logged["generation"] / predicted.generation_s
    learner = logged["training"] / predicted.training_s if "training" in logged else None
    logprob = None
    if forward_s > 0.0 and "logprob" in logged:
        logprob = (logged["logprob"] + logged.get("reference", 0.0)) / forward_s
    between = None
    if "generation" in logged and learner is not None and "step" in logged:  # where pools overlap, the wait for it
        refit_s = logged.get("refit", predicted.weight_sync_s)
        between = max(0.0, logged["step"] - logged["generation"] - sum(measured) - refit_s)
    alone = generation is None and learner is None and "step" in logged
    return Anchor(
        generation, learner, logged.get("refit"), between, logged["step"] / step_s if alone else None, logprob
    )


def anchored(job: Job, anchor: Anchor, *, carried: bool = False) -> Job:
    """The job with what was measured in it; `carried`: in another run than this one."""
    step = 1.0 if anchor.step is None else max(anchor.step, 1e-6) ** (CARRIED if carried else 1.0)
    habits = replace(job.habits, generation_factor=job.habits.generation_factor * (anchor.generation or step))
    learner = anchor.learner or step
    forward = 1.0 if anchor.logprob is None else anchor.logprob / learner
    trainer = replace(
        job.trainer, factor=job.trainer.factor * learner, forward_factor=job.trainer.forward_factor * forward
    )
    times = replace(
        job.times,
        refit_s=job.times.refit_s if anchor.refit_s is None else anchor.refit_s,
        between_s=job.times.between_s if anchor.between_s is None else anchor.between_s,
    )
    return replace(job, habits=habits, trainer=trainer, times=times, anchor=anchor.words)
