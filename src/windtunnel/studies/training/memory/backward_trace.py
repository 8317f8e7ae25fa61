"""The backward half of a tape: gradients made and freed, saved tensors freed, op by op in reverse."""

from __future__ import annotations

from windtunnel.studies.training.memory.saved_tensors import (
    BRANCHES,
    READS_NORM,
    SavedForBackward,
    WeightGradient,
    Writer,
)

STAND_IN_BYTES = 2.0  # of an element of what stands in for a gradient
FP32 = 4


class BackwardTape:
    """Walks the ops in backward order."""

    def __init__(self, writer: Writer, incoming: int, table_bytes: float) -> None:
        self.w, self.table = writer, table_bytes
        self.now = incoming
        self.residual = self.normed = self.attention = self.aside = -1
        self.branches = 0

    def run(self, steps: list[SavedForBackward]) -> int:
        """The slot of the gradient of the block's input, -1 for the embedding."""
        shared = any(step.op.name == "shared_up" for step in steps)
        self.branches = sum(step.op.name in BRANCHES for step in steps)
        for step in reversed(steps):
            op = step.op
            again = self.w.new(step.again) if step.again >= 1 else -1
            if op.part == "residual":
                self._residual(step, shared and op.name == "residual_2")
            elif op.part == "norms":
                self._norm(step)
            elif op.kind in ("gemm", "grouped_gemm"):
                self._gemm(step, again)
            else:
                self._other(step)
            if again >= 0:
                self.w.drop(again)
        return self.now

    def _residual(self, step: SavedForBackward, shared: bool) -> None:
        w = self.w
        if self.now < 0:  # a parallel block: only the residual's own gradient is left
            self.now, self.residual = self.residual, -1
        w.drop(*step.saved_bytes)
        self.residual = w.hold(self.now)
        if shared:
            self.aside = w.hold(self.now)

    def _norm(self, step: SavedForBackward) -> None:
        w = self.w
        incoming = self.normed if self.normed >= 0 else self.now
        w.learners.append(WeightGradient(len(w.events), -1, -1, (), incoming, linear=False))
        out = w.moved(incoming, step.size)
        w.drop(*step.saved_bytes)
        self.normed = -1
        if self.residual >= 0:
            both = w.new(step.size)
            w.drop(out, self.residual)
            out, self.residual = both, -1
        self.now = out

    def _add(self, gradient: int) -> None:
        """Gradients of a norm's output from all that read it."""
        if self.normed < 0:
            self.normed = gradient
        else:
            self.w.drop(gradient)

    def _gemm(self, step: SavedForBackward, again: int) -> None:
        w, op = self.w, step.op
        begins = len(w.events)
        branch = op.name in BRANCHES
        incoming = self.attention if branch else self.now
        passing: list[int] = []
        rows, k = (op.shape[0], op.shape[2]) if op.kind == "gemm" else (op.shape[0] * op.shape[1], op.shape[3])
        read = incoming  # by the product that gives the weight gradient
        if op.before_backward is not None:
            read = w.new(op.before_backward.bytes_total)
            passing.append(read)
        width = op.output_bytes / (rows * (op.shape[1] if op.kind == "gemm" else op.shape[2]))
        if op.low_precision:
            read = w.new(op.output_bytes / width * self.w.cast)
            passing.append(read)
        gathered = -1
        if op.regather is not None and not w.keep.gathered_inputs:
            gathered = w.new(op.regather.bytes_total)
            passing.append(gathered)
        out = w.new(rows * k * width)
        weight = -1
        if w.keep.weight_gradients and op.weight_elements:
            weight = w.new(width * op.weight_elements)
            w.gradients.append(weight)
        elif w.keep.stand_in and op.weight_elements:
            weight = w.new(STAND_IN_BYTES * op.weight_elements)
            passing.append(weight)
        inputs = (*step.saved_bytes, again) if again >= 0 else tuple(step.saved_bytes)
        if op.weight_elements or inputs:  # else its weights are frozen, and nothing of it is put off
            w.learners.append(WeightGradient(begins, weight, gathered, inputs, read))
        w.drop(*passing, *step.saved_bytes)
        if branch:
            self.branches -= 1
            if not self.branches:
                w.drop(self.attention)
                self.attention = -1
        else:
            w.drop(incoming)
            self.now = -1
        if op.after_backward is not None and op.after_backward.kind == "reduce_scatter":
            out = w.moved(out, rows * k * width / w.tp)
        if op.name in READS_NORM:
            self._add(out)
            if op.name == "shared_up":
                self.now, self.aside = self.aside, -1
        else:
            self.now = out

    def _other(self, step: SavedForBackward) -> None:
        w, op = self.w, step.op
        if op.name == "loss":
            self._loss(step)
        elif op.name == "embedding":
            gathered = w.new(op.before_backward.bytes_total) if op.before_backward is not None else -1
            if self.table >= 1:
                table = w.new(self.table)
                if w.keep.weight_gradients:
                    w.gradients.append(table)
                else:  # added to what is there
                    w.drop(table)
            w.drop(*([gathered] if gathered >= 0 else []), self.now)
            self.now = -1
        elif op.variant == "products":
            self._products(step)
        elif op.name == "core_attention":
            # Flash attention accumulates the gradient of the queries in fp32.
            accumulator = w.new(2 * op.output_bytes)
            self.attention = w.new(step.size)
            w.drop(accumulator, *step.saved_bytes, self.now)
            self.now = -1
        elif op.name == "context":
            self.now = w.moved(self.now, op.shape[0] * op.shape[1] * op.shape[3] * 2.0)
        elif op.name == "scores":
            self.attention = w.new(step.size)
            w.drop(*step.saved_bytes, self.now)
            self.now = -1
        elif self.attention >= 0:
            self.attention = w.moved(self.attention, step.size)
            w.drop(*step.saved_bytes)
        elif op.name == "router":
            w.drop(*step.saved_bytes)
        else:
            # Rows weighed in fp32: their gradient and its product with the rows are as wide as the rows.
            wide = [w.new(2.0 * op.saved_bytes)] if op.name == "weigh_rows" else []
            out = w.moved(self.now, step.size) if op.name != "softmax" else w.moved(self.now, op.output_bytes)
            w.drop(*wide, *step.saved_bytes)
            if op.name in READS_NORM:
                self._add(out)
                self.now = -1
            else:
                self.now = out

    def _products(self, step: SavedForBackward) -> None:
        """Of attention without a kernel of its own: as autograd does it (`plain_rules`)."""
        w, op = self.w, step.op
        batch, s, _, heads, _, d, dv, *_ = op.shape
        rows = FP32 * batch * heads * s
        values, scores = w.new(rows * dv), w.new(rows * s)
        by_scores = w.new(rows * s)
        w.drop(scores, self.now)
        wide = [w.new(rows * d), w.new(rows * d)]
        w.drop(by_scores, *step.saved_bytes)
        self.attention = w.new(step.size)
        w.drop(values, *wide)
        self.now = -1

    def _loss(self, step: SavedForBackward) -> None:
        w, rules = self.w, self.w.loss
        logits = step.op.saved_bytes / 4.0
        widths = rules["backward"]
        if w.tp > 1:
            widths = rules.get("backward_tp", widths)
        copies = [w.new(width * logits) for width in widths]
        if rules["in_place"]:
            self.now = step.saved_bytes[-1]
            w.drop(*copies, *step.saved_bytes[:-1])
        elif not copies:
            self.now = w.new(step.size)
            w.drop(*step.saved_bytes)
        elif step.size >= FP32 * logits:  # logits in fp32: the last of them is the gradient
            self.now = copies.pop()
            w.drop(*copies, *step.saved_bytes)
        else:  # the last of them is cast when the others are gone
            w.drop(*copies[:-1], *step.saved_bytes)
            self.now = w.new(step.size)
            w.drop(*copies[-1:])
