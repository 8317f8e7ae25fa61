"""A GPU as `hold` needs it: PyTorch's public streams and events, a kernel that spins, and memory that NCCL would take.

*Not yet run on a GPU*: reviewed against the documentation and source of PyTorch 2.13. The kernel takes as many blocks
as the collective would take channels, so that many SMs are shared as they would be. It is compiled by
`torch.cuda._compile_kernel` (NVRTC); where that fails `torch.cuda._sleep` spins in one block, calibrated in cycles per
second. Both names are private: `_sleep` is what PyTorch's own tests hold streams with, and there is no public kernel
that takes a given time.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.real.capture.torch_private import emulate as compat

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from types import ModuleType

    import torch

CHANNELS = 16  # blocks of NCCL's kernels on a Hopper node by default; an estimate
KERNEL = """
extern "C" __global__ void windtunnel_hold(const unsigned long long* begun, double nanoseconds) {
    unsigned long long now;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while ((double)(now - *begun) < nanoseconds);
}
"""
MARK = """
extern "C" __global__ void windtunnel_mark(unsigned long long* begun) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*begun));
}
"""


class TorchCuda:
    """The current CUDA device, through PyTorch's public streams and events. Not yet run on a GPU."""

    def __init__(self, blocks: int = CHANNELS, communicator_bytes: int = 0) -> None:
        """`communicator_bytes`: what NCCL takes outside the allocator for each group, held from its first use on."""
        import torch

        self._cuda: ModuleType = torch.cuda
        self._streams: dict[tuple[int, str], torch.cuda.Stream] = {}
        self._communicators: set[tuple[int, str]] = set()
        self._blocks, self._communicator_bytes = blocks, communicator_bytes
        self.memory = NcclMemory()
        self._hold: Callable[..., object] | None = None
        self._mark: Callable[..., object] | None = None
        self._cycles_per_s = 0.0
        self._is_ready = False

    def _get_ready(self) -> None:
        """Compile the kernels: with the first use, as the script says first which device is its own."""
        self._is_ready = True
        try:
            self._mark = compat.compiled_kernel(MARK, "windtunnel_mark")
            self._hold = compat.compiled_kernel(KERNEL, "windtunnel_hold")
        except (RuntimeError, OSError, AttributeError):  # no NVRTC beside this PyTorch
            self._hold = self._mark = None
            self._cycles_per_s = self._calibrated()

    def current(self) -> torch.cuda.Stream:
        """torch.cuda.current_stream()."""
        return self._cuda.current_stream()

    def stream(self, name: str) -> torch.cuda.Stream:
        """One of each device, of the default priority, as NCCL's are unless a script asks for another.

        Raises UserError where the GPU has no room for a communicator's buffers.
        """
        device = self._cuda.current_device()
        if (device, name) not in self._streams:
            self._streams[device, name] = self._cuda.Stream()
            group = name.partition(" ")[0]  # messages have a stream for each pair, and one communicator
            if self._communicator_bytes and (device, group) not in self._communicators:
                self._communicators.add((device, group))
                if not self.memory.hold(self._communicator_bytes):
                    raise UserError(
                        f"the GPU has no room for the {self._communicator_bytes >> 20} MiB that NCCL takes for group"
                        f" {group}: on a cluster the script would run out of memory here too"
                    )
        return self._streams[device, name]

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """With timing, so that steps can be measured."""
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """torch.cuda.Stream.wait_event."""
        stream.wait_event(event)

    def on(self, stream: torch.cuda.Stream) -> contextlib.AbstractContextManager[object]:
        """torch.cuda.stream."""
        context: contextlib.AbstractContextManager[object] = self._cuda.stream(stream)
        return context

    def mark(self, stream: torch.cuda.Stream) -> object:
        """The device's clock, in a number on the device; None where no kernel can be compiled."""
        if not self._is_ready:
            self._get_ready()
        if self._mark is None:
            return None
        import torch

        with self._cuda.stream(stream):
            start = torch.empty(1, dtype=torch.int64, device="cuda")
        self._mark(grid=(1, 1, 1), block=(1, 1, 1), args=[start], stream=stream)
        return start

    def spin(self, stream: torch.cuda.Stream, seconds: float, since: object) -> None:
        """The kernel, or `_sleep`, which counts from when the stream gets to it."""
        if self._hold is not None:
            blocks, threads = (self._blocks, 1, 1), (512, 1, 1)
            self._hold(grid=blocks, block=threads, args=[since, float(seconds * 1e9)], stream=stream)
            return
        with self._cuda.stream(stream):
            compat.sleep_on_stream(int(seconds * self._cycles_per_s))

    def seconds(self, first: torch.cuda.Event, then: torch.cuda.Event) -> float | None:
        """torch.cuda.Event.elapsed_time, in milliseconds there."""
        if not (first.query() and then.query()):
            return None
        return float(first.elapsed_time(then)) / 1e3

    def _calibrated(self) -> float:
        """Cycles that `_sleep` spins in a second: of two sleeps the difference, so that launches cancel."""
        times: list[float] = []
        for cycles in (10_000_000, 110_000_000):
            compat.sleep_on_stream(1_000_000)
            start, ended = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
            start.record()
            compat.sleep_on_stream(cycles)
            ended.record()
            ended.synchronize()
            times.append(float(start.elapsed_time(ended)) / 1e3)
        return 100_000_000 / max(times[1] - times[0], 1e-9)


class NcclMemory:
    """Device memory that NCCL takes for its buffers, outside PyTorch's allocator, held by cudaMalloc. Not yet run."""

    def __init__(self) -> None:
        self._held: list[ctypes.c_void_p] = []
        self.bytes = 0

    def hold(self, bytes_total: int) -> bool:
        """Whether it could be had; where there is no runtime to ask, nothing is held."""
        import ctypes

        library = _cudart()
        if library is None:
            return True
        pointer = ctypes.c_void_p()
        if library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(bytes_total)) != 0:
            return False
        self._held.append(pointer)
        self.bytes += bytes_total
        return True

    def release(self) -> None:
        """Give the memory back."""
        library = _cudart()
        for pointer in self._held:
            if library is not None:
                library.cudaFree(pointer)
        self._held.clear()
        self.bytes = 0


def _cudart() -> ctypes.CDLL | None:
    """The CUDA runtime that this PyTorch has loaded."""
    import ctypes

    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None
