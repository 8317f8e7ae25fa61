"""Tapes: what one pass over a block allocates and frees, tensor by tensor, in the order of execution.

A tensor lives until the last op that reads it has run, or, if a backward op needs it, until that op has. Both follow from
the ops of a block (`model/operations.py`); what frameworks add to that is in `cost/calibration/memory.yaml`. Which
tensors a backward op needs is that of Korthikanti et al. 2022 (arXiv 2205.05198), section 4: a GEMM its input, a norm its
input, flash attention its inputs, output and log-sum-exp, an activation function its input, the loss the softmax.

Tapes are written in slots: slot 0 is the block's input, each further slot a tensor that the block makes or, for the
gradient of its output, is given. The forward and the backward tape of a block share their slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from windtunnel.model.operations import KEPT_BYTES, Operation

INPUT = 0
READS_NORM = ("qkv", "q", "q_down", "kv_down", "router", "permute", "mlp_up", "shared_up")
BRANCHES = ("qkv", "q", "q_up", "kv_up")  # what attention reads together


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a framework keeps; see `cost/calibration/memory.yaml` for the fields."""

    gathered_inputs: bool
    triton_norms: bool
    weight_gradients: bool
    buckets: bool
    updated_copy: bool
    expandable: bool
    loss: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tape:
    """Events of one block: (slot, bytes) allocates, (slot, 0) frees."""

    forward: tuple[tuple[int, int], ...]
    backward: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]  # of each slot
    output: int  # slot of the output, -1 for the loss
    incoming: int  # slot of the gradient of the output, -1 for the loss
    outgoing: int  # slot of the gradient of the input, -1 for the embedding
    weights: tuple[int, ...]  # slots of weight gradients; whoever strings tapes together frees them


