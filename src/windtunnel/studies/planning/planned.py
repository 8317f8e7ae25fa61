"""A plan of an answer, predicted."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.mixed import JOINED, MixedCluster
from windtunnel.physics.step.result import Result
from windtunnel.questions import read
from windtunnel.questions.asked.parts import ClusterPart, ModelPart
from windtunnel.questions.words import command
from windtunnel.studies.planning.answers.plans import Planned
from windtunnel.studies.planning.oracle import Layout, Plan, predict
from windtunnel.studies.planning.search.ahead import Exact

Named = tuple[ModelPart, ClusterPart]  # model and cluster as a question names them


def planned(
    exact: Exact,
    cluster: Cluster | MixedCluster,
    layout: Layout,
    words: Named | None,
    price: float | None,
    score_ns: float | None = None,
) -> Planned:
    """`words`: how model and cluster were named; `score_ns`: the step where disturbances are reckoned in."""
    plain = isinstance(cluster, Cluster)
    result = exact.predicted(layout) if plain else predict(layout.model, cluster, layout.user_plan)
    return planned_as(result, cluster, layout.user_plan, words, price, score_ns)


def planned_as(
    result: Result, cluster: Cluster | MixedCluster, plan: Plan, words: Named | None, price: float | None,
    score_ns: float | None = None, techniques: tuple[str, ...] = (),
) -> Planned:  # fmt: skip
    """What a prediction of a plan says in an answer. `price`: of a GPU-hour."""
    seconds, tokens = result.step_time_s, result.tokens_per_step
    hours = cluster.n_gpus * seconds / 3600.0 / (tokens / 1e6)
    question = read(result.question)
    if words is not None:
        model, machine = words
        question = replace(question, model=model, cluster=cluster_of_size(machine, cluster.n_gpus))
    return Planned(
        plan=plan.stated(),
        n_gpus=cluster.n_gpus,
        step_time_s=seconds,
        p5_s=result.step_time_p5_ns / 1e9,
        p95_s=result.step_time_p95_ns / 1e9,
        peak_memory_bytes=result.peak_memory.device_bytes,
        memory_capacity_bytes=result.memory_capacity_bytes,
        tokens_per_s=result.tokens_per_s,
        mfu=result.mfu,
        gpu_hours_per_million_tokens=hours,
        reproduce=command(question),
        breakdown_s={name: value / 1e9 for name, value in result.breakdown_ns.items()},
        cost_per_million_tokens=None if price is None else hours * price,
        effective_step_time_s=None if score_ns is None else score_ns / 1e9,
        tokens_per_joule=tokens / (seconds * cluster.n_gpus * result.gpu_watts),
        techniques=techniques,
    )


def names(model: object, cluster: object) -> Named | None:
    """How model and cluster were named, where they were."""
    if not isinstance(model, str) or not isinstance(cluster, str):
        return None
    return ModelPart(base=model), ClusterPart(base=cluster)


def cluster_of_size(part: ClusterPart, n_gpus: int) -> ClusterPart:
    """The cluster with another number of GPUs; several types have each a number of their own."""
    base = part.base or ""
    head, colon, count = base.rpartition(":")
    return replace(part, base=f"{head}:{n_gpus}") if colon and count.isdigit() and JOINED not in base else part
