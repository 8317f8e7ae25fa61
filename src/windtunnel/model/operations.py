"""What one transformer layer computes on one rank for one micro-batch: ops with local shapes, FLOPs and bytes.

Shapes follow Megatron's partition (Shoeybi 2019, arXiv 1909.08053): the first GEMM of each block is split by column,
the second by row; with sequence parallelism (Korthikanti 2022, arXiv 2205.05198) norms and residuals see 1/tp of the
tokens and an all-gather and a reduce-scatter replace each all-reduce. What a tensor costs in the backward pass, and
what of it must be kept until then, follows the same paper's section 4.

Element-wise ops are counted in bytes moved. `fused` says whether a compiler or hand-written kernels keep intermediates
out of memory; eager PyTorch writes them (RoPE upcasts to fp32 first; so did RMSNorm before it became one kernel).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from windtunnel.model.architecture import Attention, FeedForward, Layer, Model

ACTIVATION_BYTES = 2  # bf16 and fp16 alike; fp32 training doubles it through `Shard.activation_bytes`

# Bytes moved per element to quantise one GEMM input, and bytes kept per element of it for the weight gradient.
# Row- and column-wise copies are written together; current scaling reads the tensor once more for its maximum.
CAST_BYTES = {"fp8": 4.0, "fp8-current": 6.0, "mxfp8": 4.06, "nvfp4": 5.1}
KEPT_BYTES = {"fp8": 1.0, "fp8-current": 1.0, "mxfp8": 1.03, "nvfp4": 0.56}

CHAINED_PASSES = 10.0  # over one fused pass; fitted on gpt-oss on H100, B200 and GB200

# Host calls per expert and grouped GEMM: experts are launched one by one on a few streams, and quantised one by one.
EXPERT_LAUNCHES, EXPERT_LAUNCHES_LOW = 6, 14


class Transfer(NamedTuple):
    """One collective that an op needs: its kind, the group's name in the layout, and bytes as nccl-tests count them."""

    kind: str
    group: str
    bytes_total: float


class Timed(NamedTuple):
    """What a memory op is on a device that was measured itself (`hardware.calibration`), and how often it runs."""

    op: str  # "rms_norm"
    rows: float
    width: float
    forward: float = 1.0
    backward: float = 1.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One op of a layer, forward; its backward is derived by `training.segments`.

    `shape`: gemm (m, n, k); grouped_gemm (groups, m per group, n, k); attention (batch, seq_q, seq_kv, heads, kv_heads,
    head_dim, value_head_dim, window, causal divisor). Bytes are those of this rank and micro-batch.
    """

    name: str
    part: str  # for selective recomputation
    kind: str  # gemm | grouped_gemm | attention | memory | transfer
    shape: tuple[float, ...] = ()
    flops: float = 0.0  # forward
    forward_bytes: float = 0.0  # moved, for memory ops and casts
    backward_bytes: float = 0.0
    saved_bytes: float = 0.0  # kept for backward because of this op
    output_bytes: float = 0.0
    weight_elements: float = 0.0
    low_precision: bool = False  # runs in the plan's GEMM format
    variant: str = ""  # which kernel, where there are several: attention's
    kernels: int = 1  # launches, forward
    skew: float = 1.0  # of a transfer: bytes of its busiest rank, which set the time, over the mean
    before: Transfer | None = None  # on the input, forward; all of a transfer op
    after: Transfer | None = None  # on the output, forward
    before_backward: Transfer | None = None  # on the output's gradient; of a transfer op, going back
    regather: Transfer | None = None  # on the input again, for the weight gradient
    after_backward: Transfer | None = None  # on the input's gradient
    timed: Timed | None = None  # what a calibrated device calls it; None: nothing that it measures
    reads: tuple[str, ...] = ()  # ops whose outputs it takes, "" for the block's input; stated in plain PyTorch only
    new_shapes: int = 0  # products of a shape that no earlier one had: rows that routing decides, anew in each step
    repeats: int = 0  # runs once per expert, in a loop of so many rounds; sizes are of all rounds together

    @property
    def backward_only(self) -> bool:
        """Whether the forward pass knows nothing of it: gradients of a tensor with several readers are added."""
        return self.kind == "memory" and self.forward_bytes == 0.0 and self.backward_bytes > 0.0


@dataclass(frozen=True, slots=True)
class Shard:
    """How much of a layer this rank holds, and in which formats."""

    batch: int
    seq_len: int  # of the whole sequence
    cp: int = 1
    cp_kind: str = "ring"
    tp: int = 1
    sequence_parallel: bool = False
    ep: int = 1
    etp: int = 1
    precision: str = "bf16"
    fused: bool = True
    attention_impl: str = "flash"  # flash | flash2 | triton | unfused
    activation_bytes: int = ACTIVATION_BYTES
    fused_projections: bool = True  # queries, keys and values in one GEMM, gate and up in one; else one GEMM each
    fused_norms: bool = False  # RMSNorm is one kernel also where nothing else is fused
    fused_groups: bool = True  # attention of fewer heads for keys and values has a fused kernel

    @property
    def tokens(self) -> int:
        """Tokens that this rank's GEMMs see."""
        return self.batch * self.seq_len // self.cp

    @property
    def residual_tokens(self) -> float:
        """Tokens of the residual stream on this rank."""
        return self.tokens / self.tp if self.sequence_parallel else float(self.tokens)


