"""Tapes: what one pass over a block allocates and frees, tensor by tensor, in the order of execution.

A tensor lives until the last op that reads it has run, or, if a backward op needs it, until that op has. Both follow
from the ops of a block (`model/operations.py`) and from what its framework keeps (`training/memory/saved_tensors.py`).

Tapes are written in slots: slot 0 is the block's input, each further slot a tensor that the block makes or, for the
gradient of its output, is given. The forward and the backward tape of a block share their slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from windtunnel.physics.model.adapters import ADAPTER
from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.memory.backward_trace import BackwardTape
from windtunnel.studies.training.memory.saved_tensors import (
    BRANCHES,
    INPUT,
    READS_NORM,
    Keeping,
    SavedForBackward,
    WeightGradient,
    Writer,
    drops_own,
    input_is_recomputed,
    kept_products,
)

FP32 = 4


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
    learners: tuple[WeightGradient, ...] = ()  # backward, in its order


def write(
    operations: tuple[Operation, ...], input_bytes: float, keep: Keeping, *, parts: frozenset[str] = frozenset(),
    recompute: bool = False, offload: bool = False, precision: str = "bf16", tp: int = 1, table_bytes: float = 0.0,
    compiled: bool = False,
) -> Tape:  # fmt: skip
    """The tape of one block.

    `parts`: of selective recomputation. `input_bytes` is 0 for the embedding; `table_bytes` is then what the gradient
    of its table takes.
    """
    writer = Writer(keep, frozenset() if recompute else parts, precision, tp, compiled)
    writer.size[INPUT], writer.holds[INPUT] = int(input_bytes), 1
    if recompute:
        if not offload:
            writer.hold(INPUT)  # the checkpoint
        _, output = ForwardTape(writer, holding=False).run(operations)
        forward, writer.events = writer.events, []
        if offload:
            writer.fetch(INPUT)
        steps, again = ForwardTape(writer, holding=True).run(operations)
        writer.drop(again)
    else:
        steps, output = ForwardTape(writer, holding=True).run(operations)
        away = sorted({slot for step in steps for slot in step.saved_bytes}) if offload else []
        away = [slot for slot in away if slot != output and slot not in writer.stays]
        forward = writer.events + [(slot, 0) for slot in away]
        writer.events = [(slot, writer.bytes_of(slot)) for slot in away]
    incoming = writer.reserve(writer.size[output]) if output >= 0 else -1
    outgoing = BackwardTape(writer, incoming, table_bytes).run(steps)
    return Tape(
        tuple(forward),
        tuple(writer.events),
        writer.sizes(),
        output,
        incoming,
        outgoing,
        tuple(writer.gradients),
        tuple(writer.learners),
    )


class ForwardTape:
    """Walks the ops in forward order. With `holding` off nothing is kept (under a checkpoint)."""

    def __init__(self, writer: Writer, holding: bool) -> None:
        self.w, self.holding = writer, holding
        self.steps: list[SavedForBackward] = []
        self.now = INPUT  # what the next op reads
        self.residual = self.normed = self.aside = -1
        self.readers = 0  # ops that have yet to read the norm's output
        self.branches: list[int] = []  # queries, keys, values
        self.latent = False  # latent attention: queries, keys and values come out of up-projections
        self.adapted: set[str] = set()  # layers with an adapter, which keeps their input
        self.products: dict[str, float] = {}  # share of its output that per-op recomputation keeps, by name

    def run(self, operations: tuple[Operation, ...]) -> tuple[list[SavedForBackward], int]:
        """Steps for the backward pass, and the slot of the output (-1 for the loss)."""
        if "ops" in self.w.parts:
            self.products = kept_products(operations, self.w.compiled)
        self.adapted = {op.name for op, behind in pairwise(operations) if behind.part == ADAPTER}
        # What adapters make themselves is a few parts in a thousand of what their layer makes, and so is what joins
        # states and embeddings before a layer of multi-token prediction. The ways into and out of experts' latent read
        # what router and shared experts keep, and make a quarter of it.
        operations = tuple(op for op in operations if op.part not in (ADAPTER, "mtp", "latent"))
        for number, op in enumerate(operations):
            if op.kind == "transfer" and not op.output_bytes:
                continue
            if op.part == "norms":
                self._norm(op, operations[number + 1 :])
            elif op.kind in ("gemm", "grouped_gemm"):
                self._gemm(op, operations[number - 1] if number else None)
            elif op.variant == "products":
                self._products(op)
            elif op.name in ("core_attention", "scores", "softmax", "context"):
                self._attention(op)
            else:
                self._memory(op)
        return self.steps, self.now

    def _step(self, op: Operation, size: int, saved: list[int], again: float = 0.0) -> None:
        self.steps.append(SavedForBackward(op, size, saved, again))

    def _keep(self, slot: int, wanted: bool) -> list[int]:
        return [self.w.hold(slot)] if self.holding and wanted else []

    def _keep_new(self, size: float) -> list[int]:
        """A tensor that only the backward reads."""
        slot = self.w.new(size)
        saved = self._keep(slot, True)
        self.w.drop(slot)
        return saved

    def _norm(self, op: Operation, rest: tuple[Operation, ...]) -> None:
        w = self.w
        size = w.size[self.now]
        dropped = "ops" in w.parts
        saved = self._keep(self.now, True)  # the first tensor of a block is kept under every policy
        extra = op.saved_bytes - size
        if extra >= 1 and not w.keep.triton_norms and not dropped:
            saved += self._keep_new(extra)  # eager upcasts
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
        self._step(op, size, saved)

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
        self.latent |= op.part == "mla_up_proj"
        if op.name == "shared_up":
            self.aside = self.now
        source = self._read(op)
        size = w.size[source]
        dropped = input_is_recomputed(op, previous, w.parts)
        adapted, frozen = op.name in self.adapted, not op.weight_elements
        saved: list[int] = []
        passing: list[int] = []
        again = 0.0
        if op.low_precision:
            copy = w.new(op.saved_bytes)
            kept_whole = op.before is not None and w.keep.gathered_inputs
            saved += self._keep(copy, not dropped and not kept_whole and not frozen)
            passing.append(copy)
            again = op.saved_bytes if dropped else 0.0
        if op.low_precision and op.weight_elements and w.keep.quantised_weights:
            copies = self._keep_new(w.cast * op.weight_elements)
            w.stays.update(copies)
            saved += copies
        gathered = w.new(op.before.bytes_total) if op.before is not None else -1
        if gathered >= 0:
            passing.append(gathered)
        wanted = adapted or not frozen
        if gathered >= 0 and w.keep.gathered_inputs:
            saved += self._keep(gathered, wanted and not dropped)
            again = w.size[gathered] if dropped else 0.0
        elif adapted or not op.low_precision:  # an adapter keeps its input in 16 bits
            saved += self._keep(source, wanted and not dropped)
            again = w.size[source] if dropped else 0.0
        again = again if wanted else 0.0
        if dropped and op.part in w.parts and op.name in READS_NORM:
            saved += self._keep(source, True)  # recomputation starts from here
        kept_share = self.products.get(op.name, 0.0)
        if 0.0 < kept_share < 1.0:  # a tensor of its own
            saved += self._keep_new(kept_share * op.output_bytes)
        out = w.new(op.output_bytes, 1.0 - kept_share if kept_share < 1.0 else 1.0)
        saved += self._keep(out, kept_share == 1.0)
        if adapted and w.keep.adapter_outputs:
            saved += self._keep_new(op.output_bytes)
        if op.after is not None and op.after.kind == "reduce_scatter":
            out = w.moved(out, op.output_bytes / w.tp)
        w.drop(*passing)
        self._done(op, source)
        if op.name in BRANCHES:
            self.branches.append(out)
            self.now = -1
        else:
            self.now = out
        self._step(op, size, saved, again)

    def _attention(self, op: Operation) -> None:
        w = self.w
        made_again = self.latent and "mla_up_proj" in w.parts
        whole = "attention" in w.parts or "ops" in w.parts or made_again
        inner = (whole and not made_again) or "core_attention" in w.parts
        reads = self.branches if op.name in ("core_attention", "scores") else [self.now]
        size = sum(w.size[slot] for slot in self.branches)
        saved: list[int] = []
        if op.name in ("core_attention", "scores"):
            for slot in reads:
                saved += self._keep(slot, not whole)
        exchange = w.new(op.before.bytes_total) if op.before is not None else -1
        out = w.new(op.output_bytes)
        if op.name == "core_attention":
            log_sum = w.new(max(op.saved_bytes - size - op.output_bytes, 1))
            saved += self._keep(log_sum, not inner) + self._keep(out, "ops" in w.parts or not inner)
            w.drop(log_sum)
        elif op.name == "softmax":
            # Softmax, dropout mask and what dropout gives.
            mask = w.new(op.output_bytes / 2)
            dropped_out = w.new(op.output_bytes)
            saved += self._keep(out, not inner) + self._keep(mask, not inner) + self._keep(dropped_out, not inner)
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
        self._step(op, size, saved, again)

    def _products(self, op: Operation) -> None:
        """Attention without a kernel of its own: as `plain_rules` has it."""
        w = self.w
        batch, s, _, heads, _, d, dv, *_ = op.shape
        rows = FP32 * batch * heads * s
        dropped = bool(w.parts & {"attention", "core_attention"})
        size = sum(w.size[slot] for slot in self.branches)
        wide = [w.new(rows * d), w.new(rows * d), w.new(rows * dv)]
        masked = [w.new(rows * s), w.new(rows * s)]
        w.drop(*masked)
        soft = [w.new(rows * s), w.new(rows * s), w.new(rows * s / FP32)]
        w.drop(*soft)
        scores = w.new(rows * s)
        saved = [slot for number in (*wide, scores) for slot in self._keep(number, not dropped)]
        sources = [slot for branch in self.branches for slot in self._keep(branch, dropped)]
        again = sum(w.size[number] for number in (*wide, scores)) if dropped else 0.0
        out = w.new(op.output_bytes)
        w.drop(*wide, scores, *self.branches)
        self.branches, self.now = [], out
        self._step(op, size, saved + sources, again)

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
            saved = []
            if op.saved_bytes:
                saved = self._keep_new(op.saved_bytes)
            w.drop(self.now, self.residual, *([self.aside] if self.aside >= 0 else []))
            self.now, self.residual, self.aside = out, out, -1
            self._step(op, size, saved)
            return
        if op.name == "loss":
            self._loss(op)
            return
        if self.branches:  # rotary embedding, norms of queries and keys, exchange of heads
            size = sum(w.size[slot] for slot in self.branches)
            out = w.new(
                op.output_bytes if op.part == "mla_up_proj" else size
            )  # the one rotary key becomes every head's
            saved = self._keep_new(op.saved_bytes) if op.saved_bytes and not dropped else []  # before their norms
            w.drop(*self.branches)
            self.branches = [out]
            self._step(op, size, saved, op.saved_bytes if dropped else 0.0)
            return
        source = self._read(op)
        size = w.size[source]
        saved = []
        if op.name == "router":
            saved = self._keep_new(op.saved_bytes)
            self._done(op, source)
            self._step(op, size, saved)
            return
        if op.part in ("activation", "moe_activation") and op.saved_bytes < 0.75 * size:
            saved = self._keep_new(op.saved_bytes)  # a copy in a format of fewer bytes
        elif op.saved_bytes and not dropped:
            saved = self._keep(source, True)
            extra = op.saved_bytes - size
            if extra >= 1:
                saved += self._keep_new(extra)  # the gate
        out = w.new(op.output_bytes)
        self._done(op, source)
        self.now = out
        self._step(op, size, saved, op.saved_bytes if dropped else 0.0)

    def _loss(self, op: Operation) -> None:
        w, rules = self.w, self.w.loss
        logits = op.saved_bytes / 4.0
        size = w.size[self.now]
        widths = rules.get("work_tp", rules["work"]) if w.tp > 1 else rules["work"]
        work = [w.new(width * logits) for width in (widths[1:] if size >= FP32 * logits else widths)]
        saved = [w.new(width * logits) for width in rules["kept"]]
        w.drop(*work)
        if rules["logits_kept"] or rules["in_place"]:
            saved += self._keep(self.now, True)
        w.drop(self.now)
        self.now = -1
        self._step(op, size, saved)
