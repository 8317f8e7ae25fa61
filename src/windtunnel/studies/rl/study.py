"""The answer to `rl`: a question settled by the framework's habits, run as events, and read.

settle   pools, layouts and passes that the question leaves open (`Job`)
run      a few steps of it (`clock.py`), the first ones aside
read     means over the others, and the band
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.hardware.cluster import Cluster, cluster_with
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model, model_of
from windtunnel.questions.rl import Rl
from windtunnel.studies.rl.clock import NS, Rules, Run, Step, Times
from windtunnel.studies.rl.generators import Generator
from windtunnel.studies.rl.habits import Habits, load_habits
from windtunnel.studies.rl.learner import Passes, Trainer, best_trainer, fitting, fullest
from windtunnel.studies.rl.lengths import Answers, answers_of
from windtunnel.studies.rl.result import Lane, Phases, RlResult, Side
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

STEPS, MOST_SAMPLES = 3, 24_000  # measured steps; samples after which fewer are
# Standard deviations of the logarithm of each part, before anything was fitted: generation and learner as far as
# serving and training are off on what they were not fitted on; a weight update a factor of 2 either way (90 %).
SPREAD = {"generation": 0.3, "learner": 0.2, "refit": 0.42, "other": 0.4}
ASSUMED_LENGTHS = 0.15  # more on generation where nothing says how lengths spread
Z90 = 1.645


@dataclass(frozen=True, eq=False)
class Job:
    """A question with everything settled."""

    question: Rl
    model: Model
    habits: Habits
    answers: Answers
    rules: Rules
    engine: Engine
    replicas: int
    trainer: Trainer
    train_batch: int
    times: Times
    judges: tuple[Engine, int] | None = None  # engine, replicas

    @property
    def colocated(self) -> bool:
        """Whether both sides share GPUs."""
        return self.question.generate is None

    @property
    def gpus(self) -> int:
        """All that are used."""
        both = self.trainer.cluster.n_gpus if self.colocated else self.replicas_gpus + self.trainer.cluster.n_gpus
        return both + (self.judges[0].gpus * self.judges[1] if self.judges else 0)

    @property
    def replicas_gpus(self) -> int:
        """GPUs that generate."""
        return self.engine.gpus * self.replicas

    def lengths(self, batch: int) -> NDArray[np.int64]:
        """Answers of a batch."""
        return self.answers.batch(self.rules.groups, self.rules.samples, self.question.seed * 100_003 + batch)

    def sample_tokens(self) -> NDArray[np.int64]:
        """Tokens of the first batch's samples, prompts included."""
        return self.lengths(0) + self.rules.prompt_tokens + (self.rules.turns - 1) * self.rules.tool_tokens


def answer(question: Rl) -> RlResult:
    """How long a step is. Raises UserError."""
    return answered(settled(question))


# ------------------------------------------------------------------------------------------------------- settle