def layer_operations(layer: Layer, model: Model, shard: Shard, load: float = 1.0) -> tuple[Operation, ...]:
    """The ops of one layer in forward order.

    `load`: how many times the mean the experts of this rank are given, where the router is uneven. Shapes and bytes
    are then this rank's; FLOPs and transfers' `bytes_total` stay the mean over the ranks that share the experts.
    """
    ops = [_norm("norm_1", model, shard), *_attention(layer.attention, model, shard), _add("residual_1", model, shard)]
    if layer.norms > 1 and not layer.parallel_block:
        ops.append(_norm("norm_2", model, shard))
    ops += _feed_forward(layer.feed_forward, model, shard, load)
    ops.append(_add("residual_2", model, shard))
    return tuple(ops)


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
            output_bytes=size,
            after=after,
            before_backward=Transfer("all_gather", "tp", size) if after and shard.sequence_parallel else None,
            timed=Timed("embedding", shard.tokens, h),
        ),
    )


def head_operations(model: Model, shard: Shard, vocab_padded: int) -> tuple[Operation, ...]:
    """Final norm, output GEMM and cross-entropy; over vocabulary shards its maximum, sum and target are shared."""
    t, h = shard.tokens, model.hidden_size
    v = vocab_padded / shard.tp
    logits = t * v
    # Fused: read logits, write probabilities (fp32 inside). Eager: upcast and exponentiate in separate passes.
    forward, backward = (8.0, 6.0) if shard.fused else (16.0, 10.0)
    shared = Transfer("all_reduce", "tp", 4.0 * t)
    names = ("loss maximum", "loss sum", "loss target") if shard.tp > 1 else ()
    return (
        _norm("final_norm", model, shard),
        _gemm("head", "head", t, v, h, shard, side="column", low=False),
        *(Operation(name, "head", "transfer", before=shared) for name in names),
        Operation(
            "loss",
            "head",
            "memory",
            forward_bytes=forward * logits,
            backward_bytes=backward * logits,
            saved_bytes=4.0 * logits,
            output_bytes=2.0 * logits,
            kernels=3 if shard.fused else 8,
            timed=Timed("cross_entropy", t, v),
        ),
    )


def _norm(name: str, model: Model, shard: Shard) -> Operation:
    elements = shard.residual_tokens * model.hidden_size
    w = shard.activation_bytes
    one_kernel = shard.fused or shard.fused_norms or model.norm == "layernorm"
    return Operation(
        name,
        "norms",
        "memory",
        forward_bytes=elements * (2 * w if one_kernel else 15 * w),
        backward_bytes=elements * (4 * w if one_kernel else 24 * w),
        saved_bytes=elements * w if one_kernel else elements * (w + 8),
        output_bytes=elements * w,
        kernels=1 if one_kernel else 6,
        timed=Timed("rms_norm" if model.norm == "rmsnorm" else "layer_norm", shard.residual_tokens, model.hidden_size),
    )


