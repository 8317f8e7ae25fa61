"""The attention block of a layer on one rank: projections, rotary embedding, the attention itself, and the way out."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.architecture import Attention, Model
from windtunnel.physics.model.layers.parts import linear, transferred
from windtunnel.physics.model.mixers import DELTA_RULE, Compressed, Extended, Indexed, Recurrent, absent
from windtunnel.physics.model.operations import Operation, Shard, Timed, Transfer


def attention_operations(attention: Attention, model: Model, shard: Shard) -> list[Operation]:
    """The ops of one attention block in forward order."""
    if isinstance(attention, Recurrent):
        return [] if absent(attention) else _recurrent(attention, model, shard)
    if isinstance(attention, Compressed):
        return _compressed(attention, model, shard)
    t, h, w = shard.tokens, model.hidden_size, shard.activation_bytes
    heads = attention.heads / shard.tp
    kv_heads = max(attention.kv_heads / shard.tp, 1.0)
    d, dv = attention.head_dim, attention.value_head_dim
    ops: list[Operation] = []
    if attention.kind == "mla":
        own = shard.residual_tokens  # the latents are computed before tokens are gathered, and gathered instead of them
        rank, rope, nope = attention.kv_lora_rank or 0, attention.rope_head_dim, attention.nope_head_dim
        # An indexer is on every rank, and its products are one with those of the latents.
        index_in, index_up = 0, 0
        if isinstance(attention, Indexed) and attention.index_heads:
            index_in = attention.index_heads + attention.index_dim
            index_up = attention.index_heads * attention.index_dim
        if attention.q_lora_rank:
            ops.append(linear("q_down", "attention", own, attention.q_lora_rank, h, shard, side="none"))
            ops.append(
                linear("q_up", "mla_up_proj", t, heads * d + index_up, attention.q_lora_rank, shard, side="column")
            )
        else:
            ops.append(linear("q", "attention", t, heads * d, h, shard, side="column"))
        # Gates read the same input; each rank has those of its heads, or of its tokens.
        gates = (_more(attention, model) + attention.heads * dv * attention.output_gate) * t / own / shard.tp
        ops.append(linear("kv_down", "attention", own, rank + rope + index_in + gates, h, shard, side="none"))
        ops.append(linear("kv_up", "mla_up_proj", t, heads * (nope + dv), rank, shard, side="column"))
        kv_heads = heads
    else:
        width = heads * d + kv_heads * (d + dv) + heads * dv * attention.output_gate
        width += _more(attention, model) / shard.tp
        ops.append(linear("qkv", "attention", t, width, h, shard, side="column"))
    query_key = t * (heads + kv_heads) * d
    everywhere = shard.gathers_heads and attention.qk_norm == "per_head"
    gathered = shard.tp * query_key if everywhere else query_key
    passes = 0.0
    if attention.position == "rope":
        passes += 2 * w if shard.fused else 10 * w
    # The norms' input, for the backward.
    saved_bytes = query_key * w if attention.qk_norm in ("per_head", "full") else 0.0
    if attention.qk_norm != "none":
        passes += 2 * w if shard.fused or shard.fused_norms else 15 * w
    if attention.kind == "mla":
        ops.append(_rotated_latents(attention, shard, heads))
    elif passes:
        ops.append(
            Operation(
                "rope",
                "attention",
                "memory",
                forward_bytes=passes * gathered,
                backward_bytes=1.5 * passes * gathered,
                before=Transfer("all_gather", "tp", gathered * w) if everywhere else None,
                before_backward=Transfer("all_gather", "tp", 2 * t * attention.heads * d * w) if everywhere else None,
                saved_bytes=saved_bytes,
                output_bytes=query_key * w,
                kernels=2 if shard.fused else 8,
                timed=Timed("rope", t * (heads + kv_heads), d) if attention.position == "rope" else None,
            )
        )
    ops += _core_attention(attention, shard, heads, kv_heads)
    ops.append(linear("out", "attention", t, h, heads * dv, shard, side="row"))
    return ops


def _more(attention: Attention, model: Model) -> float:
    """Columns of whatever other matrices there are, as if all read the layer's input."""
    columns = attention.more_weights / model.hidden_size if isinstance(attention, Extended) else 0.0
    if isinstance(attention, Indexed) and attention.kind == "gqa" and attention.index_heads:
        columns += attention.index_heads + attention.index_dim
    return columns


