"""The config reader of MPT, whose attention is an object of its own with a choice of positions.

Sources: the reference implementations in Hugging Face transformers and llm-foundry.
"""

from __future__ import annotations

from windtunnel.physics.model.architecture import Attention, FeedForward, Layer, Model, Norm, Position
from windtunnel.physics.model.limits import HEADS_MAX, LAYERS_MAX, TOKENS_MAX
from windtunnel.physics.model.reading.config_fields import Fields

NORMS: dict[str, Norm] = {
    "low_precision_layernorm": "layernorm",
    "layernorm": "layernorm",
    "low_precision_rmsnorm": "rmsnorm",
    "rmsnorm": "rmsnorm",
}


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
        "tie_word_embeddings",  # of its config's class in transformers 4, which writes all that any config has
    )  # fmt: skip
    inner.close()
    f.ignore("embedding_fraction", "init_config", "init_device", "logit_scale", "tokenizer_name", "verbose", "fc_type")
    block_kind = f.inner("ffn_config")
    block_kind.must_be("ffn_type", ("mptmlp",), "only MPT's own feed-forward block is supported")
    block_kind.ignore("fc_type")
    block_kind.close()
    learned = f.flag("learned_pos_emb", True) and not alibi and not rope
    position: Position = "alibi" if alibi else "rope" if rope else "learned" if learned else "none"
    if hidden % heads:
        raise f.refuse("n_heads", heads, f"give a divisor of the hidden size {hidden}")
    size = hidden // heads
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size,
        value_head_dim=size,
        qkv_bias=biased,
        out_bias=biased,
        position=position,
    )
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