def settled(question: Rl) -> Job:
    """Everything that the question leaves open. Raises UserError where nothing fits."""
    habits = load_habits(question.framework)
    machine, model = cluster_of(question.cluster), model_of(question.model)
    answers = answers_of(question.lengths)
    gen_gpus = machine.n_gpus if question.generate is None else question.generate
    train_gpus = machine.n_gpus if question.train is None else question.train
    if question.generate is not None and gen_gpus + train_gpus > machine.n_gpus:
        remedy = f"with --train {train_gpus} is more than the cluster's {machine.n_gpus} GPUs"
        raise SpecError("generate", gen_gpus, remedy)
    rollout, beside = question.rollout, question.beside
    rules = Rules(
        question.prompts,
        question.samples,
        question.async_steps,
        habits.partial if question.partial is None else question.partial,
        habits.keep_cache,
        habits.in_order,
        habits.assignment == "chunks" and question.async_steps == 0,
        beside.useful,
        rollout.turns,
        question.prompt_tokens,
        rollout.tool_tokens,
    )
    train_batch = question.learner.train_batch or question.prompts * question.samples
    trainer = trainer_of(question, habits, model, sub(machine, train_gpus), answers, train_batch)
    draft = Job(
        question, model, habits, answers, rules,
        engine=None, replicas=0, trainer=trainer, train_batch=train_batch, times=Times(0.0),  # type: ignore[arg-type]
    )  # fmt: skip
    engine, replicas = generators_of(draft, sub(machine, gen_gpus))
    job = replace(draft, engine=engine, replicas=replicas)
    judges = None
    if beside.judge is not None:
        pool = sub(machine, beside.judge_gpus)
        able = [
            engine_of(load_model(beside.judge), pool, Deployment(engine=habits.engine, tp=tp)) for tp in _powers(pool)
        ]
        judge = next((one for one in able if one.fits), None)
        if judge is None:
            raise SpecError("judge", beside.judge, f"does not fit on {beside.judge_gpus} GPUs: give --judge-gpus more")
        judges = (judge, beside.judge_gpus // judge.gpus)
    return replace(job, times=times_of(job), judges=judges)


def sub(machine: Cluster, gpus: int) -> Cluster:
    """So many GPUs of a cluster."""
    return machine if gpus == machine.n_gpus else cluster_with(machine, n_gpus=gpus)


def trainer_of(
    question: Rl, habits: Habits, model: Model, cluster: Cluster, answers: Answers, train_batch: int
) -> Trainer:
    """The trainer, with the layout that is given or the fastest that fits."""
    asked = question.learner
    steps = -(-question.prompts * question.samples // train_batch)
    off_policy = habits.old_logprob == "always" or (habits.old_logprob == "unless-on-policy" and steps > 1)
    old = off_policy if asked.old_logprob is None else asked.old_logprob == "yes"
    reference = habits.reference if asked.reference is None else asked.reference == "yes"
    extra = question.prompt_tokens + (question.rollout.turns - 1) * question.rollout.tool_tokens
    fields: dict[str, Any] = {"framework": asked.trainer or habits.trainer, "precision": asked.precision}
    if asked.offload_optimizer:
        fields["offload_optimizer"] = asked.offload_optimizer
    given = {name: getattr(asked, name) for name in ("tp", "pp", "cp", "ep", "recompute")}
    rows = asked.row_tokens or answers.cap + extra
    trainer = Trainer(model, cluster, fields, rows, old, reference, habits.learner_factor)
    tokens = answers.batch(question.prompts, question.samples, question.seed * 100_003) + extra
    sizes = {name: size for name, size in given.items() if name != "recompute" and size is not None}
    if not sizes:
        return best_trainer(trainer, tokens, train_batch, given)
    layout = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, **sizes}
    return fitting(replace(trainer, fields={**fields, **layout}), tokens, train_batch, given | layout)


def generators_of(job: Job, cluster: Cluster) -> tuple[Engine, int]:
    """The engine of a generator and how many there are: as given, or the size that ends a batch first."""
    asked = job.question.rollout
    sizes = _powers(cluster) if asked.gen_tp is None else [asked.gen_tp]
    best: tuple[float, Engine, int] | None = None
    reason: UserError | None = None
    for tp in sizes:
        try:
            engine = engine_of(job.model, cluster, deployment(job, tp))
            replicas = cluster.n_gpus // engine.gpus
            check_room(job, engine)
        except (LayoutError, SpecError) as error:
            reason = error
            continue
        if len(sizes) == 1:
            return engine, replicas
        seconds = batch_time_s(job, engine, replicas)
        if best is None or seconds < best[0]:
            best = (seconds, engine, replicas)
    if best is None:
        raise reason or LayoutError("no generator is possible", "give more GPUs to --generate")
    return best[1], best[2]


def _powers(cluster: Cluster) -> list[int]:
    return [size for size in (1 << i for i in range(7)) if size <= cluster.n_gpus]


def deployment(job: Job, tp: int) -> Deployment:
    """A generator of this tensor parallelism."""
    asked, habits = job.question.rollout, job.habits
    return Deployment(
        engine=asked.engine or habits.engine,
        tp=tp,
        pp=asked.gen_pp,
        moe_ep=asked.gen_ep,
        weights=asked.weights,
        gpu_memory_utilization=asked.gpu_memory_utilization or habits.gpu_memory_utilization,
        max_num_seqs=asked.max_num_seqs,
        speculative_tokens=asked.speculative_tokens,
        acceptance=asked.acceptance,
    )


def check_room(job: Job, engine: Engine) -> None:
    """Raises LayoutError where the weights or the longest sample do not fit."""
    words = engine.deployment.words()
    if not engine.fits:
        needed = (engine.memory.weights + engine.memory.activations + engine.memory.reserved) / 2**30
        has = engine.cluster.gpu.usable_memory_bytes / 2**30
        problem = f"a generator of {words} needs {needed:.1f} GiB of a GPU's {has:.1f} and leaves no room for a cache"
        raise LayoutError(problem, "give a larger --gen-tp, or more of --gpu-memory-utilization")
    rules = job.rules
    longest = rules.prompt_tokens + job.answers.cap + (rules.turns - 1) * rules.tool_tokens
    if longest > engine.longest:
        problem = f"the cache of a generator of {words} holds {engine.longest:,} tokens, a sample may have {longest:,}"
        raise LayoutError(problem, "give a larger --gen-tp, or a smaller cap of --lengths")


def batch_time_s(job: Job, engine: Engine, replicas: int) -> float:
    """Seconds of a closed batch."""
    return _run(job, engine, replicas, replace(job.rules, async_steps=0), Times(0.0), 1, idle=True).steps[0].complete_s


def times_of(job: Job) -> Times:
    """Seconds of what is neither generated nor trained."""
    habits, beside = job.habits, job.question.beside
    habit = habits.refit_colocated_bytes_per_s if job.colocated else habits.refit_apart_bytes_per_s
    width = 1 if job.question.rollout.weights in ("fp8", "fp8_block") else 2
    refit_s = habits.refit_s + width * job.model.parameters / (beside.refit_rate or habit)
    between_s = habits.between_s
    if job.colocated:
        stage = fullest(job.trainer, job.sample_tokens(), job.train_batch)
        state = sum(size for name, size in stage.categories.items() if name in ("parameters", "gradients", "optimizer"))
        between_s += habits.wake_s + 2 * state / job.trainer.cluster.host.offload_bandwidth_bytes_per_s
    if beside.checkpoint_every:
        between_s += 14.0 * job.model.parameters / beside.storage / beside.checkpoint_every
    if beside.validate_every:
        rules = replace(job.rules, groups=beside.validate_samples, samples=1, async_steps=0)
        one = _run(job, job.engine, job.replicas, rules, Times(0.0), 1, idle=True).steps[0].complete_s
        between_s += one / beside.validate_every
    return Times(refit_s, between_s, job.question.rollout.tool_wait, beside.reward, beside.reward_workers)


# ---------------------------------------------------------------------------------------------------------- run


def _run(job: Job, engine: Engine, replicas: int, rules: Rules, times: Times, steps: int, idle: bool = False) -> Run:
    """So many steps; `idle`: a learner that takes no time."""
    factor = job.habits.generation_factor
    generators = [Generator(engine, factor) for _ in range(replicas)]
    guests: list[Generator] = []
    if job.question.hybrid and not idle:
        guests = [Generator(engine, factor) for _ in range(job.trainer.cluster.n_gpus // engine.gpus)]
    judges = [job.judges[0].replica() for _ in range(job.judges[1])] if job.judges and not idle else []

    def nothing(tokens: NDArray[np.int64]) -> Passes:
        return Passes(0.0, 0.0, 0.0)

    def batch(number: int) -> NDArray[np.int64]:
        return job.answers.batch(rules.groups, rules.samples, job.question.seed * 100_003 + number)

    passes = nothing if idle else partial(job.trainer.passes, train_batch=job.train_batch)
    run = Run(
        rules, times, batch, passes, generators, guests, judges, job.question.beside.judge_tokens, job.question.seed
    )
    run.until(steps)
    return run


def answered(job: Job) -> RlResult:
    """A settled job, run and read."""
    memory = memory_of(job)
    for name, side in memory.items():
        if not side.fits:
            needs, has = side.needed_bytes / 2**30, side.capacity_bytes / 2**30
            return infeasible(job, memory, f"{name} needs {needs:.1f} GiB of a GPU's {has:.1f}")
    eta = job.rules.oldest
    warm = 0 if eta == 0 else eta + 1
    batch = job.rules.groups * job.rules.samples
    measured = max(2, min(STEPS + eta, MOST_SAMPLES // batch - warm))
    run = _run(job, job.engine, job.replicas, job.rules, job.times, warm + measured)
    return read(job, run, warm, memory)


# --------------------------------------------------------------------------------------------------------- read


def read(job: Job, run: Run, warm: int, memory: Mapping[str, Side]) -> RlResult:
    """Means over the steps after `warm`."""
    steps = run.steps[warm:]
    begin = run.steps[warm - 1].end_s if warm else 0.0
    end, many = steps[-1].end_s, len(steps)
    step_s = (end - begin) / many
    phases = phases_of(job, steps, step_s)
    trained = sum(step.tokens for step in steps)
    busy = np.array([one.busy_ticks for one in run.generators], float) / TICKS_PER_S * job.habits.generation_factor
    learner_s = phases.logprob_s + phases.ref_logprob_s + phases.training_s
    idle = {
        "generation": float(max(0.0, 1.0 - busy.mean() / (run.now_ns / NS))),
        "training": max(0.0, 1.0 - learner_s / step_s),
    }
    ages = np.array([age for step in steps for age in step.ages])
    counts = {str(age): int((ages == age).sum()) * job.rules.samples for age in range(int(ages.max()) + 1)}
    staleness = {"mean": float(ages.mean()), "most": int(ages.max()), "bound": job.rules.oldest, "samples": counts}
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
            "open": run.open_tokens(),
        },
        memory=memory,
        cost=cost,
        cost_per_1000_samples=None if cost is None else 1000.0 * cost / samples,
        steps=many,
        preemptions=sum(one.preemptions for one in run.generators),
        verdicts=(),
        sources=sources_of(job),
        assumptions=assumptions_of(job),
        lanes=lanes_of(job, steps),
    )


def phases_of(job: Job, steps: list[Step], step_s: float) -> Phases:
    """Means of each phase."""

    def mean(values: list[float]) -> float:
        return float(np.mean(values))

    old = mean([step.passes.old_logprob_s for step in steps])
    reference = mean([step.passes.reference_s for step in steps])
    training = mean([step.passes.training_s for step in steps])
    exposed = mean([step.wait_s for step in steps])
    known = exposed + old + reference + training + job.times.refit_s
    return Phases(
        generation_s=mean([step.complete_s - step.begun_s for step in steps]),
        logprob_s=old,
        ref_logprob_s=reference,
        training_s=training,
        weight_sync_s=job.times.refit_s,
        other_s=max(0.0, step_s - known),
        exposed_generation_s=exposed,
    )


def band(job: Job, phases: Phases, step_s: float) -> tuple[float, float]:
    """The step's p5 and p95: parts vary by themselves, each by its share of the step."""
    generation = sqrt(SPREAD["generation"] ** 2 + (ASSUMED_LENGTHS if job.answers.assumed else 0.0) ** 2)
    parts = (
        (phases.exposed_generation_s, generation),
        (phases.logprob_s + phases.ref_logprob_s + phases.training_s, SPREAD["learner"]),
        (phases.weight_sync_s, SPREAD["refit"]),
        (phases.other_s, SPREAD["other"]),
    )
    sigma = sqrt(sum((seconds / step_s * spread) ** 2 for seconds, spread in parts))
    return step_s * exp(-Z90 * sigma), step_s * exp(Z90 * sigma)


def memory_of(job: Job) -> dict[str, Side]:
    """Of both sides; a sleeping engine leaves a context on GPUs that both share."""
    found, gpu = job.engine.memory, job.engine.cluster.gpu
    generation = {
        "weights": found.weights,
        "activations": found.activations,
        "reserved": found.reserved,
        "kv_cache": max(0.0, found.kv),
    }
    stage = fullest(job.trainer, job.sample_tokens(), job.train_batch)
    training = {name: float(size) for name, size in stage.categories.items()}
    training["allocator and context"] = float(stage.device_bytes - sum(stage.categories.values()))
    if job.colocated:
        training["sleeping engine"] = found.reserved
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


def spec_of(job: Job) -> dict[str, Any]:
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
    """What nobody said."""
    if not job.answers.assumed or job.answers.sd == 0.0:
        return ()
    return (
        f"lengths are taken as lognormal with a standard deviation of {job.answers.sd:g} (of the logarithm), which"
        " moves generation: give a file, or sd= in --lengths",
    )


def lanes_of(job: Job, steps: list[Step]) -> tuple[Lane, ...]:
    """What both pools do in the first measured steps."""
    generating, training = [], []
    for step in steps[:4]:
        generating.append(("generation", step.begun_s, step.complete_s))
        at = step.trained_s - step.passes.total_s
        training.append(("waiting", step.begin_s, step.ready_s))
        training.append(("data, rewards", step.ready_s, at))
        for name, seconds in (
            ("old log-probs", step.passes.old_logprob_s),
            ("reference log-probs", step.passes.reference_s),
            ("training", step.passes.training_s),
        ):
            training.append((name, at, at + seconds))
            at += seconds
        training.append(("weights", step.trained_s, step.end_s))
    kept = tuple(span for span in training if span[2] > span[1])
    return (Lane("generation", tuple(generating)), Lane("training", kept))
