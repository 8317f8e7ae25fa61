"""Copies of a layer's parameters between host and device, and how many bytes are on the device.

On a GPU the host's copies are pinned, and copies run on a stream of their own; on a CPU the device is played by a
second set of storages, so that the same code is tested where there is no GPU. Storages are resized in place, as FSDP2
does, since what autograd saved (views such as `weight.t()`) still points at them; version counters are kept, or the
backward would complain of a change in place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn


class Link:
    """One direction between host and device: at most so many bytes per second, if that is said."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s, self._lock = bytes_per_s, threading.Lock()

    def carry(self, copy: Callable[[], None], size: int) -> None:
        """Copy; on a throttled link it takes as long as the link would."""
        with self._lock:
            begin = time.perf_counter()
            copy()
            if self.bytes_per_s is not None:
                time.sleep(max(0.0, size / self.bytes_per_s - (time.perf_counter() - begin)))


class Arena:
    """Counts the bytes on the device; `peak` is the most that there were at once."""

    def __init__(self) -> None:
        self._lock, self.now, self.peak = threading.Lock(), 0, 0

    def take(self, size: int) -> None:
        """So many bytes more (fewer, if negative)."""
        with self._lock:
            self.now += size
            self.peak = max(self.peak, self.now)


class HostedLayer:
    """A layer whose parameters live on the host: there they are updated, here they come and go."""

    def __init__(
        self, layer: nn.Module, parameters: Sequence[nn.Parameter], arena: Arena, down: Link, up: Link
    ) -> None:  # fmt: skip
        self.layer, self.parameters, self.arena, self.down, self.up = layer, list(parameters), arena, down, up
        self.on_gpu = bool(self.parameters) and self.parameters[0].is_cuda
        self.host = [self._pinned(parameter.detach().to("cpu", copy=True)) for parameter in self.parameters]
        for on_host, parameter in zip(self.host, self.parameters, strict=True):
            on_host.requires_grad_(parameter.requires_grad)
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        self.bytes = sum(parameter.nbytes for parameter in self.parameters)
        self.gradient_bytes = sum(parameter.nbytes for parameter in self.parameters if parameter.requires_grad)
        self.here = True
        arena.take(self.bytes)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self.on_gpu else tensor

    def drop(self) -> None:
        """Give the device's memory back; the host's copy is current."""
        if self.stream is not None:  # kernels that read it have been launched on the current stream
            torch.cuda.current_stream().synchronize()
        for parameter in self.parameters:
            parameter.untyped_storage().resize_(0)
        self.arena.take(-self.bytes)
        self.here = False

    def fetch(self) -> None:
        """Bring the parameters here; the arena was asked for their bytes when the fetch was."""

        def copy() -> None:
            with torch.no_grad():
                for on_host, parameter in zip(self.host, self.parameters, strict=True):
                    parameter.untyped_storage().resize_(parameter.nbytes)
                    with torch.autograd._unsafe_preserve_version_counter(parameter):
                        parameter.copy_(on_host.detach(), non_blocking=self.on_gpu)

        self._on_stream(copy, self.down, self.bytes)
        self.here = True

    def add_left(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Add what earlier micro-batches left on the host to these gradients, on the device."""
        for on_host, gradient in zip(self.host, gradients, strict=True):
            if gradient is not None and on_host.grad is not None:
                gradient.add_(on_host.grad.to(gradient.device))

    def gradients_out(self, gradients: Sequence[torch.Tensor | None], *, add: bool) -> None:
        """Copy gradients to the host's parameters; with `add`, on top of what an earlier micro-batch left."""

        def copy() -> None:
            for on_host, gradient in zip(self.host, gradients, strict=True):
                if gradient is None:
                    continue
                here = gradient.to("cpu") if self.on_gpu else gradient
                on_host.grad = here if not add or on_host.grad is None else on_host.grad.add_(here)

        self._on_stream(copy, self.up, self.gradient_bytes)

    def _on_stream(self, copy: Callable[[], None], link: Link, size: int) -> None:
        with torch.cuda.stream(self.stream):  # does nothing for None
            link.carry(copy, size)
        if self.stream is not None:
            self.stream.synchronize()


def device_bytes_of(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of an optimizer's tensors."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def tensors_in(out: object) -> list[torch.Tensor]:
    """Those in what a module gave back: itself, or in lists and dictionaries."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, tuple | list):
        return [tensor for each in out for tensor in tensors_in(each)]
    return []
