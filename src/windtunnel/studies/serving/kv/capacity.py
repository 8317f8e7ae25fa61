"""How many blocks of KV cache a rank has.

    bytes of a token     2 x layers x KV heads / tp x head size x bytes, KV heads not split below one;
                         MLA: layers x (latent + rotary) x bytes, on every tensor-parallel rank; behind an indexer in
                         8 bits with 4-byte scales for 128 numbers, rotary part in 16, and the indexer's keys as well
    capacity             usable memory x utilisation - weights - activations of a full step - reserved (vLLM);
                         activations: the step's layers, or what draws its tokens where that is more, or the images
                         of the measured step
                         (usable memory - reserved) x utilisation - weights (SGLang: activations and graphs lie in the
                         rest of the memory, from whose size it works out the utilisation itself)
                         (usable memory - weights - activations - reserved) x utilisation (TensorRT-LLM; activations
                         with what experts need for the tokens of all ranks, and what the largest graph draws from)

Layers that keep a window or a state beside layers that keep every token (`windows` of the engine's profile):

    full     windows count like the others: engines before they had hybrid caches, and with a connector between pools
    freed    layers of one kind form groups of equal size, and a block is one of a group: vLLM since 0.11
                 group  = fewest layers of a kind; the most, where that is less than 1.5 times as many
                 block  = tokens of a block x bytes of a token x group
                 held   = groups of full layers x ceil(length / tokens) + groups of states
                          + groups of windows x (ceil(window / tokens) + 1)
             windows and states are held beside a sequence's tokens, whatever its length
    pool     a second pool whose tokens are a share of the first's (SGLang: swa_full_tokens_ratio); of DeepSeek-V4 a
             tenth, each with what compressors keep: in pages of 128 tokens as many entries as one compressed key spans
             (pool_configurator.py of June 2026; later releases keep those of 128 tokens by request)

What vLLM prints is its concurrency at the longest request times that request's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.physics.cost.inference.formats import MARLIN, WEIGHT_BYTES, marlin_sizes
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Attention, Layer, Model, Tower
from windtunnel.physics.model.mixers import Compressed, Indexed
from windtunnel.studies.serving.adapters import adapters_of, slot_bytes
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile

KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
V4_BLOCK, V4_ALIGNED = 256, 576  # tokens of a block; bytes to which FlashMLA wants pages rounded
V4_PAGE, V4_WINDOW_SHARE = 128, 0.1  # SGLang's page of recent tokens, and its swa_full_tokens_ratio of this model
V4_KEY, V4_INDEX = 584, 132  # bytes of a compressed key, and of an indexer's with its scale
ALIGNED = 16  # tokens by which vLLM lengthens a block until a state has room in its page
IMAGE_TOKENS = 16384  # of the largest image where images come in any size: Qwen's processors, 4,096 x 4,096 pixels
ACTIVATIONS = 10.0  # bytes per token of the budget, times the widest row: what a layer holds at once, in 2 bytes


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache's blocks on one GPU: `groups` of layers keep every token, windows and states beside them.

    `unit`: bytes of one block of one group; `windows`: (groups, window, tokens of a block); `states`: bytes.
    """

    unit: float
    block: int
    groups: int
    windows: tuple[tuple[int, int, float], ...]
    states: float

    @property
    def token_bytes(self) -> float:
        """Of one more token of a long sequence."""
        return self.groups * self.unit / self.block

    @property
    def beside_bytes(self) -> float:
        """What a long sequence holds beside its tokens while it decodes."""
        return self.states + sum(n * (math.ceil(window / size) + 1) for n, window, size in self.windows) * self.unit

    def printed_tokens(self, kv: float, longest: int, budget: int) -> int:
        """As vLLM prints it; a window is admitted with a whole step's tokens."""
        pages = self.groups * -(-longest // self.block)
        pages += sum(n * (math.ceil(min(window - 1 + budget, longest) / size) + 1) for n, window, size in self.windows)
        return max(0, int(kv // self.unit / (pages + self.states / self.unit) * longest))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU of the replica."""

    weights: float
    activations: float
    reserved: float
    kv: float  # what is left for the cache; not above zero: the model does not fit
    cache: Cache

    @property
    def kv_per_token(self) -> float:
        """Bytes of a token."""
        return self.cache.token_bytes

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds, of sequences that keep nothing beside them."""
        return max(0, int(self.kv / self.kv_per_token)) if self.kv_per_token else 2**40 * (self.kv > 0.0)


def kv_bytes_per_token(model: Model, deployment: Deployment, kv: str) -> float:
    """Cache bytes of one token on one GPU, windows counted in full."""
    total = sum(count * _token_bytes(layer.attention, deployment.tp, kv) for layer, count in model.distinct_layers())
    return total / deployment.pp


def _token_bytes(attention: Attention, tp: int, kv: str) -> float:
    """Of one layer. vLLM's fp8_ds_mla and SGLang's pool of DeepSeek-V3.2: 656 bytes, and 132 of the indexer."""
    if not isinstance(attention, Indexed) or kv != "fp8":
        return attention.cache_width(tp) * KV_BYTES[kv]
    index = attention.index_dim if attention.index_heads else 0
    scaled = (attention.kv_lora_rank or 0) + index
    return scaled * (1.0 + 4.0 / 128) + 2.0 * attention.rope_head_dim


def _compressed_cache(model: Model, pp: int) -> Cache | None:
    """vLLM's groups of DeepSeek-V4 (v1/core/kv_cache_utils.py, models/deepseek_v4): pages in tuples.

    A tuple is one page of each kind: keys of 4 tokens, of 128, and the indexer's, of 256 tokens all; as many tuples as
    layers of the commonest kind. Beside them, in tuples as well: each layer's window of 128 tokens in pages of 64, and
    what compressors keep: of keys of 4 tokens the last 8 in pages of 4, of 128 the last 128 in pages of 8.
    """
    kinds = [(layer.attention, n) for layer, n in model.distinct_layers() if isinstance(layer.attention, Compressed)]
    if not kinds or sum(n for _, n in kinds) != model.n_layers:
        return None
    counts: dict[int, float] = {}
    for attention, n in kinds:
        counts[attention.ratio] = counts.get(attention.ratio, 0) + n / pp * (
            not attention.shared or not attention.ratio
        )
    pages = [V4_BLOCK // ratio * V4_KEY for ratio in counts if ratio]
    pages += [
        V4_BLOCK // attention.ratio * V4_INDEX
        for attention in {attention for attention, _ in kinds if attention.index_heads and attention.ratio}
    ][:1]
    tuples = max(n for ratio, n in counts.items() if ratio)
    unit = tuples * sum(math.ceil(page / V4_ALIGNED) * V4_ALIGNED for page in pages)
    windows = [(math.ceil(model.n_layers / pp / tuples - 1e-9), kinds[0][0].window or 0, 64.0)]
    windows += [(1, ratio * (2 if ratio == 4 else 1), 4.0 if ratio == 4 else 8.0) for ratio in counts if ratio]
    return Cache(unit, V4_BLOCK, 1, tuple(windows), 0.0)


def _compressed_pool(model: Model, pp: int) -> float:
    """Bytes of a token in SGLang's pools of DeepSeek-V4; 0 for other models."""
    total = 0.0
    for layer, count in model.distinct_layers():
        attention = layer.attention
        if not isinstance(attention, Compressed):
            return 0.0
        index = attention.index_dim if attention.index_heads else 0
        # Entries of a token: key and score, in 4 bytes.
        entries = attention.ratio * attention.overlap / (attention.window or V4_PAGE)
        recent = V4_KEY + entries * 2.0 * attention.overlap * (attention.head_dim + index) * 4.0
        old = (V4_KEY + (V4_INDEX if index else 0)) / attention.ratio if attention.key_width else 0.0
        total += count / pp * (V4_WINDOW_SHARE * recent + old)
    return total


def cache_of(model: Model, deployment: Deployment, kv: str, profile: Profile) -> Cache:
    """How the engine lays out the cache of one GPU."""
    tp, pp = deployment.tp, deployment.pp
    if profile.windows == "freed" and kv == "fp8" and (compressed := _compressed_cache(model, pp)) is not None:
        return compressed
    if profile.windows == "pool" and kv == "fp8" and (each := _compressed_pool(model, pp)):
        return Cache(each * V4_BLOCK, V4_BLOCK, 1, (), 0.0)
    block = deployment.block_size or profile.block_size
    full: dict[float, float] = {}  # bytes of a token -> layers
    recent: dict[tuple[int, float], float] = {}
    states: dict[float, float] = {}  # bytes of a sequence -> layers
    for layer, count in model.distinct_layers():
        attention, layers = layer.attention, count / pp
        each, state = _token_bytes(attention, tp, kv), attention.state_bytes() / tp
        if attention.window is not None and not isinstance(attention, Indexed) and each:
            recent[attention.window, each] = recent.get((attention.window, each), 0.0) + layers
        elif each:
            full[each] = full.get(each, 0.0) + layers
        if state:
            states[state] = states.get(state, 0.0) + layers
    whole = sum(value * layers for value, layers in full.items())
    windows = sum(each * layers for (_, each), layers in recent.items())
    if not whole or not (recent or states) or profile.windows != "freed":
        share = profile.window_share if whole and profile.windows == "pool" else 1.0
        state_bytes = sum(state * layers for state, layers in states.items())
        return Cache((whole + share * windows) * block, block, 1, (), state_bytes)
    counts = [*full.values(), *recent.values(), *states.values()]
    group = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)

    def groups(layers: float) -> int:
        return math.ceil(layers / group - 1e-9)

    widest = max(full)  # bytes of a token; all kinds share the page of the widest, and a state has room in one
    if states:
        block = max(block, ALIGNED * math.ceil(max(states) / widest / ALIGNED))
    return Cache(
        widest * block * group,
        block,
        sum(groups(layers) for layers in full.values()),
        tuple((groups(layers), window, block * widest / each) for (window, each), layers in recent.items()),
        sum(groups(layers) for layers in states.values()) * widest * block * group,
    )


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


def _images(tower: Tower, profile: Profile, budget: int) -> float:
    """What the vision tower holds in the measured step: whole images, of as many tokens as the step or the largest.

    vLLM: v1/worker/gpu_model_runner.py, profile_run; v1/core/encoder_cache_manager.py.
    """
    largest = tower.patches / tower.merge or IMAGE_TOKENS
    images = max(1, budget // math.ceil(largest))
    return profile.tower_bytes * tower.encoder.hidden_size * images * largest * tower.merge


def _static_share(usable: float, deployment: Deployment, profile: Profile, tower: tuple[int, int] | None) -> float:
    """SGLang's mem_fraction_static where none is given (sglang/srt/server_args.py, _handle_gpu_memory_settings; 0.5).

    What it leaves, in MiB: 512, 1.5 a token of the chunk that attention ranks will share, 2 a sequence of the largest
    graph (4.5 more of each attention rank), 1,024 for 8 GPUs; at least 10,240 on GPUs of more than 60 GiB; and beside
    that `draft_reserved_bytes` where tokens are drafted. With a vision tower that is loaded 0.95 of that
    (adjust_mem_fraction_for_vlm, not with --language-only), and a tenth less for each time that layers x width^2 is
    ViT-L/14's again.
    """
    graph, ranks = profile.graph_limit, deployment.attn_dp
    chunk = (deployment.max_num_batched_tokens or 0) * (ranks if profile.ranks_share_tokens else 1)
    left = 512.0 + 1.5 * max(2048, chunk or profile.max_num_batched_tokens) + 2.0 * graph
    left += 1024.0 * deployment.gpus / 8.0
    if ranks > 1:
        left += graph * ranks * (4.5 if graph > 300 else 3.0)
    if usable > 60.0 * 2.0**30:
        left = max(left, 10240.0)
    left += profile.draft_reserved_bytes / 2.0**20 if deployment.speculative_tokens else 0.0
    share = round(1.0 - left * 2.0**20 / usable, 3)
    if tower is None:
        return share
    larger = tower[0] * tower[1] ** 2 / (24 * 1024**2) - 1.0
    return share * 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * larger))


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
    tower = None if deployment.images is False else model.vision
    images = 0.0 if tower is None else _images(tower, profile, budget)
    activations = drawing + layers if profile.expert_workspace else max(drawing, layers, images)
    weights = weight_bytes(model, deployment, profile.mxfp4_experts)
    if tower is not None:  # in 16 bits in quantized checkpoints too
        weights += 2.0 * tower.parameters / deployment.tp
    if deployment.lora is not None:
        lora = adapters_of(deployment.lora)
        weights += lora.resident * slot_bytes(model, lora.rank, deployment.tp, deployment.pp)
    share = deployment.gpu_memory_utilization or profile.gpu_memory_utilization
    usable = float(cluster.gpu.usable_memory_bytes)
    reserved = profile.reserved_bytes + (profile.reserved_rank_bytes if deployment.gpus > 1 else 0.0)
    reserved += profile.graph_bytes * model.n_layers / deployment.pp * profile.graphs(seqs)
    if profile.utilization_of == "rest":
        left = share * (usable - weights - activations - reserved)
    elif profile.utilization_of == "static":
        tower_size = None if deployment.images is False else model.tower
        share = deployment.gpu_memory_utilization or _static_share(usable, deployment, profile, tower_size)
        left = share * (usable - reserved)
        left -= weights
    else:
        left = share * usable - weights - activations - reserved
    cache = cache_of(model, deployment, kv, profile)
    if not cache.unit:  # states alone: one for each sequence at once
        left -= seqs * cache.beside_bytes
    return Memory(weights, activations, reserved, left, cache)
