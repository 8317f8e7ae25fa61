"""FLOPs and bytes of one ATen op, from the shapes of its arguments.

FLOPs are those of products (matrix products, convolutions, attention), two for a multiply-add, as PyTorch's
`torch.utils.flop_counter` counts them; all others do none. Attention counts all scores, masked or not: whether a
product is causal stands in `Op.scalars`, and what the kernel makes of that is the pricing's business. PyTorch's own
registry is used where it has a formula; here are those that it lacks, and those met so often that its way through
`tree_map` would cost more than the op.

Bytes are those an op must move at least: every input once, every output once, an argument written in place once more.
Ops that look up rows move the rows, not the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Flops = Callable[..., float]


def _mm(a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * prod(a.shape) * b.shape[-1])


def _addmm(_bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * prod(a.shape) * b.shape[-1])


def _mv(a: torch.Tensor, _vector: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * prod(a.shape))


def _addmv(_bias: torch.Tensor, a: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * prod(a.shape))


def _outer(_into: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> float:
    return float(2 * prod(a.shape) * prod(b.shape))


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> float:
    """One product per group: [m, k] by [g, k, n], [g, m, k] by [k, n], [m, k] by [k, n] with k cut up, or a batch."""
    rows, wide = a.shape, b.shape
    if len(rows) == 3 and len(wide) == 2:
        return float(2 * rows[1] * rows[2] * wide[1])
    return float(2 * prod(rows) * wide[-1])


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object) -> float:
    batch, heads, rows, width = q.shape
    return float(2 * batch * heads * rows * k.shape[2] * (width + v.shape[3]))


def _attention_backward(
    _grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object
) -> float:
    """Five products: the scores again, then the gradients of value, scores, query and key."""
    batch, heads, rows, width = q.shape
    return float(2 * batch * heads * rows * k.shape[2] * (3 * width + 2 * v.shape[3]))


_SDPA = (
    "flash_attention",
    "flash_attention_for_cpu",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)

FORMULAS: Mapping[str, Flops] = {
    "aten.mm": _mm,
    "aten.bmm": _mm,
    "aten._int_mm": _mm,
    "aten.addmm": _addmm,
    "aten.addmm_": _addmm,
    "aten._addmm_activation": _addmm,
    "aten.baddbmm": _addmm,
    "aten.baddbmm_": _addmm,
    "aten.mv": _mv,
    "aten.dot": _mv,
    "aten.vdot": _mv,
    "aten.addmv": _addmv,
    "aten.addr": _outer,
    "aten._grouped_mm": _grouped_mm,
    "aten._scaled_mm": _mm,
    "aten._scaled_grouped_mm": _grouped_mm,
    **{f"aten._scaled_dot_product_{kind}": _attention for kind in _SDPA},
    **{f"aten._scaled_dot_product_{kind}_backward": _attention_backward for kind in _SDPA},
}
"""What PyTorch's registry lacks, and what is met in every layer."""


BY_VALUES = frozenset(f"_{kind}_attention_{way}" for kind in ("flash", "efficient") for way in ("forward", "backward"))
"""Whose FLOPs hang on where sequences end, not on shapes alone."""


def formula_of(name: str, packet: object) -> Flops | None:
    """The formula for an op `aten.name`, taken from here, else from PyTorch's registry: `f(args, kwargs, out)`."""
    ours = FORMULAS.get(name)
    if ours is not None:
        return lambda args, kwargs, out: ours(*args, **kwargs)
    from torch.utils.flop_counter import flop_registry

    theirs = flop_registry.get(packet)
    if theirs is None:
        return None
    return lambda args, kwargs, out: float(theirs(*args, **kwargs, out_val=out))


# ---- bytes

LOOKUPS = frozenset(("embedding", "index", "_unsafe_index", "gather", "index_select", "take"))
"""Read as many elements of their first tensor as they give out."""

SCATTERS = frozenset(
    (
        *("scatter_", "scatter_add_", "scatter_reduce_", "index_add_", "index_copy_", "index_put_", "_index_put_impl_"),
        *("_unsafe_index_put", "masked_scatter_", "put_", "index_fill_"),
    )
)
"""Touch as many elements of the tensor they write into as they are given."""

OVERWRITES = frozenset(
    (
        *("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_"),
        *("log_normal_", "cauchy_", "_foreach_copy_", "_foreach_zero_", "set_"),
        *("split_with_sizes_copy", "chunk_cat"),  # of FSDP, into `out`
    )
)
"""Write an argument without reading it."""


def traffic(short: str, inputs: Sequence[int], outputs: Sequence[int], written: Sequence[int]) -> tuple[float, float]:
    """(bytes read, bytes written) of an op.

    Args:
        short: the op's name without namespace, "index_put_".
        inputs: bytes of each tensor it takes, in the order of its arguments.
        outputs: bytes of each tensor it makes anew.
        written: positions in `inputs` of those it writes in place.
    """
    new = sum(outputs)
    if short in LOOKUPS and inputs:
        return float(new + sum(inputs[1:])), float(new)
    if short in SCATTERS and inputs:
        values = sum(inputs[1:])
        touched = inputs[-1] if len(inputs) > 1 else 0
        return float(values + touched), float(new or touched)
    if short == "embedding_dense_backward":
        return float(sum(inputs)), float(new + (inputs[0] if inputs else 0))
    changed = sum(inputs[i] for i in written)
    if short == "all_gather_copy_in":  # of FSDP: shards into their part of what will be gathered
        shards = float(sum(inputs[:-1]))
        return shards, shards
    read = sum(inputs) - changed if short in OVERWRITES or short.endswith("out") else sum(inputs)
    return float(read), float(new + changed)
