"""A captured program as it runs when what the script compiles is compiled: fused kernels, and memory that follows.

First the graphs become those that Inductor gets: `traced_waits.py`, `micro_pipeline.py`, `decomposition.py`. Then
`compiled_kernels.py` says which ops are one kernel, and what it reads and writes. Here each kernel becomes one op, and
storages come and go with it:

- a value that stays within a kernel is never allocated;
- what a region makes for itself is freed behind the last kernel that reads it, not when Python lets go of it, and a
  kernel writes over an input of the same size that nobody needs after it;
- everything else comes and goes when it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windtunnel.studies.programs.compiler.compiled_kernels import kernels_of
from windtunnel.studies.programs.compiler.decomposition import simplified
from windtunnel.studies.programs.compiler.fusion import Flow, Kernel, Value
from windtunnel.studies.programs.compiler.micro_pipeline import pipelined
from windtunnel.studies.programs.compiler.traced_waits import with_traced_waits
from windtunnel.studies.programs.op_shapes import plain_name
from windtunnel.studies.programs.program import MemoryEvent, Op, RankProgram, TensorSpec

PREFIX = "inductor.fused"


def fused(program: RankProgram) -> RankProgram:
    """The program with its compiled regions compiled; the program itself where it has none."""
    if not any(op.compiled for op in program.ops):
        return program
    program = simplified(pipelined(with_traced_waits(program)))
    flow = Flow(program)
    return _Rebuilt(program, flow, kernels_of(flow)).program()


class _Rebuilt:
    def __init__(self, program: RankProgram, flow: Flow, kernels: Sequence[Kernel]) -> None:
        self.old, self.flow = program, flow
        self.kernels = [kernel for kernel in kernels if not kernel.fused or kernel.writes]
        self.index: dict[int, int] = {}  # op -> its kernel's place
        for place, kernel in enumerate(self.kernels):
            self.index |= dict.fromkeys(kernel.ops, place)
        self.came_after: dict[int, tuple[int, ...]] = {}  # by op of no kernel
        for index, op in enumerate(program.ops):
            if index not in self.index:
                self.came_after[index] = op.after
        nearest = len(self.kernels)
        self.at: list[int] = [0] * (len(program.ops) + 1)  # where what happened at an op happens now
        self.at[-1] = nearest
        for index in range(len(program.ops) - 1, -1, -1):
            nearest = self.index.get(index, nearest)
            self.at[index] = nearest

    def program(self) -> RankProgram:
        ops = tuple(self._op(place, kernel) for place, kernel in enumerate(self.kernels))
        last = max(0, len(ops) - 1)
        answers = tuple(
            answer._replace(op=min(self.at[answer.op], last) if answer.op >= 0 else answer.op)
            for answer in self.old.answers
        )
        return replace(self.old, ops=ops, memory=tuple(self._memory(last)), answers=answers)

    def _op(self, place: int, kernel: Kernel) -> Op:
        ops = [self.old.ops[index] for index in kernel.ops]
        before = {earlier for op in ops for earlier in op.after}
        before |= {writer for _, writer in kernel.reads if writer >= 0}
        after = tuple(sorted({other for earlier in before for other in self._places(earlier)} - {place}))
        if not kernel.fused:
            return replace(ops[0], after=after, reads=(), writes=())
        main = max(ops, key=lambda op: not op.recompute)
        names = dict.fromkeys(plain_name(op).strip("_") for op in ops)
        return Op(
            name=f"{PREFIX}_{'_'.join(list(names)[:5])}",
            kind="compute",
            inputs=tuple(self._spec(value, ops) for value in kernel.reads),
            outputs=tuple(self._spec(value, ops) for value in kernel.writes),
            flops=sum(op.flops for op in ops),
            bytes_read=float(sum(kernel.reads.values())),
            bytes_written=float(sum(kernel.writes.values())),
            after=after,
            stream=main.stream,
            module=main.module,
            phase=main.phase,
            micro_batch=main.micro_batch,
            recompute=all(op.recompute for op in ops),
            compiled=main.compiled,
        )

    def _places(self, index: int) -> set[int]:
        """Kernels that stand for an op; of one that is gone, for what it came after."""
        if index in self.index:
            return {self.index[index]}
        return {place for earlier in self.came_after[index] for place in self._places(earlier)}

    def _spec(self, value: Value, ops: Sequence[Op]) -> TensorSpec:
        storage = value[0]
        for op in ops:
            for (number, writer, _), spec in zip(op.reads, op.inputs, strict=False):
                if (number, writer) == value:
                    return spec
            for (number, _), spec in zip(op.writes, op.outputs or op.inputs, strict=False):
                if number == storage:
                    return spec
        size = self.flow.storage_bytes.get(storage, 0)
        return TensorSpec((size,), "uint8")

    # ---- memory

    def _memory(self, last: int) -> list[MemoryEvent]:
        touched, written, regions = self._uses()
        events: dict[int, list[MemoryEvent]] = {}
        for event in self.old.memory:
            events.setdefault(event.storage, []).append(event)
        spans: dict[int, tuple[int, int]] = {}  # storage that a region makes: first and last kernel with it; -1: none
        for storage, own in events.items():
            born = self.flow.born.get(storage, -1)
            if born >= 0 and self.flow.ops[born].compiled and storage not in self.flow.resident and len(own) <= 2:
                places = touched.get(storage, {-1})
                spans[storage] = (min(places), max(places))
        inner = {storage for storage in spans if len(regions[storage]) == 1 and len(events[storage]) == 2}
        reused = self._reused({storage: spans[storage] for storage in inner}, spans, events, written)
        never = {
            number for number, by in self.flow.readers if by >= 0 and by not in self.index and not self.flow.outputs[by]
        }
        never -= self.flow.resident | touched.keys()  # what a collective would have given that is not needed
        rows: list[tuple[int, int, int, MemoryEvent]] = []
        for order, event in enumerate(self.old.memory):
            storage, at = event.storage, min(self.at[event.op], last)
            if storage in never:
                continue
            if storage not in spans:
                uses = touched.get(storage, ()) if len(events[storage]) <= 2 else ()
                if event.bytes < 0 and uses and max(uses) >= at:
                    rows.append((*_before(max(uses) + 1, last), order, event))
                else:
                    rows.append((min((at, *uses)) if event.bytes > 0 else at, 2, order, event))
                continue
            first, end = spans[storage]
            if first < 0:
                continue
            if event.bytes > 0:
                rows.append((first, 2, order, event))
            elif storage in reused:
                rows.append((end, 1, order, event))
            else:
                behind = end + 1 if storage in inner else max(at, end + 1)
                rows.append((*_before(behind, last), order, event))
        rows.sort(key=lambda row: row[:3])
        return [event._replace(op=at) for at, _, _, event in rows]

    def _reused(
        self,
        inner: dict[int, tuple[int, int]],
        entry: dict[int, tuple[int, int]],
        events: dict[int, list[MemoryEvent]],
        written: dict[int, set[int]],
    ) -> set[int]:
        """Inputs that nobody needs after a kernel, of the same size as an output of it: the output takes their room."""
        room: dict[tuple[int, int], int] = {}
        for storage, (first, _) in entry.items():
            if first >= 0 and self.kernels[first].fused:
                key = (first, events[storage][0].bytes)
                room[key] = room.get(key, 0) + 1
        reused = set()
        for storage, (first, end) in inner.items():
            key = (end, events[storage][0].bytes)
            if end > first and storage not in written[end] and room.get(key):
                room[key] -= 1
                reused.add(storage)
        return reused

    def _uses(self) -> tuple[dict[int, set[int]], dict[int, set[int]], dict[int, set[int | None]]]:
        """Kernels that touch each storage; storages that each kernel writes; regions that use each (None: none)."""
        touched: dict[int, set[int]] = {}
        written: dict[int, set[int]] = {}
        regions: dict[int, set[int | None]] = {}
        for value in self.flow.readers:
            if value[1] in self.index and not self.flow.outputs[value[1]]:  # a communication wrote it
                touched.setdefault(value[0], set()).add(self.index[value[1]])
        for op in self.flow.ops:
            for storage in (*(number for number, _, _ in op.reads), *(number for number, _ in op.writes)):
                regions.setdefault(storage, set()).add(op.compiled or None)
        for value, readers in self.flow.readers.items():
            for reader in readers:
                if not self.flow.ops[reader].reads:
                    regions.setdefault(value[0], set()).add(self.flow.ops[reader].compiled or None)
                    if reader in self.index:
                        touched.setdefault(value[0], set()).add(self.index[reader])
        for place, kernel in enumerate(self.kernels):
            if kernel.fused:
                storages = {value[0] for value in (*kernel.reads, *kernel.writes)}
                written[place] = {value[0] for value in kernel.writes}
            else:
                op = self.flow.ops[kernel.ops[0]]
                written[place] = {number for number, _ in op.writes}
                storages = written[place] | {number for number, _, _ in op.reads}
            for storage in storages:
                touched.setdefault(storage, set()).add(place)
        return touched, written, regions


def _before(place: int, last: int) -> tuple[int, int]:
    """Before all else that happens at a kernel, or after all that happens at the last."""
    return (place, 0) if place <= last else (last, 3)
