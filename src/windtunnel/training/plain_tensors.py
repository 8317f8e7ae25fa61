"""Tapes of plain PyTorch: what autograd keeps of each op and what its backward allocates, op by op as ATen does it.

Read off PyTorch 2.13 with `saved_tensors_hooks`, a dispatch mode and the profiler's memory events:

    linear        keeps its input; backward makes the weight's gradient, then the input's
    rms_norm      on a GPU one kernel, keeps its input and a number per row; on a CPU a chain in fp32 that keeps two
                  tensors of four bytes per element: the input (its copy in fp32 where it is bf16) and the normalised
    layer_norm    one kernel: keeps its input, two numbers per row
    rotary        keeps nothing but the tables; its chain holds up to 3.5 tensors
    attention     flash: keeps queries, keys, values, output and log-sum-exp; products (fp32, fewer heads for keys and
                  values, on a GPU): all three at the width of the queries, and the probabilities
    silu(g) * u   keeps g, silu(g) and u
    cross-entropy keeps log-softmax in fp32; its backward makes two more such tensors and casts to the logits' format
    experts       each keeps its rows' numbers, its rows, and what it gives, before and after that is weighed

Gradients of parameters appear in the first micro-batch's backward and stay until the optimizer has run; a later
micro-batch's are added to them one by one and freed (`later`). A second gradient of one tensor is added in place,
except to what a linear layer has given, which is a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.model.operations import Operation
from windtunnel.training.keeping import INPUT, Keeping, Writer
from windtunnel.training.tensors import Tape
from windtunnel.training.unrolled import unrolled, until_kept

FP32 = 4
INDEX = 8  # bytes of one row number
Backward = Callable[[int], None]  # takes the slot of the output's gradient


@dataclass(frozen=True, slots=True)
class Style:
    """How ops run: `width` bytes per element; `cpu`: norms as chains; `compiled`: element-wise chains as one kernel."""

    width: int
    cpu: bool = False
    compiled: bool = False


def write_plain(
    operations: tuple[Operation, ...], input_bytes: float, keep: Keeping, style: Style, *,
    recompute: bool = False, offload: bool = False, later: bool = False, table_bytes: float = 0.0,
) -> Tape:  # fmt: skip
    """The tape of one block. `table_bytes`: of the embedding's gradient; `input_bytes` is then 0."""
    writer = Writer(keep, frozenset(), "bf16", 1)
    writer.size[INPUT], writer.holds[INPUT] = int(input_bytes), 1
    run = unrolled(tuple(op for op in operations if not op.backward_only))
    if recompute:
        writer.hold(INPUT)  # the checkpoint
        first = _Autograd(writer, style, later, table_bytes, keeping=False)
        output = first.forward(run)
        forward, writer.events = writer.events, []
        writer.hold(INPUT)  # read once more
        again = _Autograd(writer, style, later, table_bytes)
        writer.drop(again.forward(until_kept(run)))
        autograd = again
    else:
        autograd = _Autograd(writer, style, later, table_bytes)
        output = autograd.forward(run)
        kept = {slot for slot in autograd.kept if slot != output}
        away = sorted(kept) if offload else []
        forward = writer.events + [(slot, 0) for slot in away]
        writer.events = [(slot, writer.size[slot]) for slot in away]
    incoming = writer.reserve(writer.size[output]) if output >= 0 else -1
    outgoing = autograd.backward(incoming)
    if recompute:
        writer.drop(INPUT)
    sizes = tuple(writer.size[slot] for slot in range(writer.slots))
    return Tape(tuple(forward), tuple(writer.events), sizes, output, incoming, outgoing, tuple(writer.gradients))


