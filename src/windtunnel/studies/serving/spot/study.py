"""A served model on spot machines: one trace of machines and one of requests, each policy beside the others.

    latency      last token - arrival, of all requests; a quantile is None where so many were never answered
    tokens/s     output tokens of answered requests over the time from the first arrival to the last answer
    GPU-seconds  of every machine, from when it comes to when it goes or the last answer is out: spare ones cost as well

Machines come and go in counts. Which one goes is not said by counts: the one that has been there longest, which serves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import get_args

import numpy as np

from windtunnel.errors import SpecError, UnknownNameError, UserError
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import check, check_figures, texts
from windtunnel.studies.resilience.spot.trace import read_steps
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.measures import QUANTILES
from windtunnel.studies.serving.run import sources_of
from windtunnel.studies.serving.spot.loop import play
from windtunnel.studies.serving.spot.models import NETWORK_SHARE, CatalogueModel, Machine, choices_of
from windtunnel.studies.serving.spot.state import Change, Policy, SpotOutcome
from windtunnel.studies.serving.workload.requests import Workload

POLICIES: tuple[Policy, ...] = get_args(Policy)
GPUS_MOST = 128  # the matching of GPUs to positions takes their number cubed
DRAIN_S = 24 * 3600.0  # after the last arrival and the last change; what waits longer is not answered


@dataclass(frozen=True, slots=True)
class Availability:
    """Machines at the start, and (seconds, how many come, how many go) in the order of time."""

    first: int
    steps: tuple[tuple[float, int, int], ...]

    def changes(self, notice_s: float) -> list[Change]:
        """Each machine by a number of its own; notice comes before it goes, at the earliest at the start."""
        here, number = list(range(self.first)), self.first
        changes = []
        for at, plus, minus in self.steps:
            for _ in range(plus):
                changes.append(Change(at, number, True))
                here.append(number)
                number += 1
            for _ in range(minus):
                changes.append(Change(max(0.0, at - notice_s), here.pop(0), False, at))
        return changes

    @property
    def counts(self) -> list[int]:
        """Machines after each step."""
        counts = [self.first]
        for _, plus, minus in self.steps:
            counts.append(counts[-1] + plus - minus)
        return counts


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """Latencies of all requests in seconds; None where so many were never answered."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class SpotServed:
    """One policy."""

    e2e_s: EndToEnd
    finished: int
    unfinished: int
    duration_s: float
    output_tokens_per_s: float
    requests_per_s: float
    reconfigurations: int
    replicas_loaded: int
    recomputed_tokens: int
    moved_bytes: float
    paused_s: float
    gpu_seconds: float
    cost: float | None
    cost_per_million_output_tokens: float | None

    def __post_init__(self) -> None:
        check_figures(self)


@dataclass(frozen=True, slots=True)
class Machines:
    """How many are there at the start, at least and at most."""

    first: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class SpotSpec:
    """What was asked, as it was resolved."""

    model: str
    gpu: str
    gpus_per_machine: int
    machines: Machines
    machines_come: int
    machines_go: int
    notice_s: float
    launch_s: float
    storage_bytes_per_s: float
    network_bytes_per_s: float
    weights: str
    engine: str
    prompt: int
    output: int
    requests: int


@dataclass(frozen=True, eq=False)
class SpotServing(Answer):
    """All policies on one question. faces/report/serving shows it by `to_dict`."""

    spec: SpotSpec
    policies: Mapping[Policy, SpotServed]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]
    trace: str = ""  # the file of machines
    JSON_LEAVES_OUT = ("sources", "warnings", "trace")

    @property
    def provenance(self) -> dict[str, object]:
        """Whose machines they are, and what prices steps."""
        return {"machines": self.trace, "step times": list(self.sources)}


def _served(played: SpotOutcome, span_s: float, output: int, gpu_seconds: float, gpu_hour: float | None) -> SpotServed:
    latency = np.array(played.latency_s)
    done = int(np.isfinite(latency).sum())
    marks = (float(latency.mean()), *(float(np.percentile(latency, q, method="higher")) for _, q in QUANTILES))
    tokens = done * output
    cost = None if gpu_hour is None else gpu_seconds / 3600.0 * gpu_hour
    return SpotServed(
        e2e_s=EndToEnd(*(value if math.isfinite(value) else None for value in marks)),
        finished=done,
        unfinished=len(latency) - done,
        duration_s=span_s,
        output_tokens_per_s=tokens / span_s,
        requests_per_s=done / span_s,
        reconfigurations=played.reconfigurations,
        replicas_loaded=played.replicas_loaded,
        recomputed_tokens=played.recomputed_tokens,
        moved_bytes=played.moved_bytes,
        paused_s=played.paused_s,
        gpu_seconds=gpu_seconds,
        cost=cost,
        cost_per_million_output_tokens=cost / tokens * 1e6 if cost is not None and tokens else None,
    )


def serve_on_spot(
    model: str | Model,
    cluster: str | Cluster,
    workload: Workload,
    trace: Path | str,
    policies: Sequence[str] = POLICIES,
    *,
    deployment: Deployment | None = None,
    notice_s: float = 30.0,
    usd_per_gpu_hour: float | None = None,
) -> SpotServing:
    """Serve on the machines of a trace (CSV, as `survive_spot` reads it) under each policy.

    Machines of `cluster`'s kind; `cluster` says how many GPUs there are at most. Time begins with the trace's first
    second; a machine that goes in it has its notice `notice_s` before. `deployment`: engine and number formats; layouts
    are the policies' choice. Raises SpecError, UnknownNameError, InputFileError, UserError.
    """
    check(
        locals(),
        model=str | Model,
        cluster=str | Cluster,
        workload=Workload,
        trace=str | PathLike,
        deployment=Deployment | None,
        notice_s=float,
        usd_per_gpu_hour=float | None,
    )
    result = play_policies(
        load_model(model) if isinstance(model, str) else model,
        parse_cluster(cluster) if isinstance(cluster, str) else cluster,
        Deployment() if deployment is None else deployment,
        workload,
        Availability(*read_steps(Path(trace))),
        texts("policies", policies),
        notice_s=notice_s,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )
    return replace(result, trace=str(trace))


