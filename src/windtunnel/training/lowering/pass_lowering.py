"""Segments: one pass of one model piece over one micro-batch, replayed op by op and then used as a single action.

A step repeats the same few passes hundreds of times, on every rank class that holds such a piece. Each distinct pass
is therefore lowered and replayed once; the step graph (`training/lowering/lower.py`) strings the passes together. This
is folding in time: exact as long as nothing outside a pass interferes with it, and what does (gradient reduction,
parameter gathering) is priced by the slowdown of whole actions.

Inside a pass every op has a host launch, a stream and its dependencies. Collectives of tensor parallelism overlap the
GEMM beside them in the way the framework does it: with `overlap_tp` chunk by chunk, so all but the first or last 1/tp
of the collective can hide; else only the backward's re-gather and reduce-scatter run beside the two backward GEMMs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from windtunnel.cost.price import Price
from windtunnel.model.adapters import ADAPTER
from windtunnel.model.operations import Operation, Transfer
from windtunnel.training.lowering.pass_builder import PassBuilder, Segment
from windtunnel.training.memory.saved_tensors import keeping
from windtunnel.training.pricing import GRADIENT_BYTES, Pricer, parameter_bytes

# A ring works on pieces: each step copies its part of the queries, and adds its output to the others' in fp32; going
# back it cuts output and gradient alike and adds up the queries' gradient. Bytes per element of the queries and step
# (TransformerEngine `context_parallel.py`: slices 4, correction 14; three slices 12, sum 12).
RING_FORWARD, RING_BACKWARD = 18.0, 24.0
# Per-op checkpointing keeps every second matrix product: of a Llama layer's seven it repeats key, output and up,
# 0.37 of their FLOPs (torchtitan, `activation_checkpoint.py`).
EVERY_OTHER = 0.37
CATEGORY = {
    "gemm": "gemm",
    "gemm_batch": "gemm",
    "grouped_gemm": "gemm",
    "attention": "attention",
    "memory": "memory-bound",
}


class Phase(Enum):
    """What a pass computes."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_WEIGHT = "backward-weight"


@dataclass(frozen=True, slots=True)
class Block:
    """Ops of one layer (or of embedding or head), with the parameters that sharded data parallelism gathers for it."""

    operations: tuple[Operation, ...]
    dense_parameters: float = 0.0  # on this rank, before sharding over data-parallel ranks
    expert_parameters: float = 0.0
    recompute: bool = False  # in full
    offload: bool = False
    adapters: float | None = None  # parameters of its adapters, where all others are frozen

    @property
    def learning(self) -> tuple[float, float]:
        """Dense and expert parameters that learn."""
        if self.adapters is not None:
            return self.adapters, 0.0
        return self.dense_parameters, self.expert_parameters

    @property
    def norms(self) -> int:
        """How many norms it has."""
        return sum(op.part == "norms" for op in self.operations)

    @property
    def is_end(self) -> bool:
        """Whether it is the embedding or the head."""
        return self.operations[-1].name in ("embedding", "loss")


def build_segment(
    pricer: Pricer, blocks: Sequence[Block], phase: Phase, noted: list[tuple[int, int, Price]] | None = None
) -> Segment:
    """Lower, price and replay one pass over `blocks`.

    `noted`: a list that takes each kernel and transfer as (op of the graph, index of its block, price).
    """
    return build_pass(pricer, blocks, phase, noted).finish()


def build_pass(
    pricer: Pricer, blocks: Sequence[Block], phase: Phase, noted: list[tuple[int, int, Price]] | None = None
) -> PassBuilder:
    """The same pass, lowered and priced, but not replayed."""
    build = PassBuilder(pricer, noted=noted)
    order = list(blocks) if phase is Phase.FORWARD else list(reversed(blocks))
    gathers = _Gathers(build, order, phase)
    fetched: dict[int, int] = {}
    for number, block in enumerate(order):
        gathers.before(number)
        build.block = gathers.index(number)
        if phase is not Phase.FORWARD:
            _fetch(build, order, number, fetched)
        if phase is Phase.FORWARD:
            _forward(build, block)
        elif phase is Phase.BACKWARD_WEIGHT:
            _weights(build, block)
        else:
            _backward(build, block, weights=phase is Phase.BACKWARD)
        gathers.after(number)
    return build


def _fetch(build: PassBuilder, order: list[Block], number: int, fetched: dict[int, int]) -> None:
    """Bring offloaded activations back one block ahead of their use."""
    for ahead in (number, number + 1):
        if ahead < len(order) and order[ahead].offload and ahead not in fetched:
            saved = sum(op.saved_bytes for op in order[ahead].operations)
            fetched[ahead] = build.copy("fetch activations", saved)
    if number in fetched:
        build.pending.append(fetched[number])


