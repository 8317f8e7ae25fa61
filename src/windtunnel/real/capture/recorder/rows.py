"""The ops of the step in hand, as they are written down: one row each, with what it reads, writes and waits for.

A row holds what an `Op` is made of (see `_op`), with `after` counted from the start of the script. An op depends
on the last writer of every storage it reads, and on what its stream was told to wait for.

The program of a step is made of these, when it is over. A row is then (name, kind, inputs, outputs, flops,
bytes read, bytes written, after, stream, place, communication, scalars, reads, writes, lies), with ops in `after` and
`reads` counted since the script began.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from windtunnel.physics.graph.allocator_settings import settings_in
from windtunnel.real.capture.fake_tensors.control_flow import is_script
from windtunnel.real.capture.fake_tensors.dispatch_cache import Entry
from windtunnel.real.capture.recorder.call_tensors import written_tensors
from windtunnel.real.capture.recorder.flops import BY_VALUES, traffic
from windtunnel.real.capture.recorder.modules import Place, Whereabouts
from windtunnel.real.capture.recorder.op_table import SHAPED_BY_DATA, OpFacts
from windtunnel.real.capture.recorder.storages import Ledger, worded
from windtunnel.real.capture.recorder.stream_order import StreamOrder
from windtunnel.real.capture.torch_private import recorder as compat
from windtunnel.real.capture.torch_private.compile import micro_pipelined_groups
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.compiler.micro_pipeline import FACT
from windtunnel.studies.programs.program import Op, TensorSpec

if TYPE_CHECKING:
    from windtunnel.real.operator_call import Arguments, Keywords

_address = compat.storage_address
_TOLD = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


_LINEAR = frozenset(
    (
        *("add", "add_", "sub", "sub_", "neg", "mul", "mul_", "div", "div_", "clone", "_to_copy", "copy_", "cat"),
        *("mm", "addmm", "bmm", "native_dropout", "constant_pad_nd"),
    )
)
_NOT_LINEAR = frozenset(
    (
        *("native_layer_norm", "_fused_rms_norm", "native_group_norm", "gelu", "relu", "silu", "sigmoid", "tanh"),
        *("_softmax", "_log_softmax"),
    )
)
_NOT_LINEAR_IN_MODELS = frozenset(("exp", "log", "pow", "sqrt", "rsqrt"))  # where nothing is trained, of a statistic
_OVERWRITE = ("copy_", "zero_", "fill_")


def settings_number(args: Arguments, kwargs: Keywords) -> int:
    """A number for what an op is given besides tensors: factors, dimensions, dtypes."""
    return zlib.crc32(repr([*_plain(args), *_plain(sorted(kwargs.items()))]).encode())


def _plain(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        if isinstance(value, list | tuple):
            yield len(value)
            yield from _plain(value)
        elif not isinstance(value, torch.Tensor):
            yield value if isinstance(value, _TOLD) else type(value).__name__


def is_aside() -> bool:
    """Whether a thread of the script's calls, beside its main one; PyTorch's own for backward passes are none."""
    thread = threading.current_thread()
    return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)


@dataclass(slots=True, eq=False)
class Note:
    """What of a row follows from the op, its scalars, and the shapes of its tensors: kept with a repeated call."""

    kind: str
    specs: tuple[TensorSpec, ...]  # of what it takes
    output_specs: tuple[TensorSpec, ...]  # of what it gives
    sizes: list[int]  # bytes of what it takes, where its storages hold so much
    new_outputs: tuple[int, ...]  # which outputs are new
    made_sizes: list[int]
    positions: list[int]  # of those that it writes in place
    flops: float
    read: float
    wrote: float
    scalars: tuple[object, ...]
    numbers: int  # equal where it is told the same besides tensors


class Rows:
    """The rows of one recorder."""

    def __init__(self, ledger: Ledger, where: Whereabouts, device: str) -> None:
        self.ledger, self.where, self.device = ledger, where, device
        self.streams = StreamOrder(self.count, lambda what, after: self.sync(after, scalars=(what,)))
        self.rows: list[Row] = []  # of this step: rows[i] is op base + i
        self.base = 0
        self._count = 0  # ops since the start
        self.lines: dict[int, str] = {}  # of communications: the script's
        self.in_flight: dict[int, list[Flight]] = {}  # by storage: what is being exchanged, and nobody has waited for
        self.on_race: Callable[[Flight, int], None] = lambda flight, op: None
        self.on_unordered: Callable[[int, str], None] = lambda writer, group: None
        self.partial: dict[int, str] = {}  # storage -> where it was taken: holds this rank's part of a sum
        self.on_partial: Callable[[str, str], None] = lambda taken_at, name: None
        self._specs: dict[tuple[object, ...], tuple[TensorSpec, int]] = {}

    def count(self) -> int:
        """Ops since the script began."""
        return self._count

    def begin(self, base: int) -> None:
        """A step begins with this op: forget those before it."""
        self.rows = self.rows[base - self.base :]
        self.streams.forget(self.base)
        self.base = base
        self.lines = {op: line for op, line in self.lines.items() if op >= base}
        self.partial.clear()

    def spec(self, tensor: torch.Tensor) -> tuple[TensorSpec, int]:
        """The spec of a tensor, and its bytes."""
        key = (tensor.shape, tensor.dtype, tensor.device.type)
        spec_and_bytes = self._specs.get(key)
        if spec_and_bytes is None:
            where = "device" if key[2] == self.device else "host"
            spec = TensorSpec(tuple(int(n) for n in key[0]), str(key[1]).removeprefix("torch."), where)
            spec_and_bytes = self._specs[key] = (spec, tensor.numel() * tensor.element_size())
        return spec_and_bytes

    def writers(self, tensors: Sequence[torch.Tensor]) -> set[int]:
        """The ops that wrote these last, of those that have been met."""
        writer = self.ledger.writer
        return {writer[n] for t in tensors if (n := self.ledger.number_if_known(t)) is not None and n in writer}

    # ---- ops that ran

    def write(
        self,
        facts: OpFacts,
        args: Arguments,
        kwargs: Keywords,
        inputs: list[object],
        outputs: list[object],
        out: object,
        entry: Entry | None = None,
    ) -> tuple[list[int], list[int]]:
        """An op has run. Gives the numbers of its inputs, and which of them it wrote; keeps a note with the `entry`."""
        ledger = self.ledger
        numbers = [ledger.number(t) for t in inputs]
        specs = [self.spec(t) for t in inputs]
        written = written_tensors(facts, args, kwargs) if facts.written or facts.written_names else ()
        identities = {id(t) for t in written}
        positions = [i for i, t in enumerate(inputs) if id(t) in identities] if written else []
        storages = set(numbers)
        new: list[int] = []
        new_storages: list[int] = []
        tensor_specs: list[TensorSpec] = []
        new_bytes: list[int] = []
        for place, tensor in enumerate(outputs):
            n = ledger.number(tensor)
            spec, size = self.spec(tensor)
            tensor_specs.append(spec)
            if n not in storages:
                new.append(place)
                new_storages.append(n)
                new_bytes.append(size)
        live, sizes = ledger.live, [size for _, size in specs]
        fitting = [min(size, live.get(n, size)) for n, size in zip(numbers, sizes, strict=True)]
        devices = {s.device for s, _ in specs} | {s.device for s in tensor_specs}
        row = (
            *(facts.name, "copy" if facts.moves and len(devices) > 1 else "compute"),
            *(tuple(s for s, _ in specs), tuple(tensor_specs)),
            facts.flops(args, kwargs, out) if facts.flops is not None else 0.0,
            *traffic(facts.short, fitting, new_bytes, positions),
            facts.scalars(args, kwargs) if facts.scalars is not None else (),
        )
        if entry is not None and len(storages) == len(numbers) and facts.short not in BY_VALUES:
            _, kind, taken_specs, given_specs, flops, _, _, scalars = row
            entry.note = Note(
                *(kind, taken_specs, given_specs, sizes, tuple(new), new_bytes, positions, flops),
                *(*traffic(facts.short, sizes, new_bytes, positions), scalars, settings_number(args, kwargs)),
            )
        besides = settings_number(args, kwargs) if self.where.compiles else 0
        self._issue(*row, inputs, numbers, fitting, positions, new_storages, new_bytes, besides)
        return numbers, positions

    def write_again(
        self, facts: OpFacts, note: Note, inputs: list[object], outputs: list[object]
    ) -> tuple[list[int], list[int]] | None:
        """As `write`, where all that follows from the call is known; None: it must be done in full after all."""
        ledger = self.ledger
        number_of, live = ledger.numbers, ledger.live
        numbers: list[int] = []
        fits = True
        for tensor, size in zip(inputs, note.sizes, strict=True):
            n = number_of.get(_address(tensor))
            if n is None:
                n = ledger.number(tensor)
            numbers.append(n)
            if live.get(n, size) < size:
                fits = False
        if not fits or (note.positions and len(set(numbers)) < len(numbers)):
            return None
        new_storages = [ledger.number(outputs[place]) for place in note.new_outputs]
        row = (facts.name, note.kind, note.specs, note.output_specs, note.flops, note.read, note.wrote, note.scalars)
        self._issue(*row, inputs, numbers, note.sizes, note.positions, new_storages, note.made_sizes, note.numbers)
        return numbers, note.positions

    def _issue(
        self,
        name: str,
        kind: str,
        specs: tuple[TensorSpec, ...],
        output_specs: tuple[TensorSpec, ...],
        flops: float,
        read: float,
        wrote: float,
        scalars: tuple[object, ...],
        inputs: list[torch.Tensor],
        numbers: list[int],
        sizes: list[int],
        positions: list[int],
        new_storages: list[int],
        made_sizes: list[int],
        besides: int,
    ) -> None:
        writer, index = self.ledger.writer, self._count
        if (
            self.ledger.device_type != "cpu"
            and is_aside()
            and all(tensor_spec.device == "host" for tensor_spec in (*specs, *output_specs))
        ):
            return  # what the host does in another thread, while the GPU has its step
        if self.in_flight:
            self._look_for_races(inputs, numbers)
        after: Iterable[int] = {writer[n] for n in numbers if n in writer}
        stream = self.streams.current_stream()
        waits = self.streams.take()
        if waits:
            after = {*after, *waits}
        place = self.where.place_of(inputs)
        if self.streams.made_by_script and place.phase != "backward":  # whose streams autograd orders
            self.look_for_unordered(inputs, numbers)
        if self.partial and place.phase != "backward":
            self._follow_partial(name.removeprefix("aten."), numbers, sizes, positions, new_storages)
        reads: tuple[tuple[int, int, int], ...] = ()
        writes: tuple[tuple[int, int], ...] = ()
        lies = 0
        if self.where.compiles:
            reads = tuple((n, writer.get(n, -1), size) for n, size in zip(numbers, sizes, strict=True))
            writes = (*((numbers[i], sizes[i]) for i in positions), *zip(new_storages, made_sizes, strict=True))
            lies = hash((besides, *((t.storage_offset(), *t.stride()) for t in inputs))) & 0xFFFFFFFF
        for position in positions:
            writer[numbers[position]] = index
        for n in new_storages:
            writer[n] = index
        issued_on = place.stream if not stream and place.phase == "backward" else stream
        row = (name, kind, specs, output_specs, flops, read, wrote, tuple(after), issued_on, place, None, scalars)
        self._append((*row, reads, writes, lies))
        asks_size = name.removeprefix("aten.") in SHAPED_BY_DATA and (
            name != "aten.index" or any(tensor_spec.dtype == "bool" for tensor_spec in specs[1:])
        )  # an index by numbers asks none
        if asks_size or (kind == "copy" and "non_blocking" not in scalars):
            self.streams.host_waited()

    def _look_for_races(self, inputs: list[torch.Tensor], numbers: list[int]) -> None:
        """An op reads or writes what a communication is still writing."""
        for tensor, n in zip(inputs, numbers, strict=True):
            for flight in self.in_flight.get(n, ()):
                extent = extent_of(tensor)
                if extent is not None and flight.start < extent[1] and extent[0] < flight.end:
                    self.on_race(flight, self._count)
                    return

    def _follow_partial(
        self, name: str, numbers: Sequence[int], sizes: Sequence[int], positions: list[int], made: list[int]
    ) -> None:
        """What is linear in parts of a sum gives parts of a sum; what is not gives nothing that could be added up. A
        storage of which only a piece is such a part counts as none.
        """
        parts = [self.partial[n] for n in numbers[name in _OVERWRITE :] if n in self.partial]
        if name in _OVERWRITE and not parts:
            for position in positions:
                self.partial.pop(numbers[position], None)
        elif not parts or (name == "cat" and len(parts) < len(numbers)):
            return
        elif name in _LINEAR:
            whole = (numbers[i] for i in positions if sizes[i] >= self.ledger.live.get(numbers[i], 0))
            self.partial |= dict.fromkeys((*whole, *made), parts[0])
        elif name in _NOT_LINEAR or (name in _NOT_LINEAR_IN_MODELS and torch.is_grad_enabled()):
            self.on_partial(parts[0], name)

    def look_for_unordered(self, inputs: Sequence[torch.Tensor], numbers: Sequence[int], group: str = "") -> None:
        """An op takes a whole storage that another stream wrote, and nothing makes its own stream wait for that."""
        writer, live = self.ledger.writer, self.ledger.live
        for tensor, n in zip(inputs, numbers, strict=True):
            is_whole = tensor.device.type == self.device and tensor.numel() * tensor.element_size() >= live.get(n, 1)
            if is_whole and n in writer and self.streams.is_unordered(writer[n], self.base):
                self.on_unordered(writer[n], group)

    def _append(self, row: Row) -> int:
        index = self._count
        self.rows.append(row)
        self._count = index + 1
        self.streams.issued(row[STREAM], index)
        return index

    # ---- what is no ATen op

    def note(
        self,
        name: str,
        kind: str,
        after: set[int],
        inputs: tuple[TensorSpec, ...] = (),
        scalars: tuple[object, ...] = (),
        *,
        outputs: tuple[TensorSpec, ...] = (),
        traffic: tuple[float, float] = (0.0, 0.0),
        communication: Communication | None = None,
        place: Place | None = None,
    ) -> int:
        """Write down a communication, a wait, a sync. Returns its number."""
        place = place or self.where.place_of(())
        if kind == "wait":
            self.streams.waited(after)
        after = {*after, *self.streams.take()}
        stream = self.streams.current_stream()
        row = (
            name,
            kind,
            inputs,
            outputs,
            0.0,
            *traffic,
            tuple(after),
            stream,
            place,
            communication,
            scalars,
            (),
            (),
            0,
        )
        index = self._append(row)
        if communication is not None and communication.kind == "barrier":
            self.streams.host_waited()  # NCCL's blocks it
        elif communication is not None and communication.is_async:
            self.streams.exchanged(index)
        return index

    def sync(self, after: set[int], inputs: tuple[TensorSpec, ...] = (), scalars: tuple[object, ...] = ()) -> None:
        """The host waits for these ops."""
        self.note("sync", "sync", after, inputs, scalars)


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Bytes of a storage that a communication fills, until it was waited for."""

    call: Communication
    start: int
    end: int
    line: str


