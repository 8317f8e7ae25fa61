"""Pieces: what each virtual stage of a layout holds: blocks of ops, parameters and the tensors of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from windtunnel.physics.cost.device_memory import memory_document
from windtunnel.physics.cost.training import software, training_document
from windtunnel.physics.model import Layer
from windtunnel.physics.model.adapters import frozen_operations, learning, with_adapters
from windtunnel.physics.model.layers.layer import embedding_operations, head_operations, layer_operations
from windtunnel.physics.model.layers.parts import linear
from windtunnel.physics.model.layers.plain import (
    plain_embedding_operations,
    plain_head_operations,
    plain_layer_operations,
)
from windtunnel.physics.model.mixers import streams_of
from windtunnel.physics.model.operations import CAST_BYTES, Operation, Shard
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.layout_checks import towers_of
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.towers import tower_blocks, tower_tape
from windtunnel.studies.training.memory.allocations import Passes
from windtunnel.studies.training.memory.eager.autograd import Style
from windtunnel.studies.training.memory.eager.trace import write_plain
from windtunnel.studies.training.memory.forward_trace import Tape, write
from windtunnel.studies.training.memory.pass_trace import Stringing, Unit, string_together
from windtunnel.studies.training.memory.saved_tensors import Keeping, keeping
from windtunnel.studies.training.plan import Plan
from windtunnel.studies.training.schedules import TRAITS
from windtunnel.studies.training.workload.router_load import RouterLoad, rank_loads_of

# Bytes of gpt-oss' activation in PyTorch over plain SwiGLU's. Eager: two strided halves, two clamps, sigmoid, gate, one
# added, the product: 32 over 6 forward, 60 over 10 backward. No compiler takes in the biases of its experts, whose rows
# routing decides: spread over the rows, joined and added behind both products, 24 more forward and 12 backward
# (torchtitan's `_run_experts_grouped_mm`, AutoModel's `_apply_bias`).
EAGER_CHAIN, COMPILED_CHAIN = 8.0, 3.25
PYTORCH_ATTENTION = ("pytorch", "torchtitan", "fsdp")  # frameworks that call scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Piece:
    """One virtual stage on one rank. Byte and parameter counts are those of the rank before data-parallel sharding."""

    blocks: tuple[Block, ...]
    n_layers: int
    dense_parameters: float
    expert_parameters: float
    learning: tuple[float, float]  # dense and expert parameters that learn
    frozen: tuple[float, float]  # those that do not
    passes: Passes  # what its forward and backward pass allocate and free
    root_bytes: float  # parameters that are gathered all through a pass
    gathered_bytes: float  # gathered parameters, where they stay for longer than a pass
    unsharded_gradient_bytes: float  # where they stay for longer than a pass
    buffer_bytes: float  # of one tensor that it is sent or sends, where there is a buffer for every micro-batch
    unmerged_bytes: float  # weight gradients that a split backward leaves until the next micro-batch adds them up
    key: tuple[object, ...]  # pieces with the same key have the same passes


def shard_of(layout: Layout) -> Shard:
    """The shard that every rank of the layout holds."""
    plan, release = layout.plan, software(layout.plan.release)
    return Shard(
        batch=plan.micro_batch,
        seq_len=plan.seq_len,
        cp=plan.cp,
        cp_kind=plan.cp_kind,
        exchanges_heads=plan.framework == "megatron",  # `tensor_a2a_cp2hp`; elsewhere flash-linear-attention hands on
        tp=plan.tp,
        sequence_parallel=bool(plan.sequence_parallel),
        ep=plan.ep,
        ep_domains=layout.group("ep").domains,
        etp=layout.etp,
        precision=plan.precision,
        fused=bool(plan.compile),
        attention_impl=plan.attention_impl,
        activation_bytes=4 if plan.precision == "fp32" else 2,
        fused_projections=layout.habits.fused_projections,
        fused_norms=_fused_norms(layout),
        gathers_heads=release.gathers_heads and plan.tp > 1,
        deduplicates=layout.deduplicates,
        weighs_in_experts=release.weighs_in_experts and plan.framework == "megatron",
        hybrid_dispatch=layout.hybrid_dispatch,
        routes_whole=layout.habits.routes_whole,
        weighs_in_fp32=layout.habits.weighs_in_fp32,
        fused_exchange=release.fused_exchange,
        masked_dispatch=release.masked_dispatch,
        **_expert_habits(layout),
        low_precision_dispatch=TRAITS[layout.schedule].hides_dispatch and plan.precision in CAST_BYTES,
        activation_input_bytes=1 if plan.fp8_activation_input else 0,
        fused_mla=release.fused_mla and bool(plan.compile),
        loss=plan.loss or (release.loss if plan.framework == "megatron" else ""),
        # Of scaled_dot_product_attention on a GPU; a CPU's kernel takes fp32 and any number of heads.
        fused_groups=plan.precision != "fp32"
        or layout.cluster.gpu.generation == "cpu"
        or plan.framework not in PYTORCH_ATTENTION,
    )


def _expert_habits(layout: Layout) -> dict[str, Any]:
    """How experts are launched, and what their activation moves, by framework and release."""
    habits = {**training_document()["experts"], "experts_impl": layout.experts_impl}
    # Beside torch._grouped_mm PyTorch's own ops, which its compiler fuses.
    pytorch = layout.experts_impl == "grouped" and layout.plan.framework in PYTORCH_ATTENTION
    if pytorch:
        habits["chained_passes"] = COMPILED_CHAIN if layout.plan.compile else EAGER_CHAIN
    if not software(layout.plan.release).chained_activation:
        habits["chained_passes"] = 1.0
    return habits


def _fused_norms(layout: Layout) -> bool:
    """PyTorch has one kernel for it on a GPU; on a CPU it runs the chain of kernels that it once ran everywhere."""
    chained = software(layout.plan.release).chained_norms or layout.cluster.gpu.generation == "cpu"
    return layout.habits.fused_norms and not chained


def pieces_of(layout: Layout, router: RouterLoad | None = None) -> tuple[Piece, ...]:
    """The piece of each virtual stage, in chain order.

    With an uneven router a pass is that of each layer's hottest expert rank, since all wait for it layer by layer, and
    memory that of the rank whose layers together are given most (`training/workload/router_load.py`).
    """
    shard, model, frozen = shard_of(layout), layout.model, layout.plan.freezes_text
    operations: dict[tuple[int, float], tuple[Operation, ...]] = {}  # by identity: equal layers are one object
    distinct: dict[tuple[object, ...], Piece] = {}
    tapes: dict[tuple[object, ...], Tape] = {}
    pieces = []
    last = len(layout.virtual_layers) - 1
    identities = {id(layer): number for number, layer in enumerate(reversed(model.layers))}
    recomputed, offloaded = _recomputed_layers(layout), layout.plan.offload_activations
    loads = rank_loads_of(router, layout)

    def operations_of(number: int, load: float) -> tuple[Operation, ...]:
        layer = model.layers[number]
        if (id(layer), load) not in operations:
            of_layer = layer_operations if shard.fused_projections else plain_layer_operations
            ops = of_layer(layer, model, shard, load)
            operations[id(layer), load] = ops if not frozen else _with_adapters(ops, shard, layout.plan, layer)
        return operations[id(layer), load]

    for stage, numbers in enumerate(layout.virtual_layers):
        if stage == last:
            numbers = (*numbers, *[model.ahead] * layout.predicts_ahead)
        away = tuple(number < offloaded for number in numbers)
        kinds = tuple(identities[id(model.layers[number])] for number in numbers)
        key = (kinds, stage == 0, stage == last, away, tuple((loads.hottest[n], loads.fullest[n]) for n in numbers))
        if key not in distinct:
            layers = [model.layers[number] for number in numbers]
            timed = [operations_of(number, loads.hottest[number]) for number in numbers]
            for_memory = [operations_of(number, loads.fullest[number]) for number in numbers]
            if stage == last and layout.predicts_ahead:
                timed, for_memory = (_ahead(layout, shard, ops) for ops in (timed, for_memory))
            distinct[key] = _piece(
                layout, shard, layers, timed, for_memory, key, stage == 0, stage == last, recomputed, away, tapes
            )
        pieces.append(distinct[key])
    return tuple(pieces)


def _ahead(layout: Layout, shard: Shard, layers: list[tuple[Operation, ...]]) -> list[tuple[Operation, ...]]:
    """The last layers are those of multi-token prediction: each behind a product that joins states and embeddings."""
    h, n = layout.model.hidden_size, layout.predicts_ahead
    join = linear("mtp_projection", "mtp", shard.tokens / shard.tp, h, 2.0 * h, shard, side="none", low=False)
    return [*layers[:-n], *((join, *ops) for ops in layers[-n:])]


def _recomputed_layers(layout: Layout) -> int:
    layers = layout.plan.recompute_layers
    return layout.model.n_layers if layers is None else layers


def _piece(
    layout: Layout, shard: Shard, layers: list[Layer], timed: list[tuple[Operation, ...]],
    for_memory: list[tuple[Operation, ...]], key: tuple[object, ...], first: bool, last: bool, recomputed: int,
    away: tuple[bool, ...], tapes: dict[tuple[object, ...], Tape],
) -> Piece:  # fmt: skip
    model, plan = layout.model, layout.plan
    blocks: list[Block] = []
    stream = shard.residual_tokens * model.hidden_size * shard.activation_bytes * streams_of(model)
    vocabulary = layout.vocab_padded * model.hidden_size / plan.tp
    if first:
        blocks += [block for tower in towers_of(plan, model) for block in tower_blocks(plan, *tower, shard)]
        positions = model.learned_positions * model.hidden_size
        norm = model.norm_parameters * model.embedding_norm + model.more_weights + model.more_parameters
        look_up = (embedding_operations if shard.fused_projections else plain_embedding_operations)(model, shard)
        blocks.append(Block(look_up, vocabulary + positions + norm))
    counts: dict[int, tuple[float, float]] = {}  # by identity: equal layers are one object
    for number, (layer, ops) in enumerate(zip(layers, timed, strict=True)):
        if id(layer) not in counts:
            counts[id(layer)] = layer_parameters(layout, layer)
        dense, expert = counts[id(layer)]
        dense += sum(op.weight_elements for op in ops if op.part == "mtp")
        again = number < recomputed
        blocks.append(Block(ops, dense, expert, recompute=again, offload=away[number], input_bytes=stream))
    if last:
        # A tied table on its own pipeline rank is a second copy; without a pipeline it is the embedding's.
        table = 0.0 if model.tied_embeddings and first else vocabulary
        head = (
            head_operations(model, shard, layout.vocab_padded, 1 + layout.predicts_ahead)
            if shard.fused_projections
            else plain_head_operations(model, shard)
        )
        bias = model.output_bias * layout.vocab_padded / plan.tp
        blocks.append(Block(head, table + bias + model.norm_parameters * model.final_norm))
    if plan.freezes_text:
        blocks = [block if block.tower else _adapted(block, shard) for block in blocks]
    keep = keeping(plan.framework, plan.release)
    if keep.loss["logits_kept"] == "pipelined":
        keep = replace(keep, loss={**keep.loss, "logits_kept": plan.pp > 1})
    if software(plan.release).adapter_reads:
        keep = replace(keep, adapter_outputs=True)
    if plan.loss:
        losses = memory_document()["losses"]
        keep = replace(keep, loss=losses.get(f"{plan.framework}-{plan.loss}", losses[plan.loss]))
    ends = [number for number, block in enumerate(blocks) if block.is_end]
    root = 0.0
    if keep.root_gathered and layout.gathers_in_passes:
        root = sum(blocks[number].dense_parameters for number in set(ends)) * shard.activation_bytes
    own = iter(for_memory)
    memory_blocks = [block if block.is_end or block.tower else _with_operations(block, next(own)) for block in blocks]
    received = 0 if first else int(stream)
    how = _stringing(layout, keep, first)
    if shard.fused_projections:
        units = _units(layout, shard, memory_blocks, keep, tapes, ends if root else [])
        later = None
        if _by_autograd(layout):  # gradients are there, and others are added to them one by one
            added = replace(keep, weight_gradients=False, stand_in=True)
            later = _units(layout, shard, memory_blocks, added, {}, [])
        passes = string_together(units, received, how, later)
    else:
        units, later = (_plain_units(layout, shard, memory_blocks, keep, tapes, later=which) for which in (False, True))
        passes = string_together(units, received, how, later)
    parameters = sum(block.dense_parameters + block.expert_parameters for block in blocks)
    learning = (sum(block.learning[0] for block in blocks), sum(block.learning[1] for block in blocks))
    trained = sum(block.learning[0] + block.learning[1] for block in blocks)
    summed = trained + (vocabulary * (_table_parts(layout) - 1) if first and not plan.freezes_text else 0.0)
    return Piece(
        blocks=tuple(blocks),
        n_layers=len(layers),
        dense_parameters=sum(block.dense_parameters for block in blocks),
        expert_parameters=sum(block.expert_parameters for block in blocks),
        learning=learning,
        frozen=(sum(block.frozen[0] for block in blocks), sum(block.frozen[1] for block in blocks)),
        passes=passes,
        root_bytes=root,
        gathered_bytes=parameters * _gathered_width(layout, shard)
        if layout.shares_once and plan.zero_stage == 3
        else 0.0,
        unsharded_gradient_bytes=summed * layout.gradient_bytes if layout.shares_once else 0.0,
        buffer_bytes=stream if how.buffers else 0.0,
        unmerged_bytes=trained * shard.activation_bytes if layout.shares_once and how.split == "graph" else 0.0,
        key=key,
    )


def _with_operations(block: Block, operations: tuple[Operation, ...]) -> Block:
    return block if operations is block.operations else replace(block, operations=operations)


def _with_adapters(
    operations: Sequence[Operation], shard: Shard, plan: Plan, layer: Layer
) -> tuple[Operation, ...]:  # fmt: skip
    heads, pairs = layer.attention.heads, 2 * layer.attention.kv_heads
    share = heads / (heads + pairs)
    if not plan.lora_rank:
        return frozen_operations(operations, shard)
    return with_adapters(operations, shard, plan.lora_rank, plan.lora_targets, plan.lora_adapters, share)


def _adapted(block: Block, shard: Shard) -> Block:
    """A block whose own weights are frozen; layers have their adapters already, embedding and head have none."""
    if block.is_end:
        return replace(block, operations=frozen_operations(block.operations, shard), adapters=0.0)
    return replace(block, adapters=learning(block.operations))


def _table_parts(layout: Layout) -> int:
    """Of how many ranks' parts the embedding's gradient is at first: DTensor makes that of the whole table on each."""
    return layout.plan.tp if layout.habits.copies_exchanges else 1


def fresh_gradients(layout: Layout) -> bool:
    """Whether gradients are made anew in every step, and not kept in buffers of their own."""
    keep = keeping(layout.plan.framework)
    return layout.habits.pure_precision or (keep.weight_gradients and layout.reduces_in_passes) or _by_autograd(layout)


def _by_autograd(layout: Layout) -> bool:
    """Whether unsharded parameters have the gradients that autograd gives them, until the optimizer has run."""
    return keeping(layout.plan.framework).autograd_keeps and layout.zero_stage < 2


def _stringing(layout: Layout, keep: Keeping, first: bool) -> Stringing:
    stage, whole = layout.zero_stage, layout.habits.pure_precision or _by_autograd(layout)
    split: Literal["", "linears", "graph", "late"] = ""
    if layout.plan.pp > 1 and TRAITS[layout.schedule].splits_backward:
        # The first stage of torch.distributed.pipelining does everything in the second half.
        split = "linears" if not keep.torch_pipelining else "late" if first else "graph"
    buffers = keep.torch_pipelining and layout.plan.pp > 1
    return Stringing(at_once=stage >= 2, stays=whole, fsdp2=keep.fsdp2, split=split, buffers=buffers)


def _gathered_width(layout: Layout, shard: Shard) -> int:
    return 1 if layout.plan.fp8_parameters else shard.activation_bytes


def tensors_of(pieces: Sequence[Piece]) -> list[float]:
    """Elements of each parameter tensor, in plain PyTorch."""
    tensors: list[float] = []
    for op in (op for piece in pieces for block in piece.blocks for op in block.operations):
        if op.weight_elements:
            rounds = max(1, op.repeats)
            tensors += [op.weight_elements / rounds] * rounds
    return tensors


def _units(
    layout: Layout,
    shard: Shard,
    blocks: list[Block],
    keep: Keeping,
    tapes: dict[tuple[object, ...], Tape],
    ends: list[int],
) -> list[Unit]:
    plan = layout.plan
    stage = layout.zero_stage
    if stage >= 2:  # gradients leave block by block, so a block's are made apart
        keep = replace(keep, weight_gradients=True)
    keep = replace(keep, quantised_weights=layout.casts_weights and not keep.fsdp2)
    bare = replace(keep, gathered_inputs=False)
    share = gathered_share(layout, keep) if keep.gathered_inputs else 0.0
    made = keep.weight_gradients or keep.autograd_keeps
    stream = shard.residual_tokens * layout.model.hidden_size * shard.activation_bytes * streams_of(layout.model)
    width = _gathered_width(layout, shard)
    units = []
    for number, block in enumerate(blocks):
        # A share of the blocks, evenly spread.
        whole = int((number + 1) * share) > int(number * share)
        embeds = block.operations[0].name == "embedding"
        table = block.dense_parameters * _table_parts(layout) * shard.activation_bytes if embeds else 0.0
        key = (id(block.operations), block.recompute, block.offload, whole, table)
        if key not in tapes and block.tower:
            tapes[key] = tower_tape(block, keep if whole else bare, plan, shard.fused)
        elif key not in tapes:
            tapes[key] = write(
                block.operations, 0.0 if table else stream, keep if whole else bare, parts=plan.recompute_parts,
                recompute=block.recompute, offload=block.offload, precision=plan.precision, tp=plan.tp,
                table_bytes=table if made and block.adapters is None else 0.0, compiled=shard.fused,
            )  # fmt: skip
        parameters = block.dense_parameters + block.expert_parameters
        gathered = parameters * width if layout.gathers_in_passes and number not in ends else 0.0
        learns, experts = block.learning
        reduced = (learns + experts) * layout.gradient_bytes if layout.reduces_in_passes else 0.0
        shard_bytes = 0.0
        if fresh_gradients(layout):
            own = learns / layout.shard_group + experts / layout.group("edp").size
            shard_bytes = own * layout.kept_gradient_bytes
        flat = gathered
        if number in ends[:1]:
            flat = width * sum(blocks[end].dense_parameters + blocks[end].expert_parameters for end in set(ends))
        if not keep.fsdp2 or layout.shard_group == 1:
            flat = 0.0
        sizes = (int(gathered), int(flat), int(reduced), int(shard_bytes))
        units.append(Unit(tapes[key], *sizes, number in ends))
    return units


def _plain_units(
    layout: Layout,
    shard: Shard,
    blocks: list[Block],
    keep: Keeping,
    tapes: dict[tuple[object, ...], Tape],
    *,
    later: bool,
) -> list[Unit]:
    """As `_units`, for plain PyTorch; `later` than the first micro-batch, gradients are there already."""
    width = shard.activation_bytes
    # `compile` is of layers: embedding and head stay as they are.
    on_cpu = layout.cluster.gpu.generation == "cpu"
    stream = shard.residual_tokens * layout.model.hidden_size * width * streams_of(layout.model)
    units = []
    for block in blocks:
        key = (id(block.operations), block.recompute, block.offload, later)
        if key not in tapes:
            # The table's gradient is as large as the table; that of a tied one is added to the output matrix's.
            table = layout.model.vocab_size * layout.model.hidden_size * width
            embeds = block.operations[0].name == "embedding"
            style = Style(width, on_cpu, compiled=shard.fused and not block.is_end)
            tapes[key] = write_plain(
                block.operations, 0.0 if embeds else stream, keep, style, recompute=block.recompute,
                offload=block.offload, later=later, table_bytes=table if embeds else 0.0,
            )  # fmt: skip
        units.append(Unit(tapes[key]))
    return units


def gathered_share(layout: Layout, keep: Keeping) -> float:
    """Share of the gathered inputs of column-parallel GEMMs that stays, where the framework lets them stay."""
    plan, rules = layout.plan, memory_document()["gathered"]
    if plan.tp == 1 or not plan.sequence_parallel:
        return 0.0
    if not keep.gathers_again:
        return 1.0
    if plan.tp > rules["tp_most"]:
        return 0.0
    return 1.0 if plan.pp == 1 else max(0.0, 1.0 - float(rules["released"]) / plan.pp)


def layer_parameters(layout: Layout, layer: Layer) -> tuple[float, float]:
    """Dense and expert parameters of one layer on one rank, before data-parallel sharding."""
    model, plan = layout.model, layout.plan
    counts = model.parameters_of(layer)
    attention = layer.attention
    share = 1.0 / plan.tp
    if plan.tp > attention.kv_heads and attention.kind == "gqa":  # key and value heads are replicated
        kv = model.hidden_size * attention.kv_heads * (attention.head_dim + attention.value_head_dim)
        extra = kv * (1.0 / attention.kv_heads - share)
    elif attention.kind == "mla":  # the latents' projections are on every tensor-parallel rank
        down = (attention.q_lora_rank or 0) + (attention.kv_lora_rank or 0) + attention.rope_head_dim
        extra = model.hidden_size * down * (1.0 - share)
    else:
        extra = 0.0
    dense = (counts.attention + counts.dense + counts.shared) * share + extra + counts.norms + counts.router
    return dense, counts.experts / (plan.ep * layout.etp)
