"""Pretended GPUs on a build of PyTorch that has none: `torch.cuda` as a script sees it, for tensors that hold no data.

Streams and events write down the order that a script puts its work in (`stream_order`). Memory statistics are those
of the recorder's ledger. CUDA graphs are refused: what they replay would be executed unseen. Everything replaced is
put back on exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windtunnel.capture.recorder.stream_order import Moment, StreamOrder
from windtunnel.capture.torch_private import cuda as compat
from windtunnel.errors import UserError

if TYPE_CHECKING:
    from windtunnel.capture.recorder.storages import Ledger


@dataclass(frozen=True, slots=True)
class PretendedGpu:
    """What `torch.cuda.get_device_properties` says. Defaults: NVIDIA's data sheet of the H100 SXM."""

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 85_044_166_656  # cudaMemGetInfo's total
    sm_count: int = 132
    l2_bytes: int = 50 << 20


class CudaGraphError(UserError):
    """The script captures a CUDA graph."""


@dataclass(slots=True)
class PretendedCuda:
    """The state behind `torch.cuda` while it is pretended."""

    gpu: PretendedGpu
    count: int
    device: int = 0
    stream: int = 0
    order: StreamOrder | None = None
    ledger: Ledger | None = None
    _streams: int = 0
    _watchers: list[Callable[[int], None]] = field(default_factory=list)

    def set_device(self, device: int) -> int:
        """Make another device the current one; returns the one before."""
        before, self.device = self.device, device
        if device != before:
            for watcher in self._watchers:
                watcher(device)
        return before

    def watch_device(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher` with every new current device."""
        self._watchers.append(watcher)

    def next_stream(self) -> int:
        """A number for a new stream."""
        self._streams += 1
        return self._streams

    def use_stream(self, stream: int) -> int:
        """Issue ops on it from now on; returns the stream before."""
        before, self.stream = self.stream, stream
        if self.order is not None:
            self.order.use(stream)
        return before

    def moment(self, stream: int) -> Moment:
        """An event on a stream, now."""
        return self.order.moment(stream) if self.order is not None else Moment()

    def wait(self, stream: int, moment: Moment) -> None:
        """The stream goes on after `moment`."""
        if self.order is not None:
            self.order.wait(stream, moment)

    def synchronise(self, what: str, moment: Moment | None = None) -> None:
        """The host waits."""
        if self.order is not None:
            self.order.synchronise(what, moment)

    def allocated_bytes(self) -> int:
        """Now."""
        return self.ledger.current_bytes if self.ledger is not None else 0

    def peak_bytes(self) -> int:
        """Since it was last reset."""
        return self.ledger.high_water_bytes if self.ledger is not None else 0

    def reset_peak(self) -> None:
        """Count the peak anew."""
        if self.ledger is not None:
            self.ledger.high_water_bytes = self.ledger.current_bytes

    @contextmanager
    def recorded_by(self, order: StreamOrder, ledger: Ledger) -> Iterator[None]:
        """Tell a recorder about streams, and ask its ledger about memory."""
        before = self.order, self.ledger
        self.order, self.ledger = order, ledger
        order.use(self.stream)
        try:
            yield
        finally:
            self.order, self.ledger = before


_active: list[PretendedCuda] = []  # torch.cuda is one for the process, and so is what stands in for it


def pretended() -> PretendedCuda | None:
    """What `torch.cuda` is at the moment; None where it is itself."""
    return _active[-1] if _active else None


@contextmanager
def pretend_cuda(gpu: PretendedGpu | None = None, *, count: int = 8, device: int = 0) -> Iterator[PretendedCuda]:
    """`count` GPUs, of which `device` is the current one, until exit."""
    state = PretendedCuda(gpu or PretendedGpu(), count, device)
    with ExitStack() as stack:
        compat.replace_torch_cuda(stack, state, make_classes(state), refuse_graphs)
        _active.append(state)
        stack.callback(_active.remove, state)
        yield state


def refuse_graphs(*_: Any, **__: Any) -> Any:
    """In place of everything that begins a CUDA graph."""
    raise CudaGraphError(
        "the script captures a CUDA graph; its replay would be executed unseen: turn CUDA graphs off for the capture "
        "(what they save of launch overhead is set when predicting)"
    )


def make_classes(state: PretendedCuda) -> tuple[type, type, type]:
    """(Stream, Event, context of a stream) for `state`: classes, because scripts test for them."""
    import torch

    class Stream:
        def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
            number = kwargs.get("stream_id")
            self.stream_id = state.next_stream() if number is None else int(number)
            self.cuda_stream = self.stream_id
            self.priority = priority
            index = getattr(device, "index", device if isinstance(device, int) else None)
            self.device_index = state.device if index is None else index
            self.device = torch.device("cuda", self.device_index)
            self.device_type = 1

        def wait_stream(self, stream: Any) -> None:
            state.wait(self.stream_id, state.moment(stream.stream_id))

        def wait_event(self, event: Any) -> None:
            state.wait(self.stream_id, event.moment)

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def synchronize(self) -> None:
            state.synchronise("stream", state.moment(self.stream_id))

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

        def __enter__(self) -> Any:
            self._before = state.use_stream(self.stream_id)
            return self

        def __exit__(self, *_: object) -> None:
            state.use_stream(self._before)

        def __hash__(self) -> int:
            return hash(self.stream_id)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.stream_id == self.stream_id

        def __repr__(self) -> str:
            return f"<pretended torch.cuda.Stream {self.stream_id} on {self.device}>"

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.moment = Moment()
            self.device = torch.device("cuda", state.device)
            self.event_id = self.cuda_event = id(self)

        def record(self, stream: Any = None) -> Any:
            self.moment = state.moment(state.stream if stream is None else stream.stream_id)
            return self

        def wait(self, stream: Any = None) -> None:
            state.wait(state.stream if stream is None else stream.stream_id, self.moment)

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            state.synchronise("event", self.moment)

        def elapsed_time(self, _end: Any) -> float:
            return 1.0

    class OnStream:
        """`with torch.cuda.stream(s)`; None leaves the stream as it is."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            self._before = state.use_stream(state.stream if self.stream is None else self.stream.stream_id)

        def __exit__(self, *_: object) -> None:
            state.use_stream(self._before)

    return Stream, Event, OnStream