def extent_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """The bytes of its storage that a contiguous tensor lies on; None of others."""
    if not tensor.is_contiguous():
        return None
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


Row = tuple[Any, ...]  # of RankProgram: one value a column
OUTPUTS, AFTER, STREAM, PLACE, COMMUNICATION = 3, 7, 8, 9, 10


def ops_of(rows: list[Row], base: int, lines: Mapping[int, str] | None = None) -> tuple[Op, ...]:
    """Ops of the step that begins with op `base` of the script; `lines` of the script, by op."""
    lines = lines or {}
    return _receives_placed(tuple(_op(row, base, lines.get(base + i, "")) for i, row in enumerate(rows)))


def measured(ledger: Ledger, base: int, last: int, symmetric: Iterable[str] = ()) -> dict[str, object]:
    """Facts of a step: PyTorch's version and set-up, and the peak with the Python stack that allocated last.

    `symmetric`: groups in which collectives are taken apart though no setting says so.
    """
    import torch

    frames, allocator = ledger.peak_frames, settings_in(os.environ)
    apart = sorted({*symmetric, *micro_pipelined_groups()})
    return {
        "torch": str(torch.__version__),
        **({"allocator": allocator} if allocator else {}),
        **({FACT: apart} if apart else {}),
        "peak": {
            "bytes": ledger.peak_bytes,
            "op": max(-1, min(ledger.peak_at - base, last)),
            "stack": list(worded(frames, is_script) or worded(frames, lambda _: True)[:8]),
        },
    }


def _op(row: Row, base: int, line: str) -> Op:
    name, kind, inputs, outputs, flops, read, wrote, after, stream, place, call, scalars, reads, writes, lies = row
    return Op(
        *(name, kind, inputs, outputs, flops, read, wrote, tuple(sorted(i - base for i in after if i >= base)), stream),
        *(place.module, place.phase, place.micro_batch, place.recompute, call, scalars, place.compiled),
        *(tuple((n, max(-1, writer - base), size) for n, writer, size in reads), writes, lies, line),
    )


def _receives_placed(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """A message that is received outside all modules is of the pass that reads it first."""
    readers: dict[int, Op] = {}
    for op in ops:
        for earlier in op.after:
            if op.kind == "compute":
                readers.setdefault(earlier, op)
    changed = list(ops)
    for i, op in enumerate(ops):
        reader = readers.get(i)
        call = op.communication
        if reader is not None and call is not None and call.kind == "recv" and not op.module:
            changed[i] = replace(op, phase=reader.phase, micro_batch=reader.micro_batch)
    return tuple(changed)
