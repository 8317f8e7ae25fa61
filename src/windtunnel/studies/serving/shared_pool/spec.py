"""A pool as a YAML file: groups of machines, models on them, who asks for what. An unknown key is an error.

groups:
  reserved: {cluster: "h100-sxm:8", gpu_hour: 3.0}
  spot:     {cluster: "h100-sxm:8", gpu_hour: 1.1, notice: 30s, gpus: [[0s, 8], [300s, 4], [900s, 8]]}
models:
  chat:
    model: llama-3.1-70b
    groups: [reserved, spot]        # groups in the order in which replicas are placed
    tp: 4                           # and any other field of a deployment; or  prefill: 2xtp4, decode: 1xtp8
    replicas: 2                     # or  autoscale: {least: 1, most: 4, target: 20, every: 10s, idle: 60s}
    startup: 60s                    # from the decision to the first request
    router: least-loaded
    slo: ttft=1s,tpot=50ms
    workload: {prompt: 800, output: 200, rate: 4, requests: 1000, cv: 1.0}     # or {file: trace.csv, rate: 4}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from windtunnel.errors import SpecError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions import read_part
from windtunnel.questions.about import OneOf, part
from windtunnel.questions.asked.serve.parts import ClosedLoad, Lengths, OpenLoad, Trace, TraceTimes, check_load
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.disaggregated.pools import Pools, pools_in_words
from windtunnel.studies.serving.parts import workload_of as made_workload
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.shared_pool.fields import known_keys, mapping_at, nanoseconds, needed, parsed_slo, whole
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import parse_number

POOL = ("groups", "models")
GROUP = ("cluster", "gpu_hour", "notice", "gpus")
MODEL = ("model", "groups", "replicas", "autoscale", "startup", "router", "slo", "workload", "prefill", "decode")
SCALING = ("least", "most", "target", "every", "idle")
LOAD = ("file", "prompt", "output", "rate", "requests", "cv", "seed", "length_ratio", "concurrency", "waves")
SIZES = ("tp", "pp", "attn_dp", "moe_ep", "moe_tp")  # of one layout, which pools of their own have each
LAYOUT = {"dp": "attn_dp", "ep": "moe_ep"}  # the command line's words for fields of a deployment
# In a pool nobody says which adapter a request asks for.
DEPLOYMENT = {field.name for field in dataclasses.fields(Deployment) if field.name != "lora"} | set(LAYOUT)


@part
class RequestStream:
    """Requests, and how they come."""

    requests: Annotated[Lengths | Trace, OneOf()]
    load: Annotated[OpenLoad | ClosedLoad | TraceTimes, OneOf()] = field(default_factory=TraceTimes)


@dataclass(frozen=True, slots=True)
class Group:
    """Machines of one kind. `gpus`: (ns, how many there are from then on); one entry where they stay."""

    name: str
    cluster: Cluster
    gpu_hour: float | None
    notice_ns: int
    gpus: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas by load: as many as keep the requests of each at `target`; fewer only after `idle_ns` of less load."""

    least: int
    most: int
    target: float
    every_ns: int
    idle_ns: int


@dataclass(frozen=True, eq=False)
class PooledDeployment:
    """A model: how it is deployed on each of its groups, how many replicas, and its load.

    With `prefill` and `decode` a replica is both pools together.
    """

    name: str
    engines: Mapping[str, Engine | Pools]  # by group, in order of preference
    replicas: int
    scaling: Scaling | None
    startup_ns: int
    router: str
    slo: Mapping[str, float]
    workload: Workload

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return next(iter(self.engines.values())).gpus


@dataclass(frozen=True, eq=False)
class Pool:
    """The whole file."""

    groups: Mapping[str, Group]
    models: tuple[PooledDeployment, ...]


def read_pool(path: Path) -> Pool:
    """A pool from its file. Paths in it are relative to it. Raises InputFileError, SpecError, LayoutError."""
    document = read_mapping(path, "give a pool in YAML, with `groups:` and `models:`")
    known_keys(document, POOL, "pool")
    groups = {name: _group(name, body) for name, body in mapping_at(document.get("groups"), "groups").items()}
    models = mapping_at(document.get("models"), "models")
    return Pool(groups, tuple(_served(name, body, groups, path.parent) for name, body in models.items()))


def _group(name: str, body: object) -> Group:
    where = f"groups.{name}"
    body = mapping_at(body, where)
    known_keys(body, GROUP, where)
    cluster = parse_cluster(needed(body, "cluster", where))
    hour = None if body.get("gpu_hour") is None else parse_number(body["gpu_hour"], f"{where}.gpu_hour")
    steps = body.get("gpus", [[0, cluster.n_gpus]])
    if not isinstance(steps, list) or not steps or not all(isinstance(step, list) and len(step) == 2 for step in steps):
        raise SpecError(f"{where}.gpus", steps, "give pairs of time and GPUs: [[0s, 8], [300s, 4]]")
    gpus = tuple(
        (nanoseconds(at, f"{where}.gpus"), whole(count, f"{where}.gpus", 0, cluster.n_gpus)) for at, count in steps
    )
    times = [at for at, _ in gpus]
    if times[0] != 0 or times != sorted(set(times)):
        raise SpecError(f"{where}.gpus", steps, "begin at 0s and go on in the order of time")
    return Group(name, cluster, hour, nanoseconds(body.get("notice", 0), f"{where}.notice"), gpus)


