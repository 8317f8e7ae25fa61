"""A question of `rl` with everything settled: pools, layouts, passes, times; and its run as events.

What the question leaves open follows the framework's own file, then its habits; a layout is the fastest that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.hardware.cluster import Cluster, cluster_with
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model, model_of
from windtunnel.questions import plain, read
from windtunnel.questions.asked.rl import Rl
from windtunnel.questions.asked.serve.parts import Drafts
from windtunnel.studies.rl.clock import NS, Rules, Run, Times
from windtunnel.studies.rl.configs.question import Imported, read_config
from windtunnel.studies.rl.generators import Generator
from windtunnel.studies.rl.habits import Habits, load_habits
from windtunnel.studies.rl.learner import Passes, Trainer, best_trainer, fitting, fullest
from windtunnel.studies.rl.least import least_of, parts_of
from windtunnel.studies.rl.lengths import Answers, answers_of
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.step_time.times import TICKS_PER_S


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
    imported: Imported | None = None  # from the framework's own file
    anchor: str = ""  # in words, where phases were measured

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

    def passes_s(self, tokens: NDArray[np.int64]) -> float:
        """Seconds of the learner for samples of these tokens."""
        return self.trainer.passes(tokens, self.train_batch).total_s

    def lengths(self, batch: int) -> NDArray[np.int64]:
        """Answers of a batch."""
        return self.answers.batch(self.rules.groups, self.rules.samples, self.question.seed * 100_003 + batch)

    def sample_tokens(self) -> NDArray[np.int64]:
        """Tokens of the first batch's samples, prompts included."""
        return self.lengths(0) + self.rules.prompt_tokens + (self.rules.turns - 1) * self.rules.tool_tokens


