"""A run read: phases, who waits, how old samples are, memory of both sides, the band, and what decides a step."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot

import numpy as np

from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.model.architecture import notes_of
from windtunnel.studies.rl.clock import NS, Run, Step
from windtunnel.studies.rl.job import Job, alone_s, is_scattered
from windtunnel.studies.rl.learner import fullest
from windtunnel.studies.rl.result import Lane, Phases, RlResult, Side, Staleness
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

# Standard deviations of the logarithm of each part: generation and learner as far as serving and training are off on
# what they were not fitted on; a weight update a factor of 2 either way (90 %). 94 % of published steps are in the
# band, 92 % of those whose pools overlap (docs/accuracy-rl.md).
SPREAD = {"generation": 0.25, "learner": 0.2, "refit": 0.42, "other": 0.4}
ASSUMED_LENGTHS = 0.15  # more on generation where nothing says how lengths spread
GUESSED_MEAN = 0.4  # more on generation and learner where nothing says how long they are
OVERLAP_SPREAD = 0.15  # more on a step whose pools overlap
MEASURED_SPREAD = {"generation": 0.08, "learner": 0.08, "refit": 0.15, "other": 0.2}  # of what was measured once
Z90 = 1.645
LATENCY_BOUND = 0.6  # share of generation that the longest answer alone takes


def read_run(job: Job, run: Run, warm: int, memory: Mapping[str, Side]) -> RlResult:
    """Means over the steps after `warm`."""
    steps = run.steps[warm:]
    begin = run.steps[warm - 1].end_s if warm else 0.0
    end, many = steps[-1].end_s, len(steps)
    step_s = (end - begin) / many
    phases = phases_of(job, steps, step_s)
    trained = sum(step.tokens for step in steps)
    busy = (
        np.array([generator.busy_ticks for generator in run.generators], float)
        / TICKS_PER_S
        * job.habits.generation_factor
    )
    learner_s = phases.logprob_s + phases.ref_logprob_s + phases.training_s
    idle = {
        "generation": float(max(0.0, 1.0 - busy.mean() / (run.now_ns / NS))),
        "training": max(0.0, 1.0 - learner_s / step_s),
    }
    ages = np.array([age for step in steps for age in step.ages])
    counts = {str(age): int((ages == age).sum()) * job.rules.samples for age in range(int(ages.max()) + 1)}
    staleness = Staleness(mean=float(ages.mean()), most=int(ages.max()), bound=job.rules.oldest, samples=counts)
    p5, p95 = band(job, phases, step_s)
    price = job.question.price
    cost = None if price is None else step_s * job.gpus * price / 3600.0
    samples = job.rules.groups * job.rules.samples
    return RlResult(
        spec=spec_of(job),
        feasible=True,
        reason="",
        step_time_s=step_s,
        p5_s=p5,
        p95_s=p95,
        phases=phases,
        idle_share=idle,
        staleness=staleness,
        tokens_per_s_per_gpu=trained / many / step_s / job.gpus,
        tokens={
            "begun": run.tokens_begun,
            "trained": run.tokens_trained,
            "dropped": run.tokens_dropped,
            "open": run.open_tokens() + run.tokens_training,
        },
        memory=memory,
        cost=cost,
        cost_per_1000_samples=None if cost is None else 1000.0 * cost / samples,
        steps=many,
        preemptions=sum(generator.preemptions for generator in run.generators),
        verdicts=verdicts_of(job, steps, phases, idle, step_s),
        sources=sources_of(job),
        assumptions=assumptions_of(job),
        lanes=lanes_of(job, steps),
    )


def verdicts_of(
    job: Job, steps: list[Step], phases: Phases, idle: Mapping[str, float], step_s: float
) -> tuple[str, ...]:
    """What decides the step, in sentences."""
    sentences = []
    longest = int(np.mean([job.lengths(number).max() for number in range(2)]))
    alone, waits = alone_s(job, longest), phases.exposed_generation_s > 0.1 * step_s
    if waits and alone > LATENCY_BOUND * phases.generation_s:
        sentences.append(
            f"Generation is bound by latency: the longest answer alone takes {alone:.0f} of {phases.generation_s:.0f}"
            " s; more generators do next to nothing, but tensor parallelism, speculation, partial rollouts or a shorter"
            " cap do."
        )
    elif waits:
        sentences.append(f"Generation is bound by throughput: the longest answer alone takes {alone:.0f} s of it.")
    if not job.colocated and job.rules.async_steps:
        slack = "trainers wait for generators" if waits else f"generators idle {idle['generation']:.0%} of the time"
        sentences.append(
            f"Pools overlap, and {slack}: " + ("generate with more GPUs." if waits else "train with more GPUs.")
        )
    elif not job.colocated:
        sentences.append("Pools work in turn: each waits for the other; --async-steps 1 overlaps them.")
    return tuple(sentences)


def phases_of(job: Job, steps: list[Step], step_s: float) -> Phases:
    """Means of each phase."""

    def mean(values: list[float]) -> float:
        return float(np.mean(values))

    old = mean([step.passes.old_logprob_s for step in steps])
    reference = mean([step.passes.reference_s for step in steps])
    training = mean([step.passes.training_s for step in steps])
    exposed = mean([step.wait_s for step in steps])
    accounted_s = exposed + old + reference + training + job.times.refit_s
    return Phases(
        generation_s=mean([step.complete_s - step.begun_s for step in steps]),
        logprob_s=old,
        ref_logprob_s=reference,
        training_s=training,
        weight_sync_s=job.times.refit_s,
        other_s=max(0.0, step_s - accounted_s),
        exposed_generation_s=exposed,
    )


def band(job: Job, phases: Phases, step_s: float) -> tuple[float, float]:
    """The step's p5 and p95: parts vary by themselves, each by its share of the step."""
    carried = job.question.beside.anchor is not None and "step=" in job.anchor  # says little: no narrower for it
    measured = bool(job.anchor) and not carried  # with these very lengths
    spread = MEASURED_SPREAD if measured else SPREAD
    guessed = GUESSED_MEAN if job.answers.guessed and not measured else 0.0
    generation = hypot(spread["generation"], ASSUMED_LENGTHS if job.answers.assumed and not measured else 0.0, guessed)
    parts = (
        (phases.exposed_generation_s, generation),
        (phases.logprob_s + phases.ref_logprob_s + phases.training_s, hypot(spread["learner"], guessed)),
        (phases.weight_sync_s, spread["refit"]),
        (phases.other_s, spread["other"]),
    )
    overlap = OVERLAP_SPREAD if job.rules.async_steps and not measured else 0.0
    sigma = hypot(overlap, *(seconds / step_s * spread for seconds, spread in parts))
    return step_s * exp(-Z90 * sigma), step_s * exp(Z90 * sigma)


