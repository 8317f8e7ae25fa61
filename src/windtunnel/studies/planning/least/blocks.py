"""The distinct blocks of a model (embedding, each kind of layer, head) as the ranks of a layout hold them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from windtunnel.physics.model import Model
from windtunnel.physics.model.layers.layer import embedding_operations, head_operations, layer_operations
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.model_chunks import (
    Piece,
    gathered_share,
    layer_parameters,
    pieces_of,
    shard_of,
)
from windtunnel.studies.training.memory.forward_trace import write
from windtunnel.studies.training.memory.saved_tensors import keeping

EMBEDDING, HEAD = -1, -2  # kinds of block beside the kinds of layer, which count from 0
MODELS_KEPT = 16

_KINDS: OrderedDict[int, tuple[Model, tuple[int, ...]]] = OrderedDict()


def kinds_of(model: Model) -> tuple[int, ...]:
    """The kind of each layer: equal layers have one number."""
    entry = _KINDS.get(id(model))  # hashing a model costs more than all that is asked about it
    if entry is None:
        numbers: dict[object, int] = {}
        entry = _KINDS[id(model)] = (model, tuple(numbers.setdefault(layer, len(numbers)) for layer in model.layers))
        while len(_KINDS) > MODELS_KEPT:
            _KINDS.popitem(last=False)
    return entry[1]


def pairs_of(kinds: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Kinds of neighbouring blocks, each pair once, embedding and head included."""
    chain = (EMBEDDING, *kinds, HEAD)
    return tuple(dict.fromkeys(pairwise(chain)))


def blocks_of(layout: Layout) -> dict[int, Block]:
    """One block of each kind, as the ranks of a layout hold it, none of them recomputed."""
    model, kinds = layout.model, kinds_of(layout.model)
    if not layout.habits.fused_projections:
        piece = _one_stage(layout, tuple(sorted(set(kinds))), "none")
        inner = dict(zip(sorted(set(kinds)), piece.blocks[1:-1], strict=True))
        return {EMBEDDING: piece.blocks[0], **inner, HEAD: piece.blocks[-1]}
    shard = shard_of(layout)
    vocabulary = layout.vocab_padded * model.hidden_size / layout.plan.tp
    blocks = {EMBEDDING: Block(embedding_operations(model, shard), vocabulary)}
    for kind in set(kinds):
        layer = model.layers[kinds.index(kind)]
        blocks[kind] = Block(layer_operations(layer, model, shard, 1.0), *layer_parameters(layout, layer))
    table = 0.0 if model.tied_embeddings else vocabulary
    blocks[HEAD] = Block(head_operations(model, shard, layout.vocab_padded), table)
    return blocks


def _one_stage(layout: Layout, kinds: tuple[int, ...], recompute: str) -> Piece:
    """A model of layers of these kinds as one stage, cut over ranks as in the layout."""
    model, plan = layout.model, layout.plan
    all_kinds = kinds_of(model)
    few = replace(model, layers=tuple(model.layers[all_kinds.index(kind)] for kind in kinds))
    update: dict[str, object] = {
        "pp": 1,
        "virtual_stages": 1,
        "layers_per_stage": None,
        "schedule": None,
        "dp": None,
        "global_batch": plan.micro_batch * (layout.cluster.n_gpus // (plan.tp * plan.cp)),
        "zero_stage": min(1, plan.zero_stage or 0),
        "shard_group": None,
        "offload_activations": 0,
        "offload_optimizer": 0.0,
        "recompute": recompute,
    }
    (piece,) = pieces_of(resolve(few, layout.cluster, plan.with_fields(update)))
    return piece


def kept_bytes(layout: Layout, recompute: str, blocks: Mapping[int, Block]) -> dict[int, int]:
    """What one more layer of each kind keeps of a micro-batch from its forward to its backward pass."""
    plan, keep = layout.plan, keeping(layout.plan.framework, layout.plan.release)
    if plan.pp > 1 and plan.tp > 1 and keep.gathers_again:
        return dict.fromkeys(kinds_of(layout.model), 0)  # then it depends on the depth of the pipeline
    if not layout.habits.fused_projections:
        return _kept_by_pieces(layout, recompute)
    shard, parts = shard_of(layout), plan.with_fields({"recompute": recompute}).recompute_parts
    stream = shard.residual_tokens * layout.model.hidden_size * shard.activation_bytes
    if not keep.gathered_inputs or gathered_share(layout, keep) < 1.0:
        keep = replace(keep, gathered_inputs=False)
    sizes = {}
    for kind, block in blocks.items():
        if kind >= 0:
            tape = write(
                block.operations, stream, keep, parts=parts, recompute=recompute == "full", precision=plan.precision,
                tp=plan.tp, compiled=shard.fused,
            )  # fmt: skip
            sizes[kind] = max(0, sum(size if size else -tape.sizes[slot] for slot, size in tape.forward))
    return sizes


def _kept_by_pieces(layout: Layout, recompute: str) -> dict[int, int]:
    """The same, of whole models of one layer of each kind, and of one with a layer more."""
    kinds = tuple(sorted(set(kinds_of(layout.model))))
    base = _one_stage(layout, kinds, recompute).passes.saved_bytes
    return {
        kind: max(0, _one_stage(layout, tuple(sorted((*kinds, kind))), recompute).passes.saved_bytes - base)
        for kind in kinds
    }


def block_parameters(blocks: Mapping[int, Block]) -> dict[int, tuple[float, float]]:
    """Dense and expert parameters of each block on one rank, before sharding over replicas."""
    return {kind: (block.dense_parameters, block.expert_parameters) for kind, block in blocks.items()}