def _compressed(attention: Compressed, model: Model, shard: Shard) -> list[Operation]:
    """One key that is its value, a window of them and compressed ones: one product in, one up, the scores, two out."""
    t, h, w, s = shard.tokens, model.hidden_size, shard.activation_bytes, shard.seq_len
    heads, d, rank = attention.heads / shard.tp, attention.head_dim, attention.q_lora_rank or 0
    index = attention.index_heads * attention.index_dim
    groups = attention.out_groups * attention.out_rank / shard.tp
    keys_per_query = int(min(s, (attention.window or s) + attention.far_keys(s)))
    keys = s / shard.cp
    core = Operation(
        "core_attention",
        "core_attention",
        "attention",
        shape=(shard.batch, s, s, heads, 1.0, d, d, keys_per_query if keys_per_query < s else 0, shard.cp),
        flops=t * attention.score_flops_per_token(s, "full") / shard.tp,
        saved_bytes=t * w * (2.0 * heads * d + d) + 4 * t * heads,
        output_bytes=t * heads * d * w,
        before=Transfer("all_gather", "cp", t * d * w) if shard.cp > 1 else None,
        variant=shard.attention_impl,
        index_shape=(shard.batch, keys, s / 2 / attention.ratio, index) if attention.index_heads else (),
    )
    turned = t * (heads + 1) * d * w
    return [
        linear(
            "kv_down",
            "attention",
            shard.residual_tokens,
            attention.in_width + _more(attention, model),
            h,
            shard,
            side="none",
        ),
        linear("q_up", "mla_up_proj", t, heads * d + index, rank, shard, side="column"),
        Operation(
            "rope", "attention", "memory", forward_bytes=2 * turned, backward_bytes=3 * turned, output_bytes=turned
        ),
        core,
        linear("out_down", "attention", t, groups, attention.heads * d / attention.out_groups, shard, side="none"),
        linear("out", "attention", t, h, groups, shard, side="row"),
    ]


def _rotated_latents(attention: Attention, shard: Shard, heads: float) -> Operation:
    """Rotary part and the rest put together for queries and keys, values cut out: in place and fused, or in passes.

    Fused: queries' rotary part read and written, keys and values written from what the up-projection gave. In passes:
    slices, the rotation in four, the one rotary key copied for every head, two concatenations, values made contiguous.
    """
    t, w = shard.tokens, shard.activation_bytes
    d, dv, rope = attention.head_dim, attention.value_head_dim, attention.rope_head_dim
    each = 2.0 * rope + 2.0 * (d + dv) if shard.fused_mla else 8.0 * rope + 4.0 * d + 2.0 * d + 2.0 * dv
    passes = t * heads * w * each
    return Operation(
        "rope",
        "mla_up_proj",
        "memory",
        forward_bytes=passes,
        backward_bytes=1.5 * passes,
        output_bytes=t * heads * (2.0 * d + dv) * w,
        kernels=2 if shard.fused_mla else 14,
    )


def _recurrent(mixer: Recurrent, model: Model, shard: Shard) -> list[Operation]:
    """A mixer with a fixed state: one projection in, convolution and scan over chunks, one projection out.

    Heads are divided over tensor-parallel ranks; context-parallel ones hand states on, or have all tokens of some heads
    each (`exchanges_heads`).
    """
    t, h, w = shard.tokens, model.hidden_size, shard.activation_bytes
    width, value = mixer.in_width / shard.tp, mixer.heads * mixer.value_head_dim / shard.tp
    rest = mixer.more_weights / h / shard.tp
    state = 0.0 if mixer.form == "conv" else mixer.heads * mixer.head_dim * mixer.value_head_dim * 4.0 / shard.tp
    chunks = t / mixer.chunk
    read = t * (width + mixer.conv_channels / shard.tp) * w
    whole = shard.cp > 1 and (shard.exchanges_heads or shard.cp_kind == "ulysses")
    heads, cp = (max(1.0, mixer.heads / shard.tp / shard.cp), 1) if whole else (mixer.heads / shard.tp, shard.cp)
    scan = Operation(
        "core_attention",
        "core_attention",
        "scan",
        shape=(shard.batch, shard.seq_len, heads, mixer.head_dim, mixer.value_head_dim, cp),
        flops=t * mixer.scan_flops(mixer.chunk) / shard.tp,
        forward_bytes=2.0 * read + t * value * w + 2.0 * chunks * state,
        backward_bytes=4.0 * read + 2.0 * t * value * w + 4.0 * chunks * state,
        saved_bytes=_kept_of_scan(mixer, shard, read, chunks * state),
        output_bytes=t * value * w,
        kernels=1 if mixer.form == "conv" else 6,
        variant=mixer.form,
        before=Transfer("send_recv", "cp", shard.batch * state) if cp > 1 and state else None,
    )
    ops = [scan, *_beside_scan(mixer, shard, width if whole else 0.0)]
    if whole:
        ops.insert(0, transferred("heads_to_ranks", Transfer("all_to_all", "cp", t * width * w)))
        ops.append(transferred("ranks_to_heads", Transfer("all_to_all", "cp", t * value * w)))
    projection = linear("qkv", "attention", t, width + rest, h, shard, side="column")
    return [projection, *ops, linear("out", "attention", t, h, value, shard, side="row")]


