"""`windtunnel.survive`: what the study is asked, put together from the predictor and from words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.questions.asked.parts import ClusterPart
from windtunnel.questions.asked.survive import Survive, SurviveSpot
from windtunnel.questions.reading import plain_part
from windtunnel.questions.typed import check, texts
from windtunnel.units import format_time, parse_bandwidth, parse_count, parse_time

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.physics.model import Model
    from windtunnel.studies.resilience import Checkpoint, Survival, SurvivalQuestion
    from windtunnel.studies.resilience.failures import FailureProcess
    from windtunnel.studies.resilience.recovery import RecoveryTimes
    from windtunnel.studies.resilience.spot.study import SpotAnswer
    from windtunnel.studies.training import Plan

STORAGE_BYTES_PER_S_PER_GPU = 0.25e9  # TrainMover, OSDI 2026: storage of its checkpoint loads
ASSUMED_STEP_S = 10.0
ASSUMED_PARAMETERS = 405e9  # of the job whose failures are the default: Llama 3
ASSUMED_REPLICA = 128  # its GPUs: tp 8 x pp 16
LAYOUT = ("tp", "pp", "cp", "dp")
DEFAULT_POLICIES = ("restart", "standby", "shrink", "parcae")
KEYWORDS: Mapping[str, object] = {  # of `survive`, and what each may be
    "days": float, "policies": str | Sequence[str], "failures": str | PathLike, "observed": str | None,
    "checkpoint": str | float, "standbys": str | int, "recovery": str | Sequence[str], "storage": str | float | None,
    "gpu_hour": float | None, "planned_every": str | float | None, "seeds": int, "seed": int,
}  # fmt: skip
CALLED = {"policies": "policy", "observed": "log", "gpu_hour": "price"}  # by the question


@dataclass(frozen=True, slots=True)
class Shape:
    """What a job looks like to failures."""

    replicas: int
    stages: int
    sharded: bool
    parameters: float
    step_s: float
    rate: Callable[[int], float]
    tokens_per_s: float | None


def survive(
    model: Model | str | Path | Mapping[str, object] | None,
    cluster: Cluster | str | Path | Mapping[str, object],
    plan: Plan | str | Path | Mapping[str, object] | None = None,
    *,
    step_time: str | float | None = None,
    **keywords: Any,
) -> Survival:
    """What failures cost a job: effective training time, waterfall, interruptions, cost, policy by policy.

    `model`, `cluster` and `plan` as `windtunnel.predict` takes them; without a model the job is assumed, with
    steps of `step_time` (10s). `keywords`: KEYWORDS, with the defaults of the question. Raises UserError on the first
    mistake.
    """
    check(locals(), step_time=str | float | None)
    from windtunnel.physics.hardware import Cluster, parse_cluster
    from windtunnel.physics.model import Model, load_model
    from windtunnel.studies.resilience import survive as survived
    from windtunnel.studies.training import read_plan

    for name in keywords:
        if name not in KEYWORDS:
            raise UnknownNameError("keyword of survive", name, KEYWORDS)
    check(keywords, **{name: KEYWORDS[name] for name in keywords})
    machine = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    fields = {CALLED.get(name, name): value for name, value in keywords.items()}
    fields |= {"policy": ",".join(texts("policies", keywords["policies"]))} if "policies" in keywords else {}
    fields |= {"recovery": texts("recovery", keywords["recovery"])} if "recovery" in keywords else {}
    question = Survive(cluster=ClusterPart(base=machine.name), **fields)
    if model is None:
        if not isinstance(plan, Mapping | None):
            raise SpecError("plan", str(plan), "it needs a model: without one give tp, pp, cp and dp by name")
        flags = dict(plan or {})
        return survived(asked_of(assumed(machine, flags, step_time), machine, question))
    if step_time is not None:
        raise SpecError("step_time", step_time, "leave it out: the model's step is predicted")
    if plan is None:
        raise SpecError("plan", None, "give the plan that the model is trained by")
    loaded = model if isinstance(model, Model) else load_model(model)
    return survived(asked_of(predicted(loaded, machine, read_plan(plan)), machine, question))


def asked_of(shape: Shape, machine: Cluster, question: Survive) -> SurvivalQuestion:
    """What `resilience.survive` is asked of a job on a machine, from a question's words. Raises UserError."""
    from windtunnel.studies.resilience import ADAM_BYTES_PER_PARAMETER, Checkpoint, SurvivalQuestion, published

    n, storage = machine.n_gpus, question.storage
    bandwidth = STORAGE_BYTES_PER_S_PER_GPU * n if storage is None else parse_bandwidth(storage, "--storage")
    if bandwidth <= 0:
        raise SpecError("--storage", storage, "give a bandwidth, such as 2TB/s")
    saved = Checkpoint(
        overhead_s=published().save_stall,
        state_bytes=round(shape.parameters * ADAM_BYTES_PER_PARAMETER),
        gpus_holding=n if shape.sharded else max(1, n // shape.replicas),
        replicas=shape.replicas,
        to_host_bytes_per_s=machine.host.pcie_bandwidth_bytes_per_s,
        nic_bytes_per_s=machine.scale_out.bandwidth_bytes_per_s,
        storage_bytes_per_s=bandwidth,
    )
    process = _process(_every_so_often(question, n), question.log, machine)
    return SurvivalQuestion(
        gpus=n,
        gpus_per_node=machine.gpus_per_node,
        replicas=shape.replicas,
        stages=shape.stages,
        step_s=shape.step_s,
        rate=shape.rate,
        process=_with_planned(process, question.planned_every),
        times=_times(question.recovery, n, saved if storage is not None else None),
        checkpoint=saved,
        days=question.days,
        policies=tuple(name.strip() for name in question.policy.split(",") if name.strip()) or DEFAULT_POLICIES,
        interval_s=None if question.checkpoint == "auto" else parse_time(question.checkpoint, "--checkpoint"),
        standbys=None if question.standbys == "auto" else _whole(str(question.standbys)),
        seeds=question.seeds,
        seed=question.seed,
        tokens_per_s=shape.tokens_per_s,
        usd_per_gpu_hour=question.price,
    )


def _with_planned(process: FailureProcess, every: str | float | None) -> FailureProcess:
    """With planned changes of one machine (maintenance, rebalancing), so far apart on average."""
    if every is None:
        return process
    from windtunnel.studies.resilience.failures import Cause

    apart_s = parse_time(every, "--planned-every")
    if apart_s <= 0:
        raise SpecError("--planned-every", every, "give a time above 0, e.g. 2h")
    cause = Cause("planned change", "operations", "job", 1.0 / apart_s, hosts=1, symptom="planned")
    return replace(process, causes=(*process.causes, cause))


def _whole(text: str) -> int:
    return 0 if text.strip() == "0" else parse_count(text, "--standbys")


def _process(failures: str, observed: str | None, machine: Cluster) -> FailureProcess:
    from windtunnel.studies.resilience import fit_log, read_failures

    often = re.fullmatch(r"([^@]+)@([0-9,]+)", failures)
    if often and observed is None:
        return _every(parse_time(often[1], "--failures"), parse_count(often[2], "--failures"))
    if not failures.lower().endswith(".csv"):
        if observed is not None:
            raise SpecError("--log", observed, "leave it out: it is of a CSV log, given by --failures")
        if re.fullmatch(r"[0-9.]+ ?(s|min|h|d)", failures):
            remedy = f"say on how many GPUs, {failures}@{machine.n_gpus}, or --mtbf {failures} for this job"
            raise SpecError("--failures", failures, remedy)
        return read_failures(failures)
    if observed is None:
        remedy = "say how many GPUs and days the log is of, e.g. --log 1024:30"
        raise SpecError("--log", None, remedy)
    size, colon, days = observed.partition(":")
    gpus, _, per_node = size.partition("x")
    try:
        length = float(days)
    except ValueError:
        colon = ""
    if not colon:
        raise SpecError("--log", observed, "write GPUS:DAYS, e.g. 1024:30, or GPUSxPER_NODE:DAYS")
    per = parse_count(per_node, "--log") if per_node else machine.gpus_per_node
    return fit_log(failures, parse_count(gpus, "--log"), length, per)


def _every(mean_s: float, gpus: int) -> FailureProcess:
    """Machines that fail so that a job of so many GPUs is interrupted so often on average."""
    from windtunnel.studies.resilience.failures import Cause, FailureProcess

    if not mean_s > 0.0:
        raise SpecError("--failures", mean_s, "give a time above 0 and GPUs, e.g. 6h@512")
    cause = Cause("failure of a machine", "unknown", "gpu", 1.0 / (mean_s * gpus))
    return FailureProcess(f"one every {format_time(mean_s)} on {gpus:,} GPUs", "as asked", (cause,))


def _times(recovery: Sequence[str], gpus: int, saved: Checkpoint | None) -> RecoveryTimes:
    from windtunnel.studies.resilience import published, with_times

    times = published(gpus) if saved is None else replace(published(gpus), load=saved.load_s())
    changes = {}
    for text in recovery:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError("--recovery", text, "write NAME=TIME, e.g. schedule=2min")
        changes[name.strip()] = value.strip()
    return with_times(times, changes)


def assumed(machine: Cluster, flags: Mapping[str, object], step_time: str | float | None = None) -> Shape:
    """A job of which only the layout is known: `flags` are tp, pp, cp and dp of a plan. Raises SpecError."""
    for name, value in flags.items():
        if name not in LAYOUT:
            raise SpecError(
                f"--{name.replace('_', '-')}", value, "it needs a model: without one only the layout counts"
            )
    sizes = {name: 1 if flags.get(name) is None else parse_count(flags[name], name) for name in LAYOUT}
    stages, replica = sizes["pp"], sizes["tp"] * sizes["pp"] * sizes["cp"]
    if not flags:
        replica, stages = min(ASSUMED_REPLICA, machine.n_gpus), 16 if machine.n_gpus >= ASSUMED_REPLICA else 1
    elif machine.n_gpus % replica or ("dp" in flags and sizes["dp"] * replica != machine.n_gpus):
        shown = " x ".join(f"{name} {sizes[name]}" for name in flags)
        raise SpecError("layout", shown, f"change it to fit the cluster's {machine.n_gpus:,} GPUs, or leave dp open")
    replicas = max(1, machine.n_gpus // replica)
    step = ASSUMED_STEP_S if step_time is None else parse_time(step_time, "--step-time")
    parameters = ASSUMED_PARAMETERS * min(1.0, machine.n_gpus / ASSUMED_REPLICA)
    return Shape(replicas, stages, True, parameters, step, lambda left: left / replicas, None)


def predicted(model: Model, machine: Cluster, plan: Plan) -> Shape:
    """The job as the predictor sees it, and how fast it is with fewer replicas. Raises UserError where it cannot
    run.
    """
    from windtunnel.physics.hardware import cluster_with
    from windtunnel.studies.training import predict

    result = predict(model, machine, plan)
    if result.status == "infeasible":
        reason = result.infeasible.reason if result.infeasible else "infeasible"
        raise UserError(f"the job does not run at all ({reason}): see `windtunnel predict` for ways out")
    spec = result.spec["plan"]
    replicas, batch, n = int(spec["dp"]), int(spec["global_batch"]), result.n_gpus

    @lru_cache
    def exactly(left: int) -> float:
        """Samples a second of `left` replicas over those of all, each with its own part of the batch."""
        fewer = plan.with_fields({"dp": left, "global_batch": batch * left // replicas})
        try:
            other = predict(model, cluster_with(machine, n_gpus=n * left // replicas), fewer)
        except UserError:  # experts or shards ask for another number of replicas: then in proportion
            return left / replicas
        if other.status == "infeasible":
            return 0.0
        return (left / replicas) * result.step_time_s / other.step_time_s

    per_node = machine.gpus_per_node
    possible = [
        left for left in range(1, replicas) if (n * left // replicas) % per_node == 0 or n * left // replicas < per_node
    ]
    # Asked just below full size and at half of it; straight lines between.
    nodes = sorted({*possible[-2:], *[left for left in possible if left >= replicas / 2][:1]})

    def rate(left: int) -> float:
        if left <= 0:
            return 0.0
        if left >= replicas:
            return 1.0
        points = [(0, 0.0), *((node, exactly(node)) for node in nodes), (replicas, 1.0)]
        for (a, low), (b, high) in pairwise(points):
            if a <= left <= b:
                return low + (high - low) * (left - a) / (b - a)
        raise AssertionError(left)

    sharded = bool(spec.get("zero_stage") or 0)
    seconds, tokens = result.step_time_s, result.tokens_per_s
    return Shape(replicas, int(spec["pp"]), sharded, float(model.parameters), seconds, rate, tokens)


def job_of(question: Survive) -> tuple[Cluster, SurvivalQuestion]:
    """The machine, and what is asked of the job on it: predicted where a model is named, assumed where none is."""
    from windtunnel.studies.training.plan import read_plan
    from windtunnel.studies.training.question import cluster_of, model_of

    machine, fields = cluster_of(question.cluster), plain_part(question.plan)
    if question.model is None:
        shape = assumed(machine, fields, question.step_time)
    else:
        if question.step_time is not None:
            raise SpecError("--step-time", question.step_time, "leave it out: the step is predicted for the model")
        shape = predicted(model_of(question.model, machine.n_gpus), machine, read_plan(fields))
    return machine, asked_of(shape, machine, question)


def _every_so_often(question: Survive, gpus: int) -> str:
    """What fails: as named, or so often on average that the job is interrupted."""
    if question.mtbf is None:
        return str(question.failures)
    if question.failures != "llama3":
        raise SpecError("--mtbf", format_time(question.mtbf), "give it or --failures, not both")
    return f"{question.mtbf!r}s@{gpus}"


def answer(question: Survive) -> Survival:
    """What failures cost the job. Raises UserError."""
    from windtunnel.studies.resilience import survive as survived

    return survived(job_of(question)[1])


def answer_spot(question: SurviveSpot) -> SpotAnswer:
    """What spot machines give the job. Raises UserError."""
    from windtunnel.studies.resilience.spot import POLICIES, survive_spot

    return survive_spot(
        Path(question.machines),
        tuple(name.strip() for name in question.policy.split(",") if name.strip()) or POLICIES,
        model=question.model,
        tables=None if question.tables is None else Path(question.tables),
        forecast=question.forecast,
        look_ahead=question.look_ahead,
        seed=question.seed,
        usd_per_gpu_hour=question.price,
        usd_per_spot_gpu_hour=question.spot_price,
    )
