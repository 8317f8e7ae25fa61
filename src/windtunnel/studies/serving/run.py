"""`serve`: requests through one or more equal replicas of a deployment, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import hypot, inf

import numpy as np

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.cost.inference.experts import WIDE
from windtunnel.physics.cost.power import draw_of
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.catalogue import load_model, stored_as
from windtunnel.questions.typed import check
from windtunnel.studies.serving.adapters import asked_for
from windtunnel.studies.serving.build import Engine, engine_of, kv_format
from windtunnel.studies.serving.deployment import Deployment, deployment_of
from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.loop import Rejection, Router, simulate
from windtunnel.studies.serving.measures import Stamps, distribution, gap_distribution, stamps_of
from windtunnel.studies.serving.power import gpu_watts
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.sequence import Sequence as Request
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.result import (
    MemoryUse,
    Regime,
    ServingResult,
    ServingSpec,
    Started,
    refused_words,
)
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.step_time.times import EXPERT_KNEE, TICKS_PER_S, Prices
from windtunnel.studies.serving.workload.requests import Workload

GROWING = 2.0  # times by which the queueing of the last third exceeds that of the first, for a run that is over

DRAFTED_BAND = 0.25  # by how much acceptance moves TPOT from one load to another
EXPERTS_BAND = 0.3  # routed experts where constants were fitted on dense models alone
WIDE_BAND = 0.35  # experts over more GPUs than a node has: how tokens reach them is not calibrated
NODES_BAND = 0.6  # tensor parallelism over nodes
# Engines' constants rest on runs of these families with at most so many experts (docs/measured/serving.md). Others:
# what nine in ten published runs of models of 2026 need (`validation/serving/bands.py`).
FITTED_FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", "gpt-oss")
FITTED_EXPERTS = 256
NEW_MODEL_BAND = 0.46
# What runs of other people need beyond all that: sources that no constant was fitted on, nine in ten of their rows,
# each cell counting once (docs/accuracy-serving.md). Within a source, families left out need none of it.
SOURCE_BAND = 0.1  # kernels timed, a family that constants were fitted on
NEW_MODEL_SOURCE_BAND = 0.65  # kernels timed, another family
UNTIMED_SOURCE_BAND = 0.55  # AMD, whose kernels nobody timed: constants of one source's model, launch and image
ROOFLINE_BAND = 0.5  # bytes over bandwidth on a GPU whose engine nobody has fitted
LEAST_ROOM = 0.2

PROMISES = ("ttft_s", "tpot_s")


def serve(
    model: str | Model,
    cluster: str | Cluster,
    deployment: Deployment | Mapping[str, object],
    workload: Workload,
    *,
    replicas: int = 1,
    router: str | Router = "least-loaded",
    slo: Mapping[str, float] | None = None,
    profile: Profile | None = None,
    prices: Prices | None = None,
    timeline: bool = False,
    cost_per_gpu_hour: float | None = None,
) -> ServingResult:
    """Predict what a deployment does to a workload.

    Where a deployment is a mapping without `weights`, formats are those of the named model's checkpoint.
    `slo`: `ttft_s` and `tpot_s`, either or both. `router`: a key of ROUTERS, or an object with `choose`.
    `profile`, `prices`: as in `build.engine_of`. A model that does not fit is an answer: `feasible` is False.
    Raises SpecError, LayoutError, UnknownNameError.
    """
    check(locals(), model=str | Model, cluster=str | Cluster, deployment=Deployment | Mapping)
    loaded_model = load_model(model) if isinstance(model, str) else model
    machine = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    layout = deployment if isinstance(deployment, Deployment) else deployment_of(deployment)
    if isinstance(model, str) and not isinstance(deployment, Deployment) and "weights" not in deployment:
        layout = layout.stored_as(stored_as(model))
    engine = engine_of(loaded_model, machine, layout, profile=profile, prices=prices)
    return serve_with(
        engine,
        workload,
        replicas=replicas,
        router=router,
        slo=slo,
        timeline=timeline,
        cost_per_gpu_hour=cost_per_gpu_hour,
    )


def serve_with(
    engine: Engine,
    workload: Workload,
    *,
    replicas: int = 1,
    router: str | Router = "least-loaded",
    slo: Mapping[str, float] | None = None,
    timeline: bool = False,
    cost_per_gpu_hour: float | None = None,
    make: Callable[[], Replica | StepwiseReplica] | None = None,
) -> ServingResult:
    """As `serve`, on an engine that is priced already; `make`: replicas of another kind than the engine's own."""
    check(locals(), workload=Workload, replicas=int, slo=Mapping | None, timeline=bool, cost_per_gpu_hour=float | None)
    _check(replicas, slo or {}, cost_per_gpu_hour)
    if not engine.fits:
        return infeasible(engine, workload, replicas, slo or {})
    servers = engine.replicas(replicas) if make is None else [make() for _ in range(replicas)]
    if timeline:
        servers[0].tally.timeline = []
    chosen = _router(router) if isinstance(router, str) else router
    sent, refused = simulate(
        workload,
        servers,
        chosen,
        block_size=engine.rules.block_size,
        longest=engine.longest,
        apart=all(tier.name != "remote" for tier in engine.tiers),
        adapters=None if engine.lora is None else asked_for(workload, engine.lora.adapters),
        read_token_s=engine.profile.read_token_s,
    )
    hand_on(sent, engine.profile)
    return summarise(engine, workload, servers, stamps_of(sent), refused, slo or {}, cost_per_gpu_hour)


