"""The kernels of a whole program whose script compiles, with the bytes that each reads and writes.

`fusion.py` makes kernels of one graph. Then values that cost less to make again from a few others where they are needed
than to write and to read are made again: within a graph (Inductor's `realize_reads_threshold`), and in the backward
graph, so that they are not kept until then (the partitioner's minimal cut, as far as one value at a time). Where the
script recomputes by itself, what it does not keep is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.studies.programs.compiler.fusion import Flow, Graph, Kernel, Value, domain_of, graphs_of
from windtunnel.studies.programs.compiler.micro_pipeline import SYMMETRIC
from windtunnel.studies.programs.compiler.traced_waits import FUNCTIONAL

MOST_READS = 4  # of a value that is made again where it is needed


def kernels_of(flow: Flow) -> list[Kernel]:
    """Of the whole program, in order: compiled regions as few kernels, everything else op by op."""
    ops, dead = flow.ops, _dead(flow)
    kernels: list[Kernel] = []
    alike: dict[tuple[object, ...], list[Kernel]] = {}
    at = 0
    for members in graphs_of(ops):
        alive = [index for index in members if index not in dead]
        if not alive:
            continue
        kernels += [Kernel([index]) for index in range(at, alive[0]) if index not in dead]
        at, first = alive[-1] + 1, alive[0]
        signature = _signature(alive, at, flow, dead)
        pattern = alike.get(signature)
        if pattern is None:
            graph = Graph(alive, flow, dead)
            pattern = alike[signature] = [
                Kernel([index - first for index in kernel.ops], kernel.domain) for kernel in graph.kernels()
            ]
        kernels += [Kernel([index + first for index in kernel.ops], kernel.domain) for kernel in pattern]
    kernels += [Kernel([index]) for index in range(at, len(ops)) if index not in dead]
    owner = {index: kernel for kernel in kernels for index in kernel.ops}
    for kernel in kernels:
        if kernel.fused:
            _reads_and_writes(kernel, owner, flow)
    _Remaking(kernels, owner, flow).run()
    return kernels


def _dead(flow: Flow) -> set[int]:
    """Recomputed without need: a compiler leaves it out, products and collectives too."""
    filled: dict[int, list[Value]] = {}  # what collectives give
    for value in flow.readers:
        if value[1] >= 0 and not flow.outputs[value[1]]:
            filled.setdefault(value[1], []).append(value)
    wait_of = {op.after[0]: index for index, op in enumerate(flow.ops) if op.kind == "wait" and len(op.after) == 1}
    dead: set[int] = set()
    for index in range(len(flow.ops) - 1, -1, -1):
        op = flow.ops[index]
        if not (op.compiled and op.recompute):
            continue
        if op.kind == "communication" and op.name.startswith((FUNCTIONAL, SYMMETRIC)):
            if all(dead.issuperset(flow.readers[value]) for value in filled.get(index, ())):
                dead |= {index, wait_of.get(index, index)}
        elif op.kind == "compute":
            outputs = flow.outputs[index]
            if outputs and all(
                flow.is_own(value) and dead.issuperset(flow.readers.get(value, ())) for value in outputs
            ):
                dead.add(index)
    return dead


def _signature(alive: Sequence[int], end: int, flow: Flow, dead: set[int]) -> tuple[object, ...]:
    """Equal for graphs that give the same kernels: the layers of a model, mostly."""
    first, members = alive[0], set(alive)
    storages: dict[int, int] = {}
    rows: list[object] = []
    for index in range(first, end):
        if index in dead:
            rows.append(None)
            continue
        op = flow.ops[index]
        reads = tuple((storages.setdefault(number, len(storages)), max(-1, by - first)) for number, by, _ in op.reads)
        writes = tuple(storages.setdefault(number, len(storages)) for number, _ in op.writes)
        after = tuple(number - first for number in op.after if number >= first)
        row = (op.name, op.kind, op.inputs, op.outputs, op.recompute, index in members, reads, writes, after)
        rows.append(row)
    return tuple(rows)


def _reads_and_writes(kernel: Kernel, owner: dict[int, Kernel], flow: Flow) -> None:
    """Each value from outside once; each value that others read, or that changes what was there before."""
    for index in kernel.ops:
        for storage, writer, size in flow.ops[index].reads:
            if owner.get(writer) is not kernel:
                # Parts of one tensor add up to the whole; the whole is read once.
                size += kernel.reads.get((storage, writer), 0)
                kernel.reads[storage, writer] = min(size, flow.storage_bytes[storage])
        for value in flow.outputs[index]:
            elsewhere = any(
                owner.get(number) is not kernel for number in flow.readers.get(value, ()) if number in owner
            )
            if elsewhere or not flow.is_own(value):
                kernel.writes[value] = flow.bytes[value]


class _Remaking:
    """Values that cost less to make again where they are needed than to write and to read."""

    def __init__(self, kernels: Sequence[Kernel], owner: dict[int, Kernel], flow: Flow) -> None:
        self.kernels, self.owner, self.flow = kernels, owner, flow
        self.readers: dict[Value, list[Kernel]] = {}
        self.read_anyway: dict[int, set[Value]] = {}  # region -> what its backward graph reads anyway
        self.reduced: set[int] = set()  # ops that reduce
        self.remade: dict[Value, dict[Value, int]] = {}  # value -> what it is made of
        for kernel in kernels:
            for value in kernel.reads:
                self.readers.setdefault(value, []).append(kernel)
            for index in kernel.ops:
                op = flow.ops[index]
                if op.compiled and op.phase == "backward":
                    self.read_anyway.setdefault(op.compiled, set()).update((number, by) for number, by, _ in op.reads)
                domain = domain_of(op) if kernel.fused else None
                if domain is not None and domain.reduction:
                    self.reduced.add(index)

    def run(self) -> None:
        """Kernel by kernel, in order."""
        for kernel in self.kernels:
            for value, size in list(kernel.writes.items()):
                self._value(kernel, value, size)

    def _value(self, kernel: Kernel, value: Value, size: int) -> None:
        takers = [reader for reader in self.readers.get(value, ()) if reader is not kernel]
        as_it_is = any(
            not self.owner[number].fused for number in self.flow.readers.get(value, ()) if number in self.owner
        )
        if as_it_is or not takers or not self.flow.is_own(value) or value[1] in self.reduced:
            return
        parts: dict[Value, int] = {}
        if not self._made_of(kernel, value, parts) or not self._at_hand(parts, value, size, takers):
            return
        own = {
            part: self.flow.bytes[part] for part in parts if self._is_from(kernel, part) and part not in kernel.writes
        }
        more = sum(own.values()) + sum(
            part_bytes for taker in takers for part, part_bytes in parts.items() if part not in taker.reads
        )
        if more > size + sum(taker.reads[value] for taker in takers):
            return
        self.remade[value] = parts
        del kernel.writes[value]
        kernel.writes |= own
        for taker in takers:
            del taker.reads[value]
            for part, part_bytes in parts.items():
                if part not in taker.reads:
                    taker.reads[part] = part_bytes
                    self.readers.setdefault(part, []).append(taker)

    def _is_from(self, kernel: Kernel, value: Value) -> bool:
        return self.owner.get(value[1]) is kernel

    def _made_of(self, kernel: Kernel, value: Value, parts: dict[Value, int]) -> bool:
        """Adds what a value is made of, element by element; what is written, or reduced, is taken as it is."""
        for storage, writer, size in self.flow.ops[value[1]].reads:
            part = (storage, writer)
            if not self._is_from(kernel, part):
                parts.update(self.remade.get(part, {part: size}))
            elif part in kernel.writes or writer in self.reduced:
                parts[part] = size
            elif not self._made_of(kernel, part, parts):
                return False
        return len(parts) <= MOST_READS

    def _at_hand(self, parts: dict[Value, int], value: Value, size: int, takers: Sequence[Kernel]) -> bool:
        """Whether what a value is made of is there where it is made again, or takes less room than the value."""
        ops, maker = self.flow.ops, self.flow.ops[value[1]]
        passes = {(ops[taker.ops[0]].compiled, ops[taker.ops[0]].phase == "backward") for taker in takers}
        own = (maker.compiled, maker.phase == "backward")
        if passes == {own}:
            return True
        if not passes <= {own, (maker.compiled, True)}:
            return False
        of_region = self.read_anyway.get(maker.compiled, set())
        new = {part: part_bytes for part, part_bytes in parts.items() if part not in of_region}
        return all(self.flow.is_own(part) for part in new) and sum(new.values()) <= size
