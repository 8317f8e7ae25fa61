"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685): frozen layers, and two thin matrices beside some.

    y = W x + (alpha / r) B (A x),   W frozen, A of r x k, B of n x r

A frozen matrix has no weight gradient, so its input need not stay for the backward pass, nothing is gathered for that
gradient again, and what is quantised is written once, not also along the other axis. The gradient of its input is
needed as before. An adapter has both gradients, in 16 bits, and keeps the input of its layer.

Adapters beside a layer that is split by column split B, beside one that is split by row A, as NeMo's and
Megatron-Bridge's `ParallelLinearAdapter` does; their own exchanges (r wide) are priced, that of the summed output is
the layer's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from windtunnel.physics.model.layers.parts import product
from windtunnel.physics.model.operations import KEPT_BYTES, Operation, Shard, Transfer

ADAPTER = "adapter"  # part of an adapter's ops
QKV = ("qkv", "q", "q_up", "kv_up")
ATTENTION = (*QKV, "out")
LINEAR = (*ATTENTION, "mlp_up", "mlp_down", "shared_up", "shared_down")
TARGETS = {"qkv": QKV, "attention": ATTENTION, "all": LINEAR, "experts": (*LINEAR, "experts_up", "experts_down")}
SPLIT_BY_ROW = ("out", "mlp_down", "shared_down")


# Modules as PEFT names them, the part of a fused layer's output that each makes, and how many such parts there are.
# Queries', keys' and values' parts are a layer's own.
MODULES = {
    "q": (QKV[:3], "q"), "k": (("qkv",), "k"), "v": (("qkv", "kv_up"), "v"), "o": (("out",), ""),
    "gate": (("mlp_up", "shared_up"), "half"), "up": (("mlp_up", "shared_up"), "half"),
    "down": (("mlp_down", "shared_down"), ""),
}  # fmt: skip


def check_targets(targets: str) -> bool:
    """Whether these are names of groups of layers, or of modules."""
    return targets in TARGETS or (bool(targets) and set(targets.split(",")) <= set(MODULES))


def with_adapters(
    operations: Sequence[Operation], shard: Shard, rank: int, targets: str, adapters: int = 1, query_share: float = 1.0
) -> tuple[Operation, ...]:  # fmt: skip
    """The ops of one block with its weights frozen, and behind each layer that is a target those of its adapters.

    `adapters`: how many learn side by side, each from its share of the rows. `query_share`: of the fused projection's
    output, keys and values have the rest in halves.
    """
    learning: list[Operation] = []
    for op in operations:
        learning.append(_frozen(op, shard))
        if op.kind in ("gemm", "grouped_gemm"):
            for name, part in _parts(op, targets, query_share):
                learning += _adapter(op, shard, float(rank), adapters, name, part)
    return tuple(learning)


def frozen_operations(operations: Sequence[Operation], shard: Shard) -> tuple[Operation, ...]:
    """The ops of one block with its weights frozen and nothing beside them."""
    return tuple(_frozen(op, shard) for op in operations)


def _parts(op: Operation, targets: str, query_share: float) -> Iterator[tuple[str, float]]:
    """Adapters beside a layer: each one's name, and its part of the output."""
    if targets in TARGETS:
        if op.name in TARGETS[targets]:
            yield op.name, 1.0
        return
    shares = {"": 1.0, "half": 0.5, "q": query_share, "k": (1 - query_share) / 2, "v": (1 - query_share) / 2}
    for module in dict.fromkeys(targets.split(",")):
        layers, part = MODULES[module]
        if op.name in layers:
            whole = op.name not in ("qkv", "mlp_up", "shared_up")
            yield f"{op.name} {module}".removesuffix(" o").removesuffix(" down"), 1.0 if whole else shares[part]


def learning(operations: Sequence[Operation]) -> float:
    """Parameters that learn among ops of `with_adapters`."""
    return sum(op.weight_elements for op in operations)


def _frozen(op: Operation, shard: Shard) -> Operation:
    if op.name == "embedding":  # nothing before it learns
        return replace(op, weight_elements=0.0, backward_bytes=0.0, before_backward=None)
    once = KEPT_BYTES[shard.precision] if op.low_precision else 0.0
    if not once:
        return replace(op, weight_elements=0.0, regather=None)
    *_, m, n, k = op.shape
    rows = m * (op.shape[0] if op.kind == "grouped_gemm" else 1.0)
    return replace(
        op,
        weight_elements=0.0,
        regather=None,
        forward_bytes=max(0.0, op.forward_bytes - once * rows * k),
        backward_bytes=max(0.0, op.backward_bytes - once * rows * n),
    )


def _adapter(
    op: Operation, shard: Shard, rank: float, adapters: int, name: str, part: float
) -> Iterator[Operation]:  # fmt: skip
    *groups, m, whole, k = op.shape
    n = whole * part
    if adapters > 1:
        groups, m = [(groups[0] if groups else 1.0) * adapters], m / adapters
    count = groups[0] if groups else 1.0
    w = shard.activation_bytes
    row = op.name in SPLIT_BY_ROW
    parts = shard.tp if not row and rank % shard.tp == 0 else 1
    summed = row and shard.tp > 1
    across = Transfer("all_reduce", "tp", m * rank * w) if summed else None
    joined = Transfer("all_gather", "tp", m * rank * w) if parts > 1 else None
    own = m / shard.tp if summed and shard.sequence_parallel else m
    yield product(f"{name} adapter A", ADAPTER, (*groups, m, rank / parts, k), w, across or joined)
    yield product(f"{name} adapter B", ADAPTER, (*groups, own, n, rank), w)
    # Scaled, then added to the layer's output; backward scaled, and the two gradients of the input added.
    yield Operation(
        f"{name} adapter sum",
        ADAPTER,
        "memory",
        forward_bytes=5.0 * w * count * own * n,
        backward_bytes=w * count * (2.0 * own * n + 3.0 * m * k),
        output_bytes=count * own * n * w,
        kernels=2,
    )
