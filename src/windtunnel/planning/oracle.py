"""What the planner asks of the training study: legality, prices of passes, memory and the replayed step.

The only file of `planning` that knows how `training` is built. The planner owns no physics: legality is `resolve` and
`schedule`, time and memory are those that `predict` gives, to the nanosecond and the byte.

    replayed(layout)      step time and peak memory, as `predict` has them, without the reading of the timeline
    block_costs(layout)   shortest times of single blocks (embedding, each kind of layer, head), from the same passes

A block's shortest times hold for any pass that it is part of. In a pass, ops of one stream run in order and nothing
runs faster beside something else than alone; so the longest path through the ops at their prices alone is a lower bound
of the pass. Blocks follow each other on the compute stream, so with c(k) the last compute op of block k

    pass of blocks 1..n  >=  lead(1) + sum of step(k-1, k) + trail(n)
    lead(k)     longest path from the start to c(k), block k first
    step(j, k)  longest path from c(j) to c(k), block k behind block j
    trail(k)    longest path from c(k) to the end

and it is no shorter than all its launches on the host thread. Each is read off the pass over a pair of blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.price import Price
from windtunnel.cost.training import calibrated_training_costs, training_costs
from windtunnel.graph import OpKind
from windtunnel.hardware import Cluster
from windtunnel.model import Model
from windtunnel.model.layer_operations import embedding_operations, head_operations, layer_operations
from windtunnel.model.operations import Operation, Transfer
from windtunnel.training import Plan, predict, read_plan
from windtunnel.training.launch.megatron import hides_exchange
from windtunnel.training.layout import PEAK_DTYPE, Layout, resolve
from windtunnel.training.lowering.block import Block
from windtunnel.training.lowering.model_chunks import Piece, fresh_gradients, layer_parameters, pieces_of, shard_of
from windtunnel.training.lowering.pass_builder import PassBuilder
from windtunnel.training.lowering.pass_lowering import Phase, build_pass
from windtunnel.training.lowering.shards.step_shards import BUCKETS_MOST, gathers_first, reduces_last
from windtunnel.training.lowering.simulated import simulate
from windtunnel.training.memory.model_state import optimizer_price, state_bytes
from windtunnel.training.memory.peak import outside_bytes, peak_bytes
from windtunnel.training.memory.saved_tensors import keeping
from windtunnel.training.mixed import check_lies_on_one
from windtunnel.training.plan import RECOMPUTE_PARTS
from windtunnel.training.pricing import GRADIENT_BYTES, Pricer, nanoseconds, parameter_bytes
from windtunnel.training.question import Question
from windtunnel.training.schedules import NAMES as SCHEDULES
from windtunnel.training.schedules import TRAITS, Kind, Schedule, check, legal, schedule, walk

__all__ = [
    "PEAK_DTYPE",
    "RECOMPUTE_PARTS",
    "SCHEDULES",
    "Block",
    "Layout",
    "Plan",
    "Question",
    "check_lies_on_one",
    "hides_exchange",
    "predict",
    "read_plan",
]  # with what is defined below

Key = TypeVar("Key")
EMBEDDING, HEAD = -1, -2  # kinds of block beside the kinds of layer, which count from 0
PIECES_KEPT = 256
MODELS_KEPT = 16
CATEGORIES = 8  # of memory at most, each rounded down to a whole byte


def laid_out(model: Model, cluster: Cluster, plan: Plan) -> Layout:
    """The plan as it would run. Raises UserError where `predict` would: a degree or a schedule that cannot be."""
    layout = resolve(model, cluster, plan)
    legal(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return layout


def table_of(layout: Layout) -> Schedule:
    """The schedule's table of actions, checked."""
    found = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    check(found)
    return found


