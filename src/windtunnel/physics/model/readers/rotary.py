"""Config readers of the architectures with rotary positions: Llama and what descends from it.

Defaults are those of the reference implementations in Hugging Face transformers (for Grok-1, of hpcai-tech/grok-1).
Where that default is one model's size (so many experts, so many key-value heads), the field is required instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model, QkNorm
from windtunnel.physics.model.config_fields import Fields
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, TOKENS_MAX

GATED = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def llama(f: Fields) -> Model:
    """Llama 1, 2, 3, 3.1, 3.2: grouped queries, gated feed-forward, no biases unless asked for."""
    whole, bias = whole_of(f), f.flag("attention_bias", False)
    attention = attention_of(f, kv_required=False, qkv_bias=bias, out_bias=bias)
    layer = Layer(attention=attention, feed_forward=dense_of(f, bias=f.flag("mlp_bias", False)))
    return Model(family="llama", layers=(layer,) * depth_of(f), **whole)


def llama4(f: Fields) -> Model:
    """Llama 4, a text model beside a vision tower: the text model only, with a note where there is a tower."""
    text = f.inner("text_config", required=True)
    f.ignore("boi_token_index", "eoi_token_index", "image_token_index")
    text.must_be("model_type", ("llama4_text",), "the text model of llama4 is of this type")
    tied = f.flag("tie_word_embeddings", False)
    notes = ("the vision tower of this checkpoint is left out: text only",) if f.has("vision_config") else ()
    f.ignore("vision_config")
    model = llama4_text(text)
    return replace(model, tied_embeddings=model.tied_embeddings or tied, notes=notes + text.close())


def llama4_text(f: Fields) -> Model:
    """Llama 4: mixtures in every n-th layer with one shared expert; chunked attention but in every fourth layer."""
    whole, n = whole_of(f), depth_of(f)
    bias, normed = f.flag("attention_bias", False), f.flag("use_qk_norm", True)
    full = attention_of(f, qkv_bias=bias, out_bias=bias)
    interval = f.count("no_rope_layer_interval", 4, most=LAYERS_MAX)
    rotary = f.whole_numbers("no_rope_layers", most=1) or tuple(int((i + 1) % interval != 0) for i in range(n))
    if len(rotary) != n:
        raise f.refuse("no_rope_layers", list(rotary), f"give one entry per layer, {n}")
    kinds = f.words("layer_types", n, (FULL, CHUNKED)) or tuple(CHUNKED if r else FULL for r in rotary)
    chunk = f.count_or_none("attention_chunk_size", TOKENS_MAX)
    if chunk is None and CHUNKED in kinds:
        raise f.refuse("attention_chunk_size", None, "layers with chunked attention need it: give a whole number")
    expert = experts_of(f, "num_local_experts", "intermediate_size")
    mixture = replace(expert, shared_size=expert.size)
    step = f.count("interleave_moe_layer_step", 1, most=LAYERS_MAX)
    mixed = f.whole_numbers("moe_layers", most=n - 1)
    where = set(range(step - 1, n, step)) if mixed is None else set(mixed)
    dense = dense_of(f, "intermediate_size_mlp") if len(where) < n or f.has("intermediate_size_mlp") else mixture
    f.ignore("attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compression")

    def attention(i: int) -> Attention:
        return replace(
            full,
            position="rope" if rotary[i] else "none",
            qk_norm="l2" if normed and rotary[i] else "none",
            window=chunk if kinds[i] == CHUNKED else None,
            chunked=kinds[i] == CHUNKED,
        )

    layers = [Layer(attention=attention(i), feed_forward=mixture if i in where else dense) for i in range(n)]
    return Model(family="llama4", layers=shared_of(layers), **whole)


def mistral(f: Fields) -> Model:
    """Mistral: Llama with a sliding window, of 4096 where the config says nothing and none where it says null."""
    whole = whole_of(f)
    window = f.count_or_none("sliding_window") if f.given("sliding_window") else 4096
    layer = Layer(attention=attention_of(f, window=window), feed_forward=dense_of(f))
    return Model(family="mistral", layers=(layer,) * depth_of(f), **whole)


def mixtral(f: Fields) -> Model:
    """Mixtral: Mistral with a mixture in every layer."""
    whole, attention = whole_of(f), attention_of(f, window=f.count_or_none("sliding_window"))
    layer = Layer(attention=attention, feed_forward=experts_of(f, "num_local_experts", "intermediate_size"))
    return Model(family="mixtral", layers=(layer,) * depth_of(f), **whole)


def qwen2(f: Fields) -> Model:
    """Qwen 2 and 2.5: Llama with biases on queries, keys and values."""
    whole, n = whole_of(f), depth_of(f)
    attention, block = attention_of(f, qkv_bias=True), dense_of(f)
    return Model(family="qwen2", layers=_windowed(f, attention, (block,) * n), **whole)


def qwen2_moe(f: Fields) -> Model:
    """Qwen 1.5 and 2 mixtures: a shared expert behind a learned gate."""
    whole, n = whole_of(f), depth_of(f)
    attention = attention_of(f, qkv_bias=f.flag("qkv_bias", True))
    shared = f.count("shared_expert_intermediate_size")
    mixture = replace(experts_of(f, "num_experts", "moe_intermediate_size"), shared_size=shared, shared_gate=True)
    return Model(family="qwen2_moe", layers=_windowed(f, attention, _sparse(f, n, mixture)), **whole)


def qwen3(f: Fields) -> Model:
    """Qwen 3: a norm on the queries and keys of each head, no biases."""
    whole, n, bias = whole_of(f), depth_of(f), f.flag("attention_bias", False)
    attention = attention_of(f, head_required=True, qkv_bias=bias, out_bias=bias, qk_norm="per_head")
    return Model(family="qwen3", layers=_windowed(f, attention, (dense_of(f),) * n), **whole)


def qwen3_moe(f: Fields) -> Model:
    """Qwen 3 mixtures, without shared experts."""
    whole, n, bias = whole_of(f), depth_of(f), f.flag("attention_bias", False)
    attention = attention_of(f, head_required=True, qkv_bias=bias, out_bias=bias, qk_norm="per_head")
    f.count_any("num_experts", "num_local_experts", most=HEADS_MAX)
    experts = "num_experts" if f.has("num_experts") else "num_local_experts"  # transformers 4 and 5
    mixture = experts_of(f, experts, "moe_intermediate_size")
    f.must_be("use_qk_norm", (True,), "Qwen 3 norms its queries and keys")
    f.must_be("qkv_bias", (False,), "attention_bias says whether there are biases")
    f.must_be("shared_expert_intermediate_size", (0,), "Qwen 3 has no shared experts")
    return Model(family="qwen3_moe", layers=_windowed(f, attention, _sparse(f, n, mixture)), **whole)


def deepseek(f: Fields) -> Model:
    """DeepSeek V2 and V3: latent attention, a few dense layers first, shared experts, multi-token prediction."""
    whole, n = whole_of(f), depth_of(f)
    attention, dense = _latent(f), dense_of(f)
    f.ignore("ep_size", "head_dim")
    f.must_be("mlp_bias", (False,), "DeepSeek's feed-forward blocks have no biases")
    mixture = _deepseek_experts(f)
    first = f.count("first_k_dense_replace", 0, most=LAYERS_MAX, least=0)
    every = f.count("moe_layer_freq", 1, most=LAYERS_MAX)
    plain, mixed = (Layer(attention=attention, feed_forward=block) for block in (dense, mixture))
    layers = tuple(mixed if i >= first and i % every == 0 else plain for i in range(n))
    mtp = f.count("num_nextn_predict_layers", 0, most=LAYERS_MAX, least=0)
    return Model(family="deepseek", layers=layers, mtp_layers=mtp, **whole)


def nemotron(f: Fields) -> Model:
    """Nemotron 3 and 4: LayerNorm with bias, squared ReLU without a gate, a separate output matrix."""
    whole, bias = whole_of(f), f.flag("attention_bias", False)
    attention = attention_of(f, kv_required=False, qkv_bias=bias, out_bias=bias)
    block = FeedForward(
        size=f.count("intermediate_size"),
        gated=False,
        activation=f.choice("hidden_act", "relu2", ("relu2", "relu", "gelu", "silu")),
        bias=f.flag("mlp_bias", False),
    )
    layers = (Layer(attention=attention, feed_forward=block),) * depth_of(f)
    return Model(family="nemotron", layers=layers, norm="layernorm", norm_bias=True, **whole)


def grok(f: Fields) -> Model:
    """Grok-1: a norm before and after each block, and a tied output matrix."""
    whole = whole_of(f, tied=True)
    f.ignore("attn_output_multiplier", "embedding_multiplier_scale", "output_multiplier_scale", "max_attn_value")
    mixture = experts_of(f, "num_experts", "intermediate_size", activation="gelu")
    layer = Layer(attention=attention_of(f, kv_required=False), feed_forward=mixture, norms=4)
    return Model(family="grok", layers=(layer,) * depth_of(f), **whole)


def gpt_oss(f: Fields) -> Model:
    """gpt-oss: biases everywhere, attention sinks, and a short window in every other layer."""
    whole, n = whole_of(f), depth_of(f)
    bias = f.flag("attention_bias", True)
    attention = attention_of(f, head_required=True, qkv_bias=bias, out_bias=bias, sinks=True)
    block = replace(experts_of(f, "num_local_experts", "intermediate_size"), bias=True, router_bias=True)
    if f.has("experts_per_token"):
        f.must_be("experts_per_token", (block.experts_per_token,), "it contradicts num_experts_per_tok")
    f.ignore("experts_per_token", "initial_context_length", "swiglu_limit")
    kinds = f.words("layer_types", n, (FULL, SLIDING)) or tuple(FULL if i % 2 else SLIDING for i in range(n))
    window = f.count("sliding_window") if SLIDING in kinds else f.count_or_none("sliding_window")
    seen = [replace(attention, window=window if kind == SLIDING else None) for kind in kinds]
    return Model(family="gpt-oss", layers=shared_of([Layer(attention=a, feed_forward=block) for a in seen]), **whole)


def whole_of(f: Fields, *, tied: bool = False) -> dict[str, Any]:
    """What all readers ask for of the model as a whole."""
    return {
        "name": "",
        "hidden_size": f.count("hidden_size"),
        "vocab_size": f.count("vocab_size"),
        "max_sequence_length": f.count(
            "max_position_embeddings", most=TOKENS_MAX, what="the longest context that it is made for, such as 8192"
        ),
        "tied_embeddings": f.flag("tie_word_embeddings", tied),
    }


def depth_of(f: Fields) -> int:
    """Number of layers."""
    return f.count("num_hidden_layers", most=LAYERS_MAX)


def attention_of(
    f: Fields,
    *,
    kv_required: bool = True,
    head_required: bool = False,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: QkNorm = "none",
    window: int | None = None,
    sinks: bool = False,
) -> Attention:
    """Grouped queries. Raises SpecError on heads that do not divide."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads", most=HEADS_MAX)
    kv_heads = f.count("num_key_value_heads", None if kv_required else heads, most=HEADS_MAX)
    if heads % kv_heads:
        raise f.refuse("num_key_value_heads", kv_heads, f"give a divisor of num_attention_heads = {heads}")
    if not f.has("head_dim") and not head_required and hidden % heads:
        raise f.refuse("num_attention_heads", heads, f"give a divisor of hidden_size = {hidden}, or a head_dim")
    size = f.count("head_dim", None if head_required else hidden // heads or 1, most=HEADS_MAX)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        value_head_dim=size,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=qk_norm,
        window=window,
        sinks=sinks,
    )


