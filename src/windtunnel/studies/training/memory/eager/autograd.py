"""Autograd over tapes: runs ops forward, noting how to go back, and then back in reverse order.

What an op keeps and makes is a rule: a function that does its forward and gives its backward (`plain_rules`,
`plain_expert_rules`). Gradients of parameters appear in the first micro-batch's backward and stay until the optimizer
has run; a later micro-batch's are added to them one by one and freed (`later`). A second gradient of one tensor is
added in place, except to what a linear layer has given, which is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.memory.saved_tensors import INPUT, WeightGradient, Writer

FP32 = 4
INDEX = 8  # bytes of one row number
Backward = Callable[[int], None]  # takes the slot of the output's gradient
Rule = Callable[["Autograd", Operation], Backward]


@dataclass(frozen=True, slots=True)
class Style:
    """How ops run: `width` bytes per element; `cpu`: norms as chains; `compiled`: element-wise chains as one kernel."""

    width: int
    cpu: bool = False
    compiled: bool = False


class Autograd:
    """Runs ops forward, noting how to go back, and then back in reverse order, as autograd does."""

    def __init__(
        self, writer: Writer, style: Style, later: bool, table_bytes: float, keeping: bool = True
    ) -> None:  # fmt: skip
        self.w, self.style, self.later, self.table, self.keeping = writer, style, later, table_bytes, keeping
        self.value: dict[str, int] = {"": INPUT}
        self.nodes: list[tuple[str, Backward]] = []
        self.grads: dict[str, int] = {}
        self.views: set[str] = set()  # whose gradient so far is a view, so that the next one is added out of place
        self.saved_slots: list[int] = []

    def forward(self, operations: list[Operation], rule_of: Callable[[Operation], Rule]) -> int:
        """Slot of the output, -1 for the loss."""
        readers: dict[str, int] = {}
        for op in operations:
            for name in op.reads:
                readers[name] = readers.get(name, 0) + 1
        for op in operations:
            back = rule_of(op)(self, op)
            self.nodes.append((op.name, back))
            for name in op.reads:
                readers[name] -= 1
                if not readers[name] and self.value[name] >= 0:
                    self.w.drop(self.value[name])
        return self.value[operations[-1].name]

    def backward(self, incoming: int) -> int:
        """Slot of the gradient of the block's input, -1 for the embedding."""
        self.grads[self.nodes[-1][0]] = incoming
        for name, back in reversed(self.nodes):
            back(self.grads.pop(name))
        return self.grads.pop("", -1)

    def out(self, op: Operation) -> int:
        """The op's output."""
        slot = self.value[op.name] = self.w.new(op.output_bytes)
        return slot

    def keep(self, *slots: int) -> list[int]:
        """One more reference each, until the op's backward; none under a checkpoint."""
        if not self.keeping:
            return []
        self.saved_slots += slots
        return [self.w.hold(slot) for slot in slots]

    def keep_new(self, *sizes: float) -> list[int]:
        """New tensors that only the backward reads."""
        slots = [self.w.new(size) for size in sizes]
        saved = self.keep(*slots)
        self.w.drop(*slots)
        return saved

    def back_to(self, source: str, size: float, saved: list[int]) -> Backward:
        """One gradient of that size for `source`, after which `saved` and what came in go."""

        def back(gradient: int) -> None:
            out = self.w.new(size)
            self.w.drop(gradient, *saved)
            self.give(source, out)

        return back

    def passing(self, *sizes: float) -> None:
        """Tensors that are alive together for a moment."""
        self.w.drop(*[self.w.new(size) for size in sizes])

    def give(self, name: str, slot: int, view: bool = False) -> None:
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

    def learn(self, elements: float, gradient: int = -1, inputs: Sequence[int] = (), *, linear: bool = False) -> int:
        """The gradient of a parameter: stays if it is the first. -1: nothing is learned.

        `gradient`, `inputs`: what it is made of, where it can be made later.
        """
        if elements < 1:
            return -1
        begins, slot = len(self.w.events), self.w.new(elements * self.style.width)
        if gradient >= 0:
            self.w.learners.append(WeightGradient(begins, slot, -1, tuple(inputs), gradient, linear))
        if not self.later:
            self.w.gradients.append(slot)
        return slot

    def learned(self, slot: int) -> None:
        """The gradient has been added to what there was, if there was any."""
        if slot >= 0 and self.later:
            self.w.drop(slot)
