"""How many blocks of KV cache a rank has.

    bytes of a token     2 x layers x KV heads / tp x head size x bytes, KV heads not split below one;
                         MLA: layers x (latent + rotary) x bytes, on every tensor-parallel rank
    capacity             usable memory x utilisation - weights - activations of a full step - reserved (vLLM, SGLang);
                         activations: the step's layers, or what draws its tokens where that is more
                         (usable memory - weights - activations - reserved) x utilisation (TensorRT-LLM; activations
                         with what experts need for the tokens of all ranks, and what the largest graph draws from)

Windowed layers are counted in full, as engines without a hybrid cache do.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.physics.cost.inference.formats import MARLIN, WEIGHT_BYTES, marlin_sizes
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Layer, Model
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile

KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
ACTIVATIONS = 10.0  # bytes per token of the budget, times the widest row: what a layer holds at once, in 2 bytes


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU of the replica."""

    weights: float
    activations: float
    reserved: float
    kv_per_token: float
    kv: float  # what is left for the cache; not above zero: the model does not fit

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds."""
        return max(0, int(self.kv / self.kv_per_token)) if self.kv_per_token else 2**40 * (self.kv > 0.0)


def kv_bytes_per_token(model: Model, deployment: Deployment, kv: str) -> float:
    """Cache bytes of one token on one GPU."""
    total = 0.0
    for layer, count in model.distinct_layers():
        total += count * layer.attention.cache_width(deployment.tp) * KV_BYTES[kv]
    return total / deployment.pp


def state_bytes(model: Model, deployment: Deployment) -> float:
    """Bytes of the fixed states of one sequence on one GPU: heads are divided over tensor parallelism."""
    whole = sum(count * layer.attention.state_bytes() for layer, count in model.distinct_layers())
    return whole / deployment.tp / deployment.pp


def weight_bytes(model: Model, deployment: Deployment, mxfp4_experts: str = "") -> float:
    """Weights on one GPU: matrices, embedding and head over tensor parallelism, experts over their group.

    `mxfp4_experts`: as the engine's profile has it.
    """
    dense, routed = WEIGHT_BYTES[deployment.weights], WEIGHT_BYTES[deployment.routed]
    slices, groups = deployment.expert_sizes
    total = 0.0
    for layer, count in model.distinct_layers():
        part = model.parameters_of(layer)
        total += count * WEIGHT_BYTES[deployment.projections(layer)] * part.attention / deployment.tp
        total += count * dense * (part.dense + part.shared) / deployment.tp
        filled = 1.0
        if deployment.routed == "mxfp4" and mxfp4_experts == MARLIN and layer.feed_forward.kind != "dense":
            inner = -(-layer.feed_forward.size // slices)
            wide, tall = marlin_sizes(model.hidden_size, inner)
            filled = wide * tall / (model.hidden_size * inner)
        total += count * (2.0 * (part.router + part.norms) + filled * routed * part.experts / (slices * groups))
    ends = 2.0 * (model.embedding_parameters + model.head_parameters) / deployment.tp
    return total / deployment.pp + ends / (1 if deployment.pp == 1 else 2)


def _expert_workspace(model: Model, layer: Layer, deployment: Deployment, budget: int) -> float:
    """Buffers of routed experts at the tokens of all attention ranks, as if all of them came to this GPU.

    Of every token and expert a row: what enters the two products, in the experts' format, and what leaves them, in two
    bytes; the second takes the place of the first (TensorRT-LLM: moe_kernels.cu, getWorkspaceDeviceBufferSizes).
    """
    block = layer.feed_forward
    if block.kind == "dense":
        return 0.0
    inner = -(-block.size // deployment.expert_sizes[0])
    entering = WEIGHT_BYTES[deployment.routed] * max(model.hidden_size, inner)
    leaving = 2.0 * max(model.hidden_size, inner * (2 if block.gated else 1))
    return budget * deployment.attn_dp * block.experts_per_token * (entering + leaving)


def memory_of(model: Model, deployment: Deployment, profile: Profile, cluster: Cluster, kv: str) -> Memory:
    """What one GPU holds, and what is left for the cache."""
    budget = deployment.max_num_batched_tokens or profile.max_num_batched_tokens
    widest = max(
        (layer.feed_forward.size * 2 if layer.feed_forward.kind == "dense" else 2 * model.hidden_size)
        for layer in model.layers
    )
    seqs = deployment.max_num_seqs or profile.max_num_seqs
    # Engines that measure a full step before they take the cache draw tokens when its layers are done; captured graphs
    # (TensorRT-LLM) keep what they draw from beside what other steps need.
    drawing = profile.sampler_bytes * seqs * model.vocab_size
    layers = budget * (ACTIVATIONS * model.hidden_size + 2.0 * widest / deployment.tp)
    if profile.expert_workspace:
        layers += max((_expert_workspace(model, layer, deployment, budget) for layer in model.layers), default=0.0)
    activations = drawing + layers if profile.expert_workspace else max(drawing, layers)
    weights = weight_bytes(model, deployment, profile.mxfp4_experts)
    activations += seqs * state_bytes(model, deployment)  # of mixers with a fixed state: one for each sequence at once
    share = deployment.gpu_memory_utilization or profile.gpu_memory_utilization
    usable = float(cluster.gpu.usable_memory_bytes)
    if profile.utilization_of == "rest":
        left = share * (usable - weights - activations - profile.reserved_bytes)
    else:
        left = share * usable - weights - activations - profile.reserved_bytes
    return Memory(weights, activations, profile.reserved_bytes, kv_bytes_per_token(model, deployment, kv), left)
