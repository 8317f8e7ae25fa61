"""From a model, a cluster and a deployment to replicas that can be run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from math import hypot

from windtunnel.errors import LayoutError, SpecError
from windtunnel.physics.cost.inference import inference_kernels
from windtunnel.physics.cost.inference.experts import WIDE
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.physics.model.mixers import DELTA_RULE, Compressed, Indexed, Recurrent
from windtunnel.studies.serving.adapters import Adapters, Slots, adapters_of, slot_bytes
from windtunnel.studies.serving.deployment import Deployment, check
from windtunnel.studies.serving.engines.profile import Profile, load_engine
from windtunnel.studies.serving.host import on_its_host
from windtunnel.studies.serving.kv.capacity import Memory, kv_bytes_per_token, memory_of
from windtunnel.studies.serving.kv.tiers import LINK_SHARE, Store, Tier, tiers_of
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules, rules_of
from windtunnel.studies.serving.step_time.denoising import Denoising
from windtunnel.studies.serving.step_time.layers import Layers
from windtunnel.studies.serving.step_time.times import TICKS_PER_S, Prices, StepTimes

# Launches of a dense layer over those of one with experts: vLLM's on Hopper (0.35 ms) over SGLang's of DeepSeek-V3.
DENSE_LAUNCHES = 0.26
WIDE_GRAPHS = 4  # tensor-parallel ranks from which `graph_limit_wide` counts
UNMEASURED_BAND = 0.5  # log half-width of step times on a GPU that nobody timed; as far as roofline was off elsewhere


@dataclass(frozen=True, eq=False)
class Engine:
    """A deployment made ready: its step times are worked out once and shared by all its replicas."""

    model: Model
    cluster: Cluster
    deployment: Deployment
    profile: Profile
    memory: Memory
    times: StepTimes
    rules: Rules
    blocks: int  # of one replica: all attention ranks together
    kernels: str  # whose times attention and experts are priced by, in words
    measured: bool  # whether they were measured, on this GPU or as given
    kv: str  # number format of the cache
    tiers: tuple[Tier, ...] = ()  # of the cache, below the GPU
    lora: Adapters | None = None  # that requests ask for

    @property
    def fits(self) -> bool:
        """Whether weights leave any room for the cache."""
        return self.blocks > 0

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.deployment.gpus

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache of a replica holds; with windows or states, of the longest requests, as vLLM prints."""
        longest, size = self.deployment.max_model_len, self.rules.block_size
        if longest is None or not self.rules.beside_blocks:
            return self.blocks * size
        kv = self.blocks // self.deployment.attn_dp * size * self.memory.kv_per_token
        printed = self.memory.cache.printed_tokens(kv, longest, self.rules.longest_chunk)
        return printed * self.deployment.attn_dp

    @property
    def longest(self) -> int:
        """The most tokens that one request may have."""
        tokens = max(0, self.blocks // self.deployment.attn_dp - self.rules.beside_blocks) * self.rules.block_size
        limit = self.deployment.max_model_len
        return tokens if limit is None else min(tokens, limit)

    def replica(self, shared: Store | None = None) -> Replica:
        """A fresh instance; `shared`: the remote store, where other replicas read it too."""
        stores = [shared if shared and tier.name == shared.name else self._store(tier) for tier in self.tiers]
        return Replica(self.times, self.rules, self.blocks, stores=stores, slots=self._slots())

    def replicas(self, count: int) -> list[Replica]:
        """Fresh instances with one remote store."""
        shared = next((self._store(tier) for tier in self.tiers if tier.name == "remote"), None)
        return [self.replica(shared) for _ in range(count)]

    def _slots(self) -> Slots | None:
        """Empty, of adapters."""
        if self.lora is None:
            return None
        size = slot_bytes(self.model, self.lora.rank, self.deployment.tp, self.deployment.pp)
        link = LINK_SHARE * self.cluster.host.offload_bandwidth_bytes_per_s
        return Slots(self.lora.resident, round(TICKS_PER_S * size / link))

    def _store(self, tier: Tier) -> Store:
        """Empty. A token is kept once, however many GPUs have parts of it, or all of it."""
        size, deployment = self.rules.block_size, replace(self.deployment, tp=1, pp=1)
        whole = kv_bytes_per_token(self.model, deployment, self.kv) * size
        seconds = whole / (tier.bandwidth_bytes_per_s or math.inf)
        if tier.bandwidth_bytes_per_s is None:
            link = self.cluster.host.offload_bandwidth_bytes_per_s
            seconds = self.memory.kv_per_token * size / (LINK_SHARE * link)
        latency = round(TICKS_PER_S * tier.latency_s)
        return Store(tier.name, int(tier.size_bytes / whole), TICKS_PER_S * seconds, latency)


def _captured(model: Model, deployment: Deployment) -> bool:
    """Whether SGLang captures pieces of a prompt, as it decides itself (0.5.10).

    Not of models that see or hear, behind an indexer, or with a delta rule; nor with attention ranks, stages or
    adapters (`_handle_piecewise_cuda_graph` of server_args.py, `piecewise_cuda_graph_disabled_model_archs`).
    """
    mixers = {layer.attention for layer in model.layers}
    chosen = any(isinstance(mixer, Indexed | Compressed) for mixer in mixers)
    delta = any(isinstance(mixer, Recurrent) and mixer.form in DELTA_RULE for mixer in mixers)
    text = model.tower is None and not chosen and not delta
    return text and deployment.attn_dp == deployment.pp == 1 and deployment.lora is None


def engine_of(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    *,
    profile: Profile | None = None,
    prices: Prices | None = None,
    prices_from: str = "given prices",
) -> Engine:
    """Check a deployment and price it.

    `profile` stands in for the one that the deployment names; `prices` for the model's own (measured tables), and
    `prices_from` says whose they are.
    Raises LayoutError and SpecError.
    """
    check(deployment, model, cluster)
    used = (load_engine(deployment.engine) if profile is None else profile).on(cluster.gpu)
    nodes = -(-deployment.tp // cluster.gpus_in_domain)
    used = on_its_host(used, deployment)
    if used.graph_limit_wide and deployment.gpus // deployment.pp >= WIDE_GRAPHS:
        used = replace(used, graph_limit=used.graph_limit_wide)
    used = replace(used, collective_gap_s=used.collective_gap_s + used.node_sum_s * (nodes - 1))
    kv = kv_format(deployment, used, cluster)
    memory, most = _states_apart(memory_of(model, deployment, used, cluster, kv), deployment, used)
    compressed = any(isinstance(layer.attention, Compressed) for layer in model.layers)
    limits = [used.compressed_seqs if compressed else 0, used.draft_seqs if deployment.speculative_tokens else 0]
    if deployment.max_num_seqs is None:
        most = min([most, *(limit / deployment.attn_dp for limit in limits if limit)])
    size = deployment.block_size or used.block_size
    of_rank = memory.tokens // size if deployment.num_gpu_blocks is None else deployment.num_gpu_blocks
    blocks = of_rank * deployment.attn_dp
    block_bytes = memory.kv_per_token * size
    beside = math.ceil(memory.cache.beside_bytes / block_bytes) if block_bytes else 0
    tiers = () if deployment.kv_tiers is None else tiers_of(deployment.kv_tiers)
    if tiers and not (used.prefix_caching if deployment.prefix_caching is None else deployment.prefix_caching):
        raise SpecError("kv_tiers", deployment.kv_tiers, "keeps prefixes, which this engine does not: --prefix-caching")
    if deployment.lora is not None and (deployment.attn_dp > 1 or prices is not None):
        raise SpecError("lora", deployment.lora, "is modelled without attention ranks, and without given kernels")
    kernels = inference_kernels(cluster, used.framework, used.release)
    own = prices if prices is not None else layers_of(model, deployment, cluster, used, kv)
    scale = cluster.gpu.kernel_scale
    source = "measured (aiconfigurator-core)" if kernels.measured else "bytes over bandwidth (roofline)"
    if cluster.gpu.generation == "other" or scale.compute < 0.5 * scale.memory:
        used = replace(used, band=hypot(used.band, UNMEASURED_BAND))
        source += f"; without measurements of {cluster.gpu.name}, so the band is wide"
    stands_in = kernels.derived_from(deployment.weights)
    if kernels.measured and stands_in:
        source += f"; {deployment.weights} products: {stands_in}'s, less the bytes of weights saved"
    if prices is not None:
        source = prices_from
    generation, quantised = cluster.gpu.generation, deployment.weights not in ("bf16", "fp16")
    blackwell = generation.startswith("blackwell")  # Ultra too
    routed = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    launched = 0.0 if used.prompt_graphs and _captured(model, deployment) else 1.0 if routed else DENSE_LAUNCHES
    used = replace(used, prompt_layer_s=used.prompt_layer_s * launched)
    if used.mxfp4_prefill_factor and deployment.routed == "mxfp4":
        factor = used.mxfp4_prefill_factor
        used = replace(used, expert_prefill_factor=factor, expert_prefill_factor_ranks=factor)
    # Another engine's kernels stand in only where none are given; see `expert_marginal_blackwell_fp8`.
    borrowed = routed and prices is None and blackwell and "fp8" in deployment.routed
    slices, groups = deployment.expert_sizes
    borrowed = borrowed and slices == 1 < groups <= WIDE
    times = StepTimes(
        own,
        used,
        model.n_layers / deployment.pp,
        deployment.attn_dp,
        (deployment.speculative_tokens, deployment.acceptance) if deployment.speculative_tokens else (0, 0.0),
        2.0 * model.n_layers / deployment.pp if deployment.tp > 1 else 0.0,
        used.quantised_prefill_factor_blackwell if blackwell and quantised else 1.0,
        used.expert_marginal_blackwell_fp8 if borrowed else 1.0,
        used.draft_step_hopper_s if generation == "hopper" else 0.0,
    )
    rules = rules_of(used, deployment, blocks, times.tokens_per_step, beside)
    return Engine(
        model,
        cluster,
        deployment,
        used,
        memory,
        times,
        replace(rules, max_num_seqs=int(max(1.0, min(rules.max_num_seqs, most * deployment.attn_dp)))),
        blocks,
        source,
        kernels.measured or prices is not None,
        kv,
        tiers,
        None if deployment.lora is None else adapters_of(deployment.lora),
    )


def _states_apart(memory: Memory, deployment: Deployment, profile: Profile) -> tuple[Memory, float]:
    """Memory that is left for keys where states have slots of their own, and the most sequences that those admit."""
    states = memory.cache.states
    if not (profile.state_share and states and memory.cache.unit and memory.kv > 0.0):
        return memory, math.inf
    caching = profile.prefix_caching if deployment.prefix_caching is None else deployment.prefix_caching
    keys = memory.kv / (1.0 + profile.state_share)
    slots = profile.state_share * keys // states
    most = slots // profile.state_slots if caching else slots
    return replace(memory, kv=keys, cache=replace(memory.cache, states=0.0)), most


def candidate(model: Model, cluster: Cluster, deployment: Deployment) -> Engine | None:
    """The engine that a search may choose; None where heads or layers do not divide, or it does not fit."""
    try:
        engine = engine_of(model, cluster, deployment)
    except (LayoutError, SpecError):
        return None
    return engine if engine.fits else None


def kv_format(deployment: Deployment, profile: Profile, cluster: Cluster) -> str:
    """The number format of the cache: what is given, else the engine's choice for these weights on this GPU."""
    if deployment.kv is not None:
        return deployment.kv
    if deployment.weights in ("bf16", "fp16"):
        return profile.kv
    # Checkpoints with scales by blocks say nothing of a cache, and vLLM then keeps 16 bits (config/cache.py, auto).
    # Nor do GPTQ's and AWQ's integers, in vLLM and SGLang.
    silent = deployment.weights == deployment.routed == "fp8_block" and profile.framework == "vllm"
    silent = silent or (deployment.weights in ("int4", "int8") and profile.framework != "trtllm")
    blackwell = cluster.gpu.generation.startswith("blackwell") and not silent
    return profile.kv_blackwell_quantised if blackwell else profile.kv_quantised


def layers_of(model: Model, deployment: Deployment, cluster: Cluster, profile: Profile, kv: str) -> Layers:
    """Prices of a deployment's kernels; of the profile they take whose kernels, and how it draws tokens."""
    slim = replace(
        deployment,
        engine=profile.engine,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        num_gpu_blocks=None,
        block_size=None,
        gpu_memory_utilization=None,
        prefix_caching=None,
        chunked_prefill=None,
        max_model_len=None,
        kv_tiers=None,
        host_cpus=None,
        sampling="greedy",
    )
    named = {"nvfp4": profile.nvfp4_experts, "mxfp4": profile.mxfp4_experts, "int4": profile.int4_experts}
    chosen = named.get(deployment.routed, "")
    filtered = profile.filter_bytes if deployment.sampling == "top-p" else 0.0
    return _layers(model, slim, cluster, profile.framework, profile.release, kv, chosen, filtered)


@lru_cache(maxsize=256)
def _layers(
    model: Model, deployment: Deployment, cluster: Cluster, framework: str, release: str, kv: str, expert_kernel: str,
    filter_bytes: float,
) -> Layers:  # fmt: skip
    if framework not in ("vllm", "sglang", "trtllm"):
        raise SpecError("framework", framework, "use vllm, sglang or trtllm")
    return (Denoising if model.step_tokens else Layers)(
        model, deployment, inference_kernels(cluster, framework, release, expert_kernel), kv, filter_bytes
    )