def _kept_of_scan(mixer: Recurrent, shard: Shard, read: float, states: float) -> float:
    """Bytes that stay for the backward pass of a scan that reads `read` and makes `states`.

    By what the kernels save. Mamba-2 (`mamba_ssm`, `ssd_combined.py`): the projection, and what is scanned before and
    behind the gate; convolution and states are made again. Gated DeltaNet (flash-linear-attention 0.6,
    `gated_delta_rule/chunk.py`): the projection, which the convolution reads; queries and keys as the norm gives them,
    and repeated where values have more heads; values; the inverse of each chunk's matrix; what the rule gives.
    Lightning: no state. Others: what the scan reads and gives, and a state per chunk in fp32.
    """
    t, w = shard.tokens, shard.activation_bytes
    width, value = mixer.in_width / shard.tp, mixer.heads * mixer.value_head_dim / shard.tp
    if mixer.form == "mamba2":
        return t * (width + 2.0 * value) * w
    if mixer.form == "gdn":
        keys, wide = mixer.conv_channels / shard.tp - value, 2.0 * mixer.heads * mixer.head_dim / shard.tp
        repeated = wide if keys < wide else 0.0
        return t * (width + keys + repeated + 2.0 * value + mixer.chunk * mixer.heads / shard.tp) * w
    return read + t * value * w + (0.0 if mixer.form == "lightning" else states)


def _beside_scan(mixer: Recurrent, shard: Shard, exchanged: float) -> list[Operation]:
    """What moves elements before and behind the kernels of a gated delta rule, and around an exchange of heads.

    Elements read and written per token, counted in Megatron-Core (`ssm/gated_delta_net`, 2026-08), K of queries and
    keys each, V of values. Forward: slices of the projection made contiguous (4 K + 4 V), the output's norm (2 V) and
    gate (3 V). Backward: gate 5 V, norm 3 V, gradients of slices joined three times (12 K + 6 V). Where there are fewer
    heads of keys than of values both repeat queries and keys, to E each (2 K + 2 E). Norm and gate op by op in fp32:
    28 V and 44 V. The norms of queries and keys are in the kernels' own times. An exchange sorts columns, packs them
    and undoes how a ring balances tokens, and back.
    """
    value = mixer.heads * mixer.value_head_dim / shard.tp
    forward = backward = 6.0 * exchanged + 4.0 * value if exchanged else 0.0
    delta = mixer.form in DELTA_RULE
    if delta:
        keys = mixer.conv_channels / shard.tp - value  # queries and keys together
        norm, norm_back = (5.0, 8.0) if shard.fused or shard.fused_norms else (28.0, 44.0)
        wide = 2.0 * mixer.heads * mixer.head_dim / shard.tp
        repeats = keys + wide if keys < wide else 0.0
        forward += 2.0 * keys + repeats + (4.0 + norm) * value
        backward += 6.0 * keys + repeats + (6.0 + norm_back) * value
    elif not exchanged:
        return []
    bytes_of = shard.tokens * shard.activation_bytes
    kernels = 4 * (exchanged > 0) + delta * (6 if shard.fused else 12)
    return [
        Operation(
            "gates",
            "attention",
            "memory",
            forward_bytes=bytes_of * forward,
            backward_bytes=bytes_of * backward,
            output_bytes=bytes_of * value,
            kernels=kernels,
        )
    ]