def _latent(f: Fields) -> Attention:
    heads = f.count("num_attention_heads", most=HEADS_MAX)
    if f.count("num_key_value_heads", heads, most=HEADS_MAX) != heads:
        remedy = f"latent attention has one key per query head: give {heads}"
        raise f.refuse("num_key_value_heads", f.count("num_key_value_heads"), remedy)
    rope, nope = f.count("qk_rope_head_dim", most=HEADS_MAX), f.count("qk_nope_head_dim", most=HEADS_MAX)
    f.must_be("qk_head_dim", (rope + nope,), "it is qk_rope_head_dim + qk_nope_head_dim")
    bias = f.flag("attention_bias", False)
    return Attention(
        kind="mla",
        heads=heads,
        kv_heads=heads,
        head_dim=rope + nope,
        value_head_dim=f.count("v_head_dim", most=HEADS_MAX),
        qkv_bias=bias,
        out_bias=bias,
        q_lora_rank=f.count_or_none("q_lora_rank"),
        kv_lora_rank=f.count("kv_lora_rank"),
        rope_head_dim=rope,
        nope_head_dim=nope,
    )


def dense_of(f: Fields, key: str = "intermediate_size", *, bias: bool = False, activation: str = "silu") -> FeedForward:
    """A gated feed-forward block."""
    return FeedForward(size=f.count(key), gated=True, activation=f.choice("hidden_act", activation, GATED), bias=bias)


