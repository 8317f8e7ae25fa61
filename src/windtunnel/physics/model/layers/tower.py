"""What an encoder of images computes on one rank for one micro-batch, ahead of the embedding: ops in order.

A product takes patches in, layers are those of any encoder over the patches of each image, and a norm and products
over `merge` patches at a time make the text model's tokens. Tensor-parallel ranks share layers where they divide,
without sequence parallelism; context-parallel ones encode all images of their sequence (Megatron-Bridge, Qwen3-VL).
Towers compute in 16 bits whatever the text model's GEMMs do.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.architecture import FeedForward, Tower
from windtunnel.physics.model.layers.parts import activate, linear, norm_layer
from windtunnel.physics.model.operations import CAST_BYTES, Operation, Shard

JOINING = FeedForward(size=1, gated=False, activation="gelu")


def tower_shard(tower: Tower, shard: Shard, images: int, patches: int) -> Shard:
    """The shard of an encoder whose text model has `shard`: `images` of a micro-batch, each of so many patches."""
    cut = [number for layer in tower.encoder.layers for number in (layer.attention.heads, layer.feed_forward.size)]
    return replace(
        shard,
        batch=images,
        seq_len=patches + tower.registers,
        cp=1,
        tp=shard.tp if all(size % shard.tp == 0 for size in cut) else 1,
        ep=1,
        etp=1,
        sequence_parallel=False,
        precision="bf16" if shard.precision in CAST_BYTES else shard.precision,
    )


def patch_operations(tower: Tower, shard: Shard) -> tuple[Operation, ...]:
    """The product that takes patches in; no gradient of pixels is wanted."""
    encoder = tower.encoder
    width = encoder.more_weights / encoder.hidden_size
    product = linear("patches", "tower", shard.tokens, encoder.hidden_size, width, shard, side="none", low=False)
    return (replace(product, begins=True),)


def projector_operations(tower: Tower, shard: Shard, images: int, patches: int, begins: bool) -> tuple[Operation, ...]:
    """Norm and products that make tokens of patches; `begins`: nothing before them learns."""
    rows = images * patches / tower.merge
    ops = [norm_layer("final_norm", tower.encoder, replace(shard, tp=1))]
    for number, (k, n) in enumerate(tower.projector):
        product = linear(f"projector_{number}", "tower", rows, n, k, shard, side="none", low=False)
        ops.append(replace(product, begins=begins and number == 0))
        if number + 1 < len(tower.projector):
            ops.append(activate("activation", "tower", rows, n, JOINING, shard))
    return tuple(ops)