def _check(replicas: int, slo: Mapping[str, float], cost_per_gpu_hour: float | None) -> None:
    if replicas < 1:
        raise SpecError("replicas", replicas, "give 1 or more")
    for name, value in slo.items():
        if name not in PROMISES:
            raise UnknownNameError("promise of slo", str(name), PROMISES)
        if not isinstance(value, int | float) or not value > 0:
            raise SpecError(name, value, "give seconds, more than 0")
    if cost_per_gpu_hour is not None and not 0 <= cost_per_gpu_hour < inf:
        raise SpecError("cost_per_gpu_hour", cost_per_gpu_hour, "give dollars for an hour of one GPU, 0 or more")


def hand_on(sent: Sequence[Request], profile: Profile) -> None:
    """Tokens as clients get them: later than the engine has them, by what the engine's front end takes."""
    fixed, each = profile.first_token_s * 1e9, profile.prompt_token_s * 1e9
    for sequence in sent:
        extra = round(fixed + each * sequence.prompt)
        if sequence.first_ns >= 0:
            sequence.first_ns += extra
        if sequence.last_ns >= 0:
            sequence.last_ns += extra


def summarise(
    engine: Engine,
    workload: Workload,
    servers: Sequence[Replica | StepwiseReplica],
    stamps: Stamps,
    refused: Sequence[Rejection],
    slo: Mapping[str, float],
    cost_per_gpu_hour: float | None = None,
    gpus: int | None = None,
) -> ServingResult:
    """The result of replicas that have run."""
    done = ~np.isnan(stamps.last)
    end = float(np.nanmax(stamps.last)) if done.any() else 0.0
    begin = float(stamps.arrival.min()) if len(stamps.arrival) else 0.0
    window = max(end - begin, 1e-12)
    outputs, prompts = float(stamps.output[done].sum()), float(stamps.prompt[done].sum())
    busy = sum(server.tally.busy_ticks for server in servers) / TICKS_PER_S
    total_ticks = max(1, sum(server.tally.busy_ticks for server in servers))
    attained = stamps.attainment(slo.get("ttft_s"), slo.get("tpot_s"), len(workload)) if slo else None
    share = busy / (window * len(servers))
    lookups = sum(server.pool.lookups for server in servers)
    all_gpus = engine.deployment.gpus * len(servers) if gpus is None else gpus
    waited = stamps.queue[~np.isnan(stamps.queue)]
    regime = regime_of(stamps, workload)
    batch = sum(server.tally.sequence_ticks for server in servers) / total_ticks
    context = float(workload.input_tokens.mean() + workload.output_tokens.mean() / 2)
    rate = float(done.sum()) / window
    started, refusal = started_of(engine), refused[0].reason if refused else ""
    nobody = len(refused) == len(workload) > 0
    return ServingResult(
        spec=_spec(engine, workload, len(servers)),
        feasible=not nobody,
        reason=refused_words(len(refused), len(workload), refusal, started) if nobody else "",
        requests=len(workload),
        finished=int(done.sum()),
        refused=len(refused),
        ttft=distribution(stamps.ttft),
        tpot=distribution(stamps.tpot),
        itl=gap_distribution(server.tally.gap_counts for server in servers),
        e2e=distribution(stamps.e2e),
        queue=distribution(waited),
        duration_s=window,
        output_tokens_per_s=outputs / window,
        total_tokens_per_s=(outputs + prompts) / window,
        requests_per_s=rate,
        slo=dict(slo),
        slo_attainment=attained,
        goodput_requests_per_s=None if attained is None else attained * len(workload) / window,
        regime=regime,
        gpus=all_gpus,
        gpu_seconds=all_gpus * window,
        gpu_watts=gpu_watts(engine, [server.tally for server in servers], window),
        gpu_watts_band=draw_of(engine.cluster.gpu).band,
        utilisation=min(1.0, share),  # the window is in whole nanoseconds
        batch_mean=batch,
        kv_use_mean=sum(server.tally.block_ticks / max(1, server.pool.total) for server in servers) / total_ticks,
        kv_use_peak=max(server.pool.peak / max(1, server.pool.total) for server in servers),
        preemptions=sum(server.tally.preemptions for server in servers),
        prefix_hit_rate=sum(server.pool.hits for server in servers) / lookups if lookups else 0.0,
        tier_hit_rates=_tier_hits(engine, servers, max(1, lookups)),
        adapter_loads=None if engine.lora is None else _loads(servers),
        steps=sum(server.tally.steps for server in servers),
        band=band_of(engine, batch, context, workload.concurrency is None),
        sources=sources_of(engine),
        memory=_memory(engine),
        started=started,
        stamps=stamps if workload.rows is None else replace(stamps, index=workload.rows[stamps.index]),
        timeline=tuple(servers[0].tally.timeline or ()),
        cost_per_gpu_hour=cost_per_gpu_hour,
        refusal=refusal,
    )


