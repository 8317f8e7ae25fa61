"""What came of a pool: each model as `serve` says it, replicas over time, GPU-seconds and cost, and all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from windtunnel.physics.model.architecture import notes_of
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import Plain, check_figures, plain, plain_fields
from windtunnel.studies.serving.disaggregated.pools import Pools
from windtunnel.studies.serving.disaggregated.units import replicas_of
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.power import gpu_watts
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.result import ServingResult, refusals
from windtunnel.studies.serving.run import hand_on, summarise
from windtunnel.studies.serving.shared_pool.loop import Instance, Run, SharedPool
from windtunnel.studies.serving.shared_pool.spec import Group, Pool, PooledDeployment, read_pool


@dataclass(frozen=True, slots=True)
class Count:
    """Replicas from a time on."""

    at_s: float
    serving: int
    starting: int


@dataclass(frozen=True, eq=False)
class PooledModel:
    """One model: what `serve` says of it, its replicas over time, what was lost, moved, paid."""

    JSON_LEAVES_OUT: ClassVar = ("result",)

    result: ServingResult
    replicas: tuple[Count, ...]
    replicas_started: int
    replicas_lost: int
    requests_moved: int
    unfinished: int
    cost: float | None

    def __post_init__(self) -> None:
        check_figures(self)


@dataclass(frozen=True, slots=True)
class PoolTotal:
    """All models together."""

    duration_s: float
    requests: int
    finished: int
    refused: int
    unfinished: int
    requests_moved: int
    replicas_lost: int
    requests_per_s: float
    output_tokens_per_s: float
    slo_attainment: float | None
    goodput_requests_per_s: float | None
    gpu_seconds: float
    cost: float | None
    cost_per_million_output_tokens: float | None

    def __post_init__(self) -> None:
        check_figures(self)
        assert self.finished + self.refused + self.unfinished == self.requests, f"{self} accounts for other requests"


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Machines of one group: how long replicas were on them, and what that costs."""

    gpu_seconds: float
    cost: float | None