def experts_of(f: Fields, experts_key: str, size_key: str, *, activation: str = "silu") -> FeedForward:
    """A mixture of gated blocks."""
    experts = f.count(experts_key, most=HEADS_MAX)
    chosen = f.count("num_experts_per_tok", most=HEADS_MAX)
    if chosen > experts:
        raise f.refuse("num_experts_per_tok", chosen, f"give at most {experts_key} = {experts}")
    one = dense_of(f, size_key, activation=activation)
    return replace(one, kind="moe", experts=experts, experts_per_token=chosen)


def _deepseek_experts(f: Fields) -> FeedForward:
    mixture = experts_of(f, "n_routed_experts", "moe_intermediate_size")
    shared = f.count("n_shared_experts", 0, most=HEADS_MAX, least=0)
    v3 = f.choice("model_type", "deepseek_v3", ("deepseek_v2", "deepseek_v3", "kimi_k2")) != "deepseek_v2"
    methods = ("greedy", "group_limited_greedy", "noaux_tc")
    method = f.choice("topk_method", "noaux_tc" if v3 else "greedy", methods)
    groups = f.count("n_group", 1, most=HEADS_MAX)
    chosen = f.count("topk_group", groups, most=HEADS_MAX)
    limited = groups > 1 and method != "greedy"
    if limited and (chosen > groups or mixture.experts % groups):
        raise f.refuse("n_group", groups, "give a divisor of n_routed_experts, and at most as many topk_group")
    return replace(
        mixture,
        shared_size=shared * mixture.size,
        router_bias=method == "noaux_tc",
        expert_groups=groups if limited else 0,
        groups_per_token=chosen if limited else 0,
    )