def _loads(servers: Sequence[Replica | StepwiseReplica]) -> int:
    """Adapters that were brought to a GPU."""
    slots = [server.cache.slots for server in servers if isinstance(server, Replica)]
    return sum(slot.loads for slot in slots if slot is not None)


def _tier_hits(engine: Engine, servers: Sequence[Replica | StepwiseReplica], lookups: int) -> dict[str, float]:
    """Share of the prompt blocks that were looked up and found in each tier below the GPU."""
    tiers = [server.cache.tiers for server in servers if isinstance(server, Replica) and server.cache.tiers is not None]
    return {
        tier.name: sum(replica_tiers.found_blocks[place] for replica_tiers in tiers) / lookups
        for place, tier in enumerate(engine.tiers)
    }


def sources_of(engine: Engine) -> tuple[str, ...]:
    """Where the prices come from, in words."""
    profile = engine.profile
    fitted = "fitted constants" if profile.release == profile.calibrated_to else f"constants of {profile.calibrated_to}"
    engine_is = f"engine: profile {profile.engine} {profile.release}, {fitted}"
    wide = other_source_of(engine)[1]
    sources = (f"kernels: {engine.kernels}", engine_is, *([f"band: {wide}, so it is wide"] if wide else []))
    marginal = engine.times.expert_marginal
    if marginal == 1.0:
        return sources
    return (
        *sources,
        f"experts: another engine's kernels, x {marginal:g} per token beyond {EXPERT_KNEE:.0f}, fitted on one"
        " deployment; what that decides is in the band",
    )


