"""What autograd keeps of each op of a dense layer, and what its backward allocates: a rule per op, as ATen does it."""

from __future__ import annotations

from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.memory.eager.autograd import FP32, Autograd, Backward, Rule
from windtunnel.studies.training.memory.eager.expert_rules import choose, gather, scatter, weigh


def _nothing(run: Autograd, op: Operation) -> Backward:
    run.value[op.name], run.grads[op.name] = -1, -1
    return lambda gradient: None


def _linear(run: Autograd, op: Operation) -> Backward:
    source = op.reads[0]
    saved = run.keep(run.value[source])
    size = run.w.size[run.value[source]]
    run.out(op)

    def back(gradient: int) -> None:
        weight = run.learn(op.weight_elements, gradient, saved, linear=True)
        out = run.w.new(size)
        run.w.drop(*saved, gradient)
        run.learned(weight)
        run.give(source, out, view=op.kind == "gemm")

    return back


def _attention(run: Autograd, op: Operation) -> Backward:
    if op.variant == "products":
        return _products(run, op)
    sources = [run.value[name] for name in op.reads]
    sizes = [run.w.size[slot] for slot in sources]
    rows = op.output_bytes / (run.style.width * op.shape[6])
    saved = run.keep(*sources)
    out = run.out(op)
    saved += run.keep(out) + run.keep_new(FP32 * rows)

    def back(gradient: int) -> None:
        # On a GPU the queries' gradient is summed in fp32.
        summed = [] if run.style.cpu else [run.w.new(sizes[0] * FP32 / run.style.width)]
        gradients = [run.w.new(size) for size in sizes]
        run.w.drop(*summed, *saved, gradient)
        for name, slot in zip(op.reads, gradients, strict=True):
            run.give(name, slot)

    return back


def _products(run: Autograd, op: Operation) -> Backward:
    batch, s, _, heads, _, d, dv, *_ = op.shape
    width = run.style.width
    scores, query, value = (width * batch * heads * s * size for size in (s, d, dv))
    sizes = [run.w.size[run.value[name]] for name in op.reads]
    saved = run.keep_new(query) + run.keep_new(query) + run.keep_new(value)
    run.passing(scores, scores)  # the products, and with the mask
    run.passing(scores, scores, scores / width)  # softmax, where there is no key
    saved += run.keep_new(scores)
    run.out(op)

    def back(gradient: int) -> None:
        wide = run.w.new(value)
        first = run.w.new(scores)
        second = run.w.new(scores)
        run.w.drop(first, gradient)
        third = [run.w.new(query), run.w.new(query)]
        run.w.drop(second, *saved)
        gradients = [run.w.new(size) for size in sizes]
        run.w.drop(wide, *third)
        for name, slot in zip(op.reads, gradients, strict=True):
            run.give(name, slot)

    return back


def _one_kernel_norm(run: Autograd, op: Operation) -> Backward:
    source = op.reads[0]
    assert op.timed is not None
    size = run.w.size[run.value[source]]
    saved = run.keep(run.value[source]) + run.keep_new(2 * FP32 * op.timed.rows)
    run.out(op)

    def back(gradient: int) -> None:
        out = run.w.new(size)
        weight = run.learn(op.weight_elements, gradient)
        run.w.drop(*saved, gradient)
        run.learned(weight)
        run.give(source, out)

    return back


def _rms_norm(run: Autograd, op: Operation) -> Backward:
    if run.style.compiled or not run.style.cpu:
        return _one_kernel_norm(run, op)
    assert op.timed is not None
    w, source = run.w, op.reads[0]
    size, whole = w.size[run.value[source]], FP32 * op.timed.rows * op.timed.width
    upcast = run.style.width < FP32
    x = w.new(whole) if upcast else run.value[source]
    saved = run.keep(x)
    statistics = run.keep_new(FP32 * op.timed.rows)
    run.passing(whole)  # its square
    normal = w.new(whole)
    saved_normal = run.keep(normal)
    scaled = w.new(whole) if upcast else -1
    run.out(op)
    w.drop(normal, *([x, scaled] if upcast else []))

    def back(gradient: int) -> None:
        wide = w.moved(gradient, whole) if upcast else gradient
        by_normal, by_weight = w.new(whole), w.new(whole)
        weight = run.learn(op.weight_elements, gradient)
        w.drop(wide, *saved_normal, by_weight)
        run.learned(weight)
        straight, by_row = w.new(whole), w.new(whole)
        w.drop(by_row, by_normal)
        if not upcast:
            run.give(source, straight)
        mean, square, twice, product = w.new(whole), w.new(whole), w.new(whole), w.new(whole)
        w.drop(mean, square, twice, *saved, *statistics)
        if upcast:
            w.drop(product)
            product = w.moved(straight, size)
        run.give(source, product)

    return back


