"""Peak memory of a step on a CPU, in two ways that check each other.

`AllocatorMemory` reads the CPU allocator's own reports through torch.profiler: every allocation and release with its
time, workspace inside kernels included. It is exact for what it covers, all that goes through PyTorch's allocator, as
long as it runs from before the first tensor: a block that was allocated before it began is never subtracted.

`StorageLedger` is a dispatch mode that adds the storages which ops return and subtracts each when it dies. It cannot
see what a kernel allocates and frees inside itself, so it is never above the allocator's figure; the difference is
workspace. It works from the middle of a run, given the tensors that already live.

Neither counts what never was the allocator's: Python, the packing buffers of MKL, memory that malloc keeps.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

PHASES = ("forward", "backward", "optimizer")


class AllocatorMemory:
    """`with AllocatorMemory() as memory:` around everything; mark phases with `torch.profiler.record_function`."""

    def __enter__(self) -> AllocatorMemory:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        self.ranges: list[tuple[str, int, int]] = []
        changes = []
        for event in events:
            if event.name() == "[memory]":
                if event.device_type() == torch.autograd.DeviceType.CPU:
                    changes.append((event.start_ns(), event.nbytes()))
            elif event.is_user_annotation():
                self.ranges.append((event.name(), event.start_ns(), event.end_ns()))
        changes.sort(key=lambda change: change[0])
        self.times, self.levels = [0], [0]
        for time, size in changes:
            self.times.append(time)
            self.levels.append(self.levels[-1] + size)

    def during(self, name: str) -> dict[str, int]:
        """Bytes at the start, at the peak and at the end of the marked range; the last range of that name."""
        return self.within(*max((begun, ended) for found, begun, ended in self.ranges if found == name))

    def within(self, begun: int, ended: int) -> dict[str, int]:
        """Bytes at the start, the peak and the end of an interval of profiler time, in nanoseconds."""
        before = max(index for index, time in enumerate(self.times) if time <= begun)
        inside = [level for time, level in zip(self.times, self.levels, strict=True) if begun < time <= ended]
        levels = [self.levels[before], *inside]
        return {"start": levels[0], "peak": max(levels), "end": levels[-1]}

    def inside(self, name: str, outer: str) -> list[dict[str, int]]:
        """Every range `name` within the last range `outer`, in order of time."""
        begun, ended = max((a, b) for found, a, b in self.ranges if found == outer)
        spans = sorted((a, b) for found, a, b in self.ranges if found == name and begun <= a and b <= ended)
        return [self.within(*span) for span in spans]


class StorageLedger(TorchDispatchMode):
    """Counts aten ops, and the bytes of living storages; `begin` says which live already."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def begin(self, tensors: Iterable[torch.Tensor]) -> None:
        """Start from these."""
        for tensor in tensors:
            self._note(tensor)
        self.peak = self.now

    def counts(self) -> dict[str, int]:
        """How often each op ran, most frequent first."""
        return dict(Counter(self.ops).most_common())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ops.append(str(func))
        for one in out if isinstance(out, list | tuple) else (out,):
            if isinstance(one, torch.Tensor):
                self._note(one)
            elif isinstance(one, list | tuple):  # foreach ops
                for tensor in one:
                    if isinstance(tensor, torch.Tensor):
                        self._note(tensor)
        return out

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def living_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, their gradients, buffers and the optimizer's state."""
    found = [*model.parameters(), *model.buffers()]
    found += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for state in optimizer.state.values():
        found += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return found
