"""What one transformer layer computes on one rank for one micro-batch, and the embedding and the head: ops in order.

The single ops are in `model/layers/parts.py`, attention and experts in files of their own.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.architecture import FeedForward, Layer, Model
from windtunnel.physics.model.layers.attention import attention_operations
from windtunnel.physics.model.layers.experts import expert_operations
from windtunnel.physics.model.layers.parts import activate, linear, norm_layer, residual_add
from windtunnel.physics.model.mixers import Streamed, streams_of
from windtunnel.physics.model.operations import Operation, Shard, Timed, Transfer

# Bytes per logit of Megatron-Core's own cross-entropy, forward and backward (`tensor_parallel/cross_entropy.py`).
# Eager: to fp32 (6), maximum (4), less the maximum (8), exponentiated (8), summed (4), divided by the sum (8); times
# gradient (8), to 16 bits (6); PyTorch's own over fp32 logits moves as much. Compiled (`fused_cross_entropy.py`,
# three graphs forward and one backward): to fp32 with the maximum (6), less it, exponentiated and summed (12), divided
# (8); times the gradient, to 16 bits (10). Fused with the head (Liger, `fused_linear_cross_entropy.py`): logits read
# twice and their gradient written in one kernel.
# Chunked (prime-rl, `models/layers/lm_head.py`): to fp32 (6), scaled (8), maximum (4), less it and exponentiated (12),
# summed (4), weighed for the entropy and summed (12); backward to fp32 and scaled (14), exponentiated (12), times the
# gradient (8), to 16 bits and read by two products (6).
OWN_LOSS = {"eager": (38.0, 14.0), "compiled": (26.0, 10.0), "fused": (8.0, 0.0), "chunked": (46.0, 40.0)}
CHUNK_ROWS = 8192  # of the vocabulary


def layer_operations(layer: Layer, model: Model, shard: Shard, load: float = 1.0) -> tuple[Operation, ...]:
    """The ops of one layer in forward order.

    `load`: how many times the mean the experts of this rank are given, where the router is uneven. Shapes and bytes
    are then this rank's; FLOPs and transfers' `bytes_total` stay the mean over the ranks that share the experts.
    """
    mixer = attention_operations(layer.attention, model, shard)
    ops = [norm_layer("norm_1", model, shard), *mixer]
    streams = layer.streams if isinstance(layer, Streamed) else 1
    if mixer:
        ops.append(residual_add("residual_1", model, shard))
    ops += _mixed_streams("streams_1", streams, model, shard)
    if layer.feed_forward.kind == "dense" and not layer.feed_forward.size:
        return tuple(ops)
    if layer.norms > 1 and not layer.parallel_block:
        ops.append(norm_layer("norm_2", model, shard))
    ops += _feed_forward(layer.feed_forward, model, shard, load)
    ops.append(residual_add("residual_2", model, shard))
    ops += _mixed_streams("streams_2", streams, model, shard)
    if layer.parallel_block and layer.feed_forward.kind == "dense" and shard.tp > 1:
        ops = [_shared_by_both(op) for op in ops]
    return tuple(ops)


def _mixed_streams(name: str, streams: int, model: Model, shard: Shard) -> list[Operation]:
    """Hyper-connections: one input out of the streams, the output into all of them; read, mixed, written, kept."""
    if streams == 1:
        return []
    size = shard.residual_tokens * model.hidden_size * shard.activation_bytes
    return [
        Operation(
            name,
            "streams",
            "memory",
            forward_bytes=(3.0 * streams + 2.0) * size,
            backward_bytes=(5.0 * streams + 3.0) * size,
            saved_bytes=streams * size,
            output_bytes=streams * size,
            kernels=4,
        )
    ]


def _shared_by_both(op: Operation) -> Operation:
    """An op of a parallel block over tensor-parallel ranks: both halves read one gathered input, their sum is reduced.

    The projections to queries, keys and values gather forward, the feed-forward's output is reduced with attention's;
    backward the other way round. So each of the two is done once in a pass and not twice (GPT-NeoX, PaLM, MegaScale).
    """
    if op.part == "mlp" and op.name.endswith("_up"):
        return replace(op, before=None, after_backward=None)
    if op.part != "mlp" and op.kind == "gemm":
        if op.after is not None:  # attention's output
            return replace(op, after=None, before_backward=None)
        return replace(op, regather=None)
    return op


def embedding_operations(model: Model, shard: Shard) -> tuple[Operation, ...]:
    """Token look-up, with the collective that sums the vocabulary shards."""
    h, w = model.hidden_size, shard.activation_bytes
    size = shard.tokens * h * w
    after = None
    if shard.tp > 1:
        after = Transfer("reduce_scatter" if shard.sequence_parallel else "all_reduce", "tp", size)
    # The gradient scatter reads and adds fp32 rows.
    return (
        Operation(
            "embedding",
            "embedding",
            "memory",
            forward_bytes=2 * size,
            backward_bytes=3 * size,
            output_bytes=size * streams_of(model),  # each layer reads all of them
            after=after,
            before_backward=Transfer("all_gather", "tp", size) if after and shard.sequence_parallel else None,
            timed=Timed("embedding", shard.tokens, h),
        ),
    )


def head_operations(model: Model, shard: Shard, vocab_padded: int, times: int = 1) -> tuple[Operation, ...]:
    """Final norm, output GEMM and cross-entropy; over vocabulary shards its maximum, sum and target are shared.

    `times`: once, and once more for each token that is predicted ahead.
    """
    t, h = shard.tokens * times, model.hidden_size
    v = vocab_padded / shard.tp
    # What else is multiplied outside of the layers (a product in front of the output, a narrower table) counts here.
    wide = h + model.more_weights / model.vocab_size if model.more_weights else h
    logits = t * v
    # Fused: read logits, write probabilities (fp32 inside). Eager: upcast and exponentiate in separate passes.
    forward, backward = (8.0, 6.0) if shard.fused else (16.0, 10.0)
    forward, backward = OWN_LOSS.get(shard.loss, (forward, backward))
    # How much of the logits there is at once: Liger takes as many tokens as have as many logits as the input elements.
    share_at_once = min(1.0, {"fused": h / v, "chunked": CHUNK_ROWS / v}.get(shard.loss, 1.0))
    head = linear("head", "head", t, v, wide, shard, side="column", low=False)
    shared = Transfer("all_reduce", "tp", 4.0 * t)
    names = ("loss maximum", "loss sum", "loss target") if shard.tp > 1 else ()
    return (
        norm_layer("final_norm", model, shard),
        head if share_at_once == 1.0 else replace(head, output_bytes=head.output_bytes * share_at_once),
        *(Operation(name, "head", "transfer", before=shared) for name in names),
        Operation(
            "loss",
            "head",
            "memory",
            forward_bytes=forward * logits,
            backward_bytes=backward * logits,
            saved_bytes=4.0 * logits * share_at_once,
            output_bytes=2.0 * logits * share_at_once,
            kernels=12 if shard.loss in ("eager", "chunked") else 3 if shard.fused else 8,
            timed=Timed("cross_entropy", t, v),
        ),
    )


def _feed_forward(block: FeedForward, model: Model, shard: Shard, load: float) -> list[Operation]:
    if block.kind == "dense":
        return _dense(block.size, block, model, shard, "mlp")
    ops = expert_operations(block, model, shard, load)
    if block.shared_size:
        ops += _dense(block.shared_size, block, model, shard, "shared")
    return ops


def _dense(size: int, block: FeedForward, model: Model, shard: Shard, prefix: str) -> list[Operation]:
    t, h, f = shard.tokens, model.hidden_size, size / shard.tp
    up = 2 if block.gated else 1
    part = "mlp" if prefix == "mlp" else "shared_experts"
    return [
        linear(f"{prefix}_up", part, t, up * f, h, shard, side="column"),
        activate("activation", "activation", t, f, block, shard),
        linear(f"{prefix}_down", part, t, h, f, shard, side="row"),
    ]
