"""What an op of PyTorch multiplies: shapes of products and of attention, read off its tensors.

    product     `batch` times m x k times k x n          mm, addmm, bmm, baddbmm, linear, convolution, scaled_mm, ...
    grouped     one such product per group               _grouped_mm, _scaled_grouped_mm
    attention   (batch, heads, queries, keys, head dim)  every kernel of scaled_dot_product_attention, and flash-attn's

An op that is none of these moves bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from windtunnel.studies.programs.program import Op, TensorSpec

ELEMENT_BYTES = {
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    "complex128": 16,
}  # others take one byte
_PRODUCTS = {
    **dict.fromkeys(("mm", "_scaled_mm", "_int_mm", "mv", "dot", "vdot"), 0),  # place of the first factor
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "addmv", "addmv_"), 1),
    **dict.fromkeys(("bmm",), 0),
    **dict.fromkeys(("baddbmm", "baddbmm_"), 1),
}
PARTS = "parts"  # among the scalars of a product: as many like it make up one that was asked for
_GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
_CONVOLUTIONS = ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution", "convolution_backward")
# Name -> (layout of its tensors, which boolean argument is "causal"): "bhsd", or "bshd" as flash-attn lays them.
_ATTENTION = {
    "_scaled_dot_product_flash_attention": ("bhsd", 0),
    "_scaled_dot_product_efficient_attention": ("bhsd", 1),
    "_scaled_dot_product_cudnn_attention": ("bhsd", 1),
    "_scaled_dot_product_flash_attention_for_cpu": ("bhsd", 0),
    "_scaled_dot_product_fused_attention_overrideable": ("bhsd", 0),
    "_scaled_dot_product_attention_math": ("bhsd", 0),
    "scaled_dot_product_attention": ("bhsd", 0),
    "_flash_attention_forward": ("bshd", 0),
    "_efficient_attention_forward": ("bshd", 0),
    "_cudnn_attention_forward": ("bhsd", 1),
}


class Product(NamedTuple):
    """`batch` products of m x k and k x n; `turned`: the first factor lies transposed, as in a weight's gradient."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    turned: bool = False
    times: float = 1.0  # a convolution's backward is two of them
    parts: int = 1  # of so many that one product was cut into, by rows


class Grouped(NamedTuple):
    """`groups` products of on average m x k and k x n."""

    groups: int
    m: float
    n: int
    k: int
    dtype: str


class Attention(NamedTuple):
    """One call of a fused kernel."""

    batch: int
    seq_q: int
    seq_kv: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    causal: bool
    backward: bool
    kernel: str  # flash | efficient | cudnn | cpu | math
    dtype: str


