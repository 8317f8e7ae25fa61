"""How one replica of a model is laid out: parallel sizes, number formats, and limits that its engine is started with.

    GPUs of a replica = tensor x pipeline x attention-data

Attention is split by `tp` and repeated `attn_dp` times, each copy with requests of its own; experts are split by
`moe_tp` (every expert in slices) x `moe_ep` (whole experts), which together are tp x attn_dp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from windtunnel.errors import LayoutError, SpecError, UnknownNameError
from windtunnel.physics.cost.inference.formats import WEIGHT_BYTES
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Layer, Model
from windtunnel.physics.model.checkpoint import Stored

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks", "host_cpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica. Fields that are None are the engine profile's default, or follow from the others."""

    engine: str = "vllm"  # name or name-version of an engine profile
    tp: int = 1
    pp: int = 1
    attn_dp: int = 1
    moe_tp: int | None = None
    moe_ep: int | None = None
    weights: str = "bf16"  # of dense matrices: a key of WEIGHT_BYTES
    expert_weights: str | None = None  # of routed experts; None = as `weights`
    kv: str | None = None  # bf16 or fp8; None = the engine's choice for these weights
    max_num_seqs: int | None = None  # per attention rank, as engines count it
    max_num_batched_tokens: int | None = None  # per step and attention rank
    block_size: int | None = None
    num_gpu_blocks: int | None = None  # per attention rank; None = what memory leaves
    gpu_memory_utilization: float | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    images: bool | None = None  # False: the vision tower of a checkpoint that has one is not loaded
    kv_tiers: str | None = None  # below the GPU's cache: host=200GB,disk=4TB@12GB/s,remote=20TB@6GB/s, of one replica
    lora: str | None = None  # adapters=100,rank=16,resident=8
    host_cpus: int | None = None  # that its processes share; None = one for each
    max_model_len: int | None = None
    speculative_tokens: int = 0  # drafted per step; 0 = none
    acceptance: float = 0.0  # chance that a drafted token is kept, given those before it were
    sampling: str = "greedy"  # or top-p: of all words only the likeliest are drawn from

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "attn_dp", "moe_tp", "moe_ep", *LIMITS, "max_model_len"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecError(name, value, "must be a whole number of at least 1")
        if not isinstance(self.engine, str):
            raise SpecError("engine", self.engine, "name an engine, such as vllm-0.12, or a file")
        for name in ("weights", "expert_weights"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value in WEIGHT_BYTES):
                raise SpecError(name, value, f"use one of {', '.join(WEIGHT_BYTES)}")
        if self.kv not in (None, "bf16", "fp8"):
            raise SpecError("kv", self.kv, "use bf16 or fp8")
        if self.sampling not in ("greedy", "top-p"):
            raise SpecError("sampling", self.sampling, "use greedy or top-p")
        for name in ("kv_tiers", "lora"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise SpecError(name, value, "give a text: host=200GB, or adapters=100,rank=16,resident=8")
        for name in ("prefix_caching", "chunked_prefill", "images"):
            value = getattr(self, name)
            if value not in (None, True, False):
                raise SpecError(name, value, "must be true or false")
        for name in ("gpu_memory_utilization", "speculative_tokens", "acceptance"):
            value = getattr(self, name)
            if value is None and name == "gpu_memory_utilization":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise SpecError(name, value, "must be a number")
        if self.gpu_memory_utilization is not None and not 0.05 <= self.gpu_memory_utilization <= 1.0:
            raise SpecError("gpu_memory_utilization", self.gpu_memory_utilization, "must be 0.05 to 1")
        if not 0 <= self.speculative_tokens <= 16 or self.speculative_tokens % 1:
            raise SpecError("speculative_tokens", self.speculative_tokens, "must be a whole number of 0 to 16")
        if not 0.0 <= self.acceptance <= 1.0:
            raise SpecError("acceptance", self.acceptance, "must be 0 to 1")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.attn_dp

    @property
    def expert_sizes(self) -> tuple[int, int]:
        """(slices per expert, groups of experts): what is given, the rest as engines choose it."""
        ranks = self.tp * self.attn_dp
        if self.moe_tp is None and self.moe_ep is None:
            return (ranks, 1) if self.attn_dp == 1 else (1, ranks)
        if self.moe_ep is None:
            return self.moe_tp or 1, ranks // (self.moe_tp or 1)
        return (ranks // self.moe_ep if self.moe_tp is None else self.moe_tp), self.moe_ep

    @property
    def routed(self) -> str:
        """Number format of routed experts."""
        return self.expert_weights or self.weights

    def projections(self, layer: Layer) -> str:
        """Number format of a layer's attention matrices, which published 4-bit checkpoints partly leave in 16 bits.

        NVIDIA's NVFP4 of DeepSeek and Kimi leave attention, OpenAI's MXFP4 of gpt-oss all but the experts.
        """
        latent = self.weights == "nvfp4" and layer.attention.kind == "mla"
        mixture = self.weights == "mxfp4" and layer.feed_forward.kind == "moe"
        return "bf16" if latent or mixture else self.weights

    def experts_as(self, layer: Layer) -> str:
        """Number format in which a layer's experts are multiplied: those of DeepSeek and Kimi come scaled by blocks."""
        return "fp8_block" if self.routed == "fp8" and layer.attention.kind == "mla" else self.routed

    def stored_as(self, checkpoint: Stored) -> Deployment:
        """The same in the formats of a checkpoint, where they are not given; a cache is in 16 bits if it is silent."""
        experts = self.expert_weights or checkpoint.expert_weights
        return replace(self, weights=checkpoint.weights, expert_weights=experts, kv=self.kv or checkpoint.kv or "bf16")

    def cut(self, tp: int, pp: int) -> Deployment:
        """The same in a layout of tensor and pipeline parallelism alone."""
        return replace(self, tp=tp, pp=pp, attn_dp=1, moe_ep=None, moe_tp=None)

    def words(self) -> str:
        """As people write it: tp8, tp2 pp2, dp8 ep8."""
        sizes = (("tp", self.tp), ("pp", self.pp), ("dp", self.attn_dp), ("ep", self.expert_sizes[1]))
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"


def deployment_of(settings: Mapping[str, Any]) -> Deployment:
    """A deployment from its fields. Raises UnknownNameError and SpecError."""
    names = [field.name for field in fields(Deployment)]
    for name in settings:
        if name not in names:
            raise UnknownNameError("field of a deployment", str(name), names)
    return Deployment(**settings)


def check(deployment: Deployment, model: Model, cluster: Cluster) -> None:
    """Raise LayoutError for sizes that contradict each other, the model or the cluster."""
    if deployment.gpus > cluster.n_gpus:
        problem = f"a replica of {deployment.words()} takes {deployment.gpus} GPUs of {cluster.n_gpus}"
        raise LayoutError(problem, "use smaller parallel sizes or a larger cluster")
    heads = min(layer.attention.heads for layer in model.layers)
    if heads % deployment.tp:
        able = ", ".join(str(tp) for tp in range(1, heads + 1) if heads % tp == 0)
        raise LayoutError(f"tp {deployment.tp} does not divide the {heads} heads", f"use one of {able}")
    if deployment.pp > model.n_layers:
        raise LayoutError(f"pp {deployment.pp} is more than the {model.n_layers} layers", "use fewer pipeline stages")
    routed = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    if not routed and (deployment.moe_ep or 1) > 1:
        raise LayoutError(f"ep {deployment.moe_ep}: {model.name} has no experts to spread", "leave ep out")
    if routed:
        slices, groups = deployment.expert_sizes
        ranks = deployment.tp * deployment.attn_dp
        if deployment.moe_tp is None and ranks % groups:
            able = ", ".join(str(size) for size in range(1, ranks + 1) if ranks % size == 0)
            problem = f"ep {groups} does not divide the {ranks} GPUs of tp {deployment.tp} x dp {deployment.attn_dp}"
            raise LayoutError(problem, f"use one of {able}")
        if slices * groups != ranks:
            problem = f"moe_tp {slices} x moe_ep {groups} is not tp {deployment.tp} x attn_dp {deployment.attn_dp}"
            raise LayoutError(problem, "experts are spread over all GPUs of a stage: make both products equal")
