"""The single ops that layers are made of: norm, residual, linear layer, activation, and what ranks send each other.

Shapes follow Megatron's partition (Shoeybi 2019, arXiv 1909.08053): the first GEMM of each block is split by column,
the second by row; with sequence parallelism (Korthikanti 2022, arXiv 2205.05198) norms and residuals see 1/tp of the
tokens and an all-gather and a reduce-scatter replace each all-reduce. What a tensor costs in the backward pass, and
what of it must be kept until then, follows the same paper's section 4.

Element-wise ops are counted in bytes moved. `Shard.fused` says whether a compiler or hand-written kernels keep
intermediates out of memory; eager PyTorch writes them (RoPE upcasts to fp32 first; so did RMSNorm before it became one
kernel).
"""

from __future__ import annotations

from windtunnel.physics.model.architecture import FeedForward, Model
from windtunnel.physics.model.operations import CAST_BYTES, KEPT_BYTES, Operation, Shard, Timed, Transfer


def norm_layer(name: str, model: Model, shard: Shard) -> Operation:
    """RMSNorm or LayerNorm over the residual stream."""
    elements = shard.residual_tokens * model.hidden_size
    w = shard.activation_bytes
    one_kernel = shard.fused or shard.fused_norms or model.norm == "layernorm"
    return Operation(
        name,
        "norms",
        "memory",
        forward_bytes=elements * (2 * w if one_kernel else 15 * w),
        backward_bytes=elements * (4 * w if one_kernel else 24 * w),
        saved_bytes=elements * w if one_kernel else elements * (w + 4),  # the input in fp32 and what the weight scales
        output_bytes=elements * w,
        kernels=1 if one_kernel else 6,
        timed=Timed("rms_norm" if model.norm == "rmsnorm" else "layer_norm", shard.residual_tokens, model.hidden_size),
    )


def residual_add(name: str, model: Model, shard: Shard) -> Operation:
    """The residual stream plus what a block gives."""
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


def linear(
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
    element_bytes = KEPT_BYTES[shard.precision] if low else float(w)
    gathered = side == "column" and shard.sequence_parallel
    return Operation(
        name,
        part,
        "gemm",
        shape=(m, n, k),
        flops=2.0 * m * n * k,
        forward_bytes=cast * m * k,
        backward_bytes=cast * m * n,
        saved_bytes=m * k * element_bytes / (shard.tp if gathered else 1),
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


def product(name: str, part: str, shape: tuple[float, ...], width: float, after: Transfer | None = None) -> Operation:
    """One product of (m, n, k), or as many as the groups in front of them, in elements of so many bytes."""
    *groups, m, n, k = shape
    count = groups[0] if groups else 1.0
    return Operation(
        name,
        part,
        "grouped_gemm" if groups else "gemm",
        shape=shape,
        flops=2.0 * count * m * n * k,
        saved_bytes=count * m * k * width,
        output_bytes=count * m * n * width,
        weight_elements=count * n * k,
        after=after,
    )


def activate(name: str, part: str, rows: float, width: float, block: FeedForward, shard: Shard) -> Operation:
    """SwiGLU or GELU over rows x width."""
    w, elements = shard.activation_bytes, rows * width
    inputs = 2 if block.gated else 1
    extra = 0.0 if shard.fused or not block.gated else 2.0 * w  # eager writes silu(gate) before multiplying
    # gpt-oss adds a bias per expert, clamps, gates and weighs: more than fused kernels for plain SwiGLU cover.
    chain = shard.chained_passes if block.kind == "moe" and block.bias and block.gated else 1.0
    return Operation(
        name,
        part,
        "memory",
        forward_bytes=chain * elements * ((inputs + 1) * w + extra),
        backward_bytes=chain * elements * ((2 * inputs + 1) * w + 2 * extra),
        saved_bytes=elements * (inputs * (shard.activation_input_bytes or w) + extra / 2),
        output_bytes=elements * w,
        kernels=1 if shard.fused or not block.gated else 2,
        timed=Timed("swiglu" if block.gated else "gelu", rows, width),
    )


def transferred(name: str, transfer: Transfer, skew: float = 1.0, arriving: float = 1.0) -> Operation:
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