def play_policies(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    workload: Workload,
    there: Availability,
    policies: Sequence[str] = POLICIES,
    *,
    notice_s: float = 30.0,
    usd_per_gpu_hour: float | None = None,
) -> SpotServing:
    """Play the policies on machines that come and go as `there` says."""
    names = _policies(policies)
    arrivals, prompt, output, warnings = _requests(workload)
    _check(cluster, deployment, there, notice_s, usd_per_gpu_hour)
    priced = CatalogueModel(model, cluster, deployment, prompt, output)
    machine = Machine(
        gpus=cluster.gpus_per_node,
        network_bytes_per_s=NETWORK_SHARE * cluster.scale_out.bandwidth_bytes_per_s * cluster.gpus_per_node,
    )
    most = max(there.counts)
    if next(choices_of(priced, most * machine.gpus), None) is None:
        raise UserError(
            f"{model.name} with a request of {prompt} + {output} tokens does not fit the {most} machines of"
            f" {machine.gpus} {cluster.gpu.name} that the trace has at most: use larger or more machines"
        )
    changes = there.changes(notice_s)
    until = max([arrivals[-1], *(at for at, _, _ in there.steps)]) + DRAIN_S
    results: dict[Policy, SpotServed] = {}
    for policy in names:
        played = play(priced, machine, policy, arrivals, changes, there.first, notice_s, until)
        ended = [sent + took for sent, took in zip(arrivals, played.latency_s, strict=True) if math.isfinite(took)]
        last = max([*ended, arrivals[-1]])
        paid = _machine_seconds(there.first, changes, last) * machine.gpus
        span = max(last - arrivals[0], 1e-9)
        results[policy] = _served(played, span, output, paid, usd_per_gpu_hour)
    spec = SpotSpec(
        model=model.name,
        gpu=cluster.gpu.name,
        gpus_per_machine=machine.gpus,
        machines=Machines(there.first, min(there.counts), most),
        machines_come=sum(change.comes for change in changes),
        machines_go=sum(not change.comes for change in changes),
        notice_s=notice_s,
        launch_s=machine.launch_s,
        storage_bytes_per_s=machine.storage_bytes_per_s,
        network_bytes_per_s=machine.network_bytes_per_s,
        weights=deployment.weights,
        engine=deployment.engine,
        prompt=prompt,
        output=output,
        requests=len(arrivals),
    )
    return SpotServing(spec, results, sources_of(priced.engine(1)), warnings)


def _policies(policies: Sequence[str]) -> list[Policy]:
    names: list[Policy] = []
    for name in policies:
        policy = next((policy for policy in POLICIES if policy == name), None)
        if policy is None:
            raise UnknownNameError("policy for spot machines", name, POLICIES)
        if policy not in names:
            names.append(policy)
    if not names:
        raise SpecError("policy", ",".join(policies), f"name one or more of {', '.join(POLICIES)}")
    return names


def _requests(workload: Workload) -> tuple[list[float], int, int, tuple[str, ...]]:
    """(arrivals in seconds, prompt, output, what to mind): batches here have one length."""
    if workload.arrival_ns is None or workload.concurrency is not None:
        raise SpecError("concurrency", workload.concurrency, "spot machines are played in an open loop: give --rate")
    prompt, output, notes = workload.at_means()
    return [float(at) * 1e-9 for at in workload.arrival_ns], prompt, output, (*workload.notes, *notes)


def _check(cluster: Cluster, deployment: Deployment, there: Availability, notice_s: float, price: float | None) -> None:
    for name, size in (("--tp", deployment.tp), ("--pp", deployment.pp), ("--dp", deployment.attn_dp)):
        if size != 1:
            raise SpecError(name, size, "on spot machines the policies choose the layout: leave it out")
    if not 0.0 <= notice_s <= 86_400.0:
        raise SpecError("notice", notice_s, "give 0 s to a day")
    if price is not None and not (math.isfinite(price) and price >= 0.0):
        raise SpecError("price", price, "give dollars, zero or more")
    most = max(there.counts)
    needed = most * cluster.gpus_per_node
    if most == 0:
        raise UserError("the trace has no machine at any time")
    if needed > cluster.n_gpus and most > 1:
        kind = f"the trace has up to {most} machines of {cluster.gpus_per_node} GPUs at once"
        raise SpecError("cluster", cluster.n_gpus, f"{kind}: give at least {needed} GPUs")
    if needed > GPUS_MOST:
        raise SpecError("machines", needed, f"at most {GPUS_MOST} GPUs at once are played: use a part of the trace")


def _machine_seconds(first: int, changes: Sequence[Change], last_s: float) -> float:
    start_of = dict.fromkeys(range(first), 0.0) | {change.machine: change.at_s for change in changes if change.comes}
    end_of = {
        change.machine: last_s if change.gone_s is None else change.gone_s for change in changes if not change.comes
    }
    return sum(max(0.0, min(end_of.get(number, last_s), last_s) - begin) for number, begin in start_of.items())
