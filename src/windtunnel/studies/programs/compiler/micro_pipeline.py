"""Async tensor parallelism: collectives of a compiled graph in pieces that travel beside the products next to them.

Inductor's pass `micro_pipeline_tp`, for groups that have symmetric memory, finds in a graph

    products whose first factor was all-gathered
    a product of which nothing is made but a reduce-scatter

and has them run as `torch.distributed._symmetric_memory` does. With n ranks:

- Gathering: a rank copies its part to where the others see it, and multiplies it. Meanwhile copy engines pull the parts
  of the others, one by one; each is multiplied when it is there.
- Scattering: the part of the product that one peer gets is computed, then that of the next, its own last. Each is
  pulled by who gets it, under the next product. Then the parts are added.

So what is waited for is the first or the last part, and what links are slower at than products. Collectives of another
dimension than the first copy tensors to another layout and back, which is gone too. Buffers that others see lie outside
PyTorch's allocator. The two streams of PyTorch's version are one here: a product fills the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from windtunnel.studies.programs.communication import PULL, Communication
from windtunnel.studies.programs.compiler.rewriting import rewritten
from windtunnel.studies.programs.op_shapes import PARTS, plain_name, tensor_bytes
from windtunnel.studies.programs.program import Op, RankProgram, TensorSpec

PRODUCTS = ("mm", "_scaled_mm")
NOBODYS = -(1 << 40)  # storages from here down stand for what nobody reads
SYMMETRIC = "symm_mem."  # what its ops are called
FACT = "async_tp"  # of a program: names of the groups whose collectives Inductor may take apart


def pipelined(program: RankProgram) -> RankProgram:
    """The program with these collectives taken apart; itself where the script did not ask for it."""
    groups = program.facts.get(FACT)
    if not isinstance(groups, (list, tuple)) or not groups:
        return program
    return _Rewriter(program, frozenset(map(str, groups))).program()


@dataclass(slots=True)
class _Instead:
    """What comes where a collective was, and what has to move in front of it."""

    ops: list[int]
    first: list[int] = field(default_factory=list)


class _Rewriter:
    def __init__(self, program: RankProgram, groups: frozenset[str]) -> None:
        self.old, self.ops, self.groups = program, program.ops, groups
        self.readers: dict[tuple[int, int], list[int]] = {}  # value -> the ops that read it
        for index, op in enumerate(self.ops):
            for value in dict.fromkeys(read[:2] for read in op.reads):
                self.readers.setdefault(value, []).append(index)
        self.filled = {by: storage for storage, by in self.readers if by >= 0 and not self.ops[by].writes}
        self.wait_of = {op.after[0]: i for i, op in enumerate(self.ops) if op.kind == "wait" and len(op.after) == 1}
        self.batch = max((op.communication.batch for op in self.ops if op.communication is not None), default=0)
        self.new_ops: dict[int, Op] = {}
        self.stands: dict[int, int] = {}
        self.dropped: set[int] = set()  # storages
        self.instead: dict[int, _Instead] = {}

    def program(self) -> RankProgram:
        for index, op in enumerate(self.ops):
            call = op.communication
            if call is None or not op.compiled or call.group not in self.groups or len(call.members) < 2:
                continue
            if call.kind == "all_gather":
                self._gather(index, op, call)
            elif call.kind == "reduce_scatter" and call.reduce_op in ("sum", "avg"):
                self._scatter(index, op, call)
        if not self.instead:
            return self.old
        early = {name for instead in self.instead.values() for name in instead.first}
        order: list[int] = []
        for index in range(len(self.ops)):
            if index in self.instead:
                order += [*self.instead[index].first, *self.instead[index].ops]
            elif index not in self.stands and index not in early:
                order.append(index)
        return rewritten(self.old, order, self.new_ops, self.stands, frozenset(self.dropped))

    # ---- what is found

    def _gather(self, index: int, op: Op, call: Communication) -> None:
        storage = self.filled.get(index)
        if storage is None:
            return
        value, cat = (storage, index), -1
        readers = self.readers[value]
        if len(readers) == 1 and plain_name(self.ops[readers[0]]) == "cat":
            cat = readers[0]
            value = (self.ops[cat].writes[0][0], cat)
        own = {index, cat, self.wait_of.get(index, -1)} - {-1}
        products = [
            number
            for number in self.readers.get(value, ())
            if self._is_product(number, op) and self.ops[number].reads[0][:2] == value
            if tensor_bytes(self.ops[number].inputs[0]) == call.bytes and self._divides(number, call)
        ]
        first: set[int] = set()
        usable = []
        for product in products:
            needed = self._needed(product, index, own | set(products))
            if needed is not None:
                first |= needed
                usable.append(product)
        if not usable or len({self.ops[number].name for number in usable}) > 1:
            return
        parts = self._gathered(op, call, usable, value[0])
        self.instead[index] = _Instead(parts, sorted(first))
        pull = max(part for part in parts if self.new_ops[part].communication is not None)
        self.stands |= dict.fromkeys(own, pull)
        if cat >= 0:
            self.dropped.add(storage)

    def _scatter(self, index: int, op: Op, call: Communication) -> None:
        if len(op.after) != 1:
            return
        source, cat = op.after[0], -1
        if plain_name(self.ops[source]) == "cat":
            cat = source
            values = {read[:2] for read in self.ops[cat].reads}
            if len(values) != 1 or any(self.readers.get((number, cat)) for number, _ in self.ops[cat].writes):
                return
            source = next(iter(values))[1]
        if source < 0 or source in self.stands or not self._is_product(source, op) or not self._divides(source, call):
            return
        product = self.ops[source]
        readers = {number for storage, _ in product.writes for number in self.readers.get((storage, source), ())}
        if readers - {cat} or tensor_bytes(product.outputs[0]) != call.bytes:  # the product is needed as it is
            return
        parts = self._scattered(op, call, product, self.filled.get(index, NOBODYS - index))
        self.instead[index] = _Instead(parts)
        own, total = parts[-2:]
        self.stands |= {source: own, index: total}
        if index in self.wait_of:
            self.stands[self.wait_of[index]] = total
        if cat >= 0:
            self.stands[cat] = own
            self.dropped |= {storage for storage, _ in self.ops[cat].writes}

    def _is_product(self, index: int, beside: Op) -> bool:
        """One of the same graph as the collective."""
        op = self.ops[index]
        same = op.compiled == beside.compiled and (op.phase == "backward") == (beside.phase == "backward")
        return same and plain_name(op) in PRODUCTS and bool(op.reads) and bool(op.writes) and bool(op.outputs)

    def _divides(self, index: int, call: Communication) -> bool:
        return self.ops[index].inputs[0].shape[0] % len(call.members) == 0

    def _needed(self, product: int, begin: int, own: set[int]) -> set[int] | None:
        """Ops behind `begin` that make a product's other factors; None where these need what is gathered."""
        direct = self.ops[product].reads[0][1]
        waiting = [number for number in self.ops[product].after if number > begin and number != direct]
        needed: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number in own or self.ops[number].kind != "compute":
                return None
            if number not in needed:
                needed.add(number)
                waiting += [earlier for earlier in self.ops[number].after if earlier >= begin]
        return needed

    # ---- what comes in its place

    def _gathered(self, op: Op, call: Communication, products: Sequence[int], storage: int) -> list[int]:
        part = op.inputs[0]
        self.batch += 1
        shown = self._put(_copy(op, part))
        pulls = [self._put(self._pull(op, call, part, shown)) for _ in call.members[1:]]
        # The gathered tensor is kept whole: the own part is copied into it.
        own = self._put(replace(_copy(op, part), writes=((storage, call.bytes),)))
        pieces = []
        for source in (own, *pulls):
            for product in products:
                old = self.ops[product]
                after = (*(number for number in old.after if number != old.reads[0][1]), source)
                reads = ((storage, source, tensor_bytes(part)), *old.reads[1:])
                if product in self.stands:  # one result: who reads the last piece needs those before it
                    reads = (*reads, (old.writes[0][0], self.stands[product], 0))
                piece = replace(_piece(old, len(call.members)), after=after, reads=reads)
                self.stands[product] = self._put(piece)  # in the end, the last one
                pieces.append(self.stands[product])
        return [shown, *pulls, own, *pieces]

    def _scattered(self, op: Op, call: Communication, product: Op, storage: int) -> list[int]:
        part, n = op.outputs[0], len(call.members)
        self.batch += 1
        sequence: list[int] = []
        pulls: list[int] = []
        for _ in call.members[1:]:
            sequence.append(self._put(_piece(product, n)))
            pulls.append(self._put(self._pull(op, call, part, sequence[-1])))
            sequence.append(pulls[-1])
        own = self._put(_piece(product, n))
        total = replace(
            op,
            name=f"{SYMMETRIC}sum",
            kind="compute",
            inputs=(TensorSpec((n, *part.shape), part.dtype, part.device),),
            outputs=(part,),
            bytes_read=float(call.bytes),
            bytes_written=float(tensor_bytes(part)),
            after=(own, *pulls),
            communication=None,
            reads=tuple((product.writes[0][0], source, tensor_bytes(part)) for source in (own, *pulls)),
            writes=((storage, tensor_bytes(part)),),
        )
        return [*sequence, own, self._put(total)]

    def _pull(self, op: Op, call: Communication, part: TensorSpec, after: int) -> Op:
        size = tensor_bytes(part)
        pull = replace(call, kind=PULL, bytes=size, is_async=True, batch=self.batch, reduce_op="")
        pull_op = replace(_copy(op, part), name=f"{SYMMETRIC}pull", kind="communication", after=(after,))
        return replace(pull_op, communication=pull)

    def _put(self, op: Op) -> int:
        name = len(self.ops) + len(self.new_ops)
        self.new_ops[name] = op
        return name


def _copy(op: Op, part: TensorSpec) -> Op:
    size = float(tensor_bytes(part))
    return replace(
        op,
        name=f"{SYMMETRIC}copy",
        kind="compute",
        inputs=(part,),
        outputs=(part,),
        bytes_read=size,
        bytes_written=size,
        communication=None,
    )


def _piece(product: Op, n: int) -> Op:
    """A product of an n-th of the first factor's rows."""
    first = tensor_bytes(product.inputs[0])
    return replace(
        product,
        inputs=(_rows(product.inputs[0], n), *product.inputs[1:]),
        outputs=tuple(_rows(spec, n) for spec in product.outputs),
        flops=product.flops / n,
        bytes_read=max(0.0, product.bytes_read - first) + first / n,
        bytes_written=product.bytes_written / n,
        scalars=(*product.scalars, (PARTS, n)),
    )


def _rows(spec: TensorSpec, n: int) -> TensorSpec:
    return TensorSpec((spec.shape[0] // n, *spec.shape[1:]), spec.dtype, spec.device)
