"""What came of a pool: each model as `serve` says it, replicas over time, GPU-seconds and cost, and all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.questions.header import Answer
from windtunnel.studies.serving.disaggregated.pools import Pools, sides_of
from windtunnel.studies.serving.disaggregated.units import replicas_of
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.result import ServingResult, refusals
from windtunnel.studies.serving.run import summarise
from windtunnel.studies.serving.shared_pool.loop import Run, SharedPool
from windtunnel.studies.serving.shared_pool.spec import Pool, Served, read_pool


@dataclass(frozen=True, eq=False)
class PoolResult(Answer):
    """One run of a pool."""

    models: Mapping[str, ServingResult]
    more: Mapping[str, Mapping[str, Any]]  # by model: replicas over time, what was lost, moved, paid
    total: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]]
    warnings: tuple[str, ...]  # replicas that never found room, and requests that no replica can hold, by model

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "models": {name: {**one.to_dict(), **self.more[name]} for name, one in self.models.items()},
            "total": dict(self.total),
            "groups": {name: dict(one) for name, one in self.groups.items()},
        }


def serve_pool(path: Path | str) -> PoolResult:
    """Run the pool of a YAML file. Raises InputFileError, SpecError, LayoutError."""
    return run_pool(read_pool(Path(path)))


def run_pool(pool: Pool) -> PoolResult:
    """Run it."""
    runs = SharedPool(pool).run()
    last = [one.last_ns for run in runs for one in run.sent]
    end_ns = max([*last, 1])
    models: dict[str, ServingResult] = {}
    more: dict[str, dict[str, Any]] = {}
    for served, run in zip(pool.models, runs, strict=True):
        models[served.name], more[served.name] = _of_model(pool, served, run, end_ns)
    groups = {
        name: {"gpu_seconds": 0.0, "cost": None if one.gpu_hour is None else 0.0} for name, one in pool.groups.items()
    }
    for run in runs:
        for instance in run.instances:
            seconds = _seconds(instance.born_ns, instance.gone_ns, end_ns) * instance.engine.gpus
            found = groups[instance.group]
            found["gpu_seconds"] = (found["gpu_seconds"] or 0.0) + seconds
            hour = pool.groups[instance.group].gpu_hour
            if hour is not None:
                found["cost"] = (found["cost"] or 0.0) + seconds / 3600.0 * hour
    homeless = tuple(
        f"{one.name}: {one.replicas} replicas are asked for, and its groups never have room for more than {most}"
        for one in pool.models
        if one.scaling is None and (most := models[one.name].spec["replicas"]) < one.replicas
    )
    refused = (f"{name}: {text}" for name, one in models.items() for text in refusals(one))
    return PoolResult(models, more, _total(models, more, end_ns * 1e-9), groups, (*homeless, *refused))


def _of_model(pool: Pool, served: Served, run: Run, end_ns: int) -> tuple[ServingResult, dict[str, Any]]:
    first = next(iter(served.engines.values()))
    units = [one.replica for one in run.instances] or [first.replica()]
    servers = [replica for unit in units for replica in replicas_of(unit)]
    shown = first.decode if isinstance(first, Pools) else first
    found = summarise(shown, served.workload, servers, stamps_of(run.sent), run.refused, served.slo)
    there = [_seconds(one.born_ns, one.gone_ns, end_ns) for one in run.instances]
    seconds = sum(there) * served.gpus
    hours = [pool.groups[one.group].gpu_hour for one in run.instances]
    paid = [time * served.gpus / 3600.0 * hour for time, hour in zip(there, hours, strict=True) if hour is not None]
    busy = sum(one.tally.busy_ticks for one in servers) / 1024e9 * len(units) / len(servers)
    most = max((serving + starting for _, serving, starting in run.counts), default=0)
    result = replace(
        found,
        gpus=most * served.gpus,
        gpu_seconds=seconds,
        utilisation=busy / sum(there) if sum(there) else 0.0,
        spec={
            **found.spec,
            **(sides_of(first) if isinstance(first, Pools) else {}),
            "replicas": most,
            "router": served.router,
            "groups": list(served.engines),
        },
    )
    return result, {
        "replicas": [{"at_s": at * 1e-9, "serving": up, "starting": soon} for at, up, soon in run.counts],
        "replicas_started": len(run.instances),
        "replicas_lost": run.lost_replicas,
        "requests_moved": run.moved,
        "unfinished": found.requests - found.finished - found.refused,
        "cost": sum(paid) if len(paid) == len(hours) and hours else None,
    }


def _seconds(born_ns: int, gone_ns: int, end_ns: int) -> float:
    return max(0, (end_ns if gone_ns == NEVER else min(gone_ns, end_ns)) - born_ns) * 1e-9


def _total(models: Mapping[str, ServingResult], more: Mapping[str, Mapping[str, Any]], span_s: float) -> dict[str, Any]:
    results = list(models.values())
    finished = sum(one.finished for one in results)
    requests = sum(one.requests for one in results)
    tokens = sum(one.output_tokens_per_s * one.duration_s for one in results)
    limited = [one for one in results if one.slo_attainment is not None]
    asked = sum(one.requests for one in limited)
    costs = [one["cost"] for one in more.values()]
    cost = None if any(one is None for one in costs) else sum(costs)
    met = sum((one.slo_attainment or 0.0) * one.requests for one in limited)
    return {
        "duration_s": span_s,
        "requests": requests,
        "finished": finished,
        "refused": sum(one.refused for one in results),
        "unfinished": sum(one["unfinished"] for one in more.values()),
        "requests_moved": sum(one["requests_moved"] for one in more.values()),
        "replicas_lost": sum(one["replicas_lost"] for one in more.values()),
        "requests_per_s": finished / span_s,
        "output_tokens_per_s": tokens / span_s,
        "slo_attainment": met / asked if asked else None,
        "goodput_requests_per_s": met / span_s if asked else None,
        "gpu_seconds": sum(one.gpu_seconds for one in results),
        "cost": cost,
        "cost_per_million_output_tokens": None if cost is None or not tokens else cost / tokens * 1e6,
    }