def _add(name: str, model: Model, shard: Shard) -> Operation:
    elements = shard.residual_tokens * model.hidden_size
    w = shard.activation_bytes
    # Models of the time before flash attention drop out here, and keep the mask.
    mask = elements if shard.attention_impl == "unfused" else 0.0
    # Backward: the two branches' gradients are added where the residual forked.
    return Operation(
        name,
        "residual",
        "memory",
        forward_bytes=3 * w * elements,
        backward_bytes=3 * w * elements,
        output_bytes=w * elements,
        saved_bytes=mask,
        timed=Timed("add", shard.residual_tokens, model.hidden_size),
    )


def _gemm(
    name: str, part: str, m: float, n: float, k: float, shard: Shard, *, side: str, low: bool = True
) -> Operation:
    """One linear layer. `side`: column (input gathered, output split), row (output summed) or none (replicated)."""
    low = low and shard.precision in CAST_BYTES
    w = shard.activation_bytes
    before = after = before_backward = regather = after_backward = None
    if shard.tp > 1 and side == "column":
        size = m * k * w
        if shard.sequence_parallel:
            # What feeds a low-precision GEMM is quantised before it is gathered.
            before = regather = Transfer("all_gather", "tp", m * k * (1.0 if low else w))
            after_backward = Transfer("reduce_scatter", "tp", size)
        else:
            after_backward = Transfer("all_reduce", "tp", size)
    elif shard.tp > 1 and side == "row":
        size = m * n * w
        after = Transfer("reduce_scatter" if shard.sequence_parallel else "all_reduce", "tp", size)
        before_backward = Transfer("all_gather", "tp", m * n * (1.0 if low else w)) if shard.sequence_parallel else None
    cast = CAST_BYTES[shard.precision] if low else 0.0
    kept = KEPT_BYTES[shard.precision] if low else float(w)
    gathered = side == "column" and shard.sequence_parallel
    return Operation(
        name,
        part,
        "gemm",
        shape=(m, n, k),
        flops=2.0 * m * n * k,
        forward_bytes=cast * m * k,
        backward_bytes=cast * m * n,
        saved_bytes=m * k * kept / (shard.tp if gathered else 1),
        output_bytes=m * n * w,
        weight_elements=n * k,
        low_precision=low,
        kernels=2 if low else 1,
        before=before,
        after=after,
        before_backward=before_backward,
        regather=regather,
        after_backward=after_backward,
    )


def _attention(attention: Attention, model: Model, shard: Shard) -> list[Operation]:
    t, h, w = shard.tokens, model.hidden_size, shard.activation_bytes
    heads = attention.heads / shard.tp
    kv_heads = max(attention.kv_heads / shard.tp, 1.0)
    d, dv = attention.head_dim, attention.value_head_dim
    ops: list[Operation] = []
    if attention.kind == "mla":
        own = shard.residual_tokens  # the latents are computed before tokens are gathered, and gathered instead of them
        rank, rope, nope = attention.kv_lora_rank or 0, attention.rope_head_dim, attention.nope_head_dim
        if attention.q_lora_rank:
            ops.append(_gemm("q_down", "attention", own, attention.q_lora_rank, h, shard, side="none"))
            ops.append(_gemm("q_up", "attention", t, heads * d, attention.q_lora_rank, shard, side="column"))
        else:
            ops.append(_gemm("q", "attention", t, heads * d, h, shard, side="column"))
        ops.append(_gemm("kv_down", "attention", own, rank + rope, h, shard, side="none"))
        ops.append(_gemm("kv_up", "attention", t, heads * (nope + dv), rank, shard, side="column"))
        kv_heads = heads
    else:
        ops.append(_gemm("qkv", "attention", t, heads * d + kv_heads * (d + dv), h, shard, side="column"))
    query_key = t * (heads + kv_heads) * d
    passes = 0.0
    if attention.position == "rope":
        passes += 2 * w if shard.fused else 10 * w
    if attention.qk_norm != "none":
        passes += 2 * w if shard.fused or shard.fused_norms else 15 * w
    if passes:
        ops.append(
            Operation(
                "rope",
                "attention",
                "memory",
                forward_bytes=passes * query_key,
                backward_bytes=1.5 * passes * query_key,
                output_bytes=query_key * w,
                kernels=2 if shard.fused else 8,
                timed=Timed("rope", t * (heads + kv_heads), d) if attention.position == "rope" else None,
            )
        )
    ops += _core_attention(attention, shard, heads, kv_heads)
    ops.append(_gemm("out", "attention", t, h, heads * dv, shard, side="row"))
    return ops