@dataclass(frozen=True, slots=True)
class Replayed:
    """One plan, replayed event by event."""

    step_ns: int
    peak_bytes: int
    capacity_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the fullest rank has the memory, without giving back what it caches."""
        return self.peak_bytes <= self.capacity_bytes


_PIECES: OrderedDict[tuple[object, ...], tuple[Model, tuple[Piece, ...]]] = OrderedDict()
# Fields that change the time of a step but no tensor of it.
_NO_TENSOR: dict[str, object] = {
    "overlap_grad_reduce": None,
    "overlap_param_gather": None,
    "overlap_p2p": None,
    "overlap_ep": None,
    "overlap_tp": None,
    "cuda_graphs": None,
}


def pieces(layout: Layout) -> tuple[Piece, ...]:
    """The pieces of a layout, remembered: plans that differ in overlap and launch only share them."""
    key = (id(layout.model), layout.cluster, layout.plan.model_copy(update=_NO_TENSOR), layout.etp)
    found = _PIECES.get(key)
    if found is None:
        found = _PIECES[key] = (layout.model, pieces_of(layout))
        while len(_PIECES) > PIECES_KEPT:
            _PIECES.popitem(last=False)
    return found[1]


def memory_bytes(layout: Layout) -> int:
    """What the fullest rank needs on its device; nothing is timed for it.

    No plan is proposed that fits only because its allocator gives cached memory back, again and again: nobody can say
    how long its step takes.
    """
    return peak_bytes(layout, pieces(layout), table_of(layout))


def replayed(layout: Layout) -> Replayed:
    """Step time and peak memory of one plan."""
    pricer = Pricer(layout)
    simulated = simulate(layout, pieces(layout), table_of(layout), pricer)
    waiting = round(simulated.makespan_ns * pricer.training.straggling(layout.cluster.n_gpus))
    return Replayed(simulated.makespan_ns + waiting, memory_bytes(layout), layout.cluster.gpu.usable_memory_bytes)


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """Shortest times in ns by pass (FORWARD or BACKWARD) and kind of block; `step` by the block before it too.

    `busy`: of each stream, the host thread among them, by block. A backward in two halves is the sum of both.
    """

    lead: dict[tuple[int, int], int] = field(default_factory=dict)
    step: dict[tuple[int, int, int], int] = field(default_factory=dict)
    trail: dict[tuple[int, int], int] = field(default_factory=dict)
    busy: dict[tuple[str, int, int], int] = field(default_factory=dict)


FORWARD, BACKWARD = 0, 1
WHOLE = {BACKWARD: (Phase.BACKWARD,)}
IN_HALVES = {BACKWARD: (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)}


_KINDS: OrderedDict[int, tuple[Model, tuple[int, ...]]] = OrderedDict()


def kinds_of(model: Model) -> tuple[int, ...]:
    """The kind of each layer: equal layers have one number."""
    found = _KINDS.get(id(model))  # hashing a model costs more than all that is asked about it
    if found is None:
        known: dict[object, int] = {}
        found = _KINDS[id(model)] = (model, tuple(known.setdefault(layer, len(known)) for layer in model.layers))
        while len(_KINDS) > MODELS_KEPT:
            _KINDS.popitem(last=False)
    return found[1]


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
    found = {EMBEDDING: Block(embedding_operations(model, shard), vocabulary)}
    for kind in set(kinds):
        layer = model.layers[kinds.index(kind)]
        found[kind] = Block(layer_operations(layer, model, shard, 1.0), *layer_parameters(layout, layer))
    table = 0.0 if model.tied_embeddings else vocabulary
    found[HEAD] = Block(head_operations(model, shard, layout.vocab_padded), table)
    return found


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
    (piece,) = pieces_of(resolve(few, layout.cluster, plan.model_copy(update=update)))
    return piece


def kept_bytes(layout: Layout, recompute: str) -> dict[int, int]:
    """What one more layer of each kind keeps of a micro-batch from its forward to its backward pass."""
    plan = layout.plan
    if plan.pp > 1 and plan.tp > 1 and keeping(plan.framework).gathers_again:
        return dict.fromkeys(kinds_of(layout.model), 0)  # then it depends on the depth of the pipeline
    kinds = tuple(sorted(set(kinds_of(layout.model))))
    base = _one_stage(layout, kinds, recompute).passes.saved_bytes
    return {
        kind: max(0, _one_stage(layout, tuple(sorted((*kinds, kind))), recompute).passes.saved_bytes - base)
        for kind in kinds
    }


def calm(pricer: Pricer) -> Pricer:
    """The same prices where nothing slows anything else: every op takes the time that it takes alone."""
    other = copy(pricer)
    other.training = replace(pricer.training, compute_by_scale_up=0.0, compute_by_scale_out=0.0, comm_by_compute=0.0)
    other.nic_share = lambda transfer: 0.0  # type: ignore[method-assign]
    return other


def splits_backward(layout: Layout) -> bool:
    """Whether the gradients of inputs and of weights are passes of their own."""
    return layout.plan.pp > 1 and TRAITS[layout.schedule].splits_backward


def block_costs(
    layout: Layout, blocks: Mapping[int, Block], *, recompute: bool, forward: BlockCosts | None = None
) -> BlockCosts:
    """Shortest times of the blocks of a layout; `recompute`: of layers that are recomputed in full; `forward`: those
    of forward passes, where they are known.

    A schedule that splits backward passes may leave some of them whole: then what is less of the two.
    """
    if forward is None:
        forward = forward_costs(layout, blocks)
    whole = _costs_of(layout, blocks, WHOLE, recompute=recompute)
    if splits_backward(layout):
        halves = _costs_of(layout, blocks, IN_HALVES, recompute=recompute)
        whole = BlockCosts(
            lead=_less(whole.lead, halves.lead),
            step=_less(whole.step, halves.step),
            trail=_less(whole.trail, halves.trail),
            busy=_less(whole.busy, halves.busy),
        )
    return BlockCosts(
        lead=forward.lead | whole.lead,
        step=forward.step | whole.step,
        trail=forward.trail | whole.trail,
        busy=forward.busy | whole.busy,
    )


def forward_costs(layout: Layout, blocks: Mapping[int, Block]) -> BlockCosts:
    """Those of forward passes: the same whatever is recomputed, and however backward passes are split."""
    return _costs_of(layout, blocks, {FORWARD: (Phase.FORWARD,)}, recompute=False)


def _less(one: dict[Key, int], two: Mapping[Key, int]) -> dict[Key, int]:
    return {key: min(value, two.get(key, 0)) for key, value in one.items()}


def _costs_of(
    layout: Layout, blocks: Mapping[int, Block], passes: Mapping[int, tuple[Phase, ...]], *, recompute: bool
) -> BlockCosts:
    pricer, costs = calm(Pricer(layout)), BlockCosts()
    own = {kind: replace(block, recompute=recompute and kind >= 0) for kind, block in blocks.items()}
    for which, phases in passes.items():
        alone = {(kind, phase): build_pass(pricer, [own[kind]], phase) for kind in own for phase in phases}
        for (kind, _), built in alone.items():
            _add_busy(costs, which, kind, built)
        lead: dict[int, list[int]] = {}
        trail: dict[int, list[int]] = {}
        for one, two in pairs_of(kinds_of(layout.model)):
            before, after = (one, two) if which == FORWARD else (two, one)
            totals = [0, 0, 0]
            for phase in phases:
                begins = alone[before, phase].builder.lists()[0].count(OpKind.COMPUTE)
                parts = _paths(build_pass(pricer, [own[one], own[two]], phase), begins)
                totals = [total + part for total, part in zip(totals, parts, strict=True)]
            first, costs.step[which, before, after], last = totals
            lead.setdefault(before, []).append(first)
            trail.setdefault(after, []).append(last)
        costs.lead.update({(which, kind): min(values) for kind, values in lead.items()})
        costs.trail.update({(which, kind): min(values) for kind, values in trail.items()})
    return costs


def _add_busy(costs: BlockCosts, which: int, kind: int, one: PassBuilder) -> None:
    """Of each stream. What embedding and head gather and reduce may be done for both at once: left out."""
    _, streams, _, _, durations, names = one.builder.lists()
    total = [0] * len(names)
    for stream, duration in zip(streams, durations, strict=True):
        total[stream] += duration
    for name, busy in zip(names, total, strict=True):
        if kind >= 0 or name == "host":
            key = (name, which, kind)
            costs.busy[key] = costs.busy.get(key, 0) + busy


def _paths(pair: PassBuilder, begins: int) -> tuple[int, int, int]:
    """Of a pass over two blocks, the first of which has `begins` compute ops: lead, step and trail."""
    kinds, _, _, _, duration, _ = pair.builder.lists()
    compute = [op for op, kind in enumerate(kinds) if kind == OpKind.COMPUTE]
    if begins == 0 or begins == len(compute):  # one of them computes nothing: only what surely follows counts
        inner = sum(duration[op] for op in compute)
        return (inner, 0, 0) if begins else (0, inner, 0)
    one, two = compute[begins - 1], compute[-1]
    # Where nothing slows anything an op ends when the longest path to it does.
    return _longest(pair, None)[one], _longest(pair, one)[two], max(_longest(pair, two))


def _longest(one: PassBuilder, source: int | None) -> list[int]:
    """Longest path from the end of `source` to the end of each op, 0 where there is none; from the start for None."""
    _, streams, pointer, index, duration, names = one.builder.lists()
    nothing = 0 if source is None else -1
    found = [-1] * len(duration)
    before = [nothing] * len(names)  # of each stream: the path to its last op
    begin = 0
    if source is not None:
        found[source] = before[streams[source]] = 0
        begin = source + 1
    for op in range(begin, len(duration)):
        stream = streams[op]
        latest = before[stream]
        for other in index[pointer[op] : pointer[op + 1]]:
            if found[other] > latest:
                latest = found[other]
        if latest >= 0:
            found[op] = latest + duration[op]
            before[stream] = found[op]
    return [max(path, 0) for path in found]


def block_work(layout: Layout, blocks: Mapping[int, Block]) -> dict[tuple[int, int], int]:
    """Nanoseconds that each block takes at least, by pass and kind: op by op, at the best switches, without launches.

    Until the op behind it can start, an op takes its kernel, and no less than any one transfer that it waits for or
    that the op behind it waits for; a ring takes all of its exchanges and the last part of its kernel.
    """
    pricer, plan = Pricer(layout), layout.plan
    slack = 1 + plan.cp  # of rounding each part of an op to whole nanoseconds
    again = not keeping(plan.framework).keeps_all_inputs

    def kernel(price: Price) -> int:
        return max(0, nanoseconds(price.seconds) - slack)

    def sent(transfer: Transfer | None) -> int:
        return 0 if transfer is None else max(0, nanoseconds(pricer.transfer(transfer)[0].seconds) - slack)

    def forward(op: Operation) -> int:
        if op.backward_only:
            return 0
        if op.kind == "transfer":
            return _dispatched(op.before)
        if op.kind == "attention" and op.before is not None:
            whole = kernel(pricer.forward(op))
            return max(whole, (plan.cp - 1) * sent(op.before) + whole // plan.cp)
        return max(kernel(pricer.forward(op)), sent(op.before), sent(op.after))

    def backward(op: Operation) -> int:
        if op.kind == "transfer":
            return _dispatched(op.before_backward)
        if op.kind == "attention":
            whole = kernel(pricer.input_gradient(op))
            return whole if op.before is None else max(whole, 2 * (plan.cp - 1) * sent(op.before) + whole // plan.cp)
        if op.kind == "memory":
            return sent(op.before_backward) + (kernel(pricer.input_gradient(op)) if op.backward_bytes else 0)
        gathered = sent(op.regather) if again and op.weight_elements else 0
        inputs = max(kernel(pricer.input_gradient(op)), sent(op.before_backward), gathered)
        return inputs + max(kernel(pricer.weight_gradient(op)) if op.weight_elements else 0, sent(op.after_backward))

    def _dispatched(transfer: Transfer | None) -> int:
        # Another micro-batch's compute may hide what experts send each other.
        return 0 if transfer is None or transfer.group == "ep" else sent(transfer)

    return {
        (which, kind): sum(map(forward if which == FORWARD else backward, block.operations))
        for kind, block in blocks.items()
        for which in (FORWARD, BACKWARD)
    }


def block_parameters(blocks: Mapping[int, Block]) -> dict[int, tuple[float, float]]:
    """Dense and expert parameters of each block on one rank, before sharding over replicas."""
    return {kind: (block.dense_parameters, block.expert_parameters) for kind, block in blocks.items()}


def straggling(cluster: Cluster) -> float:
    """Waiting for the slowest rank, in parts of a step."""
    known = cluster.calibration
    generation = cluster.gpu.generation
    costs = training_costs(generation) if known is None else calibrated_training_costs(generation, known)
    return costs.straggling(cluster.n_gpus)


def held_by_ranks(layout: Layout, of_stage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over the virtual stages of each pipeline rank."""
    stages = layout.plan.pp
    found = of_stage.reshape(-1, stages).sum(axis=0) if len(of_stage) % stages == 0 else of_stage
    if stages > 1 and TRAITS[layout.schedule].turns:
        found = of_stage[:stages] + of_stage[: stages - 1 : -1]
    elif stages > 1 and TRAITS[layout.schedule].both_ways:
        found = of_stage + of_stage[::-1]
    return np.asarray(found, np.float64)