def with_config(question: Rl) -> tuple[Rl, Imported | None]:
    """The question with what the framework's own file says where nothing else does. Raises UserError."""
    path = question.own_file
    if path is None:
        return question, None
    imported = read_config(path)
    data, own = dict(imported.data), plain(question)
    own.pop("config", None)
    if question.config is None:
        del own["model"]
    device, trained = data.pop("per_device", None), data.pop("trained_per_device", None)
    if device is not None:
        gpus = question.train or cluster_of(question.cluster).n_gpus
        data.setdefault("prompts", max(1, device * gpus // int(own.get("samples") or data.get("samples") or 1)))
        data["learner"] = {"train_batch": trained * gpus, **data.get("learner", {})}
    for name, value in own.items():
        inner = data.get(name)
        data[name] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    if "model" not in data:
        remedy = f"name a model beside --config {path}: the file's is not in the catalogue"
        raise SpecError("model", imported.model or None, remedy)
    return read(data), imported


def job_of(question: Rl) -> Job:
    """Everything that the question leaves open. Raises UserError where nothing fits."""
    draft = drafted(question)
    return with_trainer(draft, trainer_of(draft))


def with_trainer(draft: Job, trainer: Trainer) -> Job:
    """A draft with its trainer laid out, and what a step waits for beside. Raises UserError."""
    job = replace(draft, trainer=trainer)
    return replace(job, times=times_of(job))


def drafted(question: Rl, engines: dict[Deployment, Engine] | None = None) -> Job:
    """All but the layout of the trainer and the seconds that follow from it; `engines`: priced for this machine.

    Raises UserError where nothing fits.
    """
    question, imported = with_config(question)
    assert question.model is not None
    assert question.prompts is not None
    assert question.lengths is not None
    habits = load_habits(question.framework or "verl")
    machine, model = laid_over(question, habits), model_of(question.model)
    answers = answers_of(question.lengths)
    samples = question.samples or 1
    gen_gpus = machine.n_gpus if question.generate is None else question.generate
    train_gpus = machine.n_gpus if question.train is None else question.train
    if question.generate is not None and gen_gpus + train_gpus > machine.n_gpus:
        remedy = f"with --train {train_gpus} is more than the cluster's {machine.n_gpus} GPUs"
        raise SpecError("generate", gen_gpus, remedy)
    rollout, beside = question.rollout, question.beside
    rules = Rules(
        question.prompts,
        samples,
        question.async_steps,
        habits.partial if question.partial is None else question.partial,
        habits.keep_cache,
        habits.in_order,
        habits.assignment == "chunks",
        beside.useful,
        rollout.turns,
        question.prompt_tokens,
        rollout.tool_tokens,
    )
    batch = question.prompts * samples
    train_batch = min(question.learner.train_batch or batch, batch)
    trainer = _no_layout(question, habits, model, sub(machine, train_gpus), answers, rules, train_batch)
    draft = Job(
        question, model, habits, answers, rules,
        engine=None, replicas=0, trainer=trainer, train_batch=train_batch, times=Times(0.0),  # type: ignore[arg-type]
        imported=imported,
    )  # fmt: skip
    engine, replicas = generators_of(draft, machine, gen_gpus, {} if engines is None else engines)
    rules = replace(rules, in_flight=in_flight(draft, replicas))
    job = replace(draft, engine=engine, replicas=replicas, rules=rules)
    judges = None
    if beside.judge is not None:
        pool = sub(machine, beside.judge_gpus)
        able = [
            engine_of(load_model(beside.judge), pool, Deployment(engine=habits.engine, tp=tp)) for tp in _powers(pool)
        ]
        judge = next((engine for engine in able if engine.fits), None)
        if judge is None:
            raise SpecError("judge", beside.judge, f"does not fit on {beside.judge_gpus} GPUs: give --judge-gpus more")
        judges = (judge, beside.judge_gpus // judge.gpus)
    return replace(job, times=Times(refit_of(job)), judges=judges)


def in_flight(draft: Job, replicas: int) -> int | None:
    """Groups that are generated at a time at the most; None: all that may begin."""
    rules, limit = draft.rules, draft.question.rollout.in_flight
    if limit is not None or not rules.async_steps:
        return limit
    batches = rules.groups * max(1, int(rules.async_steps))
    limits = {"ahead": batches, "batch": rules.groups, "generators": 16 * replicas}
    return limits.get(draft.habits.in_flight)


def is_scattered(question: Rl, habits: Habits) -> bool:
    """Whether groups of ranks lie over nodes of several NVLink domains, since nothing aligns them."""
    machine = cluster_of(question.cluster)
    several = machine.n_gpus > machine.scale_up_domain > machine.gpus_per_node
    return several and not habits.aligns_nodes and question.cluster.scale_up_domain is None


def laid_over(question: Rl, habits: Habits) -> Cluster:
    """The cluster as ranks find it; a `scale_up_domain` of the question's own is what they find."""
    machine = cluster_of(question.cluster)
    return cluster_with(machine, scale_up_domain=machine.gpus_per_node) if is_scattered(question, habits) else machine


def sub(machine: Cluster, gpus: int) -> Cluster:
    """So many GPUs of a cluster."""
    return machine if gpus == machine.n_gpus else cluster_with(machine, n_gpus=gpus)


def trainer_of(draft: Job) -> Trainer:
    """The trainer with the layout that is given, or the fastest that fits."""
    learner, trainer = draft.question.learner, draft.trainer
    layout_fields = {name: getattr(learner, name) for name in ("tp", "pp", "cp", "ep", "recompute")}
    tokens = draft.sample_tokens()
    sizes = {name: size for name, size in layout_fields.items() if name != "recompute" and size is not None}
    if not sizes:
        return best_trainer(trainer, tokens, draft.train_batch, layout_fields)
    layout = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, **sizes}
    return fitting(
        replace(trainer, fields={**trainer.fields, **layout}), tokens, draft.train_batch, layout_fields | layout
    )


def _no_layout(
    question: Rl, habits: Habits, model: Model, cluster: Cluster, answers: Answers, rules: Rules, train_batch: int
) -> Trainer:
    learner = question.learner
    steps = -(-rules.groups * rules.samples // train_batch)
    off_policy = habits.old_logprob == "always" or (habits.old_logprob == "unless-on-policy" and steps > 1)
    old = off_policy if learner.old_logprob is None else learner.old_logprob == "yes"
    reference = habits.reference if learner.reference is None else learner.reference == "yes"
    extra = rules.prompt_tokens + (rules.turns - 1) * rules.tool_tokens
    fields: dict[str, float | str] = {"framework": learner.trainer or habits.trainer, "precision": learner.precision}
    if habits.loss is not None and fields["framework"] != "megatron":
        fields["loss"] = habits.loss
    if learner.offload_optimizer:
        fields["offload_optimizer"] = learner.offload_optimizer
    rows = learner.row_tokens or answers.cap + extra
    factor = habits.experts_factor if _has_experts(model) else habits.learner_factor
    return Trainer(model, cluster, fields, rows, old, reference, factor)


def _has_experts(model: Model) -> bool:
    return any(layer.feed_forward.kind == "moe" for layer in model.layers)


def generators_of(job: Job, machine: Cluster, gpus: int, engines: dict[Deployment, Engine]) -> tuple[Engine, int]:
    """The engine of a generator and how many there are: as given, or the size that ends a batch first."""
    rollout, cluster = job.question.rollout, sub(machine, gpus)
    sizes = _powers(cluster) if rollout.gen_tp is None else [rollout.gen_tp]
    best: tuple[float, Engine, int] | None = None
    reason: UserError | None = None
    for tp in sizes:
        try:
            laid_out = deployment(job, tp)
            engine = engines.get(laid_out) or generator_engine(job, cluster, laid_out)
            engines[laid_out] = engine
            replicas = gpus // engine.gpus
            check_room(job, engine)
        except (LayoutError, SpecError) as error:
            reason = error
            continue
        if len(sizes) == 1:
            return engine, replicas
        if best is not None and least_batch_s(job, engine, replicas) >= best[0]:
            continue
        seconds = batch_time_s(job, engine, replicas, best[0] if best else math.inf)
        if best is None or seconds < best[0]:
            best = (seconds, engine, replicas)
    if best is None:
        raise reason or LayoutError("no generator is possible", "give more GPUs to --generate")
    return best[1], best[2]


def _powers(cluster: Cluster) -> list[int]:
    return [size for size in (1 << i for i in range(7)) if size <= cluster.n_gpus]


def generator_engine(job: Job, cluster: Cluster, laid_out: Deployment) -> Engine:
    """A generator priced. Raises LayoutError, SpecError."""
    profile, habits = None, job.habits
    if job.question.rollout.eager:
        profile = load_engine(laid_out.engine).ungraphed(cluster.gpu)
    if habits.node_sum_s is not None:  # read on RL engines: the factor of those is in it
        profile = replace(
            profile or load_engine(laid_out.engine), node_sum_s=habits.node_sum_s / habits.generation_factor
        )
    return engine_of(job.model, cluster, laid_out, profile=profile)


def deployment(job: Job, tp: int) -> Deployment:
    """A generator of this tensor parallelism."""
    rollout, habits = job.question.rollout, job.habits
    apart = None if job.colocated else habits.gpu_memory_utilization_apart
    tokens, acceptance = drafted_by(job)
    engine = rollout.engine or habits.engine
    return Deployment(
        engine=habits.engine if habits.engine.startswith(f"{engine}-") else engine,  # of no release: the framework's
        tp=tp,
        pp=rollout.gen_pp,
        moe_ep=rollout.gen_ep,
        weights=rollout.weights,
        gpu_memory_utilization=rollout.gpu_memory_utilization or apart or habits.gpu_memory_utilization,
        max_num_seqs=rollout.max_num_seqs,
        speculative_tokens=tokens,
        acceptance=acceptance,
    )


def drafted_by(job: Job) -> tuple[int, float]:
    """Tokens that a generator drafts per step and the chance that one is kept: as given, or as the recipe has it."""
    rollout = job.question.rollout
    tokens, acceptance = job.habits.drafted.get(job.model.name, (0, Drafts.taken_as))
    tokens = tokens if rollout.speculative_tokens is None else rollout.speculative_tokens
    acceptance = acceptance if rollout.acceptance is None else rollout.acceptance
    return (tokens, acceptance) if tokens else (0, 0.0)


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


def batch_time_s(job: Job, engine: Engine, replicas: int, most_s: float = math.inf) -> float:
    """Seconds of a closed batch, infinite where they are more than `most_s`."""
    rules = replace(job.rules, async_steps=0)
    steps = run_of(job, engine, replicas, rules, Times(0.0), 1, idle=True, most_s=most_s).steps
    return steps[0].complete_s if steps else math.inf


def least_batch_s(job: Job, engine: Engine, replicas: int) -> float:
    """Seconds that such a batch takes at the least; 0 where answers have several turns or are thrown away."""
    rules = job.rules
    if rules.turns > 1 or rules.useful < 1.0:
        return 0.0
    steps = np.maximum(0, job.lengths(0) - 1)
    parts = parts_of(steps, replicas, rules.chunks)
    most = max(len(part) for part in parts) + 1
    least = least_of(engine, rules.prompt_tokens, rules.prompt_tokens + job.answers.cap, most)
    return job.habits.generation_factor / TICKS_PER_S * max(least.together(part) for part in parts)


def alone_s(job: Job, tokens: int) -> float:
    """Seconds that an answer takes at the least: alone in its generator, at the shortest context."""
    ticks = job.engine.times.decode(1).at(job.rules.prompt_tokens)
    return job.habits.generation_factor * max(0, tokens - 1) * ticks / TICKS_PER_S


def refit_of(job: Job) -> float:
    """Seconds of a weight update."""
    habits = job.habits
    habit = habits.refit_colocated_bytes_per_s if job.colocated else habits.refit_apart_bytes_per_s
    width = 1 if habits.sends_fp8 and job.question.rollout.weights in ("fp8", "fp8_block") else 2
    return habits.refit_s + width * job.model.parameters / (job.question.beside.refit_rate or habit)


def times_of(job: Job) -> Times:
    """Seconds of what is neither generated nor trained."""
    habits, beside = job.habits, job.question.beside
    between_s = habits.between_s
    if job.colocated:
        stage = fullest(job.trainer, job.sample_tokens(), job.train_batch)
        moved = ("optimizer",) if habits.offload_bytes_per_s else ("parameters", "gradients", "optimizer")
        rate = habits.offload_bytes_per_s or job.trainer.cluster.host.offload_bandwidth_bytes_per_s / 2
        between_s += habits.wake_s + sum(stage.categories.get(name, 0) for name in moved) / rate
    if beside.checkpoint_every:
        between_s += 14.0 * job.model.parameters / beside.storage / beside.checkpoint_every
    if beside.validate_every:
        rules = replace(job.rules, groups=beside.validate_samples, samples=1, async_steps=0)
        validation_s = run_of(job, job.engine, job.replicas, rules, Times(0.0), 1, idle=True).steps[0].complete_s
        between_s += validation_s / beside.validate_every
    return Times(refit_of(job), between_s, job.question.rollout.tool_wait, beside.reward, beside.reward_workers)


def run_of(
    job: Job, engine: Engine, replicas: int, rules: Rules, times: Times, steps: int, *, idle: bool = False,
    most_s: float = math.inf,
) -> Run:  # fmt: skip
    """So many steps, or those of the first `most_s` seconds; `idle`: a learner that takes no time."""
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
    run.until(steps, NEVER if most_s == math.inf else math.ceil(NS * most_s))
    return run