def _served(name: str, body: object, groups: Mapping[str, Group], folder: Path) -> PooledDeployment:
    where = f"models.{name}"
    body = mapping_at(body, where)
    known_keys(body, (*MODEL, *sorted(DEPLOYMENT)), where)
    on = body.get("groups", list(groups))
    on = [on] if isinstance(on, str) else on
    if not isinstance(on, list) or not on or any(group not in groups for group in on):
        raise SpecError(f"{where}.groups", on, f"name groups of this file: {', '.join(groups)}")
    layout = {LAYOUT.get(key, key): value for key, value in body.items() if key in DEPLOYMENT}
    deployment = Deployment(**layout)
    model = load_model(needed(body, "model", where))
    engines = {group: _engine(model, groups[group].cluster, deployment, body, where) for group in on}
    for group, engine in engines.items():
        if not engine.fits:
            words = deployment.words() if isinstance(engine, Engine) else engine.words()
            raise SpecError(where, words, f"does not fit on {group}: use more GPUs per replica")
    scaling = None if body.get("autoscale") is None else _scaling(body["autoscale"], f"{where}.autoscale")
    if scaling is not None and body.get("replicas") is not None:
        raise SpecError(f"{where}.replicas", body["replicas"], "give replicas or autoscale, not both")
    changing = scaling is not None or any(len(groups[group].gpus) > 1 for group in on)
    if changing and body.get("startup") is None:
        raise SpecError(f"{where}.startup", None, "replicas come and go here: say how long one takes to start")
    router = body.get("router", "least-loaded")
    if router not in ROUTERS:
        raise SpecError(f"{where}.router", router, f"use one of {', '.join(ROUTERS)}")
    if router == "prefix-aware" and body.get("prefill") is not None:
        raise SpecError(f"{where}.router", router, "looks into replicas that do both: use least-loaded or round-robin")
    slo = body.get("slo")
    return PooledDeployment(
        name,
        engines,
        scaling.least if scaling else whole(body.get("replicas", 1), f"{where}.replicas", 1, 10_000),
        scaling,
        nanoseconds(body.get("startup", 0), f"{where}.startup"),
        router,
        parsed_slo(None if slo is None else str(slo)),
        workload_of(mapping_at(body.get("workload"), f"{where}.workload"), f"{where}.workload", folder),
    )


def _engine(
    model: Model, cluster: Cluster, deployment: Deployment, body: Mapping[str, object], where: str
) -> Engine | Pools:
    sides = (body.get("prefill"), body.get("decode"))
    if sides == (None, None):
        return engine_of(model, cluster, deployment)
    for name in SIZES:
        if any(LAYOUT.get(key, key) == name for key in body):
            raise SpecError(f"{where}.{name}", getattr(deployment, name), "is said by prefill and decode: leave it out")
    words = tuple(None if side is None else str(side) for side in sides)
    return pools_in_words(model, cluster, deployment, (words[0], words[1]), (f"{where}.prefill", f"{where}.decode"))


def _scaling(body: object, where: str) -> Scaling:
    body = mapping_at(body, where)
    known_keys(body, SCALING, where)
    least = whole(body.get("least", 1), f"{where}.least", 0, 10_000)
    most = whole(needed(body, "most", where), f"{where}.most", max(1, least), 10_000)
    target = parse_number(needed(body, "target", where), f"{where}.target")
    every = nanoseconds(body.get("every", "10s"), f"{where}.every")
    if target <= 0.0 or every <= 0:
        raise SpecError(where, body, "target and every are above zero")
    return Scaling(least, most, target, every, nanoseconds(body.get("idle", "60s"), f"{where}.idle"))


def workload_of(body: Mapping[str, object], where: str, folder: Path) -> Workload:
    """The load of a file's `workload:`. Raises SpecError, InputFileError, UserError."""
    known_keys(body, LOAD, where)
    requests: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        if name == "file":
            requests["workload"] = str(folder / str(value))
        elif name in ("rate", "cv", "length_ratio"):
            requests[name] = parse_number(value, f"{where}.{name}")
        else:
            requests[name] = whole(value, f"{where}.{name}", 0, 10_000_000)
    seed = requests.pop("seed", 0)
    load = {name: requests.pop(name) for name in ("rate", "cv", "concurrency", "waves") if name in requests}
    try:
        parts = read_part(RequestStream, {"requests": requests, "load": load})
    except SpecError as error:
        raise SpecError(f"{where}.{error.field.rpartition('.')[2]}", error.value, error.remedy) from None
    check_load(parts.requests, parts.load)
    if isinstance(parts.requests, Lengths):
        for name in ("prompt", "output"):
            if getattr(parts.requests, name) is None:
                raise SpecError(f"{where}.{name}", None, "give tokens of a request, or a trace as file")
    return made_workload(parts.requests, parts.load, seed)