def _core_attention(attention: Attention, shard: Shard, heads: float, kv_heads: float) -> list[Operation]:
    t, w, s = shard.tokens, shard.activation_bytes, shard.seq_len
    d, dv = attention.head_dim, attention.value_head_dim
    flops = t * attention.score_flops_per_token(s, "full") / shard.tp  # as MFU counts them, the mask left out
    saved_bytes = t * w * (heads * d + kv_heads * (d + dv) + heads * dv) + 4 * t * heads  # q, k, v, out, log-sum-exp
    key_value = t * kv_heads * (d + dv) * w
    ring = shard.cp > 1 and shard.cp_kind == "ring"
    exchange = Transfer("send_recv", "cp", key_value) if ring else None
    if shard.attention_impl != "unfused":
        window = attention.window or 0
        index: tuple[float, ...] = ()
        if isinstance(attention, Indexed):
            window = attention.selected  # as many keys as of a window, wherever they are
            if attention.index_heads:
                index = (shard.batch, s / shard.cp, s / 2, attention.index_heads * attention.index_dim)
        if attention.chunked and window and s > window:  # independent chunks: a batch of short sequences
            shape = (shard.batch * s // window, window, window, heads, kv_heads, d, dv, 0, shard.cp)
        else:
            shape = (shard.batch, s, s, heads, kv_heads, d, dv, window, shard.cp)
        core = Operation(
            "core_attention",
            "core_attention",
            "attention",
            shape=shape,
            flops=flops,
            saved_bytes=saved_bytes,
            output_bytes=t * heads * dv * w,
            before=exchange,
            kernels=shard.cp if ring else 1,
            variant=shard.attention_impl,
            index_shape=index,
            causal=attention.causal,
        )
        if shard.cp > 1 and not ring:
            move = [Transfer("all_to_all", "cp", t * (heads * d + kv_heads * (d + dv)) * w)]
            move.append(Transfer("all_to_all", "cp", t * heads * dv * w))
            return [transferred("heads_to_ranks", move[0]), core, transferred("ranks_to_heads", move[1])]
        alone = shard.cp == 1  # fused or not at all among context-parallel ranks
        return [_products(core, shard) if alone and kv_heads < heads and not shard.fused_groups else core]
    # Unfused: scores, masked softmax (and dropout) and probabilities are written out; they are what core_attention
    # recomputation drops (5 a s^2 b bytes, Korthikanti section 4).
    scores = shard.batch * heads * (s / shard.cp) * s
    batch = shard.batch * heads
    return [
        Operation(
            "scores",
            "core_attention",
            "gemm_batch",
            shape=(batch, s / shard.cp, s, d),
            flops=2 * scores * d,
            saved_bytes=t * w * (heads + kv_heads) * d,
            output_bytes=scores * w,
        ),
        Operation(
            "softmax",
            "core_attention",
            "memory",
            # The fused causal kernel reads the half that is not masked and writes all; dropout reads, writes and marks.
            forward_bytes=scores * (1.5 * w + 2 * w + 1),
            saved_bytes=scores * 5,
            backward_bytes=scores * (2 * w + 1 + 2 * w),
            output_bytes=scores * w,
            kernels=2,
            timed=Timed("softmax", scores / s, s),
        ),
        Operation(
            "context",
            "core_attention",
            "gemm_batch",
            shape=(batch, s / shard.cp, dv, s),
            flops=2 * scores * dv,
            saved_bytes=t * w * kv_heads * dv,
            output_bytes=t * heads * dv * w,
        ),
    ]


def _products(core: Operation, shard: Shard) -> Operation:
    """Attention as plain products, all scores written: what PyTorch's falls back to where no kernel takes its heads.

    Keys and values are copied for each query head, queries and keys scaled; then the product, the mask added, softmax,
    a look for rows without any key and the choice between them, and the product with the values.
    """
    batch, s, _, heads, _, d, dv, *_ = core.shape
    w, scores, wide = shard.activation_bytes, batch * heads * s * s, batch * heads * s
    moved = 7.5 * scores + wide * (6 * d + 2 * dv)
    return replace(
        core,
        variant="products",
        forward_bytes=w * moved,
        backward_bytes=w * (5.0 * scores + wide * (6 * d + 2 * dv)),
        saved_bytes=w * (scores + wide * (2 * d + dv)),
        kernels=14,
    )
