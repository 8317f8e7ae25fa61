"""One rank's step, layer by layer, as a flat list of tasks.

`training` folds a step into passes that are replayed once; what a technique changes crosses passes (a gradient's
all-reduce beside the next layer's all-to-all), so here the passes are unfolded again. Each layer's ops, shapes and
prices are `training`'s own: a pass over that one layer is lowered there and its kernels and collectives are taken over,
with what they wait for. Around them, as there: parameters gathered and gradients reduced in buckets, and the update.

Micro-batches but the last are alike, so two are played and the rest is the difference of the two, once for each. Of a
pipeline it is the busiest stage without its bubbles, which grow and shrink with the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from windtunnel.physics.cost.price import nanoseconds
from windtunnel.physics.graph import OpKind
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.physics.model.operations import Transfer
from windtunnel.questions.asked.parts.scenario import CALM, Scenario
from windtunnel.studies.techniques.flat.play import SHARED, Lane, Timeline, play
from windtunnel.studies.techniques.flat.task import COMPUTE, HOST_COPY, SCALE_OUT, SCALE_UP, Task, Tasks
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.model_chunks import Piece, pieces_of, tensors_of
from windtunnel.studies.training.lowering.pass_lowering import build_segment
from windtunnel.studies.training.lowering.shards.step_shards import gathers_first, reduces_last
from windtunnel.studies.training.memory.model_state import optimizer_price
from windtunnel.studies.training.plan import Plan
from windtunnel.studies.training.pricing import Pricer, parameter_bytes
from windtunnel.studies.training.schedules import Kind
from windtunnel.studies.training.workload.router_load import parse_router_load

LANES: Mapping[str, Lane] = {SCALE_UP: SHARED, SCALE_OUT: SHARED}
SHARDED = ("gather parameters", "reduce gradients", "reduce replicas")  # of ZeRO-2 and -3, put back with prefetching
EXPERTS = ("sort_by_expert", "experts_up", "expert_activation", "experts_down", "expert_gather", "expert_scatter")
LATENCY_BYTES = 1024.0  # a message this small is all latency
Rewrite = Callable[[tuple[Task, ...]], tuple[Task, ...]]


@dataclass(frozen=True, eq=False)
class FlatStep:
    """A rank's step with one micro-batch, and with two; `lanes` say how they are served."""

    layout: Layout
    pricer: Pricer
    blocks: tuple[Block, ...]
    one_batch: tuple[Task, ...]
    two_batches: tuple[Task, ...]
    lanes: Mapping[str, Lane]

    def rewritten(self, rewrite: Rewrite, lanes: Mapping[str, Lane] | None = None) -> FlatStep:
        """The step with its tasks rewritten, and perhaps served otherwise."""
        return replace(
            self,
            one_batch=rewrite(self.one_batch),
            two_batches=rewrite(self.two_batches),
            lanes={**self.lanes, **(lanes or {})},
        )

    def play(self) -> Timeline:
        """The timeline of a step with one micro-batch."""
        return play(self.one_batch, self.lanes, self._slowdown())

    def seconds(self) -> float:
        """The whole step: its last micro-batch with what follows it, and the others before."""
        first = self.play().makespan_ns
        if self.layout.micro_batches == 1:
            return first / 1e9
        both = play(self.two_batches, self.lanes, self._slowdown()).makespan_ns
        return (first + (self.layout.micro_batches - 1) * (both - first)) / 1e9

    def _slowdown(self) -> float:
        costs = self.pricer.training
        return 0.0 if self.pricer.on_cpu else max(costs.compute_by_scale_up, costs.compute_by_scale_out)


def lower_flat(model: Model, cluster: Cluster, plan: Plan, scenario: Scenario = CALM) -> FlatStep:
    """The step of the busiest pipeline rank; of `scenario` its router. Raises LayoutError as `predict` does."""
    layout = resolve(model, cluster, plan)
    pricer = Pricer(layout)
    router_load = scenario.router_load
    router = parse_router_load(str(router_load), model, seed=scenario.seed)[0] if router_load else None
    pieces = pieces_of(layout, router)
    stages = layout.plan.pp
    ranks = [tuple(piece for number, piece in enumerate(pieces) if number % stages == rank) for rank in range(stages)]
    busiest = max(ranks, key=lambda rank: sum(_work(pricer, piece.blocks) for piece in rank))
    blocks = tuple(block for piece in busiest for block in piece.blocks)
    build = partial(_step, layout, pricer, busiest, blocks)
    return FlatStep(layout, pricer, blocks, build(1), build(2), LANES)