@dataclass(frozen=True, eq=False)
class PoolResult(Answer):
    """One run of a pool. faces/report/serving shows it by `to_dict`."""

    models: Mapping[str, PooledModel]
    total: PoolTotal
    groups: Mapping[str, GroupUse]
    homeless: tuple[str, ...] = ()  # models with fewer replicas than asked for at all times, in words
    left_out: tuple[str, ...] = ()  # of the models, by what is read of them

    @property
    def warnings(self) -> list[str]:  # type: ignore[override]
        """What models leave out, replicas that never found room, requests that no replica can hold."""
        words = [f"{name}: {text}" for name, model in self.models.items() for text in refusals(model.result)]
        return [*self.left_out, *self.homeless, *words]

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON."""
        return {
            "models": {name: {**model.result.to_dict(), **plain_fields(model)} for name, model in self.models.items()},
            "total": plain(self.total),
            "groups": plain(self.groups),
        }


def serve_pool(path: Path | str) -> PoolResult:
    """Run the pool of a YAML file. Raises InputFileError, SpecError, LayoutError."""
    return run_pool(read_pool(Path(path)))


def run_pool(pool: Pool) -> PoolResult:
    """Run it."""
    runs = SharedPool(pool).run()
    end_ns = max([*(sequence.last_ns for run in runs for sequence in run.sent), 1])
    models = {served.name: _of_model(pool, served, run, end_ns) for served, run in zip(pool.models, runs, strict=True)}
    instances = [instance for run in runs for instance in run.instances]
    groups = {
        name: _use(group, [instance for instance in instances if instance.group == name], end_ns)
        for name, group in pool.groups.items()
    }
    homeless = tuple(
        f"{model.name}: {model.replicas} replicas are asked for, and its groups never have room for more than {most}"
        for model in pool.models
        if model.scaling is None and (most := models[model.name].result.spec.replicas or 0) < model.replicas
    )
    left_out = notes_of(*(engine.model for served in pool.models for engine in served.engines.values()))
    return PoolResult(models, _total([*models.values()], end_ns * 1e-9), groups, homeless, left_out)


def _use(group: Group, instances: list[Instance], end_ns: int) -> GroupUse:
    here = (instance for instance in instances if instance.group == group.name)
    seconds = [_seconds(instance.born_ns, instance.gone_ns, end_ns) * instance.engine.gpus for instance in here]
    hour = group.gpu_hour
    return GroupUse(
        sum(seconds, 0.0), None if hour is None else sum((second / 3600.0 * hour for second in seconds), 0.0)
    )


def _of_model(pool: Pool, served: PooledDeployment, run: Run, end_ns: int) -> PooledModel:
    first = next(iter(served.engines.values()))
    units = [instance.replica for instance in run.instances] or [first.replica()]
    servers = [replica for unit in units for replica in replicas_of(unit)]
    shown = first.decode if isinstance(first, Pools) else first
    hand_on(run.sent, first.profile)
    summary = summarise(shown, served.workload, servers, stamps_of(run.sent), run.refused, served.slo)
    there = [_seconds(instance.born_ns, instance.gone_ns, end_ns) for instance in run.instances]
    seconds = sum(there) * served.gpus
    hours = [pool.groups[instance.group].gpu_hour for instance in run.instances]
    paid = [time * served.gpus / 3600.0 * hour for time, hour in zip(there, hours, strict=True) if hour is not None]
    busy = sum(server.tally.busy_ticks for server in servers) / 1024e9 * len(units) / len(servers)
    most = max((serving + starting for _, serving, starting in run.counts), default=0)
    tallies = [server.tally for server in servers]
    result = replace(
        summary,
        gpu_watts=gpu_watts(shown, tallies, sum(there) / len(units)) if sum(there) else summary.gpu_watts,
        gpus=most * served.gpus,
        gpu_seconds=seconds,
        utilisation=busy / sum(there) if sum(there) else 0.0,
        spec=replace(
            summary.spec,
            prefill=first.prefill_side if isinstance(first, Pools) else None,
            decode=first.decode_side if isinstance(first, Pools) else None,
            replicas=most,
            router=served.router,
            groups=tuple(served.engines),
        ),
    )
    return PooledModel(
        result,
        tuple(Count(at * 1e-9, serving, starting) for at, serving, starting in run.counts),
        replicas_started=len(run.instances),
        replicas_lost=run.lost_replicas,
        requests_moved=run.moved,
        unfinished=summary.requests - summary.finished - summary.refused,
        cost=sum(paid) if len(paid) == len(hours) and hours else None,
    )


def _seconds(born_ns: int, gone_ns: int, end_ns: int) -> float:
    return max(0, (end_ns if gone_ns == NEVER else min(gone_ns, end_ns)) - born_ns) * 1e-9


def _total(models: Sequence[PooledModel], span_s: float) -> PoolTotal:
    results = [model.result for model in models]
    finished = sum(result.finished for result in results)
    tokens = sum(result.output_tokens_per_s * result.duration_s for result in results)
    limited = [result for result in results if result.slo_attainment is not None]
    limited_requests = sum(serving_result.requests for serving_result in limited)
    costs = [model.cost for model in models if model.cost is not None]
    cost = sum(costs) if len(costs) == len(models) else None
    in_time = sum((serving_result.slo_attainment or 0.0) * serving_result.requests for serving_result in limited)
    return PoolTotal(
        duration_s=span_s,
        requests=sum(result.requests for result in results),
        finished=finished,
        refused=sum(result.refused for result in results),
        unfinished=sum(model.unfinished for model in models),
        requests_moved=sum(model.requests_moved for model in models),
        replicas_lost=sum(model.replicas_lost for model in models),
        requests_per_s=finished / span_s,
        output_tokens_per_s=tokens / span_s,
        slo_attainment=in_time / limited_requests if limited_requests else None,
        goodput_requests_per_s=in_time / span_s if limited_requests else None,
        gpu_seconds=sum(result.gpu_seconds for result in results),
        cost=cost,
        cost_per_million_output_tokens=None if cost is None or not tokens else cost / tokens * 1e6,
    )