def memory_of(job: Job) -> dict[str, Side]:
    """Of both sides; a sleeping engine leaves a context on GPUs that both share."""
    memory, gpu = job.engine.memory, job.engine.cluster.gpu
    generation = {
        "weights": memory.weights,
        "activations": memory.activations,
        "reserved": memory.reserved,
        "kv_cache": max(0.0, memory.kv),
    }
    stage = fullest(job.trainer, job.sample_tokens(), job.train_batch)
    training = {name: float(size) for name, size in stage.categories.items()}
    training["allocator and context"] = float(stage.device_bytes - sum(stage.categories.values()))
    if job.colocated:
        training["sleeping engine"] = memory.reserved
    capacity = float(gpu.usable_memory_bytes)
    sides = {"generation": generation, "training": training}
    return {name: Side(parts, sum(parts.values()), capacity) for name, parts in sides.items()}


def infeasible(job: Job, memory: Mapping[str, Side], reason: str) -> RlResult:
    """The answer where memory does not do."""
    nothing = Phases(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return RlResult(
        spec_of(job), False, f"out of memory: {reason}", 0.0, 0.0, 0.0, nothing, {}, {}, 0.0, {}, memory, None, None,
        0, 0, (), sources_of(job), assumptions_of(job),
    )  # fmt: skip


def spec_of(job: Job) -> dict[str, object]:
    """What was settled."""
    fields = job.trainer.fields
    return {
        "model": job.model.name,
        "gpu": job.trainer.cluster.gpu.name,
        "gpus": job.gpus,
        "generate": job.replicas_gpus,
        "train": job.trainer.cluster.n_gpus,
        "placement": "colocated" if job.colocated else "hybrid" if job.question.hybrid else "apart",
        "framework": f"{job.habits.name} {job.habits.release}",
        "engine": f"{job.engine.profile.engine} {job.engine.profile.release}",
        "generators": f"{job.replicas} x {job.engine.deployment.words()}",
        "trainer": " ".join(f"{name}{fields[name]}" for name in ("tp", "pp", "cp", "ep") if int(fields[name]) > 1)
        or "dp",
        "recompute": fields["recompute"],
        "async_steps": job.rules.async_steps,
        "partial": job.rules.partial,
        "prompts": job.rules.groups,
        "samples": job.rules.samples,
        "anchor": job.anchor or "none",
        "optimizer_steps": -(-job.rules.groups * job.rules.samples // job.train_batch),
    }


def sources_of(job: Job) -> tuple[str, ...]:
    """Where numbers come from."""
    rate = job.question.beside.refit_rate
    habits = job.habits
    own = habits.refit_colocated_bytes_per_s if job.colocated else habits.refit_apart_bytes_per_s
    return (
        f"generation: the serving study, {spec_of(job)['engine']}; {job.engine.kernels}",
        f"training and log-probs: the training study, habits of {job.trainer.fields['framework']}",
        f"weight update: {(rate or own) / 1e9:.3g} GB/s, {'as given' if rate else f'published of {habits.name}'}",
    )


def assumptions_of(job: Job) -> tuple[str, ...]:
    """What nobody said, and what the models leave out."""
    judges = () if job.judges is None else (job.judges[0].model,)
    sentences = [*notes_of(job.model, *judges)]
    if job.imported is not None and job.imported.unknown:
        settings = ", ".join(job.imported.unknown[:12])
        more = len(job.imported.unknown) - 12
        sentences.append(
            f"not understood in {job.imported.path}: {settings}" + (f" and {more} more" if more > 0 else "")
        )
    gpus = cluster_of(job.question.cluster).n_gpus
    if job.imported is not None and job.imported.gpus not in (None, gpus):
        sentences.append(f"{job.imported.path} is for {job.imported.gpus:,} GPUs; answered for the cluster's {gpus:,}")
    wanted, drafting = job.question.rollout, job.engine.deployment
    if drafting.speculative_tokens and wanted.speculative_tokens is None:
        whose = f"the recipe of {job.habits.name} {job.habits.release}"
        words = f"kept with a chance of {drafting.acceptance:g}: --speculative-tokens 0 leaves it out"
        sentences.append(f"{whose} drafts tokens, {drafting.speculative_tokens} a step, {words}")
    elif drafting.speculative_tokens and wanted.acceptance is None:
        words = f"a drafted token is taken to be kept with a chance of {drafting.acceptance:g}"
        sentences.append(
            f"no --acceptance is given: {words}; other drafters differ, so give what the engine's log says"
        )
    if is_scattered(job.question, job.habits):
        sentences.append(_SCATTERED.format(job.habits.name, job.habits.release, cluster_of(job.question.cluster)))
    if job.answers.guessed:
        sentences.append(
            f"nothing says how long answers are: {job.answers.mean:,.0f} tokens, half of the cap, are assumed"
        )
    if job.answers.assumed and job.answers.sd > 0.0:
        sentences.append(_SPREAD_ASSUMED.format(job.answers.sd))
    return tuple(sentences)


_SCATTERED = (
    "{} {} lays groups of ranks over nodes of any NVLink domain, so beyond a node they talk over the network;"
    " where nodes are aligned give --set cluster.scale_up_domain={.scale_up_domain}"
)
_SPREAD_ASSUMED = (
    "lengths are taken as lognormal with a standard deviation of {:g} (of the logarithm), which moves generation: give"
    " a file, or sd= in --lengths"
)


def lanes_of(job: Job, steps: list[Step]) -> tuple[Lane, ...]:
    """What both pools do in the first measured steps."""
    generating, training = [], []
    for step in steps[:4]:
        generating.append(("generation", step.begun_s, step.complete_s))
        at = step.trained_s - step.passes.total_s
        training.append(("data, rewards", step.ready_s, at))
        for name, seconds in (
            ("old log-probs", step.passes.old_logprob_s),
            ("reference log-probs", step.passes.reference_s),
            ("training", step.passes.training_s),
        ):
            training.append((name, at, at + seconds))
            at += seconds
        training.append(("weights", step.trained_s, step.end_s))
    spans = tuple(span for span in training if span[2] > span[1])
    return (Lane("generation", tuple(generating)), Lane("training", spans))
