"""Config readers of GLM-4.5, Gemma 2 and 3, MiniMax-01, Phi-3 and -4: rotary models of 2024 and 2025.

Defaults are those of the reference implementations in Hugging Face transformers (4.57).
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.architecture import FeedForward, Layer, Model, QkNorm
from windtunnel.physics.model.config_fields import Fields
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, TOKENS_MAX
from windtunnel.physics.model.readers import rotary
from windtunnel.physics.model.readers.rotary import FULL, GATED, SLIDING

LINEAR = "linear_attention"


def glm4_moe(f: Fields) -> Model:
    """GLM-4.5: grouped queries with biases, norms on queries and keys where asked for, DeepSeek's experts."""
    whole, n = rotary.whole_of(f), rotary.depth_of(f)
    norm: QkNorm = "per_head" if f.flag("use_qk_norm", False) else "none"
    attention = rotary.attention_of(f, head_required=True, qkv_bias=f.flag("attention_bias", False), qk_norm=norm)
    dense, one = rotary.dense_of(f), rotary.experts_of(f, "n_routed_experts", "moe_intermediate_size")
    shared = f.count("n_shared_experts", 1, most=HEADS_MAX, least=0)
    f.must_be("n_group", (1,), "experts of GLM-4.5 are in one group")
    f.must_be("topk_group", (1,), "experts of GLM-4.5 are in one group")
    mixture = replace(one, shared_size=shared * one.size, router_bias=True)
    first = f.count("first_k_dense_replace", 1, most=LAYERS_MAX, least=0)
    plain, mixed = (Layer(attention=attention, feed_forward=block) for block in (dense, mixture))
    mtp = f.count("num_nextn_predict_layers", 0, most=LAYERS_MAX, least=0)
    return Model(
        family="glm4_moe", layers=tuple(plain if i < first else mixed for i in range(n)), mtp_layers=mtp, **whole
    )


def gemma2(f: Fields) -> Model:
    """Gemma 2: a norm before and after each block, a sliding window in every other layer, a tied output matrix.

    Soft capping of scores and logits is element-wise inside kernels that run anyway.
    """
    return _gemma(f, "gemma2", "none", f.count("sliding_window", 4096), 2)


def gemma3(f: Fields) -> Model:
    """Gemma 3 with a vision tower: the text model only, with a note where there is a tower."""
    text = f.inner("text_config", required=True)
    f.ignore("boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image")
    notes = ("the vision tower of this checkpoint is left out: text only",) if f.has("vision_config") else ()
    f.ignore("vision_config")
    tied = f.flag("tie_word_embeddings", True)
    model = gemma3_text(text)
    return replace(model, tied_embeddings=model.tied_embeddings and tied, notes=notes + text.close())


def gemma3_text(f: Fields) -> Model:
    """Gemma 3: Gemma 2 with norms on queries and keys, and a short window in five layers of six."""
    every = f.count("sliding_window_pattern", f.count("_sliding_window_pattern", 6, most=LAYERS_MAX), most=LAYERS_MAX)
    f.ignore("rope_local_base_freq", "use_bidirectional_attention")
    return _gemma(f, "gemma3", "per_head", f.count("sliding_window", 4096), every)


def minimax(f: Fields) -> Model:
    """MiniMax-01 (arXiv 2501.08313): experts in every layer, linear attention in most, softmax attention in the others.

    Lightning attention works block by block: scores inside a block of b tokens, (b + 1) / 2 keys on average, and a
    running sum of keys by values of d x d per head, read and added to by every token: 4 d^2 FLOPs, as d more keys. That
    is taken as attention inside chunks of b + 2 d tokens, which has the same FLOPs. A gate on its output has a matrix.
    """
    whole, n = rotary.whole_of(f), rotary.depth_of(f)
    softmax = rotary.attention_of(f, head_required=True)
    block = f.count("block_size", 256, most=TOKENS_MAX)
    chunk = block + 2 * softmax.head_dim
    linear = replace(softmax, kv_heads=softmax.heads, window=chunk, chunked=True, position="none", output_gate=True)
    kinds = f.words("layer_types", n, (FULL, LINEAR)) or tuple(LINEAR if (i + 1) % 2 else FULL for i in range(n))
    mixture = rotary.experts_of(f, "num_local_experts", "intermediate_size")
    of_kind = {kind: Layer(attention=one, feed_forward=mixture) for kind, one in ((FULL, softmax), (LINEAR, linear))}
    f.ignore(*(f"{kind}_attn_{part}_factor" for kind in ("linear", "full") for part in ("alpha", "beta")))
    f.ignore("mlp_alpha_factor", "mlp_beta_factor")
    f.must_be("sliding_window", (), "MiniMax-01's softmax attention sees all")
    return Model(family="minimax", layers=tuple(of_kind[kind] for kind in kinds), **whole)


def phi3(f: Fields) -> Model:
    """Phi-3 and Phi-4: Llama's block; a sliding window where the config has one shorter than the context."""
    whole = rotary.whole_of(f)
    f.ignore("original_max_position_embeddings")
    window = f.count_or_none("sliding_window")
    if window is not None and window >= whole["max_sequence_length"]:
        window = None
    attention = rotary.attention_of(f, kv_required=False, window=window)
    layer = Layer(attention=attention, feed_forward=rotary.dense_of(f))
    return Model(family="phi3", layers=(layer,) * rotary.depth_of(f), **whole)


def _gemma(f: Fields, family: str, norm: QkNorm, window: int, every: int) -> Model:
    """`every`: that many-th layer sees the whole sequence, the others a window."""
    whole, n = rotary.whole_of(f, tied=True), rotary.depth_of(f)
    f.ignore("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    bias = f.flag("attention_bias", False)
    attention = rotary.attention_of(f, head_required=True, qkv_bias=bias, out_bias=bias, qk_norm=norm)
    kind = f.choice("hidden_activation", f.choice("hidden_act", "gelu_pytorch_tanh", GATED), GATED)
    block = FeedForward(size=f.count("intermediate_size"), gated=True, activation=kind)
    kinds = f.words("layer_types", n, (FULL, SLIDING)) or tuple(
        FULL if (i + 1) % every == 0 else SLIDING for i in range(n)
    )
    seen = [replace(attention, window=window if one == SLIDING else None) for one in kinds]
    layers = rotary.shared_of([Layer(attention=one, feed_forward=block, norms=4) for one in seen])
    return Model(family=family, layers=layers, **whole)