def _work(pricer: Pricer, blocks: Sequence[Block]) -> float:
    return sum(
        pricer.forward(op).seconds + pricer.input_gradient(op).seconds + pricer.weight_gradient(op).seconds
        for block in blocks
        for op in block.operations
    )


def layer_tasks(pricer: Pricer, block: Block, phase: Kind) -> tuple[Task, ...]:
    """One pass over one block: its kernels and collectives, indices from 0. Host launches are taken as hidden."""
    graph = (segment := build_segment(pricer, [block], phase)).graph
    tasks: list[Task] = []
    new: dict[int, tuple[int, ...]] = {}  # op -> tasks that stand for it; for one left out, what it waited for
    last: dict[int, int] = {}
    for op in range(graph.n_ops):
        stream, label = int(graph.stream[op]), graph.labels[int(graph.label[op])]
        before = [int(earlier) for earlier in graph.dep_idx[graph.dep_ptr[op] : graph.dep_ptr[op + 1]]]
        kind = OpKind(int(graph.kind[op]))
        if kind == OpKind.HOST:
            new[op] = ()
            continue
        if stream in last:
            before.append(last[stream])
        last[stream] = op
        after = tuple(sorted({task for number in before for task in new[number]}))
        if label in SHARDED:
            new[op] = after
            continue
        new[op] = (len(tasks),)
        tasks.append(_task(pricer, graph, op, kind, label, after, segment.end_ns[op] - segment.start_ns[op], phase))
    return tuple(tasks)


def _task(
    pricer: Pricer, graph: object, op: int, kind: OpKind, label: str, after: tuple[int, ...], took: int, phase: Kind
) -> Task:  # fmt: skip
    category = graph.categories[int(graph.category[op])]  # type: ignore[attr-defined]
    size, word = float(graph.bytes[op]), "forward" if phase is Kind.FORWARD else "backward"  # type: ignore[attr-defined]
    bare = label.removeprefix("recompute ").split(" backward")[0]
    if kind == OpKind.COMPUTE:
        role = "expert" if bare in EXPERTS else "weight" if label.endswith(" weight") else ""
        return Task(label, COMPUTE, int(took), after, role, phase=word)
    if category == "exposed host copy":
        return Task(label, HOST_COPY, int(took), after, "copy", bytes_total=size, phase=word)
    lane = SCALE_OUT if category.endswith("(scale-out)") else SCALE_UP
    group = category.removeprefix("exposed ").split(" ")[0]
    kinds = [name for name in ("all_gather", "reduce_scatter", "all_reduce") if name in label]
    what = "all_to_all" if group == "ep" else kinds[0] if kinds else "all_reduce"
    role = "all_to_all" if what == "all_to_all" else "exchange"
    latency = latency_ns(pricer, what, group)
    return Task(label, lane, int(took), after, role, bytes_total=size, latency_ns=min(latency, int(took)), phase=word)


def latency_ns(pricer: Pricer, kind: str, group: str) -> int:
    """What a collective of this kind costs however few bytes it has."""
    return nanoseconds(pricer.links.transfer(Transfer(kind, group, LATENCY_BYTES))[0].seconds)


def collective_task(pricer: Pricer, name: str, transfer: Transfer, after: Sequence[int], role: str) -> Task:
    """A collective of all of `transfer`."""
    price, tier = pricer.links.transfer(transfer)
    latency = latency_ns(pricer, transfer.kind, transfer.group)
    work = nanoseconds(price.seconds)
    return Task(
        name, SCALE_OUT if tier == "scale_out" else SCALE_UP, work, tuple(after), role,
        urgency=1, bytes_total=transfer.bytes_total, latency_ns=min(latency, work), phase="backward",
    )  # fmt: skip


