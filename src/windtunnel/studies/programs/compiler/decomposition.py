"""A compiled graph before kernels are made of it: norms taken apart, and nothing computed twice.

- A norm or softmax is a reduction of each row, and an element-wise op that takes its result (PyTorch's decompositions).
  So what follows it can be made from its input again, which the whole op could not. Sums over the rows for a weight's
  gradient come with the element-wise part.
- Two ops of a graph that do the same to the same values are one (`fx_graph_cse`). The backward graph takes over
  reductions that the forward graph has done: the script may do them twice, as float8 linear layers do with the largest
  element of their input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from windtunnel.studies.programs.compiler.fusion import REDUCTIONS, ROW_WISE, Value, domain_of
from windtunnel.studies.programs.op_shapes import plain_name
from windtunnel.studies.programs.program import Op, RankProgram, TensorSpec

RANDOM = frozenset(("native_dropout", "bernoulli", "rand_like", "randn_like", "rand", "randn", "randint", "normal"))
FP32 = 4


def simplified(program: RankProgram) -> RankProgram:
    """The program with its compiled graphs decomposed and without what they compute twice."""
    return _Simplifier(program).program()


class _Simplifier:
    def __init__(self, program: RankProgram) -> None:
        self.old = program
        self.ops: list[Op] = []
        self.last: list[int] = []  # of each old op: what stands for it
        self.begin: list[int] = []  # of each old op: the first op made since
        self.value: dict[Value, Value] = {}  # of the old program: of the new one
        self.numbers: dict[object, int] = {}
        self.number: dict[Value, int] = {}  # of new values: equal where they are
        self.computed_by: dict[tuple[int, bool, int], int] = {}  # by region, backward, number
        self.merged: set[int] = set()  # storages that are not made any more

    def program(self) -> RankProgram:
        for index, op in enumerate(self.old.ops):
            self.begin.append(len(self.ops))
            self._take(index, op)
        self.begin.append(len(self.ops))
        written = {storage for op in self.ops for storage, _ in op.writes}
        unwritten = self.merged - written
        return replace(
            self.old,
            ops=tuple(self.ops),
            memory=tuple(
                memory_event._replace(op=self._at(memory_event.op))
                for memory_event in self.old.memory
                if memory_event.storage not in unwritten
            ),
            answers=tuple(
                answer._replace(op=self._at(answer.op)) if answer.op >= 0 else answer for answer in self.old.answers
            ),
        )

    def _at(self, index: int) -> int:
        return min(self.begin[min(index, len(self.begin) - 1)], max(0, len(self.ops) - 1))

    def _take(self, index: int, op: Op) -> None:
        after = tuple(sorted({self.last[earlier] for earlier in op.after}))
        reads = []
        for storage, writer, size in op.reads:
            source, by = self.value.get((storage, writer), (storage, self.last[writer] if writer >= 0 else -1))
            reads.append((source, by, size))
        op = replace(op, after=tuple(sorted({*after, *(by for _, by, _ in reads if by >= 0)})), reads=tuple(reads))
        at = len(self.ops)
        first, *rest = parts_of(op, index, at) if op.compiled else (op,)
        stands = self._add(index, first)
        if rest and stands != at:  # as much was known already
            instead = {
                (storage, at): (other, stands)
                for (storage, _), (other, _) in zip(first.writes, self.ops[stands].writes, strict=True)
            }
            rest = [_read_from(part, at, stands, instead) for part in rest]
        for part in rest:
            self._add(index, part)

    def _add(self, index: int, op: Op) -> int:
        at = len(self.ops)
        outputs = [(storage, at) for storage, _ in op.writes]
        self.last += [at] * (index + 1 - len(self.last))
        self.last[index] = at
        if op.compiled:
            number = self._number(op, at)
            equal = self._equal(op, number)
            if equal is not None:
                rest = self.ops[equal].writes
                self.value |= {
                    (storage, index): (other, equal) for (storage, _), (other, _) in zip(op.writes, rest, strict=True)
                }
                self.merged |= {storage for storage, _ in op.writes}
                self.last[index] = equal
                return equal
            self.number |= {
                value: self.numbers.setdefault((number, place), len(self.numbers))
                for place, value in enumerate(outputs)
            }
            if self._pure(op):
                self.computed_by[op.compiled, op.phase == "backward", number] = at
        self.value |= {(storage, index): (storage, at) for storage, _ in op.writes}
        self.ops.append(op)
        return at

    def _number(self, op: Op, at: int) -> int:
        """Equal for ops that give the same."""
        inputs = []
        for storage, writer, _ in op.reads:
            number = self.number.get((storage, writer))
            inputs.append(("from outside", storage) if number is None else number)
        own = at if plain_name(op).rstrip("_") in RANDOM or not op.reads else -1
        key = (op.name, op.inputs, op.outputs, op.scalars, op.lies, tuple(inputs), own)
        return self.numbers.setdefault(key, len(self.numbers))

    @staticmethod
    def _pure(op: Op) -> bool:
        storages = {storage for storage, _, _ in op.reads}
        return domain_of(op) is not None and bool(op.writes) and not any(number in storages for number, _ in op.writes)

    def _equal(self, op: Op, number: int) -> int | None:
        if not self._pure(op):
            return None
        backward = op.phase == "backward"
        equal = self.computed_by.get((op.compiled, backward, number))
        if equal is None and backward and not op.recompute and plain_name(op) in REDUCTIONS:
            equal = self.computed_by.get((op.compiled, False, number))
        return equal


def _read_from(op: Op, at: int, other: int, instead: dict[Value, Value]) -> Op:
    """An op that takes what another one than was thought has made."""
    reads = tuple((*instead.get((storage, writer), (storage, writer)), size) for storage, writer, size in op.reads)
    return replace(op, after=tuple(other if number == at else number for number in op.after), reads=reads)


def parts_of(op: Op, index: int, at: int) -> Sequence[Op]:
    """A row-wise op as its reduction and what is made with it; any other as it is. `at`: where the first will stand."""
    name = plain_name(op)
    if name not in ROW_WISE or domain_of(op) is None or len(op.writes) != len(op.outputs) or not op.reads:
        return (op,)
    statistics = op.outputs[1:] if name in ("native_layer_norm", "_fused_rms_norm") else ()
    written = op.writes[len(op.writes) - len(statistics) :]
    if not statistics:  # inside the kernel only, unless another one needs it too
        rows = op.inputs[0].shape[:-1]
        statistics = (TensorSpec((*rows, 1), "float32"),)
        written = ((-1 - index, math.prod(rows) * FP32),)
    forward = not name.endswith(("_backward", "_backward_data"))
    reduced = 1 if forward else len(op.inputs)  # the weight comes after the norm
    first = replace(
        op,
        name="aten.mean" if forward else "aten.sum",
        inputs=op.inputs[:reduced],
        outputs=statistics,
        flops=0.0,
        reads=op.reads[:reduced],
        writes=written,
    )
    second = replace(
        op,
        name="aten.mul",
        inputs=(*op.inputs, *statistics),
        outputs=op.outputs[: len(op.outputs) - len(statistics)] if len(op.outputs) > 1 and forward else op.outputs,
        after=(*op.after, at),
        reads=(*op.reads, *((storage, at, size) for storage, size in written)),
        writes=tuple(write for write in op.writes if write not in written),
    )
    return (first, second)