def _rope(run: Autograd, op: Operation) -> Backward:
    w, source = run.w, op.reads[0]
    size = w.size[run.value[source]]
    half = size / 2
    if run.style.compiled:
        run.out(op)
    else:
        by_cosine = w.new(size)
        negative = w.new(half)
        turned = w.new(size)
        w.drop(negative)
        by_sine = w.moved(turned, size)
        run.out(op)
        w.drop(by_cosine, by_sine)

    def back(gradient: int) -> None:
        if run.style.compiled:
            run.give(source, w.moved(gradient, size))
            return
        by_sine = w.new(size)
        negative = w.new(half)
        by_cosine = w.moved(gradient, size)
        turned = w.new(size)
        w.drop(by_sine, negative, turned)  # added to the other in place
        run.give(source, by_cosine)

    return back


def _add(run: Autograd, op: Operation) -> Backward:
    run.out(op)

    def back(gradient: int) -> None:
        for name in op.reads:
            run.give(name, run.w.hold(gradient))
        run.w.drop(gradient)

    return back


def _gated(run: Autograd, op: Operation) -> Backward:
    w, (gate, up) = run.w, op.reads
    size = w.size[run.value[gate]]
    saved = run.keep(run.value[up])
    saved_gate = run.keep(run.value[gate])
    if run.style.compiled:
        run.out(op)
    else:
        silu = w.new(size)
        saved += run.keep(silu)
        run.out(op)
        w.drop(silu)

    def back(gradient: int) -> None:
        by_up, by_silu = w.new(size), w.new(size)
        w.drop(gradient, *saved)
        by_gate = by_silu if run.style.compiled else w.moved(by_silu, size)
        w.drop(*saved_gate)
        run.give(up, by_up)
        run.give(gate, by_gate)

    return back


def _ungated(run: Autograd, op: Operation) -> Backward:
    source = op.reads[0]
    size = run.w.size[run.value[source]]
    saved = run.keep(run.value[source])
    run.out(op)
    return run.back_to(source, size, saved)


def _embedding(run: Autograd, op: Operation) -> Backward:
    run.out(op)

    def back(gradient: int) -> None:
        table = run.learn(run.table / run.style.width if op.weight_elements else 0.0)
        if not op.weight_elements and run.table:  # tied: added to what the output matrix has left
            run.passing(run.table)
        run.w.drop(gradient)
        run.learned(table)

    return back


def _loss(run: Autograd, op: Operation) -> Backward:
    w, source = run.w, op.reads[0]
    assert op.timed is not None
    size, whole = w.size[run.value[source]], FP32 * op.timed.rows * op.timed.width
    upcast = run.style.width < FP32
    wide = [w.new(whole)] if upcast else []
    saved = run.keep_new(whole)
    w.drop(*wide)
    run.value[op.name] = -1

    def back(gradient: int) -> None:
        picked = w.new(whole)
        out = w.new(whole)
        w.drop(picked, *saved)
        run.give(source, w.moved(out, size) if upcast else out)

    return back


_NAMED: dict[str, Rule] = {"choose": choose, "weigh": weigh, "index": _nothing, "rope": _rope}
_TIMED: dict[str, Rule] = {
    "rms_norm": _rms_norm,
    "layer_norm": _one_kernel_norm,
    "rope": _rope,
    "add": _add,
    "swiglu": _gated,
    "gelu": _ungated,
    "embedding": _embedding,
    "cross_entropy": _loss,
    "gather_rows": gather,
    "scatter_add_rows": scatter,
}


def rule_of(op: Operation) -> Rule:
    """The rule of an op."""
    if op.kind in ("gemm", "grouped_gemm"):
        return _linear
    if op.kind == "attention":
        return _attention
    name = op.name.partition(" ")[0]
    if name in _NAMED:
        return _NAMED[name]
    return _TIMED[op.timed.op] if op.timed is not None else _nothing