def in_flight(layout: Layout) -> NDArray[np.int64]:
    """Forward passes that each rank has behind it, at least, when its first backward pass begins."""
    stages, chunks, micro_batches = layout.plan.pp, layout.plan.virtual_stages, layout.micro_batches
    rank = np.arange(stages)
    if layout.schedule == "interleaved" and stages > 1:
        return np.minimum(micro_batches * chunks, 2 * (stages - 1 - rank) + (chunks - 1) * stages + 1)
    if layout.schedule in ("1f1b", "zb-h1") and stages > 1:
        return np.minimum(micro_batches, stages - rank)
    if layout.schedule == "gpipe" and stages > 1:
        return np.full(stages, micro_batches)
    return np.ones(stages, np.int64)


def least_memory(
    layout: Layout, dense: NDArray[np.float64], expert: NDArray[np.float64], kept: NDArray[np.float64]
) -> int:
    """Bytes that the fullest rank needs at least: state, activations in flight, context and buffers.

    Of every virtual stage: its dense and expert parameters, and what its layers keep of a micro-batch.
    """
    fresh = fresh_gradients(layout) or layout.shares_once  # then gradients come and go
    states: dict[tuple[float, float], float] = {}
    ranks = list(zip(held_by_ranks(layout, dense).tolist(), held_by_ranks(layout, expert).tolist(), strict=True))
    for one in set(ranks):
        state = state_bytes(layout, *one)
        states[one] = state.parameters + state.optimizer + (0.0 if fresh else state.gradients)
    stages = layout.plan.pp
    least_kept = kept.reshape(-1, stages).min(axis=0) if len(kept) % stages == 0 else np.zeros(stages)
    activations = (in_flight(layout) * least_kept).tolist()
    most = max(states[one] + more for one, more in zip(ranks, activations, strict=True))
    return int(most) - CATEGORIES + outside_bytes(layout)