def _step(
    layout: Layout, pricer: Pricer, pieces: Sequence[Piece], blocks: Sequence[Block], micro_batches: int
) -> tuple[Task, ...]:
    """All tasks of a step."""
    passes: dict[tuple[int, bool, bool, Kind], tuple[Task, ...]] = {}
    tasks, plan = Tasks(), layout.plan
    shared = partial(_shared, tasks, layout, pricer)
    open_ends: tuple[int, ...] = ()
    waiting: dict[int, tuple[int, ...]] = {}  # block -> gathers of its parameters at the start of the step
    if gathers_first(layout):
        previous: tuple[int, ...] = ()
        for number, block in enumerate(blocks):
            waiting[number] = previous = shared(
                block, "gather parameters", "all_gather", parameter_bytes(plan), previous, number
            )
        if not plan.overlap_param_gather:
            waiting = {0: previous}
    reduced: list[int] = []
    late: list[tuple[Block, int]] = []  # buckets to be reduced: at once, or at the end of the last backward
    last = (Kind.BACKWARD, micro_batches - 1, len(blocks) - 1)
    for micro in range(micro_batches):
        for phase in (Kind.FORWARD, Kind.BACKWARD):
            order = list(range(len(blocks)))
            if phase is Kind.BACKWARD:
                order.reverse()
            ended: dict[int, tuple[int, ...]] = {-1: open_ends}
            bucket: list[Block] = []
            for place, number in enumerate(order):
                block = blocks[number]
                key = (id(block.operations), block.recompute, block.offload, phase)
                if key not in passes:
                    passes[key] = layer_tasks(pricer, block, phase)
                more = waiting.pop(number, ()) if phase is Kind.FORWARD and not micro else ()
                if layout.gathers_in_passes:
                    free = ended.get(place - 2 if plan.overlap_param_gather else place - 1, open_ends)
                    more += shared(block, "gather parameters", "all_gather", parameter_bytes(plan), free, number)
                base, inner = len(tasks.tasks), passes[key]
                followed = {earlier for task in inner for earlier in task.after}
                for task in inner:
                    after = tuple(base + earlier for earlier in task.after) or tuple({*open_ends, *more})
                    tasks.add(replace(task, after=after, block=number))
                if inner:
                    open_ends = tuple(
                        base + index
                        for index, task in enumerate(inner)
                        if index not in followed and task.lane != HOST_COPY
                    )
                ended[place] = open_ends
                if phase is Kind.FORWARD:
                    continue
                width = layout.gradient_bytes
                if layout.reduces_in_passes:
                    reductions = shared(block, "reduce gradients", "reduce_scatter", width, open_ends, number)
                    reduced += reductions
                    open_ends = open_ends if plan.overlap_grad_reduce else (*open_ends, *reductions)
                elif reduces_last(layout) and micro == micro_batches - 1:
                    bucket.append(block)
                    parameters = sum(_replicated(layout, block) for block in bucket)
                    if parameters >= layout.message_parameters or place == len(order) - 1:
                        late.append((_merged(bucket), number))
                        bucket = []
                if plan.overlap_grad_reduce or (phase, micro, place) == last:
                    kind = "all_reduce" if not plan.zero_stage else "reduce_scatter"
                    for merged, at in late:
                        reduced += shared(merged, "reduce gradients", kind, width, open_ends, at)
                    late = []
    dense = sum(piece.dense_parameters for piece in pieces)
    expert = sum(piece.expert_parameters for piece in pieces)
    each = tensors_of(pieces) if layout.habits.pure_precision else ()
    price = optimizer_price(layout, pricer, dense, expert, each)
    ends = tuple({*open_ends, *reduced})
    updated = tasks.add(Task("optimizer", COMPUTE, nanoseconds(price.seconds), ends, "update", phase="end"))
    tasks.add(Task("between steps", "host", nanoseconds(pricer.host.step_s), (updated,), phase="end"))
    return tasks.finish()


def _replicated(layout: Layout, block: Block) -> float:
    """Parameters of a block whose gradients several ranks sum up."""
    counts = ((block.dense_parameters, "dp"), (block.expert_parameters, "edp"))
    return int(sum(count for count, group in counts if layout.group(group).size > 1))


def _merged(blocks: Sequence[Block]) -> Block:
    return Block((), sum(b.dense_parameters for b in blocks), sum(b.expert_parameters for b in blocks))


def _shared(
    tasks: Tasks, layout: Layout, pricer: Pricer, block: Block, name: str, kind: str, width: float,
    after: tuple[int, ...], number: int,
) -> tuple[int, ...]:  # fmt: skip
    """Collectives of a block's dense and expert parameters, over the ranks that share each."""
    indices = []
    role = "gather" if kind == "all_gather" else "reduce"
    for count, group in ((block.dense_parameters, "dp"), (block.expert_parameters, "edp")):
        if count and layout.group(group).size > 1:
            text = name if group == "dp" else f"{name} of experts"
            task = collective_task(pricer, text, Transfer(kind, group, count * width), after, role)
            indices.append(tasks.add(replace(task, block=number)))
            if kind == "reduce_scatter" and group == "dp" and layout.replicas > 1:
                own = Transfer("all_reduce", "replica", count * width / layout.shard_group)
                other = collective_task(pricer, "reduce replicas", own, (indices[-1],), role)
                indices.append(tasks.add(replace(other, block=number)))
    return tuple(indices)