def regime_of(stamps: Stamps, workload: Workload) -> Regime:
    """What queueing does to TTFT, and whether the queue grows (`result.py`)."""
    ttft, queue = stamps.first - stamps.arrival, stamps.queue
    if len(queue) == 0 or np.isnan(queue).all():
        return "over"
    third = max(1, len(queue) // 3)
    if np.isnan(queue[-third:]).all():
        return "over"  # none of the last was ever begun
    mean_queue, mean_ttft = float(np.nanmean(queue)), float(np.nanmean(ttft))
    early, late = float(np.nanmean(queue[:third])), float(np.nanmean(queue[-third:]))
    if workload.concurrency is not None:  # a closed loop limits itself: over where slots only wait for a place
        if mean_queue > 0.5 * float(np.nanmean(stamps.last - stamps.arrival)):
            return "over"
        return "near saturation" if mean_queue > 0.7 * mean_ttft and mean_ttft > 1.0 else "stable"
    span = float(stamps.arrival[-1] - stamps.arrival[0])
    if late > GROWING * max(early, 1e-3) and late > 0.05 * span and mean_queue > 0.5 * mean_ttft:
        return "over"
    if mean_queue > 0.5 * mean_ttft and mean_queue > 0.1:
        return "near saturation"
    return "stable"


def _router(name: str) -> Router:
    if name not in ROUTERS:
        raise UnknownNameError("router", name, ROUTERS)
    return ROUTERS[name]()


def band_of(engine: Engine, batch: float, context: float, open_loop: bool) -> float:
    """Log half-width of p5 to p95 of TPOT: of a step, and of how many share it.

    In an open loop slower steps leave more in flight: with t(b) = a + c b and b = rate x output x t, an error of t
    comes back 1 / (1 - c b / t) times.
    """
    parts = [engine.profile.band, engine.times.doubt(batch, context)]
    parts += [DRAFTED_BAND] * (engine.times.speculative[0] > 0)
    routed = any(layer.feed_forward.kind == "moe" for layer in engine.model.layers)
    parts += [EXPERTS_BAND] * (routed and not engine.profile.experts_fitted)
    parts += [WIDE_BAND] * (engine.deployment.attn_dp * engine.deployment.tp > WIDE)
    parts += [NODES_BAND] * (engine.deployment.tp > engine.cluster.gpus_in_domain)
    parts += [ROOFLINE_BAND] * (not engine.measured and engine.profile.decode_factor == 1.0)
    parts += [NEW_MODEL_BAND] * (not _fitted(engine.model))
    parts += [other_source_of(engine)[0]]
    band = hypot(*parts)
    if not open_loop or batch < 2.0:
        return band
    whole, half = round(batch), round(batch / 2)
    longer, shorter = (engine.times.decode(max(1, size)).at(round(size * context)) for size in (whole, half))
    return band / max(LEAST_ROOM, 1.0 - 2.0 * max(0, longer - shorter) / longer)


def other_source_of(engine: Engine) -> tuple[float, str]:
    """What the band has because the constants' sources ran something else, and the reason in words."""
    amd = engine.cluster.gpu.generation.startswith("cdna")
    if engine.profile.fitted_source or not (engine.measured or amd):  # accelerators without any run have their own band
        return 0.0, ""
    if not engine.measured:
        return UNTIMED_SOURCE_BAND, "kernels of this GPU were not timed, and other images and launches run others"
    if not _fitted(engine.model):
        return NEW_MODEL_SOURCE_BAND, "no constant was fitted on this family of models, nor on runs of this source"
    return SOURCE_BAND, ""


def _fitted(model: Model) -> bool:
    """Whether models like it were among those that engines' constants were fitted on."""
    experts = max((layer.feed_forward.experts for layer in model.layers if layer.feed_forward.kind == "moe"), default=0)
    return model.family in FITTED_FAMILIES and experts <= FITTED_EXPERTS


def started_of(engine: Engine) -> Started:
    """What the engine runs with."""
    deployment, profile = engine.deployment, engine.profile
    return Started(
        kv_cache_tokens=engine.cache_tokens,
        weights_format=deployment.weights,
        expert_weights_format=deployment.routed,
        kv_format=kv_format(deployment, profile, engine.cluster),
        max_model_len=deployment.max_model_len,
        speculative_tokens=engine.times.speculative[0],
        engine=f"{profile.engine} {profile.release}",
        engine_calibrated_to=f"{profile.engine} {profile.calibrated_to}",
        notice=profile.notice,
    )


def _memory(engine: Engine) -> MemoryUse:
    memory = engine.memory
    return MemoryUse(
        weights=memory.weights,
        activations=memory.activations,
        reserved=memory.reserved,
        kv_cache=max(0.0, memory.kv),
        kv_per_token=memory.kv_per_token,
        kv_blocks=float(engine.blocks // engine.deployment.attn_dp),
    )


def _spec(engine: Engine, workload: Workload, replicas: int) -> ServingSpec:
    return ServingSpec(
        model=engine.model.name,
        cluster=engine.cluster.name,
        gpu=engine.cluster.gpu.name,
        cluster_gpus=engine.cluster.n_gpus,
        deployment=engine.deployment,
        engine=f"{engine.profile.engine} {engine.profile.release}",
        replicas=replicas,
        workload=workload.load(),
    )


def infeasible(engine: Engine, workload: Workload, replicas: int, slo: Mapping[str, float]) -> ServingResult:
    """The answer where weights and activations leave no room for a cache."""
    memory, gpu = engine.memory, engine.cluster.gpu
    needed = (memory.weights + memory.activations + memory.reserved) / 2**30
    reason = (
        f"does not fit: a GPU holds {memory.weights / 2**30:.1f} GiB of weights, {needed:.1f} GiB with activations and"
        f" buffers, of {gpu.usable_memory_bytes / 2**30:.1f} GiB; use more GPUs per replica, or fewer bits"
    )
    return ServingResult(
        _spec(engine, workload, replicas), False, reason, len(workload), 0, len(workload),
        None, None, None, None, None, 0.0, 0.0, 0.0, 0.0, dict(slo), 0.0 if slo else None, 0.0 if slo else None, "over",
        engine.deployment.gpus * replicas, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, {}, None, 0, engine.profile.band,
        sources_of(engine), _memory(engine), started_of(engine),
    )  # fmt: skip
