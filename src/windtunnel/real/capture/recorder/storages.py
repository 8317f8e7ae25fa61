"""Storages of a running script: when each is allocated and freed, what it is for, who wrote it last.

A storage is met when an op returns a tensor on it (or takes one that was made out of sight, in C++), and is gone when
Python's weak reference to it says so: PyTorch keeps the Python half of a storage for as long as the storage lives.
What is counted is what the allocator was asked for, before any rounding.

Categories, by what becomes of a storage:

    parameter       a parameter's data lies in it
    gradient        a `.grad` lay in it when an optimizer stepped
    optimizer       an optimizer's state lies in it
    communication   a communication writes it: gathered parameters, reduced buckets, received activations
    activation      made in the forward pass and still there when the backward pass came
    temporary       came and went within a pass
    other           the rest: batches, masks, tables
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import TYPE_CHECKING

from windtunnel.studies.programs.program import MemoryEvent

if TYPE_CHECKING:
    from types import FrameType

    import torch

Frames = tuple[tuple[CodeType, int], ...]

_DEEPEST_STACK = 40


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key", "number")

    key: int
    number: int


class Ledger:
    """Allocations and frees, in order; `cursor()` says which op the script has come to."""

    def __init__(self, cursor: Callable[[], int], device_type: str) -> None:
        from windtunnel.real.capture.torch_private.recorder import storage_address

        self._cursor = cursor
        self.device_type = device_type  # storages elsewhere are not counted
        self.events: list[tuple[int, int, int]] = []  # op, storage, bytes gained
        self.live: dict[int, int] = {}  # storage -> bytes
        self.current_bytes = self.peak_bytes = 0
        self.peak_at = -1
        self.peak_frames: Frames = ()
        self.high_water_bytes = 0  # since the script last reset it
        self.categories: dict[int, str] = {}  # where something is known beyond when it came and went
        self.writer: dict[int, int] = {}  # storage -> the op that wrote it last
        self.on_gone: Callable[[int], None] | None = None
        self.numbers: dict[int, int] = {}  # address of a live storage -> its number
        self._address = storage_address
        self._references: dict[int, _StorageRef] = {}
        self._next = 0

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage, which is met now if it was not before."""
        number = self.numbers.get(self._address(tensor))
        return self._meet(tensor.untyped_storage(), tensor.device.type) if number is None else number

    def number_if_known(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage if it was met before."""
        return self.numbers.get(self._address(tensor))

    def _meet(self, storage: torch.UntypedStorage, device_type: str) -> int:
        key, number = storage._cdata, self._next
        self._next += 1
        self.numbers[key] = number
        reference = _StorageRef(storage, self._release)
        reference.key, reference.number = key, number
        self._references[number] = reference
        if device_type == self.device_type:
            self._change(number, storage.nbytes())
        return number

    def resized(self, storage: torch.UntypedStorage, bytes_now: int) -> None:
        """`storage.resize_` was called: FSDP frees and regrows gathered parameters so."""
        number = self.numbers.get(storage._cdata)
        if number is not None and number in self.live:
            self._change(number, bytes_now - self.live[number])

    def _release(self, reference: _StorageRef) -> None:
        number = reference.number
        if self.numbers.get(reference.key) == number:
            del self.numbers[reference.key]
        self._references.pop(number, None)
        self.writer.pop(number, None)
        if self.on_gone is not None:
            self.on_gone(number)
        size = self.live.get(number)
        if size is not None:
            self._change(number, -size)
            del self.live[number]

    def _change(self, number: int, gained: int) -> None:
        self.live[number] = self.live.get(number, 0) + gained
        if not gained:
            return
        at = self._cursor()
        self.events.append((at, number, gained))
        self.current_bytes += gained
        if self.current_bytes > self.high_water_bytes:
            self.high_water_bytes = self.current_bytes
        if self.current_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at, self.peak_frames = self.current_bytes, at, frames_here(3)

    def mark(self, tensors: Iterable[object], category: str) -> None:
        """Say what the storages of `tensors` are for; the first word stands, unless it was communication."""
        for tensor in tensors:
            number = self.number_if_known(tensor)
            if number is not None and self.categories.get(number, "communication") == "communication":
                self.categories[number] = category

    def begin(self) -> dict[int, int]:
        """A step begins: what is there now. Forgets the events and the peak before it."""
        self.events = []
        self.peak_bytes, self.peak_at, self.peak_frames = self.current_bytes, -1, ()
        self.categories = {number: c for number, c in self.categories.items() if number in self.live}
        return {number: size for number, size in self.live.items() if size}

    def close(self) -> None:
        """Stop watching."""
        self._references.clear()
        self.numbers.clear()


def frames_here(skip: int) -> Frames:
    """The Python stack, innermost first, cheaply: code objects and lines, to be worded later."""
    frame = sys._getframe(skip)
    frames: list[tuple[CodeType, int]] = []
    at: FrameType | None = frame
    while at is not None and len(frames) < _DEEPEST_STACK:
        frames.append((at.f_code, at.f_lineno))
        at = at.f_back
    return tuple(frames)


def worded(frames: Frames, own: Callable[[str], bool]) -> tuple[str, ...]:
    """ "file:line in function" of the frames whose file is the script's (`own`), innermost first."""
    return tuple(f"{code.co_filename}:{line} in {code.co_name}" for code, line in frames if own(code.co_filename))


def categorised(
    events: Iterable[tuple[int, int, int]],
    resident: dict[int, int],
    categories: dict[int, str],
    phase_of: Callable[[int], str],
    base: int,
    last: int,
) -> tuple[tuple[MemoryEvent, ...], tuple[MemoryEvent, ...]]:
    """(resident, events) of a step as a program holds them.

    Args:
        events: (op, storage, bytes gained), ops counted since the script began.
        resident: bytes by storage at the beginning.
        categories: what is known for certain.
        phase_of: phase of an op of this step, counted from its beginning.
        base: the step's first op.
        last: index, within the step, of its last op.
    """
    events = list(events)
    came: dict[int, int] = {}
    went: dict[int, int] = {}
    for op, number, gained in events:
        if gained > 0:
            came.setdefault(number, op)
        else:
            went[number] = op

    def category(number: int) -> str:
        certain = categories.get(number)
        if certain:
            return certain
        if number in resident or number not in came:
            return "other"
        born = phase_of(min(came[number] - base, last))
        died = phase_of(min(went[number] - base, last)) if number in went else ""
        if born == "forward" and died == "backward":
            return "activation"
        return "temporary" if died else "other"

    there = tuple(MemoryEvent(-1, number, size, category(number)) for number, size in sorted(resident.items()))
    came_and_went = (
        MemoryEvent(max(0, min(op - base, last)), number, gained, category(number)) for op, number, gained in events
    )
    return there, tuple(came_and_went)