@dataclass(frozen=True, slots=True)
class Ends:
    """What a step takes beside its passes at least, in ns."""

    hop: float
    outside: float


def ends_of(layout: Layout, dense: NDArray[np.float64], expert: NDArray[np.float64]) -> Ends:
    """The first parameters gathered, the last gradients reduced, gradient norm, optimizer and host between steps."""
    pricer, plan = Pricer(layout), layout.plan
    hop = 0.0
    if plan.pp > 1:
        tokens = layout.tokens_per_rank / (plan.tp if plan.sequence_parallel or layout.habits.scatters_sends else 1)
        size = tokens * layout.model.hidden_size * (4 if plan.precision == "fp32" else 2)
        hop = float(min(nanoseconds(pricer.hop(size, far=far)[0].seconds) for far in (False, True)))
    ranks = sorted(set(zip(held_by_ranks(layout, dense).tolist(), held_by_ranks(layout, expert).tolist(), strict=True)))
    outside = 0.0
    if gathers_first(layout):
        outside += _first_bucket(layout, pricer, float(dense[0]), float(expert[0]), len(dense))
    if reduces_last(layout):
        outside += min(_last_bucket(layout, pricer, one, other, len(dense)) for one, other in ranks)
    if layout.habits.clips_gradients:
        outside += nanoseconds(pricer.transfer(Transfer("all_reduce", "world", 4.0))[0].seconds)
    tensors = layout.habits.pure_precision  # then the update goes through tensors that are not known here
    if not tensors:
        updates = [nanoseconds(optimizer_price(layout, pricer, one, other).seconds) for one, other in ranks]
        outside += max(updates) if layout.habits.clips_gradients else min(updates)
    outside += nanoseconds(pricer.step_s)
    return Ends(hop, outside)


