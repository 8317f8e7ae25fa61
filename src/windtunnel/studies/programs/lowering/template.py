"""A captured program as ops of the execution graph: priced once, then placed on every class of ranks that runs it.

    host       one launch per kernel, in the order of Python; a compiled graph is called once and launches for less
    compute    the default stream; "stream N" another; a kernel starts after its launch and what it reads
    FAMILY     a group's own stream; a collective starts after all that its issuing stream was given before
    FAMILY send +1, FAMILY recv -1     messages, a stream per peer and direction: they never hold up each other

Waiting for a communication makes what comes next on the waiting stream start after it; reading a tensor makes the host
wait for it, and with it every later launch. On a CPU the host is the compute stream.

What depends on where the ranks are (what a communication takes, and whom it meets) is left open: every communication
names its *use* (kind, bytes and slot) and its turn in its *slot* (family of groups, and peer and tag of a message).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.cost.price import Source, nanoseconds
from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.pricing import HOST, OpPricer
from windtunnel.studies.programs.op_shapes import plain_name
from windtunnel.studies.programs.program import Op, RankProgram

BETWEEN_STEPS = "between steps"


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a rank meets others: its group of a family, or one peer in it."""

    family: int
    offset: int = 0  # of the peer's place to one's own, modulo the group's size; of a message only
    tag: int = 0
    direction: str = ""  # "send" or "recv"; "" for collectives


@dataclass(frozen=True, slots=True)
class Use:
    """Communications that cost the same."""

    slot: int
    kind: str
    bytes: int


class _Row(NamedTuple):
    """One op of the graph."""

    kind: OpKind
    stream: int
    duration_ns: int
    label: int
    category: int
    flops: float = 0.0
    moved: float = 0.0
    interference: int = 0
    op: int = -1  # index into program.ops; -1: of none
    use: int = -1
    turn: int = -1


class StringTable:
    """Labels and categories, numbered; shared by the templates of one job."""

    def __init__(self) -> None:
        self.labels: dict[str, int] = {}
        self.categories: dict[str, int] = {}

    def label(self, text: str) -> int:
        """The number of a label."""
        return self.labels.setdefault(text, len(self.labels))

    def category(self, text: str) -> int:
        """The number of a category."""
        return self.categories.setdefault(text, len(self.categories))


@dataclass(frozen=True, eq=False)
class Template:
    """One program's ops. Arrays are [n] unless said; durations of communications are 0, to be filled in."""

    program: RankProgram
    kind: NDArray[np.uint8]
    stream: NDArray[np.int32]
    duration_ns: NDArray[np.int64]
    label: NDArray[np.int32]
    category: NDArray[np.uint16]
    flops: NDArray[np.float64]
    bytes: NDArray[np.float64]
    interference: NDArray[np.uint8]
    dep_ptr: NDArray[np.int64]  # [n+1]
    dep_idx: NDArray[np.int32]
    op_of: NDArray[np.int32]  # index into program.ops; -1: of none
    use_of: NDArray[np.int32]  # -1: no communication
    turn_of: NDArray[np.int32]  # in its slot; -1: no communication
    slots: tuple[Slot, ...]
    uses: tuple[Use, ...]
    stream_names: tuple[str, ...]
    busy_s: dict[Source, float] = field(default_factory=dict)  # of kernels, by source of price
    p5_s: float = 0.0  # of kernels
    p95_s: float = 0.0

    @property
    def n_ops(self) -> int:
        """Ops of the graph, launches included."""
        return len(self.kind)


def template_of(
    program: RankProgram, job: CapturedJob, pricer: OpPricer, strings: StringTable, step_s: float
) -> Template:
    """Price a program. `step_s`: what the host does between steps."""
    build = _Build(program, job, pricer, strings)
    build.begin(step_s)
    for index, op in enumerate(program.ops):
        build.add(index, op)
    return build.template()


