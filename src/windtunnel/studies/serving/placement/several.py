"""Placements by AlpaServe and MuxServe on the serving core's prices: several models, one cluster.

AlpaServe   a request is one job of its model's mean lengths, one at a time through a group's pipeline, rejected where
            it would end after its limit, ttft + tpot x (output - 1). Every uniform cut of the cluster into groups of
            tp x pp, with the greedy placement of models on each; the highest attainment wins.
MuxServe    models that share meshes by SM shares; the partition with the highest total throughput wins.

    stage of a job     (prefill(prompt) + (output - 1) x decode step at batch 1) / pp; a token passes all stages in turn
    with a share s     prefill x (1 + 0.55 (1 / s - 1));  decode x (1 + c (1 / s - 1)), c 0.03 to batch 16, 0.19 from 32

The two slopes are medians over MuxServe's published table (LLaMA 7B to 65B on A100, shares of 30 to 100 %). A program
that is bound by memory loses little to fewer SMs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import Engine, candidate, kv_format
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.goodput import at_rate
from windtunnel.studies.serving.kv.capacity import kv_bytes_per_token
from windtunnel.studies.serving.multiplex.group import Group, serve_groups
from windtunnel.studies.serving.placement.alpaserve import Groups, Outcome, greedy, group_layouts
from windtunnel.studies.serving.placement.muxserve import SM_LIMIT, Mesh, MuxPlacement, place_muxserve
from windtunnel.studies.serving.placement.muxserve import Model as Shared
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.workload.requests import Workload
from windtunnel.units import format_many

PREFILL_SLOPE, DECODE_SLOPE_SMALL, DECODE_SLOPE_LARGE = 0.55, 0.03, 0.19
SMALL_BATCH, LARGE_BATCH = 16, 32
PREFILL_SHARE = 80.0  # percent of the SMs of a prompt job (muxsched: 80 to 100)


@dataclass(frozen=True, eq=False)
class Several:
    """Models to be placed together, and for whom."""

    models: tuple[Model, ...]
    rates_per_s: tuple[float, ...]  # of each model
    cluster: Cluster
    deployment: Deployment  # engine, precisions, limits; its parallel sizes are what is sought
    workload: Workload  # an open loop: lengths of all models, and the gaps between requests
    slo: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """GPUs of the answer that belong together, and the models on them."""

    gpus: int
    layout: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The best placement. `value` is the share that meets its limit (alpaserve) or requests/s (muxserve)."""

    search: str
    groups: tuple[ModelGroup, ...]
    value: float
    candidates: int
    what_was_tried: str
    runner_up: str
    runner_up_value: float | None

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON. `runner_up_costs`: what is lost by taking it."""
        name = "attainment" if self.search == "alpaserve" else "throughput_per_s"
        other = self.runner_up_value
        return {
            "search": self.search,
            "groups": [{"gpus": g.gpus, "layout": g.layout, "models": list(g.models)} for g in self.groups],
            name: self.value,
            "candidates": self.candidates,
            "candidates_are": self.what_was_tried,
            "runner_up": None if other is None else {"placement": self.runner_up, name: other},
            "runner_up_costs": None if other is None else self.value - other,
        }


def search_alpaserve(several: Several) -> Grouping:
    """Groups of one layout with models replicated over them. Raises UserError, SpecError."""
    if not {"ttft_s", "tpot_s"} <= set(several.slo):
        raise UserError("AlpaServe places by the share of requests in time: add --ttft 1s --tpot 50ms")
    prompt, output = mean_lengths(several.workload)
    limit = several.slo["ttft_s"] + several.slo["tpot_s"] * (output - 1)
    requests = requests_of(several)
    results: list[tuple[float, int, str, tuple[ModelGroup, ...]]] = []
    attempts = 0
    most_op = min(several.cluster.gpus_per_node, 8)
    for count, op, pp in group_layouts(several.cluster.n_gpus, most_op):
        engines = [engine_on(several, model, op, pp) for model in several.models]
        able = {m: _stages(engine, prompt, output) for m, engine in enumerate(engines) if engine is not None}
        if not able:
            continue
        memory = [_weights(engine) if engine is not None else float("inf") for engine in engines]
        placement = greedy(
            count, memory, _capacity(several, engines, op * pp), _simulator(several, able, requests, limit)
        )
        attempts += placement.attempts
        words = f"{count} groups of tp{op} pp{pp}"
        groups = tuple(
            ModelGroup(op * pp, f"tp{op} pp{pp}", tuple(several.models[m].name for m in sorted(placed)))
            for placed in placement.groups
        )
        results.append((placement.attainment, -count * op * pp, words, groups))
    best = sorted(results, key=lambda result: (-result[0], result[1], result[2]))
    if not best or best[0][0] <= 0.0:
        raise SpecError(
            "placement", f"{attempts} candidates", "no placement meets the limits; loosen them, or add GPUs"
        )
    after = best[1] if len(best) > 1 else None
    return Grouping(
        "alpaserve",
        best[0][3],
        best[0][0],
        attempts,
        f"placements simulated on {len(results)} ways to cut the cluster",
        "" if after is None else after[2],
        None if after is None else after[0],
    )


def meshes(several: Several, sm_limit: float = SM_LIMIT) -> tuple[MuxPlacement, list[Shared]]:
    """Models on meshes that give out so many percent of their SMs, and as placement sees them. Raises SpecError."""
    shared = [_shared(several, model, rate) for model, rate in zip(several.models, several.rates_per_s, strict=True)]
    gpu_bytes, per_node = float(several.cluster.gpu.usable_memory_bytes), min(several.cluster.gpus_per_node, 8)
    return place_muxserve(shared, several.cluster.n_gpus, gpu_bytes, per_node, sm_limit), shared


def search_muxserve(several: Several) -> Grouping:
    """Meshes of 1, 2, 4, 8 GPUs and the models that share each. Raises SpecError."""
    mux_placement, _ = meshes(several)

    def placed(those: Sequence[Mesh]) -> tuple[ModelGroup, ...]:
        return tuple(
            ModelGroup(
                mesh.gpus,
                " ".join(f"{several.models[m].name} {share:g} %" for m, share in mesh.models) or "idle",
                tuple(several.models[m].name for m, _ in mesh.models),
            )
            for mesh in those
        )

    next_value, next_meshes = mux_placement.runner_up or (None, ())
    return Grouping(
        "muxserve",
        placed(mux_placement.meshes),
        mux_placement.throughput_per_s,
        mux_placement.partitions,
        "partitions of the cluster into meshes",
        " + ".join(f"{format_many(group.gpus, 'GPU')} {group.layout}" for group in placed(next_meshes)),
        next_value,
    )


def mean_lengths(workload: Workload) -> tuple[int, int]:
    """Mean prompt and output."""
    return max(1, round(float(workload.input_tokens.mean()))), max(1, round(float(workload.output_tokens.mean())))


def requests_of(several: Several) -> list[tuple[float, int]]:
    """(arrival, model) at the sum of the rates, each model by its share of it."""
    rates = np.array(several.rates_per_s)
    load = at_rate(several.workload, float(rates.sum()))
    assert load.arrival_ns is not None
    whose = np.random.default_rng([0, 2]).choice(len(rates), len(load), p=rates / rates.sum())
    return list(zip((load.arrival_ns * 1e-9).tolist(), whose.tolist(), strict=True))


def engine_on(several: Several, model: Model, tp: int, pp: int = 1) -> Engine | None:
    """Of one model on so many GPUs; None where it does not fit."""
    return candidate(model, several.cluster, several.deployment.cut(tp, pp))


def _stages(engine: Engine, prompt: int, output: int) -> tuple[float, ...]:
    """Seconds that one request holds each stage."""
    prefill = engine.times.mixed(0, 0, [(prompt, 0)], 1) / TICKS_PER_S
    token = engine.times.decode(1).at(prompt + output // 2) / TICKS_PER_S
    pp = engine.deployment.pp
    return ((prefill + (output - 1) * token) / pp,) * pp


def _weights(engine: Engine) -> float:
    """Bytes of a model on all GPUs of its group."""
    return engine.memory.weights * engine.deployment.tp * engine.deployment.pp


def _capacity(several: Several, engines: Sequence[Engine | None], gpus: int) -> float:
    """Bytes that a group has for weights: what is usable less what a step and a runtime take."""
    beside = max(engine.memory.activations + engine.memory.reserved for engine in engines if engine is not None)
    share = several.deployment.gpu_memory_utilization or 0.9
    return gpus * (share * float(several.cluster.gpu.usable_memory_bytes) - beside)


def _simulator(
    several: Several, stages: Mapping[int, tuple[float, ...]], requests: list[tuple[float, int]], limit: float
) -> Callable[[Groups], Outcome]:
    limits = [limit] * len(several.models)

    def simulate(groups: Groups) -> Outcome:
        placed = [Group({m: stages[m] for m in sorted(group) if m in stages}) for group in groups]
        served = serve_groups(placed, requests, limits, slack_s=0.0)
        unserved = [0] * len(several.models)
        busy = [0.0] * len(placed)
        in_time = 0
        for request in served:
            if request.end_s - request.arrival_s <= limit:
                in_time += 1
            else:
                unserved[request.model] += 1
        for place, models in enumerate(groups):  # a model's work is spread over the groups that have it
            for m in models:
                holders = sum(1 for other in groups if m in other)
                wanted = sum(1 for request in served if request.model == m)
                busy[place] += wanted / holders * stages[m][0] if m in stages else 0.0
        return Outcome(in_time / max(1, len(served)), tuple(unserved), tuple(busy))

    return simulate


def prefill_slower(share: float) -> float:
    """How much longer prompts take with so many percent of the SMs."""
    return 1.0 + PREFILL_SLOPE * (100.0 / share - 1.0)


def decode_slower(share: float, batch: int) -> float:
    """The same of a decode step of so many sequences."""
    place = min(1.0, max(0.0, (batch - SMALL_BATCH) / (LARGE_BATCH - SMALL_BATCH)))
    slope = DECODE_SLOPE_SMALL + (DECODE_SLOPE_LARGE - DECODE_SLOPE_SMALL) * place
    return 1.0 + slope * (100.0 / share - 1.0)


def _shared(several: Several, model: Model, rate: float) -> Shared:
    """A model as MuxServe's placement sees it."""
    prompt, output = mean_lengths(several.workload)

    @cache
    def engine(gpus: int) -> Engine | None:
        return engine_on(several, model, gpus)

    sizes = [size for size in (1, 2, 4, 8) if size <= min(several.cluster.gpus_per_node, several.cluster.n_gpus)]
    fitting = [size for size in sizes if engine(size) is not None]
    if not fitting:
        raise SpecError("model", model.name, f"does not fit on {sizes[-1]} GPUs of one node")
    least = engine(fitting[0])
    assert least is not None

    def decode_s(gpus: int, share: float, batch: int) -> float:
        instance = engine(gpus)
        assert instance is not None
        spent = instance.times.decode(batch).at(batch * (prompt + output // 2)) / TICKS_PER_S
        return spent * decode_slower(share, batch)

    def prefill_s(gpus: int, batch: int) -> float:
        instance = engine(gpus)
        assert instance is not None
        spent = instance.times.mixed(0, 0, [(prompt, 0)] * batch, batch) / TICKS_PER_S
        return spent * prefill_slower(PREFILL_SHARE)

    kv = kv_format(least.deployment, least.profile, several.cluster)
    token = kv_bytes_per_token(model, replace(least.deployment, tp=1, pp=1), kv)
    return Shared(model.name, rate, _weights(least), token, prompt, output, decode_s, prefill_s, tuple(fitting))