def _buckets(layout: Layout, parameters: float, chunks: int) -> int:
    """At most so many buckets of one piece: `step_shards.buckets_of`."""
    return int(np.clip(np.ceil(parameters / layout.message_parameters), 1, max(2, BUCKETS_MOST // chunks)))


def _first_bucket(layout: Layout, pricer: Pricer, dense: float, expert: float, pieces: int) -> float:
    """The gather that the very first pass waits for."""
    chunks = max(1, pieces // layout.plan.pp)
    count = _buckets(layout, dense + expert, chunks) if layout.plan.overlap_param_gather else 1
    return _shared(layout, pricer, "all_gather", dense / count, expert / count, parameter_bytes(layout.plan))


def _last_bucket(layout: Layout, pricer: Pricer, dense: float, expert: float, pieces: int) -> float:
    """The reduction behind a rank's last backward pass: of one bucket where buckets overlap, else of everything."""
    chunks = max(1, pieces // layout.plan.pp)
    parts = _buckets(layout, dense + expert, chunks) if layout.plan.overlap_grad_reduce else 1
    kind = "all_reduce" if (layout.plan.zero_stage or 0) == 0 else "reduce_scatter"
    width = float(GRADIENT_BYTES[layout.plan.gradient_dtype or "bf16"])
    if layout.plan.overlap_grad_reduce and chunks > 1:
        return 0.0  # which piece is last, and how much of the rank it is, is the schedule's business
    return _shared(layout, pricer, kind, dense / parts, expert / parts, width)


def _shared(layout: Layout, pricer: Pricer, kind: str, dense: float, expert: float, width: float) -> float:
    total = 0.0
    for parameters, group in ((dense, "dp"), (expert, "edp")):
        if group == "dp" and layout.shard_group == 1 and layout.replicas > 1:
            continue  # every rank shards with itself alone
        if parameters and layout.group(group).size > 1:
            total += nanoseconds(pricer.transfer(Transfer(kind, group, parameters * width))[0].seconds)
    return total


def checked(fields: Mapping[str, Any]) -> Plan:
    """The fields as a Plan reads them. Raises UserError where `predict` would."""
    return read_plan(fields)


def saved_bytes_of_a_rank(layout: Layout) -> float:
    """Parameters and optimizer state that the fullest rank writes into a checkpoint."""
    held = pieces(layout)
    dense = held_by_ranks(layout, np.array([one.dense_parameters for one in held]))
    expert = held_by_ranks(layout, np.array([one.expert_parameters for one in held]))
    states = [state_bytes(layout, a, b) for a, b in zip(dense.tolist(), expert.tolist(), strict=True)]
    return max(state.parameters + state.optimizer for state in states)


def walked_1f1b(
    stages: int, micro_batches: int, forward_s: Sequence[float], backward_s: Sequence[float]
) -> list[float]:  # fmt: skip
    """When each stage ends its last pass, in seconds, its passes one after the other as 1F1B orders them."""
    found = schedule("1f1b", stages, micro_batches)
    table = np.array([forward_s, backward_s], np.float64)
    which = (found.kind != Kind.FORWARD).astype(np.int64)
    ends = walk(found, table[which, found.rank])
    return [float(ends[found.rank_offset[r] : found.rank_offset[r + 1]].max()) for r in range(stages)]
