"""The ops themselves, as plain PyTorch runs them, each on a ring of buffers so that no input is still in the cache.

A builder returns calls, one for each set of buffers in the ring. Inputs are random normal numbers, never zeros: zeros
draw less power and clock higher. Backward is `torch.autograd.grad` with a random gradient on a graph built beforehand;
`dgrad` and `wgrad` are the two products that the backward of `nn.Linear` runs, in its layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from windtunnel.real.calibrate.kinds import EMBEDDING_ROWS, TENSOR_ELEMENTS, Curve, Shape

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch import Tensor

Call = Callable[[], object]
_ALIGNED = 64  # elements between the starts of two buffers


def torch_dtype(torch: ModuleType, dtype: str) -> torch.dtype:
    """torch's name of "fp32", "bf16" or "fp16"."""
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


class Pool:
    """Random numbers on the device, lent out slice by slice, round and round."""

    def __init__(self, torch: ModuleType, device: str, dtype: str, least_bytes: int) -> None:
        self.torch, self.device, self.dtype = torch, device, torch_dtype(torch, dtype)
        self._offset = 0
        size = least_bytes // self.dtype.itemsize
        seed = torch.randn(min(size, 1 << 22), device=device, dtype=torch.float32).to(self.dtype)
        self._numbers = _repeated(torch, seed, size)

    def numbers(self, *shape: int) -> Tensor:
        """A read-only tensor of random normal numbers, elsewhere than the last ones."""
        count = 1
        for extent in shape:
            count *= extent
        if count > self._numbers.numel():
            self._numbers, self._offset = _repeated(self.torch, self._numbers, count), 0
        if self._offset + count > self._numbers.numel():
            self._offset = 0
        start = self._offset
        self._offset += -(-count // _ALIGNED) * _ALIGNED
        return self._numbers[start : start + count].view(shape)

    def leaf(self, *shape: int) -> Tensor:
        """A tensor as of `numbers`, which wants a gradient."""
        return self.numbers(*shape).detach().requires_grad_()

    def writable(self, *shape: int) -> Tensor:
        """A tensor of its own that may be written to."""
        return self.numbers(*shape).clone()

    def indices(self, count: int, below: int) -> Tensor:
        """Random whole numbers in [0, below)."""
        return self.torch.randint(below, (count,), device=self.device)


def _repeated(torch: ModuleType, numbers: Tensor, count: int) -> Tensor:
    whole = torch.empty(count, dtype=numbers.dtype, device=numbers.device)
    step = numbers.numel()
    for start in range(0, count, step):
        part = whole[start : start + step]
        part.copy_(numbers[: part.numel()])
    return whole


def build(torch: ModuleType, curve: Curve, shape: Shape, pool: Pool, ring: int) -> list[Call]:
    """Calls that each run the op once, on `ring` different sets of buffers."""
    with torch.no_grad():
        # A copy between host and device has no phase; which kind of host memory it uses stands in its place.
        how = curve.dtype if curve.kind in ("h2d", "d2h") else curve.phase
        return [_BUILDERS[curve.kind](torch, pool, how, shape) for _ in range(ring)]


def _backward(torch: ModuleType, output: Tensor, inputs: Sequence[Tensor], gradient: Tensor) -> Call:
    grad = torch.autograd.grad
    return lambda: grad(output, inputs, gradient, retain_graph=True)


def _either(
    torch: ModuleType, pool: Pool, phase: str, function: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> Call:
    """The forward of `function` as training runs it (recording the graph), or its backward."""

    def forward() -> Tensor:
        with torch.enable_grad():
            return function(*inputs)

    if phase == "forward":
        return forward
    output = forward()
    gradient = pool.numbers(*output.shape).to(output.dtype)
    if not output.is_contiguous() and output.dim() == 4:  # attention: gradients come in the layout of the output
        gradient = pool.numbers(*output.transpose(1, 2).shape).transpose(1, 2)
    return _backward(torch, output, [tensor for tensor in inputs if tensor.requires_grad], gradient)


def _gemm(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    return _grouped_gemm(torch, pool, phase, (1, *shape))


def _grouped_gemm(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    groups, m, n, k = shape
    linear = torch.nn.functional.linear
    xs = [pool.numbers(m, k) for _ in range(groups)]
    if phase == "forward":
        pairs = [(x, pool.numbers(n, k)) for x in xs]
        return lambda: [linear(x, weight) for x, weight in pairs]
    gradients = [pool.numbers(m, n) for _ in range(groups)]
    if phase == "dgrad":
        pairs = [(gradient, pool.numbers(n, k)) for gradient in gradients]
        return lambda: [gradient.mm(weight) for gradient, weight in pairs]
    pairs = list(zip(gradients, xs, strict=True))
    return lambda: [gradient.t().mm(x) for gradient, x in pairs]


def _attention(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    batch, seq, heads, kv_heads, head_dim = shape
    sdpa = torch.nn.functional.scaled_dot_product_attention
    inputs = [pool.leaf(batch, seq, n, head_dim).transpose(1, 2) for n in (heads, kv_heads, kv_heads)]
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    grouped = {"enable_gqa": True} if kv_heads < heads else {}
    return _either(torch, pool, phase, lambda q, k, v: sdpa(q, k, v, is_causal=True, **grouped), inputs)


def _rms_norm(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    rows, width = shape
    norm = torch.nn.functional.rms_norm
    inputs = [pool.leaf(rows, width), pool.leaf(width)]
    return _either(torch, pool, phase, lambda x, weight: norm(x, (width,), weight, 1e-5), inputs)


def _layer_norm(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    rows, width = shape
    norm = torch.nn.functional.layer_norm
    inputs = [pool.leaf(rows, width), pool.leaf(width), pool.leaf(width)]
    return _either(torch, pool, phase, lambda x, weight, bias: norm(x, (width,), weight, bias), inputs)


def _swiglu(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    silu = torch.nn.functional.silu
    return _either(torch, pool, phase, lambda gate, up: silu(gate) * up, [pool.leaf(*shape), pool.leaf(*shape)])


def _gelu(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    return _either(torch, pool, phase, torch.nn.functional.gelu, [pool.leaf(*shape)])


def _rope(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    rows, width = shape
    heads = 8  # of one position, that share its cosines
    x = pool.leaf(1, rows // heads, heads, width).transpose(1, 2).detach().requires_grad_()
    cosine, sine = pool.numbers(rows // heads, width), pool.numbers(rows // heads, width)

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    return _either(torch, pool, phase, rotate, [x])


def _add(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    left, right = pool.numbers(*shape), pool.numbers(*shape)
    if phase == "backward":  # of a value used twice: its two gradients are added
        return lambda: left + right
    return _either(torch, pool, phase, lambda x, y: x + y, [left.detach().requires_grad_(), right])


def _dropout(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    dropout = torch.nn.functional.dropout
    return _either(torch, pool, phase, lambda x: dropout(x, 0.1, True), [pool.leaf(*shape)])


def _embedding(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    tokens, hidden = shape
    embedding = torch.nn.functional.embedding
    indices = pool.indices(tokens, EMBEDDING_ROWS)
    return _either(torch, pool, phase, lambda table: embedding(indices, table), [pool.leaf(EMBEDDING_ROWS, hidden)])


def _cross_entropy(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    tokens, vocabulary = shape
    loss = torch.nn.functional.cross_entropy
    targets = pool.indices(tokens, vocabulary)
    return _either(torch, pool, phase, lambda x: loss(x.float(), targets), [pool.leaf(tokens, vocabulary)])


def _softmax(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    return _either(torch, pool, phase, lambda x: torch.softmax(x, -1), [pool.leaf(*shape)])


def _cast(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    x = pool.numbers(*shape)
    target = torch.bfloat16 if x.dtype == torch.float32 else torch.float32
    return lambda: x.to(target)


def _gather_rows(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    indices = pool.indices(shape[0], shape[0])
    return _either(torch, pool, phase, lambda x: x.index_select(0, indices), [pool.leaf(*shape)])


def _scatter_add_rows(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    indices = torch.randperm(shape[0], device=pool.device)
    rows = pool.numbers(*shape)
    if phase == "backward":  # the gradient of the rows: they are gathered
        return lambda: rows.index_select(0, indices)
    total = pool.writable(*shape)
    return lambda: total.index_add_(0, indices, rows)


def _parameters(torch: ModuleType, pool: Pool, count: int, most: int = TENSOR_ELEMENTS) -> list[Tensor]:
    whole, rest = divmod(count, most)
    parameters = []
    for elements in [most] * whole + [rest] * bool(rest):
        parameter = torch.nn.Parameter(pool.writable(elements))
        parameter.grad = pool.writable(elements)
        parameters.append(parameter)
    return parameters


def _adamw(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    options = {"fused": phase == "fused", "foreach": phase == "foreach"}
    # Tensor by tensor, a step is as long as its tensors' in turn: one of them, whatever its size.
    most = shape[0] if phase == "single" else TENSOR_ELEMENTS
    optimizer = torch.optim.AdamW(_parameters(torch, pool, shape[0], most), lr=1e-5, **options)
    optimizer.step()  # makes the moments
    step: Call = optimizer.step
    return step


def _zero_grad(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    optimizer = torch.optim.SGD(_parameters(torch, pool, shape[0]), lr=1e-5)
    return lambda: optimizer.zero_grad(set_to_none=False)


def _clip_norm(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    parameters = _parameters(torch, pool, shape[0])
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)


def _copy(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    count = shape[0] // pool.dtype.itemsize
    source, target = pool.numbers(count), pool.writable(count)
    return lambda: target.copy_(source)


def _h2d(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    count = shape[0] // pool.dtype.itemsize
    target, source = pool.writable(count), _on_host(pool.numbers(count), phase)
    return lambda: target.copy_(source, non_blocking=True)


def _d2h(torch: ModuleType, pool: Pool, phase: str, shape: Shape) -> Call:
    count = shape[0] // pool.dtype.itemsize
    source = pool.numbers(count)
    target = _on_host(source, phase)
    return lambda: target.copy_(source, non_blocking=True)


def _on_host(numbers: Tensor, how: str) -> Tensor:
    return numbers.cpu().pin_memory() if how == "pinned" else numbers.cpu()


_BUILDERS: dict[str, Callable[[ModuleType, Pool, str, Shape], Call]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "attention": _attention,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "swiglu": _swiglu,
    "gelu": _gelu,
    "rope": _rope,
    "add": _add,
    "dropout": _dropout,
    "embedding": _embedding,
    "cross_entropy": _cross_entropy,
    "softmax": _softmax,
    "cast": _cast,
    "gather_rows": _gather_rows,
    "scatter_add_rows": _scatter_add_rows,
    "adamw": _adamw,
    "zero_grad": _zero_grad,
    "clip_norm": _clip_norm,
    "copy": _copy,
    "h2d": _h2d,
    "d2h": _d2h,
}
