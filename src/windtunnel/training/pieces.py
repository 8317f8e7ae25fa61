"""Pieces: what each virtual stage of a layout holds: blocks of ops, parameters and the activations it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.model import Layer
from windtunnel.model.operations import (
    Operation,
    Shard,
    embedding_operations,
    head_operations,
    layer_operations,
)
from windtunnel.training.layout import Layout
from windtunnel.training.segments import Block


@dataclass(frozen=True, slots=True)
class Piece:
    """One virtual stage on one rank. Byte and parameter counts are those of the rank before data-parallel sharding."""

    blocks: tuple[Block, ...]
    n_layers: int
    dense_parameters: float
    expert_parameters: float
    saved_bytes: float  # activations kept from forward to backward, one micro-batch
    forward_workspace_bytes: float  # largest transient of the forward pass
    backward_workspace_bytes: float
    key: tuple[object, ...]  # pieces with the same key have the same passes


def shard_of(layout: Layout) -> Shard:
    """The shard that every rank of the layout holds."""
    plan = layout.plan
    return Shard(
        batch=plan.micro_batch,
        seq_len=plan.seq_len,
        cp=plan.cp,
        cp_kind=plan.cp_kind,
        tp=plan.tp,
        sequence_parallel=bool(plan.sequence_parallel),
        ep=plan.ep,
        etp=layout.etp,
        precision=plan.precision,
        fused=bool(plan.compile),
        attention_impl=plan.attention_impl,
        activation_bytes=4 if plan.precision == "fp32" else 2,
    )


def pieces_of(layout: Layout) -> tuple[Piece, ...]:
    """The piece of each virtual stage, in chain order."""
    shard, model = shard_of(layout), layout.model
    built: dict[int, tuple[Operation, ...]] = {}  # by identity: equal layers are nearly always one object
    known: dict[tuple[object, ...], Piece] = {}
    pieces = []
    last = len(layout.virtual_layers) - 1
    identities = {id(layer): number for number, layer in enumerate(reversed(model.layers))}
    recomputed, offloaded = _recomputed_layers(layout), layout.plan.offload_activations
    for stage, numbers in enumerate(layout.virtual_layers):
        away = tuple(number < offloaded for number in numbers)
        kinds = tuple(identities[id(model.layers[number])] for number in numbers)
        key = (kinds, stage == 0, stage == last, away)
        if key not in known:
            layers = [model.layers[number] for number in numbers]
            for layer in layers:
                if id(layer) not in built:
                    built[id(layer)] = layer_operations(layer, model, shard)
            operations = [built[id(layer)] for layer in layers]
            known[key] = _piece(layout, shard, layers, operations, key, stage == 0, stage == last, recomputed, away)
        pieces.append(known[key])
    return tuple(pieces)


def _recomputed_layers(layout: Layout) -> int:
    layers = layout.plan.recompute_layers
    return layout.model.n_layers if layers is None else layers


def _piece(
    layout: Layout, shard: Shard, layers: list[Layer], operations: list[tuple[Operation, ...]], key: tuple[object, ...],
    first: bool, last: bool, recomputed: int, away: tuple[bool, ...],
) -> Piece:  # fmt: skip
    model, plan = layout.model, layout.plan
    blocks: list[Block] = []
    vocabulary = layout.vocab_padded * model.hidden_size / plan.tp
    if first:
        positions = model.learned_positions * model.hidden_size
        blocks.append(Block(embedding_operations(model, shard), vocabulary + positions))
    for number, (layer, ops) in enumerate(zip(layers, operations, strict=True)):
        dense, expert = layer_parameters(layout, layer)
        blocks.append(Block(ops, dense, expert, recompute=number < recomputed, offload=away[number]))
    if last:
        # A tied table on its own pipeline rank is a second copy; without a pipeline it is the embedding's.
        table = 0.0 if model.tied_embeddings and first else vocabulary
        blocks.append(Block(head_operations(model, shard, layout.vocab_padded), table + model.norm_parameters))
    saved = [_saved(block, layout, shard) for block in blocks]
    width = shard.tokens * model.hidden_size * shard.activation_bytes
    outputs = [max((_transient(op, width) for op in block.operations), default=0.0) for block in blocks]
    again = max((_kept_whole(block) for block in blocks if block.recompute), default=0.0)
    partial = max((_kept_whole(block) - kept for block, kept in zip(blocks, saved, strict=True)), default=0.0)
    return Piece(
        blocks=tuple(blocks),
        n_layers=len(layers),
        dense_parameters=sum(block.dense_parameters for block in blocks),
        expert_parameters=sum(block.expert_parameters for block in blocks),
        saved_bytes=sum(saved),
        forward_workspace_bytes=max(outputs, default=0.0),
        backward_workspace_bytes=2 * max(outputs, default=0.0) + max(again, partial if plan.recompute_parts else 0.0),
        key=key,
    )


def layer_parameters(layout: Layout, layer: Layer) -> tuple[float, float]:
    """Dense and expert parameters of one layer on one rank, before data-parallel sharding."""
    model, plan = layout.model, layout.plan
    counts = model.parameters_of(layer)
    attention = layer.attention
    share = 1.0 / plan.tp
    if plan.tp > attention.kv_heads and attention.kind == "gqa":  # key and value heads are replicated
        kv = model.hidden_size * attention.kv_heads * (attention.head_dim + attention.value_head_dim)
        extra = kv * (1.0 / attention.kv_heads - share)
    else:
        extra = 0.0
    dense = (counts.attention + counts.dense + counts.shared) * share + extra + counts.norms + counts.router
    return dense, counts.experts / (plan.ep * layout.etp)


def _saved(block: Block, layout: Layout, shard: Shard) -> float:
    """Bytes that stay on the device between forward and backward of one micro-batch."""
    ops = block.operations
    stream = shard.residual_tokens * layout.model.hidden_size * shard.activation_bytes
    if block.recompute:
        return stream
    if block.offload:
        return 0.0
    parts = layout.plan.recompute_parts
    total = 0.0
    for number, op in enumerate(ops):
        if op.part in ("head", "embedding"):
            total += op.saved_bytes
        elif op.kind in ("gemm", "grouped_gemm"):
            total += 0.0 if _input_is_recomputed(ops, number, parts) else op.saved_bytes
            total += op.output_bytes / 2 if "ops" in parts else 0.0  # every other matrix product's output is kept
        elif not _drops_own(op, parts):
            total += op.saved_bytes
    if parts & {"attention", "mlp", "ops"}:
        total += stream
    return total


def _input_is_recomputed(ops: tuple[Operation, ...], number: int, parts: frozenset[str]) -> bool:
    op, previous = ops[number], ops[number - 1] if number else None
    if "ops" in parts:
        return True  # the policy keeps GEMM outputs, not inputs; see `_drops_own`
    if op.part in parts and op.part in ("attention", "mlp"):
        return True
    return previous is not None and previous.part in parts and previous.kind == "memory"


def _drops_own(op: Operation, parts: frozenset[str]) -> bool:
    if op.part == "core_attention":
        return bool(parts & {"attention", "core_attention"}) and op.name in ("softmax", "core_attention")
    if "ops" in parts:
        return op.kind == "memory" and op.name != "residual_1"
    return op.part in parts and op.part not in ("norms", "activation", "moe_activation")


def _kept_whole(block: Block) -> float:
    return sum(op.saved_bytes for op in block.operations)


def _transient(op: Operation, width: float) -> float:
    return op.output_bytes + (width if op.before is not None or op.regather is not None else 0.0)
