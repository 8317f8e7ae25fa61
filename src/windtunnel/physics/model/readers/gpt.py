"""Config readers of the GPT line: LayerNorm, ungated feed-forward, learned or ALiBi positions (NeoX: rotary).

Sources: the reference implementations in Hugging Face transformers, and llm-foundry for MPT.
"""

from __future__ import annotations

from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model, Norm, Position
from windtunnel.physics.model.config_fields import Fields
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, TOKENS_MAX

UNGATED = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "silu")
NORMS: dict[str, Norm] = {
    "low_precision_layernorm": "layernorm",
    "layernorm": "layernorm",
    "low_precision_rmsnorm": "rmsnorm",
    "rmsnorm": "rmsnorm",
}


def gpt2(f: Fields) -> Model:
    """GPT-2, and GPT-3 as a larger GPT-2: learned positions, biases everywhere, the embedding is the output matrix.

    GPT-3 alternates dense and locally banded sparse attention in its paper; runs that reproduce it use dense attention.
    """
    hidden = f.count_any("n_embd", "hidden_size")
    positions = f.count_any("n_positions", "max_position_embeddings", most=TOKENS_MAX)
    inner = f.count_or_none("n_inner") or 4 * hidden
    f.must_be("add_cross_attention", (False,), "an encoder beside the decoder is not supported")
    f.ignore("n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    attention = _attention(f, hidden, f.count_any("n_head", "num_attention_heads", most=HEADS_MAX), "learned")
    activation = f.choice("activation_function", "gelu_new", UNGATED)
    block = FeedForward(size=inner, gated=False, activation=activation, bias=True)
    n = f.count_any("n_layer", "num_hidden_layers", most=LAYERS_MAX)
    return Model(
        name="",
        family="gpt",
        hidden_size=hidden,
        vocab_size=f.count("vocab_size"),
        layers=(Layer(attention=attention, feed_forward=block),) * n,
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=f.flag("tie_word_embeddings", True),
        learned_positions=positions,
        max_sequence_length=positions,
    )


def gpt_neox(f: Fields) -> Model:
    """GPT-NeoX and Pythia: attention and feed-forward side by side on the same residual, rotary positions."""
    hidden, bias = f.count("hidden_size"), f.flag("attention_bias", True)
    heads = f.count("num_attention_heads", most=HEADS_MAX)
    attention = _attention(f, hidden, heads, "rope", bias=bias, key="num_attention_heads")
    activation = f.choice("hidden_act", "gelu", UNGATED)
    layer = Layer(
        attention=attention,
        feed_forward=FeedForward(size=f.count("intermediate_size"), gated=False, activation=activation, bias=True),
        parallel_block=f.flag("use_parallel_residual", True),
    )
    return Model(
        name="",
        family="gpt-neox",
        hidden_size=hidden,
        vocab_size=f.count("vocab_size"),
        layers=(layer,) * f.count("num_hidden_layers", most=LAYERS_MAX),
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=f.flag("tie_word_embeddings", False),
        max_sequence_length=f.count("max_position_embeddings", most=TOKENS_MAX),
    )


def bloom(f: Fields) -> Model:
    """BLOOM: ALiBi, biases everywhere, and a norm right after the embedding."""
    hidden = f.count_any("n_embed", "hidden_size")
    heads = f.count_any("num_attention_heads", "n_head", most=HEADS_MAX)
    f.must_be("apply_residual_connection_post_layernorm", (False,), "the residual from after the norm is not supported")
    f.ignore(
        "offset_alibi", "masked_softmax_fusion", "attention_softmax_in_fp32", "bias_dropout_fusion",
        "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
    )  # fmt: skip
    block = FeedForward(size=f.count_or_none("n_inner") or 4 * hidden, gated=False, activation="gelu", bias=True)
    layer = Layer(attention=_attention(f, hidden, heads, "alibi"), feed_forward=block)
    return Model(
        name="",
        family="bloom",
        hidden_size=hidden,
        vocab_size=f.count("vocab_size"),
        layers=(layer,) * f.count_any("n_layer", "num_hidden_layers", most=LAYERS_MAX),
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=f.flag("tie_word_embeddings", True),
        embedding_norm=True,
        max_sequence_length=f.count("seq_length", 2048, most=TOKENS_MAX),  # training length; ALiBi itself has no limit
    )


def mpt(f: Fields) -> Model:
    """MPT: ALiBi instead of its position table where `attn_config.alibi`; `no_bias` takes biases off norms as well."""
    hidden, heads = f.count("d_model"), f.count("n_heads", most=HEADS_MAX)
    length, biased = f.count("max_seq_len", most=TOKENS_MAX), not f.flag("no_bias", True)
    inner = f.inner("attn_config")
    kind = inner.choice(
        "attn_type", "multihead_attention", ("multihead_attention", "grouped_query_attention", "multiquery_attention")
    )
    kv_heads = {"multihead_attention": heads, "multiquery_attention": 1}.get(kind) or inner.count("kv_n_heads")
    if heads % kv_heads:
        raise inner.refuse("kv_n_heads", kv_heads, f"give a divisor of n_heads = {heads}")
    inner.must_be("kv_n_heads", (kv_heads,), "it contradicts attn_type")
    inner.must_be("qk_ln", (False,), "norms on queries and keys are not supported for MPT")
    inner.must_be("prefix_lm", (False,), "a prefix without causal mask is not supported")
    alibi, rope = inner.flag("alibi", True), inner.flag("rope", False)
    inner.ignore(
        "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "clip_qkv", "softmax_scale",
        "fused_qkv", "rope_theta", "rope_impl", "rope_dail_config", "rope_hf_config",
    )  # fmt: skip
    inner.close()
    f.ignore("embedding_fraction", "init_config", "init_device", "logit_scale", "tokenizer_name", "verbose", "fc_type")
    block_kind = f.inner("ffn_config")
    block_kind.must_be("ffn_type", ("mptmlp",), "only MPT's own feed-forward block is supported")
    block_kind.ignore("fc_type")
    block_kind.close()
    learned = f.flag("learned_pos_emb", True) and not alibi and not rope
    position: Position = "alibi" if alibi else "rope" if rope else "learned" if learned else "none"
    attention = _attention(f, hidden, heads, position, bias=biased, kv_heads=kv_heads, key="n_heads")
    block = FeedForward(
        size=f.count("expansion_ratio", 4, most=1024) * hidden, gated=False, activation="gelu", bias=biased
    )
    norm = NORMS[f.choice("norm_type", "low_precision_layernorm", tuple(NORMS))]
    return Model(
        name="",
        family="mpt",
        hidden_size=hidden,
        vocab_size=f.count("vocab_size"),
        layers=(Layer(attention=attention, feed_forward=block),) * f.count("n_layers", most=LAYERS_MAX),
        norm=norm,
        norm_bias=biased and norm == "layernorm",
        tied_embeddings=f.flag("tie_word_embeddings", True),
        learned_positions=length if learned else 0,
        max_sequence_length=length,
    )


def _attention(
    f: Fields, hidden: int, heads: int, position: Position, *, bias: bool = True, kv_heads: int | None = None,
    key: str = "n_head",
) -> Attention:  # fmt: skip
    """Heads that share the hidden size out; `key` names their number."""
    if hidden % heads:
        raise f.refuse(key, heads, f"give a divisor of the hidden size {hidden}")
    size = hidden // heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads or heads,
        head_dim=size,
        value_head_dim=size,
        qkv_bias=bias,
        out_bias=bias,
        position=position,
    )