def plain_name(op: Op) -> str:
    """`mm` of "aten.mm.default" or "aten::mm"."""
    return _plain(op.name)


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    parts = name.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def tensor_elements(spec: TensorSpec) -> int:
    """How many numbers it holds."""
    return math.prod(spec.shape)


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor, as if it were contiguous."""
    return math.prod(spec.shape) * ELEMENT_BYTES.get(spec.dtype, 1)


def product_of(op: Op) -> Product | None:
    """The product that an op is; None where it is none."""
    name = plain_name(op)
    if name in _CONVOLUTIONS:
        return _convolution(op, name)
    if name == "linear" and len(op.inputs) >= 2:
        x, weight = op.inputs[:2]
        return Product(1, max(1, math.prod(x.shape[:-1])), weight.shape[0], weight.shape[-1], x.dtype)
    place = _PRODUCTS.get(name)
    if place is None or len(op.inputs) < place + 2:
        return None
    first, second = op.inputs[place], op.inputs[place + 1]
    if len(first.shape) == 1:  # dot
        return Product(1, 1, 1, max(1, first.shape[0]), first.dtype)
    batch = first.shape[0] if len(first.shape) == 3 else 1
    n = second.shape[-1] if len(second.shape) > 1 else 1
    m, k = first.shape[-2:]
    if not batch * m * n * k:
        return None
    parts = next((value for name, value in _pairs(op.scalars) if name == PARTS and isinstance(value, int)), 1)
    return Product(batch, m, n, k, first.dtype, _is_turned(op, place), parts=parts)


def grouped_of(op: Op) -> Grouped | None:
    """The grouped product that an op is: rows of one matrix for each of several, or each group's share of the inner."""
    if plain_name(op) not in _GROUPED or len(op.inputs) < 2 or not op.outputs:
        return None
    a, b = op.inputs[:2]
    out = op.outputs[0]
    if len(b.shape) == 3:  # [rows, k] x [groups, k, n], or batched
        groups, k, n = b.shape
        rows = a.shape[0] if len(a.shape) == 2 else a.shape[1] * groups
        return _checked(Grouped(groups, rows / max(groups, 1), n, k, a.dtype))
    if len(out.shape) == 3:  # [m, tokens] x [tokens, n]: a weight's gradient per group
        groups, m, n = out.shape
        return _checked(Grouped(groups, float(m), n, max(1, a.shape[-1] // max(groups, 1)), a.dtype))
    groups, m, _ = a.shape if len(a.shape) == 3 else (1, *a.shape)
    return _checked(Grouped(groups, float(m), max(1, b.shape[-1] // max(groups, 1)), a.shape[-1], a.dtype))


def attention_of(op: Op) -> Attention | None:
    """The attention that an op is, forward or backward."""
    name = plain_name(op)
    backward = name.endswith("_backward")
    form = _ATTENTION.get(name) or _ATTENTION.get(name.removesuffix("_backward"))
    if form is None and backward:  # _flash_attention_backward goes with _flash_attention_forward
        form = _ATTENTION.get(f"{name.removesuffix('_backward')}_forward")
    first = 1 if backward else 0
    if form is None or len(op.inputs) < first + 3:
        return None
    q, k, v = (spec.shape for spec in op.inputs[first : first + 3])
    layout, causal_at = form
    if len(q) == 3:  # packed sequences [tokens, heads, dim]: one sequence as long as all of them would be too much
        q, k, v = ((1, *shape) for shape in (q, k, v))
        layout = "bshd"
    if len(q) != 4 or not all((*q, *k, *v)):
        return None
    heads, seq = (1, 2) if layout == "bhsd" else (2, 1)
    flags = [value for value in _scalars(op.scalars) if isinstance(value, bool)]
    causal = flags[0 if backward else min(causal_at, len(flags) - 1)] if flags else q[seq] == k[seq]
    keywords = {str(key): value for key, value in _pairs(op.scalars)}
    causal = bool(keywords.get("is_causal", keywords.get("causal", causal)))
    kernel = next((word for word in ("flash", "efficient", "cudnn") if word in name), "math")
    kernel = "cpu" if name.removesuffix("_backward").endswith("for_cpu") else kernel
    return Attention(
        q[0], q[seq], k[seq], q[heads], k[heads], q[3], v[3], causal, backward, kernel, op.inputs[first].dtype
    )


def _checked(grouped: Grouped) -> Grouped | None:
    return grouped if min(grouped.groups, grouped.m, grouped.n, grouped.k) > 0 else None


def _convolution(op: Op, name: str) -> Product | None:
    backward = name.endswith("backward")
    if len(op.inputs) < 2 + backward or not (backward or op.outputs):
        return None
    out = (op.inputs[0] if backward else op.outputs[0]).shape
    weight = op.inputs[1 + backward]
    pixels = out[0] * math.prod(out[2:])
    k = math.prod(weight.shape[1:])
    if not pixels * weight.shape[0] * k:
        return None
    return Product(1, pixels, weight.shape[0], k, weight.dtype, times=1.0 + backward)


def _is_turned(op: Op, place: int) -> bool:
    """Whether the first factor's columns lie together. Strides are among `scalars` as one tuple per tensor."""
    strides = [value for value in op.scalars if isinstance(value, (tuple, list)) and _is_stride(value)]
    if len(strides) <= place:
        return False
    own = [int(step) for step in strides[place]]
    return len(own) >= 2 and own[-2] == 1 and own[-1] > 1


def _is_stride(value: Sequence[object]) -> bool:
    return len(value) >= 1 and all(isinstance(step, int) and not isinstance(step, bool) for step in value)


def _scalars(values: Sequence[object]) -> list[object]:
    """Plain arguments in their order; of named ones the value."""
    return [value[1] if _is_pair(value) else value for value in values]  # type: ignore[index]


def _pairs(values: Sequence[object]) -> list[tuple[object, object]]:
    return [(value[0], value[1]) for value in values if _is_pair(value)]  # type: ignore[index]


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)
