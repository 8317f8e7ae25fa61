"""A pool of weights as a YAML file, and what came of it: DistMind beside fixed places and cold starts.

weights: {cluster: "a100-80gb:8", host_cache: 64 GB, cold_start: 6s, gpu_hour: 1.5}    # only cluster is needed
models:                                        # from the most asked for to the least
  chat: {model: llama-3.1-8b, copies: 20}      # copies have weights of their own
  code: {model: qwen3-8b}
workload: {prompt: 500, output: 20, rate: 6, requests: 1000, zipf: 0.9}     # as in a pool; popularity 1 / rank^zipf
systems: [pool, fixed, cold]

A GPU holds one model at a time (`pool`, `cold`) and works on one request at a time: prompt, then its tokens, at the
step times of `serve` for one sequence. Weights come over the GPU's NIC into host memory and over PCIe into the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.files.document import read_mapping
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model, notes_of
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import check_figures
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.measures import Distribution, distribution
from windtunnel.studies.serving.run import sources_of
from windtunnel.studies.serving.shared_pool.fields import known_keys, mapping_at, nanoseconds, needed, whole
from windtunnel.studies.serving.shared_pool.spec import workload_of
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.weight_pool.loop import Servers, SmallModel, System, play_pool, zipf
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import parse_bytes, parse_number

FILE = ("weights", "models", "workload", "systems")
WEIGHTS = ("cluster", "host_cache", "cold_start", "gpu_hour")
MODEL = ("model", "copies", "weights", "engine")
SYSTEMS: tuple[System, ...] = get_args(System)
NETWORK_SHARE, PCIE_SHARE = 0.9, 0.75  # of the raw rates, that long copies reach
COPIES_MOST = 10_000


@dataclass(frozen=True, eq=False)
class WeightPool:
    """The whole file, priced."""

    cluster: Cluster
    servers: Servers
    gpu_hour: float | None
    models: tuple[SmallModel, ...]
    workload: Workload
    lengths: tuple[int, int]
    model_of: tuple[int, ...]  # the model of each request
    systems: tuple[System, ...]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]


def read_weight_pool(path: Path) -> WeightPool:
    """From its file. Raises InputFileError, SpecError, UnknownNameError, LayoutError."""
    document = read_mapping(path, "give a pool in YAML, with `weights:` and `models:`")
    known_keys(document, FILE, "pool")
    body = mapping_at(document.get("weights"), "weights")
    known_keys(body, WEIGHTS, "weights")
    cluster = parse_cluster(needed(body, "cluster", "weights"))
    host = cluster.host
    cache = host.memory_bytes / cluster.gpus_per_node
    servers = Servers(
        gpus=cluster.n_gpus,
        network_bytes_per_s=NETWORK_SHARE * cluster.scale_out.bandwidth_bytes_per_s,
        pcie_bytes_per_s=PCIE_SHARE * host.pcie_bandwidth_bytes_per_s,
        host_cache_bytes=float(parse_bytes(body.get("host_cache", cache), "weights.host_cache")),
        process_s=nanoseconds(body.get("cold_start", "6s"), "weights.cold_start") * 1e-9,
    )
    hour = None if body.get("gpu_hour") is None else parse_number(body["gpu_hour"], "weights.gpu_hour")
    if hour is not None and hour < 0.0:
        raise SpecError("weights.gpu_hour", hour, "give dollars, zero or more")
    load_body = dict(mapping_at(document.get("workload"), "workload"))
    exponent = parse_number(load_body.pop("zipf", 0.0), "workload.zipf")
    if not 0.0 <= exponent <= 10.0:
        raise SpecError("workload.zipf", exponent, "give 0 (all models alike) to 10")
    seed = whole(load_body.get("seed", 0), "workload.seed", 0, 10_000_000)
    load = workload_of(load_body, "workload", path.parent)
    prompt, output, notes = load.at_means()
    models: list[SmallModel] = []
    priced: list[Model] = []
    sources: dict[str, None] = {}
    for name, entry in mapping_at(document.get("models"), "models").items():
        where = f"models.{name}"
        entry = mapping_at(entry, where)
        engine = _engine(entry, cluster, where)
        priced.append(engine.model)
        sources |= dict.fromkeys(sources_of(engine))
        if engine.longest < prompt + output:
            raise SpecError(where, engine.model.name, f"does not fit on one {cluster.gpu.name} with such a request")
        copies = whole(entry.get("copies", 1), f"{where}.copies", 1, COPIES_MOST)
        seconds, parts = _compute_s(engine, prompt, output), min(16, engine.model.n_layers)
        for copy in range(copies):
            label = name if copies == 1 else f"{name}-{copy}"
            models.append(SmallModel(label, engine.memory.weights, seconds, parts))
    return WeightPool(
        cluster, servers, hour, tuple(models), load, (prompt, output),
        tuple(zipf(len(models), exponent, len(load), seed)), _systems(document.get("systems", list(SYSTEMS))),
        tuple(sources), (*notes_of(*priced), *notes),
    )  # fmt: skip


def _engine(entry: Mapping[str, object], cluster: Cluster, where: str) -> Engine:
    known_keys(entry, MODEL, where)
    more = {key: str(entry[key]) for key in ("weights", "engine") if entry.get(key) is not None}
    return engine_of(load_model(needed(entry, "model", where)), cluster, Deployment(**more))  # type: ignore[arg-type]


def _compute_s(engine: Engine, prompt: int, output: int) -> float:
    """One request alone: its prompt, which gives the first token, and the others at the mean context."""
    first = engine.times.mixed(0, 0, [(prompt, 0)], 1)
    others = (output - 1) * engine.times.decode(1).at(prompt + output // 2)
    return (first + others) / TICKS_PER_S


def _systems(entry: object) -> tuple[System, ...]:
    names = entry if isinstance(entry, list) else [entry]
    systems = tuple(system for system in SYSTEMS if system in names)
    if not names or any(name not in SYSTEMS for name in names):
        raise SpecError("systems", entry, f"name some of {', '.join(SYSTEMS)}")
    return systems


@dataclass(frozen=True, slots=True)
class SystemServed:
    """One system on the requests."""

    e2e_s: Distribution | None
    requests_per_s: float
    output_tokens_per_s: float
    loads: int
    host_hits: int
    utilisation: float
    duration_s: float
    gpu_seconds: float
    cost: float | None
    cost_per_million_output_tokens: float | None
    feasible: Literal[True] = True

    def __post_init__(self) -> None:
        check_figures(self)


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """A system that has no room for the models, and why."""

    reason: str
    feasible: Literal[False] = False


@dataclass(frozen=True, slots=True)
class WeightPoolSpec:
    """What was asked, as it was resolved."""

    gpu: str
    gpus: int
    models: int
    weight_bytes: float
    network_bytes_per_s: float
    pcie_bytes_per_s: float
    host_cache_bytes: float
    cold_start_s: float
    prompt: int
    output: int
    requests: int


@dataclass(frozen=True)
class WeightPoolResult(Answer):
    """Each system on the same requests. faces/report/serving shows it by `to_dict`."""

    JSON_LEAVES_OUT: ClassVar = ("sources", "warnings")

    spec: WeightPoolSpec
    systems: Mapping[System, SystemServed | DoesNotFit]
    sources: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def provenance(self) -> dict[str, list[str]]:
        """What prices steps."""
        return {"step times": list(self.sources)}


def run_weight_pool(pool: WeightPool) -> WeightPoolResult:
    """Each system on the same requests."""
    servers = pool.servers
    spec = WeightPoolSpec(
        gpu=pool.cluster.gpu.name,
        gpus=servers.gpus,
        models=len(pool.models),
        weight_bytes=sum(model.weight_bytes for model in pool.models),
        network_bytes_per_s=servers.network_bytes_per_s,
        pcie_bytes_per_s=servers.pcie_bytes_per_s,
        host_cache_bytes=servers.host_cache_bytes,
        cold_start_s=servers.process_s,
        prompt=pool.lengths[0],
        output=pool.lengths[1],
        requests=len(pool.workload),
    )
    reason = _too_full(pool)
    return WeightPoolResult(
        spec,
        {
            system: DoesNotFit(reason) if system == "fixed" and reason else _played(pool, system)
            for system in pool.systems
        },
        pool.sources,
        pool.warnings,
    )


def _played(pool: WeightPool, system: System) -> SystemServed:
    load, servers = pool.workload, pool.servers
    arrivals = None if load.arrival_ns is None else [float(at) * 1e-9 for at in load.arrival_ns]
    done = play_pool(system, servers, pool.models, pool.model_of, arrivals_s=arrivals, in_flight=load.concurrency or 0)
    span = max(max(done.ended_s) - (arrivals[0] if arrivals else 0.0), 1e-9)
    seconds, tokens = servers.gpus * span, len(load) * pool.lengths[1]
    cost = None if pool.gpu_hour is None else seconds / 3600.0 * pool.gpu_hour
    return SystemServed(
        e2e_s=distribution(np.array(done.latency_s)),
        requests_per_s=len(load) / span,
        output_tokens_per_s=tokens / span,
        loads=done.loads,
        host_hits=done.host_hits,
        utilisation=sum(pool.models[number].compute_s for number in pool.model_of) / seconds,
        duration_s=span,
        gpu_seconds=seconds,
        cost=cost,
        cost_per_million_output_tokens=None if cost is None else cost / tokens * 1e6,
    )


def _too_full(pool: WeightPool) -> str:
    """Why models cannot stay in fixed places; "" where they can."""
    gpus, usable = pool.servers.gpus, float(pool.cluster.gpu.usable_memory_bytes)
    fullest = max(sum(model.weight_bytes for model in pool.models[place::gpus]) for place in range(gpus))
    return f"{fullest / 1e9:.0f} GB of weights on a GPU of {usable / 1e9:.0f} GB" if fullest > usable else ""
