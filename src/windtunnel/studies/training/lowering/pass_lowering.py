"""Segments: one pass of one model piece over one micro-batch, replayed op by op and then used as a single action.

A step repeats the same few passes hundreds of times, on every rank class that holds such a piece. Each distinct pass
is therefore lowered and replayed once; the step graph (`training/lowering/lower.py`) strings the passes together. This
is folding in time: exact as long as nothing outside a pass interferes with it, and what does (gradient reduction,
parameter gathering) is priced by the slowdown of whole actions.

Inside a pass every op has a host launch, a stream and its dependencies. Collectives of tensor parallelism overlap the
GEMM beside them in the way the framework does it: with `overlap_tp` chunk by chunk, so all but the first or last 1/tp
of the collective can hide; else only the backward's re-gather and reduce-scatter run beside the two backward GEMMs.
PyTorch's async TP is a pattern in a compiled graph: it finds a reduce-scatter behind one product, not behind the sum of
input gradients that queries, keys and values, or gate and up, leave (`micro_pipeline_tp.py`); that one stays exposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.physics.cost.price import Price
from windtunnel.physics.model.adapters import ADAPTER
from windtunnel.physics.model.operations import Operation, Transfer
from windtunnel.studies.training.lowering.block import Block
from windtunnel.studies.training.lowering.pass_builder import PassBuilder, Segment, Stretch
from windtunnel.studies.training.lowering.shards.block_shards import Gathers
from windtunnel.studies.training.memory.saved_tensors import keeping
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

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
    "scan": "attention",
    "grouped_gemm": "gemm",
    "attention": "attention",
    "memory": "memory-bound",
}


# Blocks of passes at the same prices: phase, ops by identity, whether recomputed, what they begin with.
Stretches = dict[tuple[object, ...], Stretch]


def build_segment(
    pricer: Pricer,
    blocks: Sequence[Block],
    phase: Kind,
    noted: list[tuple[int, int, Price]] | None = None,
    stretches: Stretches | None = None,
) -> Segment:
    """Lower, price and replay one pass over `blocks`.

    `noted`: a list that takes each kernel and transfer as (op of the graph, index of its block, price).
    `stretches`: blocks of the step's other passes, which this one copies where it has the same, and adds to.
    """
    return build_pass(pricer, blocks, phase, noted, stretches).finish()


def build_pass(
    pricer: Pricer,
    blocks: Sequence[Block],
    phase: Kind,
    noted: list[tuple[int, int, Price]] | None = None,
    stretches: Stretches | None = None,
) -> PassBuilder:
    """The same pass, lowered and priced, but not replayed."""
    build = PassBuilder(pricer, noted=noted)
    learning = [block for block in blocks if not block.forward_only]  # others come first, and have no backward
    order = list(blocks) if phase is Kind.FORWARD else learning[::-1]
    gathers = Gathers(build, order, phase, len(blocks) - len(order))
    fetched: dict[int, int] = {}
    number = 0
    while number < len(order):
        mark, (waits, last), gathered = build.mark(), build.state(), gathers.state(number)
        key = (phase, id(order[number].operations), order[number].recompute, repr((waits, gathered)))
        fetches = any(block.offload for block in order[number : number + 2])  # ahead, too
        alone = stretches is not None and noted is None and gathers.idle and not fetches
        stretch = stretches.get(key, stretches.get((*key, last))) if stretches is not None and alone else None
        if stretch is not None:
            build.block = gathers.index(number)
            build.copy_of(stretch)
        else:
            _add_block(build, order, number, phase, gathers, fetched)
            build.looks_back |= build.last < build.first_op  # without a kernel of its own the last one stays
            if stretches is not None and alone:
                stretches[(*key, last) if build.looks_back else key] = build.since(mark)
        number += 1
        # Equal blocks that begin alike add the same ops: once is enough, and the rest are copies.
        times = _alike(order, number - 1)
        alike = (waits, last if build.looks_back else None)
        ends, behind = build.state()
        if times and (ends, behind if build.looks_back else None) == alike and gathers.state(number) == gathered:
            moved = build.repeat(mark, times, 1 if phase is Kind.FORWARD else -1)
            gathers.moved_on(number, times, moved)
            number += times
    return build


def _add_block(
    build: PassBuilder, order: list[Block], number: int, phase: Kind, gathers: Gathers, fetched: dict[int, int]
) -> None:  # fmt: skip
    block = order[number]
    gathers.before(number)
    build.block = gathers.index(number)
    if phase is not Kind.FORWARD:
        _fetch(build, order, number, fetched)
    if phase is Kind.FORWARD:
        _forward(build, block)
    elif phase is Kind.BACKWARD_WEIGHT:
        _weights(build, block)
    else:
        _backward(build, block, weights=phase is Kind.BACKWARD)
    gathers.after(number)


def _alike(order: list[Block], number: int) -> int:
    """How many blocks behind this one are its like, and have its like or nothing else than what it has behind them.

    A block fetches ahead for the next one, so the last of a row of equal blocks is not alike.
    """
    this, count = order[number], 0
    while number + count + 2 < len(order) and _equal(this, order[number + count + 1], order[number + count + 2]):
        count += 1
    return count


def _equal(this: Block, *others: Block) -> bool:
    same = not (this.offload or this.is_end)
    return same and all(
        other.operations is this.operations
        and not other.offload
        and other.recompute == this.recompute
        and other.dense_parameters == this.dense_parameters
        and other.expert_parameters == this.expert_parameters
        and other.adapters == this.adapters
        and other.tower == this.tower
        for other in others
    )


def _fetch(build: PassBuilder, order: list[Block], number: int, fetched: dict[int, int]) -> None:
    """Bring offloaded activations back one block ahead of their use."""
    for ahead in (number, number + 1):
        if ahead < len(order) and order[ahead].offload and ahead not in fetched:
            fetched[ahead] = build.copy("fetch activations", order[ahead].offloaded_bytes)
    if number in fetched:
        build.pending.append(fetched[number])


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
    _stop(build, block)
    if block.offload and not again:
        build.copy("offload activations", block.offloaded_bytes)  # nothing in the pass waits for it but its end


def _stop(build: PassBuilder, block: Block) -> None:
    """What the host keeps the GPU waiting in one pass over a layer."""
    price = None if block.is_end else build.pricer.host.stops(block.operations)
    if price is not None:
        build.compute("host stops", price, "host stops", kernels=0)


def _forward_op(build: PassBuilder, op: Operation, prefix: str, share: float = 1.0) -> None:
    """One op forward, or `share` of its work."""
    if op.kind == "memory" and not op.forward_bytes:  # only going back, or in another op's kernel
        return
    pricer, plan = build.pricer, build.pricer.layout.plan
    name = prefix + op.name
    if op.kind == "transfer":
        assert op.before is not None
        _dispatch(build, name, op.before, op)
        if op.name == "dispatch" and not plan.cuda_graphs and op.product is None and build.last >= 0:
            build.looks_back |= build.last < build.first_op
            build.sync = (build.last,)  # the host reads how many tokens go where before it can launch the experts
        return
    if op.kind == "attention" and op.before is not None:
        _ring_attention(build, op, pricer.forward(op), op.before, name, passes=1)
        return
    cast = pricer.cast(op, backward=False)
    if cast is not None:
        build.compute(f"{name} cast", cast.scaled(share), "memory-bound", kernels=1)
    _cast_weights(build, op, name, share)
    category = CATEGORY[op.kind]
    price, flops = pricer.forward(op).scaled(share), op.flops * share
    _with_transfers(build, name, price, category, flops, op.kernels, op.before, op.after, overlap=bool(plan.overlap_tp))


def _cast_weights(build: PassBuilder, op: Operation, name: str, share: float = 1.0) -> None:
    cast = build.pricer.weight_cast(op)
    if cast is not None:
        build.compute(f"{name} weight cast", cast.scaled(share), "memory-bound", kernels=1)


def _dispatch(build: PassBuilder, name: str, transfer: Transfer, op: Operation, *, backward: bool = False) -> None:
    """What experts need of each other, as far as another micro-batch, or the product that does it, does not hide it."""
    skew, pricer = op.skew, build.pricer
    hidden = build.hidden_share(transfer)
    if op.product is not None:
        beside = pricer.input_gradient(op.product) if backward else pricer.forward(op.product)
        hidden = max(hidden, min(1.0, beside.seconds / pricer.links.transfer(transfer, skew)[0].seconds))
    if hidden < 1.0:
        build.pending.append(build.transfer(name, transfer, skew=skew, share=1.0 - hidden))
    if hidden > 0.0:
        build.transfer(name, transfer, skew=skew, share=hidden, launched=hidden == 1.0)


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
    copies = layout.habits.copies_exchanges and transfer.group == "tp"
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
    if plan.loss == "chunked":
        for op in block.operations:
            if op.name == "head":
                _forward_op(build, op, "recompute ")
    build.backward = True
    for op in reversed(block.operations):
        _backward_op(build, op, weights=weights)
    _stop(build, block)
    build.backward = False


def _recomputed(op: Operation, parts: frozenset[str]) -> bool:
    if "ops" in parts:  # matrix products every other time, of experts always, element-wise always, attention never
        return op.kind in ("memory", "gemm", "grouped_gemm") and op.part not in ("head", "embedding")
    if op.part == "core_attention":
        return bool(parts & {"attention", "core_attention"})
    return op.part in parts


def _backward_op(build: PassBuilder, op: Operation, *, weights: bool) -> None:
    pricer = build.pricer
    name = f"{op.name} backward"
    if op.kind == "transfer":
        if op.before_backward is None:
            return
        _dispatch(build, name, op.before_backward, op, backward=True)
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
    # TransformerEngine keeps the copies of the forward pass (`Linear` saves `weightmat`); torchao saves the weight as
    # it was, and quantises it again.
    if keeping(plan.framework).fsdp2 or pricer.layout.widens_weights:
        _cast_weights(build, op, name)
    turned = pricer.weight_transposition(op)
    if turned is not None:
        build.compute(f"{name} weight transposition", turned, "memory-bound")
    regathered: list[int] = []
    beside = plan.overlap_tp or plan.overlap_tp_backward  # collectives run beside the other GEMM
    summed = pricer.layout.habits.overlaps_one_product and op.part != "head" and not plan.overlap_tp_backward
    if op.regather is not None and weights and not keeping(plan.framework).keeps_all_inputs:
        regathered = [build.transfer(f"{name} regather", op.regather)]
        if not beside:
            build.pending += regathered
    overlap = bool(plan.overlap_tp) and op.before_backward is not None
    if not op.begins:
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
        if beside and not summed:
            scattered = [build.transfer(label, op.after_backward)]
        else:
            _exchange(build, label, op.after_backward)
    if weights and op.weight_elements:
        kernels = op.kernels + pricer.layout.habits.adds_gradients
        price = pricer.weight_gradient(op)
        build.compute(f"{name} weight", price, "gemm", after=regathered, flops=op.flops, kernels=kernels)
    build.pending += scattered


def _weights(build: PassBuilder, block: Block) -> None:
    build.backward = True
    for op in reversed(block.operations):
        if op.kind in ("gemm", "grouped_gemm") and op.weight_elements:
            regathered = []
            if op.regather is not None and not keeping(build.pricer.layout.plan.framework).keeps_all_inputs:
                regathered = [build.transfer(f"{op.name} regather", op.regather)]
            price = build.pricer.weight_gradient(op)
            build.compute(
                f"{op.name} backward weight", price, "gemm", after=regathered, flops=op.flops, kernels=op.kernels
            )
    build.backward = False
