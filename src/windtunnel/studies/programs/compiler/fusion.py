"""Which ops of a compiled region become one kernel, as Inductor joins them.

A captured script runs what it compiles op by op, each op marked with the call of a compiled function that it is part of
(`Op.compiled`). Such a call is two graphs, forward and backward; what is recomputed belongs to the backward one. Within
a graph:

- Ops that recompute run as late as possible, before the first op that needs them (`reordering_to_mimic_autograd_engine`
  of PyTorch's partitioner); ops whose values nobody reads are gone.
- Element-wise ops and reductions join with those they read from, or read the same as, if they go over the same
  elements, or over what a reduction leaves. One kernel reduces along rows or along columns; what is left of all
  elements can be had from rows first, the rest of it is small.
- Everything else (products, attention, communication, what takes complex numbers or its shape from data) is run by
  itself, in the order of the script.
- A kernel reads each value from outside once, and writes what others need.

Inductor's scheduler and `torch._functorch.partitioners`, PyTorch 2.6 to 2.13. FLOPs stay as they are, and no kernel
reads or writes more than its ops did one by one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.studies.programs.op_shapes import plain_name
from windtunnel.studies.programs.program import Op, RankProgram

Value = tuple[int, int]  # storage, and the op that wrote it; -1: it was there before

POINTWISE = frozenset(
    (
        *("abs", "add", "sub", "rsub", "mul", "div", "neg", "pow", "exp", "exp2", "expm1", "log", "log2", "log1p"),
        *("sqrt", "rsqrt", "reciprocal", "sigmoid", "silu", "gelu", "tanh", "relu", "leaky_relu", "erf", "sin"),
        *("cos", "where", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "sign", "floor", "ceil"),
        *("round", "remainder", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"),
        *("logical_xor", "isnan", "bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "isinf", "fmod"),
        *("softplus", "lerp", "atan2", "_to_copy", "clone", "copy", "cat", "stack", "constant_pad_nd"),
        *("masked_fill", "addcmul", "addcdiv", "square", "fill", "zero", "zeros", "ones", "full", "zeros_like"),
        *("ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "arange"),
        *("native_dropout", "tril", "triu", "flip", "roll", "repeat", "mse_loss", "threshold", "hardtanh", "elu"),
        *("glu", "select_backward", "slice_backward", "sigmoid_backward", "gelu_backward", "silu_backward"),
        *("tanh_backward", "threshold_backward", "native_dropout_backward", "mse_loss_backward"),
    )
)
"""One result per element, of which each is made from its own elements; in-place forms too."""

REDUCTIONS = frozenset(
    (
        *("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "std", "var_mean", "std_mean", "any", "all"),
        *("norm", "linalg_vector_norm", "logsumexp", "argmax", "argmin"),
    )
)
ROW_WISE = frozenset(
    (
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
    )
)
"""Reductions along the last dimension and what is made of them, in one op."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What an op goes over: elements, and how it reduces them ("", "row", "column" or "all") to how many."""

    elements: int
    reduction: str = ""
    left: int = 0


@dataclass(slots=True)
class Kernel:
    """Ops that run as one. `reads` and `writes`: bytes of each value; of ops that are fused only."""

    ops: list[int]
    domain: Domain | None = None  # None: one op, as it is
    reads: dict[Value, int] = field(default_factory=dict)
    writes: dict[Value, int] = field(default_factory=dict)

    @property
    def fused(self) -> bool:
        """Whether the compiler writes it."""
        return self.domain is not None


