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
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windtunnel.cost.training import calibrated_training_costs, training_costs
from windtunnel.graph import Graph, OpKind
from windtunnel.hardware import Cluster
from windtunnel.model import Model
from windtunnel.model.operations import Transfer
from windtunnel.training import Plan, predict
from windtunnel.training.layout import Layout, resolve
from windtunnel.training.memory import memory_of, outside_bytes, peak_bytes
from windtunnel.training.pass_builder import Segment
from windtunnel.training.pieces import Piece, fresh_gradients, pieces_of
from windtunnel.training.pricing import GRADIENT_BYTES, Pricer, nanoseconds, parameter_bytes
from windtunnel.training.schedules import SPLIT, Kind, Schedule, check, legal, schedule
from windtunnel.training.segments import Block, Phase, build_segment
from windtunnel.training.simulated import simulate
from windtunnel.training.state import optimizer_price, state_bytes
from windtunnel.training.step_shards import BUCKET_PARAMETERS, BUCKETS_MOST, gathers_first, reduces_last

EMBEDDING, HEAD = -1, -2  # kinds of block beside the kinds of layer, which count from 0
PIECES_KEPT = 256
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
        """Whether the fullest rank has the memory."""
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
    """Peak memory of the fullest rank, as its allocator would have it; nothing is timed for it."""
    return peak_bytes(layout, pieces(layout), table_of(layout))


def replayed(layout: Layout) -> Replayed:
    """Step time and peak memory of one plan."""
    pricer = Pricer(layout)
    simulated = simulate(layout, pieces(layout), table_of(layout), pricer)
    waiting = round(simulated.makespan_ns * pricer.training.straggling(layout.cluster.n_gpus))
    memory = memory_of(layout, simulated.pieces, simulated.step, simulated.timeline.end_ns)
    peak = max(stage.device_bytes for stage in memory)
    return Replayed(simulated.makespan_ns + waiting, peak, layout.cluster.gpu.usable_memory_bytes)


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """Shortest times in ns by pass (FORWARD or BACKWARD) and kind of block; `step` by the block before it too.

    The `host` ones are of the host thread. A backward in two halves is told as the sum of both.
    """

    lead: dict[tuple[int, int], int] = field(default_factory=dict)
    step: dict[tuple[int, int, int], int] = field(default_factory=dict)
    trail: dict[tuple[int, int], int] = field(default_factory=dict)
    host_lead: dict[tuple[int, int], int] = field(default_factory=dict)
    host_step: dict[tuple[int, int, int], int] = field(default_factory=dict)


FORWARD, BACKWARD = 0, 1
WHOLE = {FORWARD: (Phase.FORWARD,), BACKWARD: (Phase.BACKWARD,)}
IN_HALVES = {FORWARD: (Phase.FORWARD,), BACKWARD: (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)}


def kinds_of(model: Model) -> tuple[int, ...]:
    """The kind of each layer: equal layers have one number."""
    return _kinds(id(model), model)


@lru_cache(maxsize=16)
def _kinds(_: int, model: Model) -> tuple[int, ...]:
    known: dict[object, int] = {}
    return tuple(known.setdefault(layer, len(known)) for layer in model.layers)