class _Gathers:
    """Parameter gathers before and gradient reductions after each block (ZeRO-2 and -3), one block ahead.

    Where a framework has embedding and head in one root unit (`root_gathered`), that is gathered when a forward pass
    begins, stays until the backward pass has ended, and is reduced then.
    """

    def __init__(self, build: PassBuilder, order: list[Block], phase: Phase) -> None:
        plan, layout = build.pricer.layout.plan, build.pricer.layout
        self._build, self._order = build, order
        self._gather = layout.gathers_in_passes and phase is not Phase.BACKWARD_WEIGHT
        self._reduce = layout.reduces_in_passes and phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)
        self._parameter_bytes = parameter_bytes(plan)
        self._gradient_bytes = GRADIENT_BYTES[plan.gradient_dtype or "bf16"]
        self._replicas = layout.replicas
        self._overlap_gather, self._overlap_reduce = plan.overlap_param_gather, plan.overlap_grad_reduce
        self._ready: dict[int, list[int]] = {}
        self._ends: dict[int, int] = {}
        gathered, reduced = [[block] for block in order], [[block] for block in order]
        ends = [number for number, block in enumerate(order) if block.is_end]
        if ends and layout.reduces_in_passes and keeping(plan.framework).root_gathered:
            root = [order[number] for number in ends]
            for number in ends:
                gathered[number], reduced[number] = [], []
            gathered[ends[0]] = root if phase is Phase.FORWARD else []
            reduced[ends[-1]] = root
        self._gathered, self._reduced = gathered, reduced
        self._forward = phase is Phase.FORWARD

    def index(self, number: int) -> int:
        """Place of the block in a forward pass."""
        return number if self._forward else len(self._order) - 1 - number

    def before(self, number: int) -> None:
        """Make the block's parameters present; issue the next block's gather."""
        if not self._gather:
            return
        for ahead in (number, number + 1) if self._overlap_gather else (number,):
            if ahead < len(self._order) and ahead not in self._ready:
                # The prefetch may start once the block before last is done: its buffer is then free.
                done = self._ends.get(ahead - 2)
                self._build.block = self.index(ahead)
                self._ready[ahead] = self._fetch(self._gathered[ahead], after=(done,) if done is not None else ())
        self._build.pending += self._ready[number]

    def after(self, number: int) -> None:
        """Reduce the block's gradients as soon as they are complete."""
        if self._build.last >= 0:
            self._ends[number] = self._build.last
        if not self._reduce:
            return
        summed = self._sum_norms(self._reduced[number])
        if self._build.pricer.layout.shard_group == 1 and self._replicas > 1:
            whole = sum(block.learning[0] for block in self._reduced[number]) * self._gradient_bytes
            if whole:
                op = self._build.transfer("reduce replicas", Transfer("all_reduce", "replica", whole), after=summed)
                self._build.pending += [] if self._overlap_reduce else [op]
        for parameters, group in self._shared([block.learning for block in self._reduced[number]]):
            size = parameters * self._gradient_bytes
            op = self._build.transfer("reduce gradients", Transfer("reduce_scatter", group, size), after=summed)
            if group == "dp" and self._replicas > 1:
                shard = size * self._replicas / max(1, self._build.pricer.layout.plan.cp * self._build.pricer.layout.dp)
                op = self._build.transfer("reduce replicas", Transfer("all_reduce", "replica", shard), after=(op,))
            if not self._overlap_reduce:
                self._build.pending.append(op)

    def _sum_norms(self, blocks: Sequence[Block]) -> list[int]:
        """Every rank's norms have seen its own tokens only: their gradients are summed, one by one, before anything."""
        layout = self._build.pricer.layout
        if not layout.sums_norms:
            return []
        width = 4.0 if layout.plan.precision == "fp32" else 2.0
        sum_of_one = Transfer("all_reduce", "tp", width * layout.model.norm_parameters)
        summed = [self._build.transfer("sum norms", sum_of_one) for block in blocks for _ in range(block.norms)]
        self._build.pending += summed
        return summed

    def _shared(self, parameters: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
        """Parameters with the group that shards them, where there are any and anybody to share with."""
        dense, experts = (sum(counts) for counts in zip(*parameters, strict=True)) if parameters else (0.0, 0.0)
        held = ((dense, "dp"), (experts, "edp"))
        return [(count, group) for count, group in held if count and self._build.pricer.layout.group(group).size > 1]

    def _fetch(self, blocks: Sequence[Block], after: Sequence[int]) -> list[int]:
        ops = []
        # Adapters are gathered with what they stand beside; they are a few parts in a thousand of it.
        for parameters, group in self._shared([(one.dense_parameters, one.expert_parameters) for one in blocks]):
            transfer = Transfer("all_gather", group, parameters * self._parameter_bytes)
            # Nothing to wait for at the start of a pass: the gather is the first thing that runs.
            ops.append(self._build.transfer("gather parameters", transfer, after=after))
        return ops


def _forward(build: PassBuilder, block: Block, *, again: bool = False) -> None:
    operations = block.operations
    if again:
        operations = tuple(op for op in operations if op.part not in ("head", "embedding"))
        if not build.pricer.layout.habits.reentrant_recompute:  # stops before the last GEMM: its output is not needed
            last = max(
                (i for i, op in enumerate(operations) if op.kind in ("gemm", "grouped_gemm") and op.part != ADAPTER),
                default=len(operations),
            )
            # A loop over experts is run whole but for its last round.
            operations = operations[:last] if last == len(operations) or not operations[last].repeats else operations
    for op in operations:
        _forward_op(build, op, "recompute " if again else "")
    if block.offload and not again:
        saved = sum(op.saved_bytes for op in operations)
        build.copy("offload activations", saved)  # the pass ends when the copy has, nothing inside waits for it


def _forward_op(build: PassBuilder, op: Operation, prefix: str, share: float = 1.0) -> None:
    """One op forward, or `share` of its work."""
    if op.backward_only:
        return
    pricer, plan = build.pricer, build.pricer.layout.plan
    name = prefix + op.name
    if op.kind == "transfer":
        assert op.before is not None
        _dispatch(build, name, op.before, op.skew)
        if op.name == "dispatch" and not plan.cuda_graphs and build.last >= 0:
            build.sync = (build.last,)  # the host reads how many tokens go where before it can launch the experts
        return
    if op.kind == "attention" and op.before is not None:
        _ring_attention(build, op, pricer.forward(op), op.before, name, passes=1)
        return
    cast = pricer.cast(op, backward=False)
    if cast is not None:
        build.compute(f"{name} cast", cast.scaled(share), "memory-bound", kernels=1)
    category = CATEGORY[op.kind]
    price, flops = pricer.forward(op).scaled(share), op.flops * share
    _with_transfers(build, name, price, category, flops, op.kernels, op.before, op.after, overlap=bool(plan.overlap_tp))


def _dispatch(build: PassBuilder, name: str, transfer: Transfer, skew: float) -> None:
    """What experts need of each other, hidden behind another micro-batch as far as that goes."""
    hidden = build.hidden_share(transfer)
    if hidden < 1.0:
        build.pending.append(build.transfer(name, transfer, skew=skew, share=1.0 - hidden))
    if hidden > 0.0:
        build.transfer(name, transfer, skew=skew, share=hidden)


def _with_transfers(
    build: PassBuilder,
    name: str,
    price: Price,
    category: str,
    flops: float,
    kernels: int,
    before: Transfer | None,
    after: Transfer | None,
    *,
    overlap: bool,
) -> None:
    """A kernel with a collective on its input and on its output, serial or overlapped chunk by chunk."""
    chunk = 1.0 / max(2, build.pricer.layout.plan.tp)
    if not overlap:
        if before is not None:
            _exchange(build, f"{name} {before.kind}", before)
        build.compute(name, price, category, flops=flops, kernels=kernels)
        if after is not None:
            _exchange(build, f"{name} {after.kind}", after)
        return
    left = 1.0
    gathered: list[int] = []
    if before is not None:
        # Own chunk first: all but the last chunk of the GEMM can run while the others' chunks arrive.
        gathered = [build.transfer(f"{name} {before.kind}", before)]
        build.compute(name, price, category, share=1.0 - chunk, flops=flops, kernels=kernels)
        left = chunk
    if after is None:
        again = 0 if gathered else kernels  # launched with the first chunk
        build.compute(name, price, category, share=left, after=gathered, flops=flops, kernels=again)
        return
    head = min(chunk, left / 2)
    again = 0 if gathered else kernels
    first = build.compute(name, price, category, share=head, after=gathered, flops=flops, kernels=again)
    build.transfer(f"{name} {after.kind}", after, after=(first,), share=1.0 - chunk)
    build.compute(name, price, category, share=left - head, flops=flops, kernels=0)
    build.pending.append(build.transfer(f"{name} {after.kind}", after, share=chunk))


def _exchange(build: PassBuilder, name: str, transfer: Transfer) -> None:
    """A collective that what follows waits for.

    NCCL gathers and scatters along the first dimension, and DTensor's tokens are the second one: it copies what it
    scatters, and what it has gathered if there are several sequences.
    """
    layout = build.pricer.layout
    copies = layout.habits.copies_exchanges and transfer.group == "tp" and not layout.plan.overlap_tp
    if copies and transfer.kind == "reduce_scatter":
        build.compute(f"{name} copy", build.pricer.copied(transfer.bytes_total), "memory-bound")
    build.pending.append(build.transfer(name, transfer))
    if copies and transfer.kind == "all_gather" and layout.plan.micro_batch > 1:
        build.compute(f"{name} copy", build.pricer.copied(transfer.bytes_total), "memory-bound")


def _ring_attention(
    build: PassBuilder, op: Operation, price: Price, exchange: Transfer, name: str, *, passes: int
) -> None:
    """Context parallelism in a ring: while one block of keys and values is worked on, the next one travels."""
    steps = build.pricer.layout.plan.cp
    elements = op.output_bytes / (4 if build.pricer.layout.plan.precision == "fp32" else 2)
    moving: list[int] = []
    for step in range(steps):
        arriving = [build.transfer(f"{name} exchange", exchange) for _ in range(passes)] if step < steps - 1 else []
        build.compute(name, price, "attention", share=1.0 / steps, after=moving, flops=op.flops * passes)
        pieces = elements * (RING_FORWARD if passes == 1 else RING_BACKWARD)
        build.compute(f"{name} pieces", build.pricer.moved(pieces), "memory-bound", kernels=4)
        moving = arriving


def _backward(build: PassBuilder, block: Block, *, weights: bool) -> None:
    plan = build.pricer.layout.plan
    if block.recompute:
        _forward(build, block, again=True)
    elif plan.recompute_parts:
        for op in block.operations:
            if _recomputed(op, plan.recompute_parts):
                share = EVERY_OTHER if op.kind == "gemm" and "ops" in plan.recompute_parts else 1.0
                _forward_op(build, op, "recompute ", share)
    for op in reversed(block.operations):
        _backward_op(build, op, weights=weights)


def _recomputed(op: Operation, parts: frozenset[str]) -> bool:
    if "ops" in parts:  # per-op policy: matrix products every other time, element-wise always, attention never
        return op.kind in ("memory", "gemm") and op.part not in ("head", "embedding")
    if op.part == "core_attention":
        return bool(parts & {"attention", "core_attention"})
    return op.part in parts


def _backward_op(build: PassBuilder, op: Operation, *, weights: bool) -> None:
    pricer = build.pricer
    name = f"{op.name} backward"
    if op.kind == "transfer":
        if op.before_backward is None:
            return
        _dispatch(build, name, op.before_backward, op.skew)
        return
    if op.kind == "attention":
        price = pricer.input_gradient(op)
        if op.before is not None:
            _ring_attention(build, op, price, op.before, name, passes=2)
        else:
            build.compute(name, price, "attention", flops=2.0 * op.flops, kernels=3)
        return
    if op.kind == "memory":
        if op.before_backward is not None:
            _exchange(build, f"{name} {op.before_backward.kind}", op.before_backward)
        if op.backward_bytes:
            build.compute(name, pricer.input_gradient(op), "memory-bound", kernels=op.kernels)
        return
    _backward_gemm(build, op, name, weights=weights)


def _backward_gemm(build: PassBuilder, op: Operation, name: str, *, weights: bool) -> None:
    pricer, plan = build.pricer, build.pricer.layout.plan
    cast = pricer.cast(op, backward=True)
    if cast is not None:
        build.compute(f"{name} cast", cast, "memory-bound")
    regathered: list[int] = []
    beside = plan.overlap_tp or plan.overlap_tp_backward  # collectives run beside the other GEMM
    if op.regather is not None and weights and not keeping(plan.framework).keeps_all_inputs:
        regathered = [build.transfer(f"{name} regather", op.regather)]
        if not beside:
            build.pending += regathered
    overlap = bool(plan.overlap_tp) and op.before_backward is not None
    _with_transfers(
        build,
        f"{name} input",
        pricer.input_gradient(op),
        "gemm",
        op.flops,
        op.kernels,
        op.before_backward,
        None,
        overlap=overlap,
    )
    scattered: list[int] = []
    if op.after_backward is not None:
        label = f"{name} {op.after_backward.kind}"
        if beside:
            scattered = [build.transfer(label, op.after_backward)]
        else:
            _exchange(build, label, op.after_backward)
    if weights and op.weight_elements:
        kernels = op.kernels + pricer.layout.habits.adds_gradients
        price = pricer.weight_gradient(op)
        build.compute(f"{name} weight", price, "gemm", after=regathered, flops=op.flops, kernels=kernels)
    build.pending += scattered


def _weights(build: PassBuilder, block: Block) -> None:
    for op in reversed(block.operations):
        if op.kind in ("gemm", "grouped_gemm") and op.weight_elements:
            regathered = []
            if op.regather is not None and not keeping(build.pricer.layout.plan.framework).keeps_all_inputs:
                regathered = [build.transfer(f"{op.name} regather", op.regather)]
            price = build.pricer.weight_gradient(op)
            build.compute(
                f"{op.name} backward weight", price, "gemm", after=regathered, flops=op.flops, kernels=op.kernels
            )