def _core_attention(attention: Attention, shard: Shard, heads: float, kv_heads: float) -> list[Operation]:
    t, w, s = shard.tokens, shard.activation_bytes, shard.seq_len
    d, dv = attention.head_dim, attention.value_head_dim
    flops = t * attention.score_flops_per_token(s, "full") / shard.tp  # as MFU counts them, the mask left out
    kept = t * w * (heads * d + kv_heads * (d + dv) + heads * dv) + 4 * t * heads  # q, k, v, out, log-sum-exp
    key_value = t * kv_heads * (d + dv) * w
    ring = shard.cp > 1 and shard.cp_kind == "ring"
    exchange = Transfer("send_recv", "cp", key_value) if ring else None
    if shard.attention_impl != "unfused":
        window = attention.window or 0
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
            saved_bytes=kept,
            output_bytes=t * heads * dv * w,
            before=exchange,
            kernels=shard.cp if ring else 1,
            variant=shard.attention_impl,
        )
        if shard.cp > 1 and not ring:
            move = [Transfer("all_to_all", "cp", t * (heads * d + kv_heads * (d + dv)) * w)]
            move.append(Transfer("all_to_all", "cp", t * heads * dv * w))
            return [_transfer("heads_to_ranks", move[0]), core, _transfer("ranks_to_heads", move[1])]
        return [core]
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
            forward_bytes=scores * (2 * w + 3 + w),
            saved_bytes=scores * 5,
            backward_bytes=scores * (3 * w + 1),
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


def _feed_forward(block: FeedForward, model: Model, shard: Shard, load: float) -> list[Operation]:
    if block.kind == "dense":
        return _dense(block.size, block, model, shard, "mlp")
    ops = _experts(block, model, shard, load)
    if block.shared_size:
        ops += _dense(block.shared_size, block, model, shard, "shared")
    return ops


def _dense(size: int, block: FeedForward, model: Model, shard: Shard, prefix: str) -> list[Operation]:
    t, h, f = shard.tokens, model.hidden_size, size / shard.tp
    up = 2 if block.gated else 1
    return [
        _gemm(f"{prefix}_up", "mlp", t, up * f, h, shard, side="column"),
        _activation("activation", "activation", t, f, block, shard),
        _gemm(f"{prefix}_down", "mlp", t, h, f, shard, side="row"),
    ]


def _activation(name: str, part: str, rows: float, width: float, block: FeedForward, shard: Shard) -> Operation:
    w, elements = shard.activation_bytes, rows * width
    inputs = 2 if block.gated else 1
    extra = 0.0 if shard.fused or not block.gated else 2.0 * w  # eager writes silu(gate) before multiplying
    # gpt-oss adds a bias per expert, clamps, gates and weighs: more than fused kernels for plain SwiGLU cover.
    chain = CHAINED_PASSES if block.kind == "moe" and block.bias else 1.0
    return Operation(
        name,
        part,
        "memory",
        forward_bytes=chain * elements * ((inputs + 1) * w + extra),
        backward_bytes=chain * elements * ((2 * inputs + 1) * w + 2 * extra),
        saved_bytes=elements * (inputs * w + extra / 2),
        output_bytes=elements * w,
        kernels=1 if shard.fused or not block.gated else 2,
        timed=Timed("swiglu" if block.gated else "gelu", rows, width),
    )


