"""The state behind `torch.cuda` while it is pretended: what the GPU is, the current device and stream, who records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.real.capture.recorder.stream_order import Moment, StreamOrder

if TYPE_CHECKING:
    from windtunnel.real.capture.recorder.storages import Ledger


@dataclass(frozen=True, slots=True)
class PretendedGpu:
    """What `torch.cuda.get_device_properties` says. Defaults: NVIDIA's data sheet of the H100 SXM."""

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 85_044_166_656  # cudaMemGetInfo's total
    sm_count: int = 132
    l2_bytes: int = 50 << 20


@dataclass(slots=True)
class PretendedCuda:
    """The state behind `torch.cuda` while it is pretended; of the recording thread alone the recorder is told."""

    gpu: PretendedGpu
    count: int
    device: int = 0
    order: StreamOrder | None = None
    ledger: Ledger | None = None
    _streams: int = 0
    _watchers: list[Callable[[int], None]] = field(default_factory=list)
    _own: threading.local = field(default_factory=threading.local)  # of each thread, as CUDA has it
    _recording: int = 0  # thread

    @property
    def stream(self) -> int:
        """The current stream of this thread."""
        return getattr(self._own, "stream", 0)

    def check(self, device: int) -> None:
        """Raise what a real machine raises where the node has no such device."""
        if not 0 <= device < self.count:
            wraps = " (`torch.device` keeps a number in 8 bits: 1022 becomes -2)" if device < 0 else ""
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{device}{wraps} on a node of {self.count} GPUs;"
                " take LOCAL_RANK for the device, not RANK"
            )

    def set_device(self, device: int) -> int:
        """Make another device the current one; returns the one before."""
        self.check(device)
        before, self.device = self.device, device
        if device != before:
            for watcher in self._watchers:
                watcher(device)
        return before

    def watch_device(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher` with every new current device."""
        self._watchers.append(watcher)

    def next_stream(self, *, made_by_script: bool = False) -> int:
        """A number for a new stream."""
        self._streams += 1
        if made_by_script and self.order is not None:
            self.order.made_by_script.add(self._streams)
        return self._streams

    def use_stream(self, stream: int) -> int:
        """Issue ops on it from now on; returns the stream before."""
        before, self._own.stream = self.stream, stream
        if self.order is not None and threading.get_ident() == self._recording:
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
        """The host waits; "": it only sees that this is over."""
        if self.order is not None and threading.get_ident() == self._recording:
            self.order.synchronise(what, moment)

    def allocated_bytes(self) -> int:
        """Bytes allocated now."""
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
        self.order, self.ledger, self._recording = order, ledger, threading.get_ident()
        order.use(self.stream)
        try:
            yield
        finally:
            self.order, self.ledger = before
