"""What only a GPU has: a context, workspaces, a caching allocator, and work that shares the device with other work.

Sharing: while something else runs on a second stream all along, how much longer does the same work take. Both are
queued behind one wait, the other one first, and events say whether it really ran from before the work's beginning to
past its end; if not, it is made longer, and where that does not help the two do not run beside each other.

Written against the documentation of `torch.cuda` (memory management, streams, events). Not yet run on a GPU.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.physics.graph.allocator import CachingAllocator
from windtunnel.real.calibrate.device import Device, gpu_errors
from windtunnel.real.calibrate.device_wait import LEAST_WAIT_S, DeviceWait, longer
from windtunnel.real.calibrate.hold_sms import sm_holder
from windtunnel.real.calibrate.timing import quantile

if TYPE_CHECKING:
    from types import ModuleType

    import torch

Keep = Callable[[str, str, float], None]
Work = Callable[[], object]
Beside = Callable[[float], object]  # queues work for at least so many seconds
SMS_HELD = (8, 16, 32)
_SIZES = (1 << 10, 300 << 10, 1 << 20, 3 << 20, 9 << 20, 11 << 20, 33 << 20)  # of every size class of the allocator
_SIDE, _HEADS, _COPIED_BYTES = 4096, 16, 512 << 20
_REPETITIONS, _LENGTHENINGS, _WAITS = 9, 4, 4
_SETTLE_S = 30e-6  # for what runs beside to get its place on the device before the work begins


def memory_before_anything(torch: ModuleType, device: Device, keep: Keep) -> None:
    """The CUDA context, and the workspaces of matrix products going forward and backward.

    The backward runs on a thread of its own, with a cuBLAS handle and a workspace of its own.
    """
    with gpu_errors(), torch.cuda.device(device.spec):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        left, right, gradient = (torch.randn(256, 256, device=device.spec) for _ in range(3))
        left.requires_grad_()
        product = left @ right
        (back,) = torch.autograd.grad(product, left, gradient)
        torch.cuda.synchronize()
        parts = (left, right, gradient, product, back)
        tensors = sum(-(-part.numel() * part.element_size() // 512) * 512 for part in parts)
        keep("memory", "workspace_bytes", float(max(torch.cuda.memory_allocated() - before - tensors, 0)))
        free, total = torch.cuda.mem_get_info()  # the context grows with the kernels that are loaded
        others = device.memory_bytes - device.available_bytes
        context = total - free - torch.cuda.memory_reserved() - others
        keep("memory", "context_bytes", float(max(context, device.context_bytes)))


def allocator_differences(torch: ModuleType, device: str, sizes: Sequence[int] = _SIZES) -> list[str]:
    """Where `memory_stats` and our replay of the caching allocator disagree, in words; none is good.

    In a pool of its own: outside of one, a workspace's segment has room left that small allocations would go to.
    """
    torch.cuda.empty_cache()
    inside: AbstractContextManager[object] = nullcontext()
    if hasattr(torch.cuda, "MemPool") and hasattr(torch.cuda, "use_mem_pool"):
        inside = torch.cuda.use_mem_pool(torch.cuda.MemPool(), device)
    elif int(torch.cuda.memory_stats(device)["reserved_bytes.all.current"]):
        return ["allocator: not checked; this PyTorch has no memory pools, and memory is in use"]
    differences: list[str] = []
    with inside:
        start_allocated, start_reserved = _stats(torch, device)
        ours = CachingAllocator(expandable_segments=_expandable())
        blocks, tensors = [], []
        for size in sizes:
            tensors.append(torch.empty(size, dtype=torch.uint8, device=device))
            blocks.append(ours.allocate(size))
            differences += _compared(
                torch, device, ours, start_allocated, start_reserved, f"after allocating {size} bytes"
            )
        for at in (1, 3, 5):
            tensors[at] = None
            block = blocks[at]
            assert block is not None
            ours.free(block)
            differences += _compared(
                torch, device, ours, start_allocated, start_reserved, f"after freeing {sizes[at]} bytes"
            )
        tensors.clear()  # while their pool is there
    return differences


def _expandable() -> bool:
    words = (os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return any("expandable_segments:true" in word.lower() for word in words)


def _compared(
    torch: ModuleType, device: str, ours: CachingAllocator, allocated0: int, reserved0: int, when: str
) -> list[str]:
    allocated, reserved = _stats(torch, device)
    differences = []
    for name, theirs, mine in (
        ("allocated", allocated - allocated0, ours.allocated_bytes),
        ("reserved", reserved - reserved0, ours.reserved_bytes),
    ):
        if theirs != mine:
            differences.append(f"allocator: {name} {theirs} bytes where our rules say {mine}, {when}")
    return differences


def _stats(torch: ModuleType, device: str) -> tuple[int, int]:
    stats = torch.cuda.memory_stats(device)
    return int(stats["allocated_bytes.all.current"]), int(stats["reserved_bytes.all.current"])


class _Window(NamedTuple):
    """Work between two events."""

    seconds: float  # median
    sound: bool  # queued in time, and the other one ran all along


def slowdown(
    torch: ModuleType, device: str, work: Work, beside: Beside, wait: DeviceWait | None = None
) -> float | None:
    """Extra time of `work` per unit of its time while `beside` runs on another stream all along.

    None where they never ran beside each other, however long the other one was.
    """
    with torch.cuda.device(device):
        wait = DeviceWait(torch.cuda) if wait is None else wait
        side = torch.cuda.Stream()
        alone = _window(torch, wait, work, None, side)
        lasting = 2.0 * alone.seconds + 4.0 * _SETTLE_S
        for _ in range(_LENGTHENINGS if alone.sound else 0):
            together = _window(torch, wait, work, partial(beside, lasting), side)
            if together.sound:
                return max(0.0, together.seconds / alone.seconds - 1.0)
            lasting = 2.0 * max(lasting, together.seconds)
    return None


def _window(torch: ModuleType, wait: DeviceWait, work: Work, beside: Work | None, side: torch.cuda.Stream) -> _Window:
    """`work` on the current stream, `beside` queued on `side` before it. The first time is a warm-up."""
    cuda, times, sound = torch.cuda, [], True
    seconds = LEAST_WAIT_S
    for at in range(1 + _REPETITIONS):
        for _ in range(_WAITS):
            marks = [cuda.Event(enable_timing=True) for _ in range(4)]
            queued = wait.queued(seconds, partial(_queue_both, cuda, wait, work, beside, side, marks))
            if queued.in_time:
                break
            seconds = longer(seconds, queued)
        if at:
            begin, end, other_begin, other_end = marks
            times.append(begin.elapsed_time(end) / 1e3)
            sound &= queued.in_time
            if beside is not None:  # counted from the gate, so that no time is negative
                since = queued.gate.elapsed_time
                sound &= since(other_begin) <= since(begin) and since(end) <= since(other_end)
    return _Window(max(quantile(times, 0.5), 1e-9), sound)


def _queue_both(
    cuda: ModuleType,
    wait: DeviceWait,
    work: Work,
    beside: Work | None,
    side: torch.cuda.Stream,
    marks: Sequence[torch.cuda.Event],
    gate: torch.cuda.Event,
) -> None:
    begin, end, other_begin, other_end = marks
    if beside is not None:
        side.wait_event(gate)
        with cuda.stream(side):
            other_begin.record()
            beside()
            other_end.record()
    cuda._sleep(wait.cycles(_SETTLE_S))
    begin.record()
    work()
    end.record()


def measure_extras(torch: ModuleType, device: Device, keep: Keep, note: Callable[[str], None]) -> None:
    """Allocator rules, and how much a GEMM and an attention slow down beside a copy and beside held SMs."""
    begin_s = time.monotonic()
    with gpu_errors(), torch.cuda.device(device.spec):
        try:
            differences = allocator_differences(torch, device.spec)
            for difference in differences[:2]:
                note(difference)
            if len(differences) > 2:
                note(f"allocator: {len(differences) - 2} more differences like these")
            _overlaps(torch, device, keep, note)
        except (RuntimeError, MemoryError) as error:
            if "out of memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            note("overlap: out of memory; what is missing of it was not measured")
            torch.cuda.empty_cache()
    if time.monotonic() - begin_s > 20:
        note("measuring overlap took over 20 s: the GPU is slow or busy")


def _overlaps(torch: ModuleType, device: Device, keep: Keep, note: Callable[[str], None]) -> None:
    where = {"device": device.spec, "dtype": torch.bfloat16}
    left, right = torch.randn(_SIDE, _SIDE, **where), torch.randn(_SIDE, _SIDE, **where)
    query = torch.randn(1, _HEADS, _SIDE, 128, **where)
    elements = int(min(_COPIED_BYTES, device.available_bytes // 16)) // 2
    source = torch.randn(elements, **where)
    target = torch.empty_like(source)
    attention = torch.nn.functional.scaled_dot_product_attention

    def product() -> None:
        for _ in range(4):
            left @ right

    def attend() -> None:
        for _ in range(4):
            attention(query, query, query, is_causal=True)

    def one_copy() -> None:
        target.copy_(source)

    wait = DeviceWait(torch.cuda)
    copy_s = _window(torch, wait, one_copy, None, torch.cuda.Stream()).seconds

    def copies(seconds: float) -> None:
        for _ in range(math.ceil(seconds / copy_s)):
            one_copy()

    works: tuple[tuple[str, str, Work], ...] = (("gemm", "compute", product), ("attention", "attention", attend))
    besides: list[tuple[str, Beside]] = [("copy", copies)]
    holder, why = sm_holder(torch, wait)
    if holder is None:
        note(f"overlap: the slowdown by held SMs was not measured: {why}")
    else:
        besides += [(f"sms_{sms}", partial(holder.hold, sms)) for sms in SMS_HELD if 2 * sms <= device.units]
    for name, other in besides:
        for short, long, work in works:
            value = slowdown(torch, device.spec, work, other, wait)
            key = f"{long if name == 'copy' else short}_by_{name}"
            if value is None:
                note(f"overlap: {key} was not measured: the two did not run beside each other")
            else:
                keep("overlap", key, value)