def _experts(block: FeedForward, model: Model, shard: Shard, load: float) -> list[Operation]:
    """Router, dispatch, experts, combine; this rank's experts get `load` times the mean number of tokens."""
    h, w = model.hidden_size, shard.activation_bytes
    local = shard.residual_tokens if shard.sequence_parallel else shard.tokens / shard.tp
    routed = local * block.experts_per_token  # tokens sent by this rank, and received when experts are balanced
    even = routed * shard.etp  # the expert-tensor group sees each other's tokens
    arrived = even * load
    groups = block.experts // shard.ep
    f = block.size / shard.etp
    up = 2 if block.gated else 1
    # Every rank sends as much as any other and receives by what its experts are given; combine is the reverse.
    exchange = Transfer("all_to_all", "ep", routed * h * w) if shard.ep > 1 else None
    gather = Transfer("all_gather", "etp", even * h * w) if shard.etp > 1 else None
    scatter = Transfer("reduce_scatter", "etp", even * h * w) if shard.etp > 1 else None
    router = Operation(
        "router",
        "router",
        "memory",
        # Scores in fp32: read the tokens and the matrix; top-k and the probability map over experts.
        forward_bytes=local * (h * (w + 4) + 24.0 * block.experts),
        backward_bytes=local * (h * (w + 8) + 24.0 * block.experts),
        flops=2.0 * local * h * block.experts,
        saved_bytes=local * block.experts * 8.0,
        kernels=12,
        weight_elements=h * block.experts,
    )
    # Low-precision grouped GEMMs want each expert's rows padded: one more copy.
    padding = 2 * w * arrived * h if shard.precision in CAST_BYTES else 0.0
    permute = Operation(
        "permute",
        "moe_permute",
        "memory",
        forward_bytes=2 * w * routed * h + padding,
        backward_bytes=2 * w * routed * h + padding,
        output_bytes=routed * h * w,
        kernels=4,
        timed=Timed("gather_rows", routed, h),
    )
    sort = Operation(
        "sort_by_expert",
        "moe_permute",
        "memory",
        forward_bytes=2 * w * arrived * h if groups > 1 and shard.ep > 1 else 0.0,
        backward_bytes=2 * w * arrived * h if groups > 1 and shard.ep > 1 else 0.0,
        output_bytes=arrived * h * w,
        kernels=2,
    )
    unpermute = Operation(
        "unpermute",
        "moe_permute",
        "memory",
        forward_bytes=w * (routed + local) * h,
        backward_bytes=w * (2 * routed + local) * h,
        saved_bytes=routed * h * w,
        output_bytes=local * h * w,
        kernels=3,
        timed=Timed("scatter_add_rows", routed, h),
    )
    ops = [router, permute]
    if exchange:
        ops.append(_transfer("dispatch", exchange, load, load))
    if gather:
        ops.append(_transfer("expert_gather", gather, load, load))
    if sort.forward_bytes:
        ops.append(sort)
    ops += [
        _grouped("experts_up", groups, even / groups, up * f, h, shard, load),
        _activation("expert_activation", "moe_activation", arrived, f, block, shard),
        _grouped("experts_down", groups, even / groups, h, f, shard, load),
    ]
    if sort.forward_bytes:
        ops.append(sort)
    if scatter:
        ops.append(_transfer("expert_scatter", scatter, load, load))
    if exchange:
        ops.append(_transfer("combine", exchange, load))  # each rank's own tokens come back
    return [*ops, unpermute]


def _grouped(name: str, groups: int, even: float, n: float, k: float, shard: Shard, load: float) -> Operation:
    """GEMMs of this rank's experts. How its rows divide among them is left out: their tiles are worked off together."""
    low, m = shard.precision in CAST_BYTES, even * load
    cast = CAST_BYTES[shard.precision] if low else 0.0
    kept = KEPT_BYTES[shard.precision] if low else float(shard.activation_bytes)
    return Operation(
        name,
        "mlp",
        "grouped_gemm",
        shape=(groups, m, n, k),
        flops=2.0 * groups * even * n * k,
        forward_bytes=cast * groups * m * k,
        backward_bytes=cast * groups * m * n,
        saved_bytes=groups * m * k * kept,
        output_bytes=groups * m * n * shard.activation_bytes,
        weight_elements=groups * n * k,
        low_precision=low,
        kernels=groups * (EXPERT_LAUNCHES_LOW if low else EXPERT_LAUNCHES),
    )


def _transfer(name: str, transfer: Transfer, skew: float = 1.0, arriving: float = 1.0) -> Operation:
    """`arriving`: what this rank receives over what every rank sends on average."""
    return Operation(
        name,
        "moe_transfer" if transfer.group != "cp" else "attention",
        "transfer",
        before=transfer,
        before_backward=transfer,
        output_bytes=transfer.bytes_total * arriving,
        skew=skew,
    )