def pairs_of(kinds: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Kinds of neighbouring blocks, each pair once, embedding and head included."""
    chain = (EMBEDDING, *kinds, HEAD)
    return tuple(dict.fromkeys(pairwise(chain)))


def blocks_of(layout: Layout) -> dict[int, Block]:
    """One block of each kind, as the ranks of a layout hold it, none of them recomputed."""
    model, plan = layout.model, layout.plan
    kinds = kinds_of(model)
    first = {kind: number for number, kind in reversed(list(enumerate(kinds)))}
    few = replace(model, layers=tuple(model.layers[first[kind]] for kind in sorted(first)))
    dp = layout.cluster.n_gpus // (plan.tp * plan.cp)
    update: dict[str, object] = {
        "pp": 1,
        "virtual_stages": 1,
        "layers_per_stage": None,
        "schedule": None,
        "dp": None,
        "global_batch": plan.micro_batch * dp,
        "zero_stage": min(1, plan.zero_stage or 0),
        "shard_group": None,
        "offload_activations": 0,
        "recompute": "none",
    }
    (piece,) = pieces_of(resolve(few, layout.cluster, plan.model_copy(update=update)))
    inner = dict(zip(sorted(first), piece.blocks[1:-1], strict=True))
    return {EMBEDDING: piece.blocks[0], **inner, HEAD: piece.blocks[-1]}


def calm(pricer: Pricer) -> Pricer:
    """The same prices where nothing slows anything else: every op takes the time that it takes alone."""
    other = copy(pricer)
    other.training = replace(pricer.training, compute_by_scale_up=0.0, compute_by_scale_out=0.0, comm_by_compute=0.0)
    other.nic_share = lambda transfer: 0.0  # type: ignore[method-assign]
    return other


def splits_backward(layout: Layout) -> bool:
    """Whether the gradients of inputs and of weights are passes of their own."""
    return layout.plan.pp > 1 and layout.schedule in SPLIT


def block_costs(layout: Layout, blocks: Mapping[int, Block], *, recompute: bool) -> BlockCosts:
    """Shortest times of the blocks of a layout; `recompute`: of layers that are recomputed in full."""
    pricer, costs = calm(Pricer(layout)), BlockCosts()
    own = {kind: replace(block, recompute=recompute and kind >= 0) for kind, block in blocks.items()}
    pairs = pairs_of(kinds_of(layout.model))
    for name, phases in (IN_HALVES if splits_backward(layout) else WHOLE).items():
        lead: dict[int, list[int]] = {}
        trail: dict[int, list[int]] = {}
        for one, two in pairs:
            before, after = (one, two) if name == FORWARD else (two, one)
            totals = np.zeros(5, np.int64)
            for phase in phases:
                begins = _compute_ops(build_segment(pricer, [own[before]], phase))
                totals += _paths(build_segment(pricer, [own[one], own[two]], phase), begins)
            first, costs.step[name, before, after], last, host, costs.host_step[name, before, after] = totals.tolist()
            lead.setdefault(before, []).append(first)
            trail.setdefault(after, []).append(last)
            costs.host_lead[name, before] = host
        costs.lead.update({(name, kind): min(values) for kind, values in lead.items()})
        costs.trail.update({(name, kind): min(values) for kind, values in trail.items()})
    return costs


def _compute_ops(segment: Segment) -> int:
    return int((segment.graph.kind == OpKind.COMPUTE).sum())


def _paths(pair: Segment, begins: int) -> tuple[int, int, int, int, int]:
    """Of a pass over two blocks, the first of which has `begins` compute ops: lead, step, trail, and host times."""
    graph, duration = pair.graph, pair.end_ns - pair.start_ns
    compute = np.flatnonzero(graph.kind == OpKind.COMPUTE)
    host = np.where(graph.kind == OpKind.HOST, duration, 0)
    if begins == 0 or begins == len(compute):  # one of them computes nothing: only what surely follows counts
        inner = int(duration[compute].sum())
        return (inner if begins else 0), (0 if begins else inner), 0, int(host.sum()) * bool(begins), 0
    one, two = int(compute[begins - 1]), int(compute[-1])
    beyond = _longest_from(graph, duration, one)
    after = _longest_from(graph, duration, two)
    in_two = slice(one + 1, two + 1)
    return int(pair.end_ns[one]), int(beyond[two]), int(after.max()), int(host[:one].sum()), int(host[in_two].sum())


def _longest_from(graph: Graph, duration: NDArray[np.int64], source: int) -> NDArray[np.int64]:
    """int64[n]: longest path from the end of `source` to the end of each op, 0 where there is none."""
    pointer, index = graph.dep_ptr.tolist(), graph.dep_idx.tolist()
    stream, length = graph.stream.tolist(), duration.tolist()
    found = [-1] * len(length)
    found[source] = 0
    before = {stream[source]: source}
    for op in range(source + 1, len(length)):
        latest = max([found[one] for one in index[pointer[op] : pointer[op + 1]]], default=-1)
        latest = max(latest, found[before[stream[op]]] if stream[op] in before else -1)
        before[stream[op]] = op
        if latest >= 0:
            found[op] = latest + length[op]
    return np.maximum(np.array(found, np.int64), 0)


def block_work(layout: Layout, blocks: Mapping[int, Block]) -> dict[tuple[int, int], int]:
    """Nanoseconds that the kernels of each block alone take at least, by pass and kind: no transfer, no launch."""
    pricer = Pricer(layout)
    slack = 1 + layout.plan.cp  # of rounding each part of an op to whole nanoseconds
    found: dict[tuple[int, int], int] = {}
    for kind, block in blocks.items():
        forward = backward = 0
        for op in block.operations:
            if op.kind == "transfer":
                continue
            if not op.backward_only:
                forward += max(0, nanoseconds(pricer.forward(op).seconds) - slack)
            if op.kind != "memory" or op.backward_bytes:
                backward += max(0, nanoseconds(pricer.input_gradient(op).seconds) - slack)
            if op.kind in ("gemm", "grouped_gemm") and op.weight_elements:
                backward += max(0, nanoseconds(pricer.weight_gradient(op).seconds) - slack)
        found[FORWARD, kind], found[BACKWARD, kind] = forward, backward
    return found


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
    if len(of_stage) == 1 or stages == 1:
        return of_stage.sum(keepdims=True)
    if layout.schedule in ("zb-v", "dualpipe-v"):
        return of_stage[:stages] + of_stage[: stages - 1 : -1]
    if layout.schedule == "dualpipe":
        return of_stage + of_stage[::-1]
    return of_stage.reshape(-1, stages).sum(axis=0)


def least_memory(layout: Layout, dense: NDArray[np.float64], expert: NDArray[np.float64]) -> int:
    """Bytes that no schedule and no order of passes can go below: state of the fullest rank, context and buffers."""
    ranks = set(zip(held_by_ranks(layout, dense).tolist(), held_by_ranks(layout, expert).tolist(), strict=True))
    fresh = fresh_gradients(layout) or layout.shares_once  # then gradients come and go
    most = 0.0
    for one, other in ranks:
        state = state_bytes(layout, one, other)
        most = max(most, state.parameters + state.optimizer + (0.0 if fresh else state.gradients))
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
        tokens = layout.tokens_per_rank / (plan.tp if plan.sequence_parallel else 1)
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
    size = BUCKET_PARAMETERS * max(1.0, layout.shard_group / 40.0)
    return int(np.clip(np.ceil(parameters / size), 1, max(2, BUCKETS_MOST // chunks)))


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
        if parameters and layout.group(group).size > 1:
            total += nanoseconds(pricer.transfer(Transfer(kind, group, parameters * width))[0].seconds)
    return total