@lru_cache
def memory_document() -> dict[str, Any]:
    """Constants of memory, as in the calibration file."""
    import yaml

    data = yaml.safe_load(files("windtunnel.cost.calibration").joinpath("memory.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


@lru_cache
def keeping(framework: str) -> Keeping:
    """What the framework keeps."""
    return Keeping(**memory_document()["frameworks"][framework])


@dataclass(slots=True)
class _Step:
    """What the forward of one op leaves for its backward."""

    op: Operation
    size: int  # bytes of the input
    held: list[int]
    again: float  # bytes that selective recomputation makes again before the backward of this op


class _Writer:
    """Slots, references and events of one block."""

    def __init__(self, keep: Keeping, parts: frozenset[str], precision: str, tp: int) -> None:
        self.keep, self.parts, self.tp = keep, parts, tp
        self.cast = KEPT_BYTES.get(precision, 0.0)
        self.size: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.events: list[tuple[int, int]] = []
        self.gradients: list[int] = []  # of weights
        self.slots = 1

    def reserve(self, size: float) -> int:
        """A tensor that another block makes, with one reference."""
        slot, self.slots = self.slots, self.slots + 1
        self.size[slot], self.holds[slot] = max(int(size), 1), 1
        return slot

    def new(self, size: float) -> int:
        """A tensor with one reference."""
        slot = self.reserve(size)
        self.events.append((slot, self.size[slot]))
        return slot

    def hold(self, slot: int) -> int:
        """One more reference."""
        self.holds[slot] += 1
        return slot

    def drop(self, *slots: int) -> None:
        """One reference less each; a tensor without any is freed."""
        for slot in slots:
            self.holds[slot] -= 1
            if not self.holds[slot]:
                self.events.append((slot, 0))

    def moved(self, source: int, size: float) -> int:
        """A new tensor in place of one that is no longer read."""
        slot = self.new(size)
        self.drop(source)
        return slot


def write(
    operations: tuple[Operation, ...], input_bytes: float, keep: Keeping, *, parts: frozenset[str] = frozenset(),
    recompute: bool = False, offload: bool = False, precision: str = "bf16", tp: int = 1, table_bytes: float = 0.0,
) -> Tape:  # fmt: skip
    """The tape of one block.

    `parts`: of selective recomputation. `input_bytes` is 0 for the embedding; `table_bytes` is then what the gradient of
    its table takes.
    """
    writer = _Writer(keep, frozenset() if recompute else parts, precision, tp)
    writer.size[INPUT], writer.holds[INPUT] = int(input_bytes), 1
    if recompute:
        writer.hold(INPUT)  # the checkpoint
        _, output = _Forward(writer, holding=False).run(operations)
        forward, writer.events = writer.events, []
        steps, again = _Forward(writer, holding=True).run(operations)
        writer.drop(again)
    else:
        steps, output = _Forward(writer, holding=True).run(operations)
        away = sorted({slot for step in steps for slot in step.held}) if offload else []
        away = [slot for slot in away if slot != output]
        forward = writer.events + [(slot, 0) for slot in away]
        writer.events = [(slot, writer.size[slot]) for slot in away]
    incoming = writer.reserve(writer.size[output]) if output >= 0 else -1
    outgoing = _Backward(writer, incoming, table_bytes).run(steps)
    sizes = [writer.size[slot] for slot in range(writer.slots)]
    return Tape(
        tuple(forward), tuple(writer.events), tuple(sizes), output, incoming, outgoing, tuple(writer.gradients)
    )


class _Forward:
    """Walks the ops in forward order. With `holding` off nothing is kept (under a checkpoint)."""

    def __init__(self, writer: _Writer, holding: bool) -> None:
        self.w, self.holding = writer, holding
        self.steps: list[_Step] = []
        self.now = INPUT  # what the next op reads
        self.residual = self.normed = self.aside = -1
        self.readers = 0  # ops that have yet to read the norm's output
        self.branches: list[int] = []  # queries, keys, values

    def run(self, operations: tuple[Operation, ...]) -> tuple[list[_Step], int]:
        """Steps for the backward pass, and the slot of the output (-1 for the loss)."""
        for number, op in enumerate(operations):
            if op.part == "norms":
                self._norm(op, operations[number + 1 :])
            elif op.kind in ("gemm", "grouped_gemm"):
                self._gemm(op, operations[number - 1] if number else None)
            elif op.name in ("core_attention", "scores", "softmax", "context"):
                self._attention(op)
            else:
                self._memory(op)
        return self.steps, self.now

    def _step(self, op: Operation, size: int, held: list[int], again: float = 0.0) -> None:
        self.steps.append(_Step(op, size, held, again))

    def _keep(self, slot: int, wanted: bool) -> list[int]:
        return [self.w.hold(slot)] if self.holding and wanted else []

    def _norm(self, op: Operation, rest: tuple[Operation, ...]) -> None:
        w = self.w
        size = w.size[self.now]
        dropped = "ops" in w.parts
        held = self._keep(self.now, True)  # the first tensor of a block is kept under every policy
        extra = op.saved_bytes - size
        if extra >= 1 and not w.keep.triton_norms and not dropped:
            statistics = w.new(extra)  # eager upcasts
            held += self._keep(statistics, True)
            w.drop(statistics)
        self.readers = 0
        for later in rest:
            if later.part == "norms":
                break
            self.readers += later.name in READS_NORM
        self.normed = w.new(op.output_bytes)
        if op.name == "final_norm":
            w.drop(self.now)
            self.now, self.normed = self.normed, -1
        else:
            self.residual, self.now = self.now, -1
        self._step(op, size, held)

    def _read(self, op: Operation) -> int:
        return self.normed if op.name in READS_NORM else self.now

    def _done(self, op: Operation, source: int) -> None:
        """The op was one reader of its input; the flow's reference goes with the last one."""
        if op.name in READS_NORM:
            self.readers -= 1
            if self.readers:
                return
            self.normed = -1
        self.w.drop(source)

    def _gemm(self, op: Operation, previous: Operation | None) -> None:
        w = self.w
        if op.name == "shared_up":
            self.aside = self.now
        source = self._read(op)
        size = w.size[source]
        dropped = input_is_recomputed(op, previous, w.parts)
        held: list[int] = []
        passing: list[int] = []
        again = 0.0
        if op.low_precision:
            copy = w.new(op.saved_bytes)
            held += self._keep(copy, not dropped)
            passing.append(copy)
            again = op.saved_bytes if dropped else 0.0
        gathered = w.new(op.before.bytes_total) if op.before is not None else -1
        if gathered >= 0:
            passing.append(gathered)
        if not op.low_precision:
            kept = gathered if gathered >= 0 and w.keep.gathered_inputs else source
            held += self._keep(kept, not dropped)
            again = w.size[kept] if dropped else 0.0
        if dropped and op.part in w.parts and op.name in READS_NORM:
            held += self._keep(source, True)  # recomputation starts from here
        out = w.new(op.output_bytes)
        if op.after is not None and op.after.kind == "reduce_scatter":
            out = w.moved(out, op.output_bytes / w.tp)
        if "ops" in w.parts and op.part != "head":  # every other matrix product is kept: half of each
            half = w.new(op.output_bytes / 2)
            held += self._keep(half, True)
            w.drop(half)
        w.drop(*passing)
        self._done(op, source)
        if op.name in BRANCHES:
            self.branches.append(out)
            self.now = -1
        else:
            self.now = out
        self._step(op, size, held, again)

    def _attention(self, op: Operation) -> None:
        w = self.w
        whole = "attention" in w.parts or "ops" in w.parts
        inner = whole or "core_attention" in w.parts
        reads = self.branches if op.name in ("core_attention", "scores") else [self.now]
        size = sum(w.size[slot] for slot in self.branches)
        held: list[int] = []
        if op.name in ("core_attention", "scores"):
            for slot in reads:
                held += self._keep(slot, not whole)
        exchange = w.new(op.before.bytes_total) if op.before is not None else -1
        out = w.new(op.output_bytes)
        if op.name == "core_attention":
            log_sum = w.new(max(op.saved_bytes - size - op.output_bytes, 1))
            held += self._keep(log_sum, not inner) + self._keep(out, "ops" in w.parts or not inner)
            w.drop(log_sum)
        elif op.name == "softmax":
            # Softmax, dropout mask and what dropout gives.
            mask = w.new(op.output_bytes / 2)
            dropped_out = w.new(op.output_bytes)
            held += self._keep(out, not inner) + self._keep(mask, not inner) + self._keep(dropped_out, not inner)
            w.drop(out, mask)
            out = dropped_out
        if exchange >= 0:
            w.drop(exchange)
        if op.name == "context":
            w.drop(self.now, *self.branches)
        elif op.name == "core_attention":
            w.drop(*self.branches)
        elif op.name == "softmax":
            w.drop(self.now)
        if op.name in ("core_attention", "context"):
            self.branches = []
        self.now = out
        again = sum(w.size[slot] for slot in reads) if whole and op.name == "core_attention" else 0.0
        if inner and op.name == "softmax":
            again = op.saved_bytes
        self._step(op, size, held, again)

    def _memory(self, op: Operation) -> None:
        w = self.w
        dropped = drops_own(op, w.parts)
        if op.name == "embedding":
            out = w.new(op.output_bytes)
            if op.after is not None and op.after.kind == "reduce_scatter":
                out = w.moved(out, op.output_bytes / w.tp)
            self.now = out
            self._step(op, 0, [])
            return
        if op.part == "residual":
            size = w.size[self.residual]
            out = w.new(op.output_bytes)
            held = []
            if op.saved_bytes:
                mask = w.new(op.saved_bytes)
                held = self._keep(mask, True)
                w.drop(mask)
            w.drop(self.now, self.residual, *([self.aside] if self.aside >= 0 else []))
            self.now, self.residual, self.aside = out, out, -1
            if self.readers:  # a parallel block adds to the same stream again
                w.hold(out)
            self._step(op, size, held)
            return
        if op.name == "loss":
            self._loss(op)
            return
        if self.branches:  # rotary embedding, norms of queries and keys, exchange of heads
            size = sum(w.size[slot] for slot in self.branches)
            out = w.new(size)
            w.drop(*self.branches)
            self.branches = [out]
            self._step(op, size, [])
            return
        source = self._read(op)
        size = w.size[source]
        held = []
        if op.name == "router":
            scores = w.new(op.saved_bytes)
            held = self._keep(scores, True)
            w.drop(scores)
            self._done(op, source)
            self._step(op, size, held)
            return
        if op.saved_bytes and not dropped:
            held = self._keep(source, True)
            extra = op.saved_bytes - size
            if extra >= 1:
                gate = w.new(extra)
                held += self._keep(gate, True)
                w.drop(gate)
        out = w.new(op.output_bytes)
        self._done(op, source)
        self.now = out
        self._step(op, size, held, op.saved_bytes if dropped else 0.0)

    def _loss(self, op: Operation) -> None:
        w, rules = self.w, self.w.keep.loss
        logits = op.saved_bytes / 4.0
        size = w.size[self.now]
        work = [w.new(width * logits) for width in self._widths("work")]
        kept = [w.new(width * logits) for width in rules["kept"]]
        held = [slot for slot in kept for _ in range(1) if self.holding]
        w.drop(*work)
        if rules["logits_kept"] or rules["in_place"]:
            held += self._keep(self.now, True)
        w.drop(self.now)
        self.now = -1
        self._step(op, size, held)

    def _widths(self, name: str) -> list[int]:
        rules = self.w.keep.loss
        return list(rules.get(f"{name}_tp", rules[name]) if self.w.tp > 1 else rules[name])


class _Backward:
    """Walks the ops in backward order."""

    def __init__(self, writer: _Writer, incoming: int, table_bytes: float) -> None:
        self.w, self.table = writer, table_bytes
        self.now = incoming
        self.residual = self.normed = self.attention = self.aside = -1
        self.branches = 0

    def run(self, steps: list[_Step]) -> int:
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
                self._gemm(step)
            else:
                self._other(step)
            if again >= 0:
                self.w.drop(again)
        return self.now

    def _residual(self, step: _Step, shared: bool) -> None:
        w = self.w
        if self.now < 0:  # a parallel block: only the residual's own gradient is left
            self.now, self.residual = self.residual, -1
        w.drop(*step.held)
        self.residual = w.hold(self.now)
        if shared:
            self.aside = w.hold(self.now)

    def _norm(self, step: _Step) -> None:
        w = self.w
        incoming = self.normed if self.normed >= 0 else self.now
        out = w.moved(incoming, step.size)
        w.drop(*step.held)
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

    def _gemm(self, step: _Step) -> None:
        w, op = self.w, step.op
        branch = op.name in BRANCHES
        incoming = self.attention if branch else self.now
        passing: list[int] = []
        rows, k = (op.shape[0], op.shape[2]) if op.kind == "gemm" else (op.shape[0] * op.shape[1], op.shape[3])
        if op.before_backward is not None:
            passing.append(w.new(op.before_backward.bytes_total))
        width = op.output_bytes / (rows * (op.shape[1] if op.kind == "gemm" else op.shape[2]))
        if op.low_precision:
            passing.append(w.new(op.output_bytes / width * self.w.cast))
        if op.regather is not None and not w.keep.gathered_inputs:
            passing.append(w.new(op.regather.bytes_total))
        out = w.new(rows * k * width)
        if w.keep.weight_gradients and op.weight_elements:
            w.gradients.append(w.new(width * op.weight_elements))
        w.drop(*passing, *step.held)
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

    def _other(self, step: _Step) -> None:
        w, op = self.w, step.op
        if op.name == "loss":
            self._loss(step)
        elif op.name == "embedding":
            gathered = w.new(op.before_backward.bytes_total) if op.before_backward is not None else -1
            if self.table >= 1:
                w.gradients.append(w.new(self.table))
            w.drop(*([gathered] if gathered >= 0 else []), self.now)
            self.now = -1
        elif op.name == "core_attention":
            # Flash attention accumulates the gradient of the queries in fp32.
            accumulator = w.new(2 * op.output_bytes)
            self.attention = w.new(step.size)
            w.drop(accumulator, *step.held, self.now)
            self.now = -1
        elif op.name == "context":
            self.now = w.moved(self.now, op.shape[0] * op.shape[1] * op.shape[3] * 2.0)
        elif op.name == "scores":
            self.attention = w.new(step.size)
            w.drop(*step.held, self.now)
            self.now = -1
        elif self.attention >= 0:
            self.attention = w.moved(self.attention, step.size)
            w.drop(*step.held)
        elif op.name == "router":
            w.drop(*step.held)
        else:
            out = w.moved(self.now, step.size) if op.name != "softmax" else w.moved(self.now, op.output_bytes)
            w.drop(*step.held)
            if op.name in READS_NORM:
                self._add(out)
                self.now = -1
            else:
                self.now = out

    def _loss(self, step: _Step) -> None:
        w, rules = self.w, self.w.keep.loss
        logits = step.op.saved_bytes / 4.0
        widths = rules.get("backward_tp", rules["backward"]) if w.tp > 1 else rules["backward"]
        copies = [w.new(width * logits) for width in widths]
        if rules["in_place"]:
            self.now = step.held[-1]
            w.drop(*copies, *step.held[:-1])
        else:
            self.now = w.new(step.size)
            w.drop(*copies, *step.held)


def input_is_recomputed(op: Operation, previous: Operation | None, parts: frozenset[str]) -> bool:
    """Whether selective recomputation makes a GEMM's input again."""
    if op.part == "head":
        return False
    if "ops" in parts:
        return True  # the policy keeps outputs of GEMMs, not inputs
    if op.part in parts and op.part in ("attention", "mlp"):
        return True
    return previous is not None and previous.part in parts and previous.kind == "memory"


def drops_own(op: Operation, parts: frozenset[str]) -> bool:
    """Whether selective recomputation makes again what an element-wise op keeps."""
    if "ops" in parts:
        return op.part not in ("head", "residual")
    return op.part in parts and op.part not in ("norms", "activation", "moe_activation")