def _sparse(f: Fields, n: int, mixture: FeedForward) -> tuple[FeedForward, ...]:
    """Qwen: a mixture in every `decoder_sparse_step`-th layer but those named as dense."""
    step = f.count("decoder_sparse_step", 1, most=LAYERS_MAX)
    only_dense = set(f.whole_numbers("mlp_only_layers", most=n - 1) or ())
    mixed = [(i + 1) % step == 0 and i not in only_dense for i in range(n)]
    # intermediate_size is given even where no layer is dense, and is not used then
    dense = mixture if all(mixed) and not f.has("intermediate_size") else dense_of(f)
    return tuple(mixture if m else dense for m in mixed)


def _windowed(f: Fields, attention: Attention, blocks: tuple[FeedForward, ...]) -> tuple[Layer, ...]:
    """Qwen: a sliding window in the layers from `max_window_layers` on, if at all."""
    n, used = len(blocks), f.flag("use_sliding_window", False)
    window = f.count("sliding_window") if used else None
    first = f.count("max_window_layers", 28, most=LAYERS_MAX, least=0)
    kinds = f.words("layer_types", n, (FULL, SLIDING)) or tuple(
        SLIDING if used and i >= first else FULL for i in range(n)
    )
    if SLIDING in kinds and not used:
        raise f.refuse("layer_types", SLIDING, "set use_sliding_window to true, or use full_attention")
    f.ignore("sliding_window")
    seen = [replace(attention, window=window if kind == SLIDING else None) for kind in kinds]
    return shared_of([Layer(attention=a, feed_forward=b) for a, b in zip(seen, blocks, strict=True)])


def shared_of(layers: list[Layer]) -> tuple[Layer, ...]:
    """Equal layers become one object, so that counting them is cheap."""
    known: dict[Layer, Layer] = {}
    return tuple(known.setdefault(layer, layer) for layer in layers)