def domain_of(op: Op) -> Domain | None:
    """What a compiled op goes over; None where the compiler calls a kernel that exists."""
    if op.kind != "compute" or not op.compiled or not op.name.startswith("aten.") or op.communication is not None:
        return None
    name = plain_name(op)
    specs = (*op.inputs, *op.outputs)
    if not specs or any(spec.dtype.startswith("complex") or (spec.device == "host" and spec.shape) for spec in specs):
        return None
    outputs = op.outputs or op.inputs[:1]  # in place: what it writes comes first
    out = max((math.prod(spec.shape) for spec in outputs), default=0)
    if not out:
        return None
    if name in ROW_WISE:
        width = max(outputs, key=lambda spec: math.prod(spec.shape)).shape[-1:] or (1,)
        return Domain(out, "row", out // width[0])
    if name in REDUCTIONS and op.inputs:
        shape = op.inputs[0].shape
        elements, left = math.prod(shape), op.outputs[0].shape if op.outputs else ()
        if elements <= out:
            return Domain(out)
        if out == 1:
            return Domain(elements, "all", 1)
        along_rows = left == shape[:-1] or left[-1:] != shape[-1:]
        return Domain(elements, "row" if along_rows else "column", out)
    return Domain(out) if name.removesuffix("_") in POINTWISE or name in POINTWISE else None


def join_domains(domain: Domain, other: Domain, *, feeds: bool) -> Domain | None:
    """What one kernel of both would go over; None: they stay two. `feeds`: the second reads what the first makes."""
    if domain.elements == other.elements:
        if not domain.reduction or not other.reduction:
            return domain if domain.reduction else other
        if {domain.reduction, other.reduction} == {"row", "all"}:  # of everything: row by row first
            return domain if domain.reduction == "row" else other
        return domain if domain == other else None
    if feeds and domain.reduction and not other.reduction and other.elements == domain.left:
        return domain
    return None


class Flow:
    """Who makes and who reads each value of a program."""

    def __init__(self, program: RankProgram) -> None:
        ops = self.ops = program.ops
        self.readers: dict[Value, list[int]] = {}
        self.bytes: dict[Value, int] = {}
        self.outputs: list[list[Value]] = [
            [(storage, index) for storage, _ in op.writes] for index, op in enumerate(ops)
        ]
        self.resident = {event.storage for event in program.resident}
        self.born: dict[int, int] = {}  # storage -> the op that wrote it first
        self.storage_bytes: dict[int, int] = {}
        for index, op in enumerate(ops):
            for storage, writer, size in op.reads:
                self._read((storage, writer), index)
                self.storage_bytes[storage] = max(size, self.storage_bytes.get(storage, 0))
            if not op.reads:  # communications and waits: all that came before them
                for earlier in op.after:
                    for value in self.outputs[earlier]:
                        self._read(value, index)
            for storage, size in op.writes:
                self.bytes[storage, index] = size
                self.born.setdefault(storage, index)
                self.storage_bytes[storage] = max(size, self.storage_bytes.get(storage, 0))

    def _read(self, value: Value, index: int) -> None:
        readers = self.readers.setdefault(value, [])
        if not readers or readers[-1] != index:
            readers.append(index)

    def is_own(self, value: Value) -> bool:
        """Whether its storage is made by the step's ops: where nobody reads it, nobody needs it."""
        storage = value[0]
        return storage not in self.resident and storage in self.born


def graphs_of(ops: Sequence[Op]) -> list[list[int]]:
    """Ops of each graph, in order: those of one region and pass, without ops of another region between."""
    graphs: list[list[int]] = []
    last: tuple[int, bool] | None = None
    for index, op in enumerate(ops):
        if op.compiled:
            key = (op.compiled, op.phase == "backward")
            if key != last:
                graphs.append([])
            last = key
            graphs[-1].append(index)
    return graphs


class Graph:
    """One graph and the ops of others that lie within it, in an order of its own."""

    def __init__(self, members: Sequence[int], flow: Flow, dead: set[int]) -> None:
        self.flow, ops = flow, flow.ops
        self.members = frozenset(members)
        self.first = members[0]
        span = [index for index in range(members[0], members[-1] + 1) if index not in dead]
        self.needs = self._needs(span)
        self.order = self._late(span)
        self.domains = {index: domain for index in members if index not in dead and (domain := domain_of(ops[index]))}
        self.place = {index: at for at, index in enumerate(self.order)}

    def _needs(self, span: Sequence[int]) -> dict[int, set[int]]:
        """Of each op, the ops of the graph that come before it, whatever the order."""
        ops, inside = self.flow.ops, set(span)
        waits: dict[int, int] = {}  # communication -> what waits for it
        readers: dict[int, list[int]] = {}  # storage -> since it was written
        writer: dict[int, int] = {}
        needs: dict[int, set[int]] = {}
        other = -1
        for index in span:
            op = ops[index]
            before = {earlier for earlier in op.after if earlier in inside}
            before |= {waits[earlier] for earlier in op.after if earlier in waits}
            if op.kind == "wait":
                waits.update(dict.fromkeys(op.after, index))
            for storage, _, _ in op.reads:
                readers.setdefault(storage, []).append(index)
            for storage, _ in op.writes:
                before.update(readers.pop(storage, ()))
                if storage in writer:
                    before.add(writer[storage])
                writer[storage] = index
            if index not in self.members:  # the script's own order
                if other >= 0:
                    before.add(other)
                other = index
            before.discard(index)
            needs[index] = before
        return needs

    def _late(self, span: Sequence[int]) -> list[int]:
        """What recomputes comes when it is needed."""
        ops = self.flow.ops
        order: list[int] = []
        done: set[int] = set()
        roots = [index for index in span if index not in self.members or not ops[index].recompute]
        for root in (*roots, *span):
            waiting, needed = [root], set()
            while waiting:
                index = waiting.pop()
                if index not in done and index not in needed:
                    needed.add(index)
                    waiting.extend(self.needs[index])
            order.extend(sorted(needed))
            done |= needed
        return order

    # ---- kernels

    def kernels(self) -> list[Kernel]:
        """In the order in which they run."""
        group = {index: index for index in self.domains}  # op -> its kernel's name
        of = {index: [index] for index in self.domains}
        over = dict(self.domains)
        reads: dict[Value, list[int]] = {}
        for index in self.order:
            if index not in group:
                continue
            candidates = [value[1] for value in self._read(index) if value[1] in group]
            for value in self._read(index):
                candidates += reads.get(value, ())
                reads.setdefault(value, []).append(index)
            for candidate in dict.fromkeys(sorted(candidates, reverse=True)):  # what came just before first
                into, other = group[candidate], group[index]
                if into == other:
                    continue
                whole = join_domains(over[into], over[other], feeds=self._feeds(of[into], of[other]))
                if whole is None or not self._in_one_pass(of[into] + of[other], whole):
                    continue
                merged = group | dict.fromkeys(of[other], into)
                if self._placed(merged) is None:
                    continue
                group = merged
                of[into] = sorted(of[into] + of.pop(other), key=self.place.__getitem__)
                over[into] = whole
        return self._in_order(group, of, over)

    def _read(self, index: int) -> list[Value]:
        return [(storage, writer) for storage, writer, _ in self.flow.ops[index].reads]

    def _feeds(self, members: Iterable[int], other: Iterable[int]) -> bool:
        makers = set(members)
        return any(value[1] in makers for index in other for value in self._read(index))

    def _in_one_pass(self, members: Iterable[int], whole: Domain) -> bool:
        """Whether no member needs, of every element, what is left of all or of columns: that is a kernel of its own."""
        late: set[int] = set()
        for index in sorted(members, key=self.place.__getitem__):
            domain = self.domains[index]
            if domain.reduction in ("all", "column"):
                late.add(index)
            if any(value[1] in late for value in self._read(index)):
                if domain.elements == whole.elements:
                    return False
                late.add(index)
        return True

    def _placed(self, group: dict[int, int]) -> dict[int, int] | None:
        """Of each kernel the op after which it can run, by place; None: one would wait for itself."""
        at: dict[int, int] = {}
        while True:  # to the least fixed point: what a kernel waits for only ever moves it back
            moved = False
            for index in self.order:
                if index not in group:
                    continue
                name = group[index]
                for earlier in self.needs[index]:
                    if earlier in group:
                        place = at.get(group[earlier], -1) if group[earlier] != name else -1
                    else:
                        place = self.place[earlier]
                    if place > at.get(name, -1):
                        at[name], moved = place, True
            if not moved:
                break
        for index in self.order:
            if index not in group and any(
                at.get(group.get(number, -1), -1) > self.place[index] for number in self.needs[index]
            ):
                return None
        waits = waits_of(group, self.needs)
        return at if len(sorted_by(dict.fromkeys(waits, 0.0), waits)) == len(waits) else None

    def _in_order(self, group: dict[int, int], of: dict[int, list[int]], over: dict[int, Domain]) -> list[Kernel]:
        """Kernels among the ops that run by themselves: as soon as they can, those that recompute as late."""
        after = self._placed(group)
        assert after is not None
        ops, last = self.flow.ops, len(self.order)
        waits, key = waits_of(group, self.needs), {index: float(self.place[index]) for index in self.order}
        use = dict.fromkeys(of, float(last))
        for index in reversed(self.order):
            name = group.get(index)
            if name is not None and not all(ops[number].recompute for number in of[name]):
                use[name] = min(use[name], after.get(name, -1) + 0.5)
            mine = float(self.place[index]) if name is None else use[name]
            for earlier in self.needs[index]:
                if earlier in group:
                    use[group[earlier]] = min(use[group[earlier]], mine)
        for name in of:
            key[name] = max(use[name] - 0.25, after.get(name, -1) + 0.25)
        alone = [index for index in self.order if index not in group]
        for number, other in itertools.pairwise(alone):
            waits[other].add(number)
        kernels = []
        for name in sorted_by(key, waits):
            kernels.append(Kernel(of[name], over[name]) if name in of else Kernel([name]))
        return kernels


def waits_of(group: Mapping[int, int], needs: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """What kernels and single ops wait for, each by its name."""
    waits: dict[int, set[int]] = {}
    for index, before in needs.items():
        name = group.get(index, index)
        waits.setdefault(name, set()).update(group.get(number, number) for number in before)
    for name, before in waits.items():
        before.discard(name)
    return waits


def sorted_by(key: Mapping[int, float], waits: Mapping[int, set[int]]) -> list[int]:
    """Names in an order in which each comes after what it waits for, otherwise by key. Shorter if there is none."""
    left = {name: len(before) for name, before in waits.items()}
    followers: dict[int, list[int]] = {}
    for name, before in waits.items():
        for number in before:
            followers.setdefault(number, []).append(name)
    ready = [(key[name], name) for name, count in left.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for number in followers.get(name, ()):
            left[number] -= 1
            if not left[number]:
                heapq.heappush(ready, (key[number], number))
    return order
