"""The encoders of images and sound on a pipeline's first stage: its blocks in front of the embedding, and their tapes.

A part that learns nothing, and has nothing before it that learns, runs forward without keeping anything; it has no
gradient and no optimizer state. What comes out takes places of the embedding's output, so that its gradient is there
when the layers' backward passes have come down to it.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model import Model
from windtunnel.physics.model.architecture import Layer, Tower
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.layers.tower import patch_operations, projector_operations, tower_shard
from windtunnel.physics.model.operations import Shard
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.memory.forward_trace import Tape, write
from windtunnel.studies.training.memory.saved_tensors import INPUT, Keeping
from windtunnel.studies.training.plan import Plan


def tower_blocks(plan: Plan, tower: Tower, images: int, patches: int, shard: Shard) -> list[Block]:
    """The blocks of a tower that sees so many `images` (or hears clips) of a sequence, in order."""
    images *= plan.micro_batch
    own, encoder, frozen = tower_shard(tower, shard, images, patches), tower.encoder, plan.freezes_tower
    ends = encoder.embedding_parameters + encoder.norm_parameters * encoder.final_norm
    blocks = [Block(patch_operations(tower, own), ends, tower=True, forward_only=frozen)]
    layer_blocks: dict[int, Block] = {}  # by identity: equal layers are one object
    for layer in encoder.layers:
        if id(layer) not in layer_blocks:
            layer_blocks[id(layer)] = _layer_block(layer, encoder, own, plan.recompute_layers is None, frozen)
        blocks.append(layer_blocks[id(layer)])
    # Adapters leave all else as it is; who names what is frozen trains what joins the two.
    alone = frozen and plan.frozen is None
    joined = projector_operations(tower, own, images, patches, frozen)
    return [*blocks, Block(joined, tower.projector_parameters, tower=True, forward_only=alone)]


def _layer_block(layer: Layer, encoder: Model, shard: Shard, recompute: bool, frozen: bool) -> Block:
    parameters = encoder.parameters_of(layer).total / shard.tp
    ops = layer_operations(layer, encoder, shard)
    return Block(ops, parameters, recompute=recompute and not frozen, tower=True, forward_only=frozen)


def tower_tape(block: Block, keep: Keeping, plan: Plan, compiled: bool) -> Tape:
    """What a pass over one block of the tower allocates and frees."""
    first, last = block.operations[0], block.operations[-1]
    stream = first.output_bytes if first.part == "norms" else 0.0  # a norm's is as large as what it reads
    tape = write(
        block.operations, stream, keep, parts=plan.recompute_parts, recompute=block.recompute or block.forward_only,
        precision="bf16", compiled=compiled,
    )  # fmt: skip
    if block.forward_only:  # a checkpoint whose input goes, too
        tape = replace(
            tape, forward=(*tape.forward, (INPUT, 0)), backward=(), incoming=-1, outgoing=-1, weights=(), learners=()
        )
    elif any(op.begins for op in block.operations):
        tape = replace(tape, backward=(*tape.backward, (tape.outgoing, 0)), outgoing=-1)
    if not last.name.startswith("projector"):
        return tape
    # Its output goes into the embedding's, and its gradient is a part of that one's.
    tape = replace(tape, forward=(*tape.forward, (tape.output, 0)), output=-1)
    if block.forward_only:
        return tape
    later = tuple(learner._replace(at=learner.at + 1) for learner in tape.learners)
    arrives = (tape.incoming, tape.sizes[tape.incoming])
    return replace(tape, backward=(arrives, *tape.backward), incoming=-1, learners=later)