class _Build:
    def __init__(self, program: RankProgram, job: CapturedJob, pricer: OpPricer, strings: StringTable) -> None:
        self.program, self.job, self.pricer, self.strings = program, job, pricer, strings
        self.on_cpu = pricer.on_cpu
        self.launch_ns, self.call_ns = nanoseconds(pricer.launch_s), nanoseconds(pricer.collective_launch_s)
        self.compiled_ns = nanoseconds(pricer.compiled_launch_s)
        self.graph_ns = nanoseconds(pricer.compiled_call_s)
        self.graph = (0, False)  # the compiled one that was called last
        self.host_category = strings.category(HOST)
        self.streams: dict[str, int] = {}
        self.slots: dict[Slot, int] = {}
        self.uses: dict[Use, int] = {}
        self.turns: dict[int, int] = {}
        self.batches: set[int] = set()
        self.rows: list[_Row] = []
        self.dep_ptr, self.dep_idx = [0], list[int]()
        self.through: list[tuple[int, ...]] = []  # captured op -> graph ops that whoever waits for it waits for
        self.last: dict[int, int] = {}  # stream -> its last graph op
        self.pending: dict[int, list[int]] = {}  # stream -> what its next op waits for
        self.busy: dict[Source, float] = {}
        self.p5 = self.p95 = 0.0
        # The streams that everything has, first and in this order, so that all programs number them alike.
        self.compute = self._stream("compute")
        self.host = self.compute if self.on_cpu else self._stream("host")

    def _stream(self, name: str) -> int:
        return self.streams.setdefault(name, len(self.streams))

    def _issuing(self, stream: int) -> int:
        return self.compute if self.on_cpu or stream == 0 else self._stream(f"stream {stream}")

    def begin(self, step_s: float) -> None:
        if step_s > 0.0:
            label = self.strings.label(BETWEEN_STEPS)
            self._op(_Row(OpKind.HOST, self.host, nanoseconds(step_s), label, self.host_category))

    def _op(self, row: _Row, after: Iterable[int] = ()) -> int:
        waits = dict.fromkeys((*self.pending.pop(row.stream, ()), *after))
        # The order of a stream goes without saying.
        self.dep_idx.extend(wait for wait in waits if self.rows[wait].stream != row.stream)
        self.dep_ptr.append(len(self.dep_idx))
        self.rows.append(row)
        self.last[row.stream] = len(self.rows) - 1
        return len(self.rows) - 1

    def _after(self, op: Op) -> list[int]:
        return [number for index in op.after for number in self.through[index]]

    def add(self, index: int, op: Op) -> None:
        """One captured op; in order."""
        if op.communication is not None:
            self.through.append(self._communicates(index, op, op.communication))
        elif op.kind in ("wait", "sync"):
            self.through.append(self._waits(op))
        else:
            self.through.append(self._computes(index, op))

    def _computes(self, index: int, op: Op) -> tuple[int, ...]:
        priced = self.pricer.price(op)
        after = self._after(op)
        if priced is None:
            return tuple(dict.fromkeys(after))
        price, category, interference = priced
        name = plain_name(op)
        again = " (again)" if op.recompute else ""
        label = self.strings.label(f"{name} {op.module}{again}" if op.module else f"{name}{again}")
        if not self.on_cpu:
            launch = self._launch_ns(op)
            after.append(self._op(_Row(OpKind.HOST, self.host, launch, label, self.host_category, op=index)))
        row = _Row(
            OpKind.SEND if op.kind == "copy" else OpKind.COMPUTE,
            self._issuing(op.stream),
            nanoseconds(price.seconds),
            label,
            self.strings.category(category),
            flops=op.flops,
            moved=op.bytes_read + op.bytes_written,
            interference=interference,
            op=index,
        )
        number = self._op(row, after)
        self.busy[price.source] = self.busy.get(price.source, 0.0) + price.seconds
        self.p5, self.p95 = self.p5 + price.p5, self.p95 + price.p95
        return (number,)

    def _launch_ns(self, op: Op) -> int:
        """Of a kernel; the first one of a compiled graph comes with the call of it."""
        if not op.compiled:
            return self.launch_ns
        before, self.graph = self.graph, (op.compiled, op.phase == "backward")
        return self.compiled_ns + (self.graph_ns if self.graph != before else 0)

    def _communicates(self, index: int, op: Op, call: Communication) -> tuple[int, ...]:
        family = self.job.family_of(call)
        name = self.job.families[family].name
        size = len(call.members)
        if call.is_message:
            offset = (call.members.index(call.peer) - call.position) % size
            slot = Slot(family, offset, call.tag, call.kind)
            shown = offset if offset <= size // 2 else offset - size
            stream, kind = f"{name} {call.kind} {shown:+d}", OpKind.SEND if call.kind == "send" else OpKind.RECV
        else:
            slot, stream, kind = Slot(family), name, OpKind.COLLECTIVE
        number = self.slots.setdefault(slot, len(self.slots))
        turn = self.turns[number] = self.turns.get(number, -1) + 1
        moved = max(call.bytes, sum(call.sent_bytes), sum(call.received_bytes))
        use = self.uses.setdefault(Use(number, call.kind, moved), len(self.uses))
        label = self.strings.label(f"{call.kind} {name} {op.module}".rstrip())
        after = self._after(op)
        issuing = self._issuing(op.stream)
        first = not call.batch or call.batch not in self.batches
        self.batches.add(call.batch)
        if first and not self.on_cpu:  # a batch is issued as one
            after.append(self._op(_Row(OpKind.HOST, self.host, self.call_ns, label, self.host_category, op=index)))
        if call.is_control:  # on the host, whatever the device is at
            issuing = self.host
        if issuing in self.last:
            after.append(self.last[issuing])
        after += self.pending.get(issuing, ())
        row = _Row(kind, self._stream(stream), 0, label, 0, moved=float(moved), op=index, use=use, turn=turn)
        done = self._op(row, after)
        if not call.is_async:
            self.pending.setdefault(issuing, []).append(done)
        if call.kind == "barrier" and not self.on_cpu:
            self.pending.setdefault(self.host, []).append(done)
        return (done,)

    def _waits(self, op: Op) -> tuple[int, ...]:
        after = tuple(dict.fromkeys(self._after(op)))
        if op.kind == "wait":
            if any(self._is_control(index) for index in op.after):
                self.pending.setdefault(self.host, []).extend(after)
            self.pending.setdefault(self._issuing(op.stream), []).extend(after)
            return after
        issuing = self._issuing(op.stream)
        # Reading a tensor goes through its stream, so the host waits for all that the stream was given.
        before = (self.last[issuing],) if issuing in self.last else ()
        waits = (*after, *before, *self.pending.get(issuing, ()))
        self.pending.setdefault(self.host, []).extend(waits)
        return after

    def _is_control(self, index: int) -> bool:
        call = self.program.ops[index].communication
        return call is not None and call.is_control

    def template(self) -> Template:
        """Freeze."""
        columns = _Row(*zip(*self.rows, strict=True)) if self.rows else _Row(*[()] * len(_Row._fields))  # type: ignore[arg-type]
        return Template(
            program=self.program,
            kind=np.array(columns.kind, np.uint8),
            stream=np.array(columns.stream, np.int32),
            duration_ns=np.array(columns.duration_ns, np.int64),
            label=np.array(columns.label, np.int32),
            category=np.array(columns.category, np.uint16),
            flops=np.array(columns.flops, np.float64),
            bytes=np.array(columns.moved, np.float64),
            interference=np.array(columns.interference, np.uint8),
            dep_ptr=np.array(self.dep_ptr, np.int64),
            dep_idx=np.array(self.dep_idx, np.int32),
            op_of=np.array(columns.op, np.int32),
            use_of=np.array(columns.use, np.int32),
            turn_of=np.array(columns.turn, np.int32),
            slots=tuple(self.slots),
            uses=tuple(self.uses),
            stream_names=tuple(self.streams),
            busy_s=self.busy,
            p5_s=self.p5,
            p95_s=self.p95,
        )