class _Autograd:
    """Runs ops forward, noting how to go back, and then back in reverse order, as autograd does."""

    def __init__(
        self, writer: Writer, style: Style, later: bool, table_bytes: float, keeping: bool = True
    ) -> None:  # fmt: skip
        self.w, self.style, self.later, self.table, self.keeping = writer, style, later, table_bytes, keeping
        self.value: dict[str, int] = {"": INPUT}
        self.nodes: list[tuple[str, Backward]] = []
        self.grads: dict[str, int] = {}
        self.views: set[str] = set()  # whose gradient so far is a view, so that the next one is added out of place
        self.kept: list[int] = []

    # ------------------------------------------------------------------------------------------------- both passes

    def forward(self, run: list[Operation]) -> int:
        """Slot of the output, -1 for the loss."""
        readers: dict[str, int] = {}
        for op in run:
            for name in op.reads:
                readers[name] = readers.get(name, 0) + 1
        for op in run:
            back = self._rule(op)(op)
            self.nodes.append((op.name, back))
            for name in op.reads:
                readers[name] -= 1
                if not readers[name] and self.value[name] >= 0:
                    self.w.drop(self.value[name])
        return self.value[run[-1].name]

    def backward(self, incoming: int) -> int:
        """Slot of the gradient of the block's input, -1 for the embedding."""
        self.grads[self.nodes[-1][0]] = incoming
        for name, back in reversed(self.nodes):
            back(self.grads.pop(name))
        return self.grads.pop("", -1)

    def _rule(self, op: Operation) -> Callable[[Operation], Backward]:
        if op.kind in ("gemm", "grouped_gemm"):
            return self._linear
        if op.kind == "attention":
            return self._attention
        name = op.name.partition(" ")[0]
        named = {"choose": self._choose, "weigh": self._weigh, "index": self._nothing}
        if name in named:
            return named[name]
        rules = {
            "rms_norm": self._rms_norm,
            "layer_norm": self._one_kernel_norm,
            "rope": self._rope,
            "add": self._add,
            "swiglu": self._gated,
            "gelu": self._ungated,
            "embedding": self._embedding,
            "cross_entropy": self._loss,
            "gather_rows": self._gather,
            "scatter_add_rows": self._scatter,
        }
        return rules[op.timed.op] if op.timed is not None else self._nothing

    # ----------------------------------------------------------------------------------------------------- pieces

    def _out(self, op: Operation) -> int:
        slot = self.value[op.name] = self.w.new(op.output_bytes)
        return slot

    def _keep(self, *slots: int) -> list[int]:
        """One more reference each, until the op's backward; none under a checkpoint."""
        if not self.keeping:
            return []
        self.kept += slots
        return [self.w.hold(slot) for slot in slots]

    def _keep_new(self, *sizes: float) -> list[int]:
        """New tensors that only the backward reads."""
        slots = [self.w.new(size) for size in sizes]
        held = self._keep(*slots)
        self.w.drop(*slots)
        return held

    def _passing(self, *sizes: float) -> None:
        """Tensors that are alive together for a moment."""
        self.w.drop(*[self.w.new(size) for size in sizes])

    def _give(self, name: str, slot: int, view: bool = False) -> None:
        """A gradient for the tensor that `name` made."""
        w, before = self.w, self.grads.get(name, -1)
        if before < 0:
            self.grads[name] = slot
            if view:
                self.views.add(name)
        elif name in self.views or w.holds[before] > 1:
            self.grads[name] = w.new(w.size[before])
            w.drop(before, slot)
            self.views.discard(name)
        else:
            w.drop(slot)

    def _learn(self, elements: float, width: float | None = None) -> int:
        """The gradient of a parameter: stays if it is the first. -1: nothing is learned."""
        if elements < 1:
            return -1
        slot = self.w.new(elements * (width or self.style.width))
        if not self.later:
            self.w.gradients.append(slot)
        return slot

    def _learned(self, slot: int) -> None:
        if slot >= 0 and self.later:
            self.w.drop(slot)

    # ------------------------------------------------------------------------------------------------------- rules

    def _nothing(self, op: Operation) -> Backward:
        self.value[op.name], self.grads[op.name] = -1, -1
        return lambda gradient: None

    def _linear(self, op: Operation) -> Backward:
        source = op.reads[0]
        held = self._keep(self.value[source])
        size = self.w.size[self.value[source]]
        self._out(op)

        def back(gradient: int) -> None:
            weight = self._learn(op.weight_elements)
            out = self.w.new(size)
            self.w.drop(*held, gradient)
            self._learned(weight)
            self._give(source, out, view=op.kind == "gemm")

        return back

    def _attention(self, op: Operation) -> Backward:
        if op.variant == "products":
            return self._products(op)
        sources = [self.value[name] for name in op.reads]
        sizes = [self.w.size[slot] for slot in sources]
        rows = op.output_bytes / (self.style.width * op.shape[6])
        held = self._keep(*sources)
        out = self._out(op)
        held += self._keep(out) + self._keep_new(FP32 * rows)

        def back(gradient: int) -> None:
            # On a GPU the queries' gradient is summed in fp32.
            summed = [] if self.style.cpu else [self.w.new(sizes[0] * FP32 / self.style.width)]
            made = [self.w.new(size) for size in sizes]
            self.w.drop(*summed, *held, gradient)
            for name, slot in zip(op.reads, made, strict=True):
                self._give(name, slot)

        return back

    def _products(self, op: Operation) -> Backward:
        batch, s, _, heads, _, d, dv, *_ = op.shape
        width = self.style.width
        scores, query, value = (width * batch * heads * s * size for size in (s, d, dv))
        sizes = [self.w.size[self.value[name]] for name in op.reads]
        held = self._keep_new(query) + self._keep_new(query) + self._keep_new(value)
        self._passing(scores, scores)  # the products, and with the mask
        self._passing(scores, scores, scores / width)  # softmax, where there is no key
        held += self._keep_new(scores)
        self._out(op)

        def back(gradient: int) -> None:
            wide = self.w.new(value)
            first = self.w.new(scores)
            second = self.w.new(scores)
            self.w.drop(first, gradient)
            third = [self.w.new(query), self.w.new(query)]
            self.w.drop(second, *held)
            made = [self.w.new(size) for size in sizes]
            self.w.drop(wide, *third)
            for name, slot in zip(op.reads, made, strict=True):
                self._give(name, slot)

        return back

    def _one_kernel_norm(self, op: Operation) -> Backward:
        source = op.reads[0]
        assert op.timed is not None
        size = self.w.size[self.value[source]]
        held = self._keep(self.value[source]) + self._keep_new(2 * FP32 * op.timed.rows)
        self._out(op)

        def back(gradient: int) -> None:
            out = self.w.new(size)
            weight = self._learn(op.weight_elements)
            self.w.drop(*held, gradient)
            self._learned(weight)
            self._give(source, out)

        return back

    def _rms_norm(self, op: Operation) -> Backward:
        if self.style.compiled or not self.style.cpu:
            return self._one_kernel_norm(op)
        assert op.timed is not None
        w, source = self.w, op.reads[0]
        size, whole = w.size[self.value[source]], FP32 * op.timed.rows * op.timed.width
        upcast = self.style.width < FP32
        x = w.new(whole) if upcast else self.value[source]
        held = self._keep(x)
        statistics = self._keep_new(FP32 * op.timed.rows)
        self._passing(whole)  # its square
        normal = w.new(whole)
        held_normal = self._keep(normal)
        scaled = w.new(whole) if upcast else -1
        self._out(op)
        w.drop(normal, *([x, scaled] if upcast else []))

        def back(gradient: int) -> None:
            wide = w.moved(gradient, whole) if upcast else gradient
            by_normal, by_weight = w.new(whole), w.new(whole)
            weight = self._learn(op.weight_elements)
            w.drop(wide, *held_normal, by_weight)
            self._learned(weight)
            straight, by_row = w.new(whole), w.new(whole)
            w.drop(by_row, by_normal)
            if not upcast:
                self._give(source, straight)
            mean, square, twice, product = w.new(whole), w.new(whole), w.new(whole), w.new(whole)
            w.drop(mean, square, twice, *held, *statistics)
            if upcast:
                w.drop(product)
                product = w.moved(straight, size)
            self._give(source, product)

        return back

    def _rope(self, op: Operation) -> Backward:
        w, source = self.w, op.reads[0]
        size = w.size[self.value[source]]
        half = size / 2
        if self.style.compiled:
            self._out(op)
        else:
            by_cosine = w.new(size)
            negative = w.new(half)
            turned = w.new(size)
            w.drop(negative)
            by_sine = w.moved(turned, size)
            self._out(op)
            w.drop(by_cosine, by_sine)

        def back(gradient: int) -> None:
            if self.style.compiled:
                self._give(source, w.moved(gradient, size))
                return
            by_sine = w.new(size)
            negative = w.new(half)
            by_cosine = w.moved(gradient, size)
            turned = w.new(size)
            w.drop(by_sine, negative, turned)  # added to the other in place
            self._give(source, by_cosine)

        return back

    def _add(self, op: Operation) -> Backward:
        self._out(op)

        def back(gradient: int) -> None:
            for name in op.reads:
                self._give(name, self.w.hold(gradient))
            self.w.drop(gradient)

        return back

    def _gated(self, op: Operation) -> Backward:
        w, (gate, up) = self.w, op.reads
        size = w.size[self.value[gate]]
        held = self._keep(self.value[up])
        held_gate = self._keep(self.value[gate])
        if self.style.compiled:
            self._out(op)
        else:
            silu = w.new(size)
            held += self._keep(silu)
            self._out(op)
            w.drop(silu)

        def back(gradient: int) -> None:
            by_up, by_silu = w.new(size), w.new(size)
            w.drop(gradient, *held)
            by_gate = by_silu if self.style.compiled else w.moved(by_silu, size)
            w.drop(*held_gate)
            self._give(up, by_up)
            self._give(gate, by_gate)

        return back

    def _ungated(self, op: Operation) -> Backward:
        source = op.reads[0]
        size = self.w.size[self.value[source]]
        held = self._keep(self.value[source])
        self._out(op)

        def back(gradient: int) -> None:
            out = self.w.new(size)
            self.w.drop(gradient, *held)
            self._give(source, out)

        return back

    def _embedding(self, op: Operation) -> Backward:
        self._out(op)

        def back(gradient: int) -> None:
            table = self._learn(self.table / self.style.width if op.weight_elements else 0.0)
            if not op.weight_elements and self.table:  # tied: added to what the output matrix has left
                self._passing(self.table)
            self.w.drop(gradient)
            self._learned(table)

        return back

    def _loss(self, op: Operation) -> Backward:
        w, source = self.w, op.reads[0]
        assert op.timed is not None
        size, whole = w.size[self.value[source]], FP32 * op.timed.rows * op.timed.width
        upcast = self.style.width < FP32
        wide = [w.new(whole)] if upcast else []
        held = self._keep_new(whole)
        w.drop(*wide)
        self.value[op.name] = -1

        def back(gradient: int) -> None:
            picked = w.new(whole)
            out = w.new(whole)
            w.drop(picked, *held)
            self._give(source, w.moved(out, size) if upcast else out)

        return back

    # ------------------------------------------------------------------------------------------- mixture of experts

    def _choose(self, op: Operation) -> Backward:
        w, source = self.w, op.reads[0]
        assert op.timed is not None
        size, picks = w.size[self.value[source]], op.output_bytes / self.style.width
        held = self._keep_new(FP32 * op.timed.rows * op.timed.width, (2 * FP32 + INDEX) * picks)
        self._out(op)

        def back(gradient: int) -> None:
            self._passing(FP32 * picks, size * FP32 / self.style.width)
            w.drop(gradient, *held)
            self._give(source, w.new(size))

        return back

    def _gather(self, op: Operation) -> Backward:
        source = op.reads[0]
        assert op.timed is not None
        size = self.w.size[self.value[source]]
        held = self._keep_new(2 * INDEX * op.timed.rows)
        self._out(op)

        def back(gradient: int) -> None:
            out = self.w.new(size)
            self.w.drop(gradient, *held)
            self._give(source, out)

        return back

    def _weigh(self, op: Operation) -> Backward:
        w, (rows, scores) = self.w, op.reads
        assert op.timed is not None
        of_scores = w.size[self.value[scores]]
        held = self._keep(self.value[rows]) + self._keep_new(self.style.width * op.timed.rows)
        self._out(op)

        def back(gradient: int) -> None:
            by_scores, by_rows = w.new(w.size[gradient]), w.new(w.size[gradient])
            w.drop(by_rows, gradient, *held)
            self._give(rows, by_scores)
            self._give(scores, w.new(of_scores))

        return back

    def _scatter(self, op: Operation) -> Backward:
        """Adds one expert's rows to the sum of all, in place; only the first has to make it."""
        w, (rows, *sums) = self.w, op.reads
        size = w.size[self.value[rows]]
        held = self._keep(self.value[rows])  # for its shape alone
        if sums:
            self.value[op.name] = w.hold(self.value[sums[0]])
        else:
            self._out(op)

        def back(gradient: int) -> None:
            self._give(rows, w.new(size))
            w.drop(*held)
            if sums:
                self._give(sums[0], gradient)
            else:
                w.drop(gradient)

        return back
