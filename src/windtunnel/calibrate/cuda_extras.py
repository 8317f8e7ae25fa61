"""What only a GPU has: a context, workspaces, a caching allocator, and work that shares the device with other work.

Written against the documentation of `torch.cuda` (memory management, streams, graphs). Not yet run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from windtunnel.calibrate.device import Device
from windtunnel.calibrate.timing import quantile
from windtunnel.graph.allocator import CachingAllocator

Keep = Callable[[str, str, float], None]
_SIZES = (1 << 10, 300 << 10, 1 << 20, 3 << 20, 9 << 20, 11 << 20, 33 << 20)  # of every size class of the allocator


def memory_before_anything(torch: Any, device: Device, keep: Keep) -> None:
    """The CUDA context, and the workspace that the first matrix product takes."""
    with torch.cuda.device(device.spec):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        context = total - free - torch.cuda.memory_reserved()
        keep("memory", "context_bytes", float(max(context, 0)))
        before = torch.cuda.memory_allocated()
        left, right = (torch.randn(256, 256, device=device.spec) for _ in range(2))
        product = left @ right
        torch.cuda.synchronize()
        tensors = sum(-(-one.numel() * one.element_size() // 512) * 512 for one in (left, right, product))
        keep("memory", "workspace_bytes", float(max(torch.cuda.memory_allocated() - before - tensors, 0)))


def allocator_differences(torch: Any, device: str, sizes: Sequence[int] = _SIZES) -> list[str]:
    """Where `memory_stats` and our replay of the caching allocator disagree, in words; none is good."""
    torch.cuda.empty_cache()
    start_allocated, start_reserved = _stats(torch, device)
    ours = CachingAllocator()
    blocks, tensors, found = [], [], []
    for size in sizes:
        tensors.append(torch.empty(size, dtype=torch.uint8, device=device))
        blocks.append(ours.allocate(size))
        found += _compared(torch, device, ours, start_allocated, start_reserved, f"after allocating {size} bytes")
    for at in (1, 3, 5):
        tensors[at] = None
        block = blocks[at]
        assert block is not None
        ours.free(block)
        found += _compared(torch, device, ours, start_allocated, start_reserved, f"after freeing {sizes[at]} bytes")
    return found


def _compared(torch: Any, device: str, ours: CachingAllocator, allocated0: int, reserved0: int, when: str) -> list[str]:
    allocated, reserved = _stats(torch, device)
    found = []
    for name, theirs, mine in (
        ("allocated", allocated - allocated0, ours.allocated_bytes),
        ("reserved", reserved - reserved0, ours.reserved_bytes),
    ):
        if theirs != mine:
            found.append(f"allocator: {name} {theirs} bytes where our rules say {mine}, {when}")
    return found


def _stats(torch: Any, device: str) -> tuple[int, int]:
    stats = torch.cuda.memory_stats(device)
    return int(stats["allocated_bytes.all.current"]), int(stats["reserved_bytes.all.current"])


def slowdown(torch: Any, device: str, work: Callable[[], object], beside: Callable[[], object]) -> float:
    """Extra time of `work` per unit of its time while `beside` runs on another stream all along."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        alone = _window(torch, work, None, side)
        together = _window(torch, work, beside, side)
    return max(0.0, together / alone - 1.0)


def _window(
    torch: Any, work: Callable[[], object], beside: Callable[[], object] | None, side: Any, repetitions: int = 10
) -> float:
    """Median seconds of `work` on the current stream, `beside` queued on `side` before it and longer than it."""
    work()
    torch.cuda.synchronize()
    found = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if beside is not None:
            with torch.cuda.stream(side):
                beside()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return quantile(found, 0.5)


def measure_extras(torch: Any, device: Device, keep: Keep, note: Callable[[str], None]) -> None:
    """Allocator rules, and how much a GEMM and an attention slow down beside a copy."""
    for difference in allocator_differences(torch, device.spec):
        note(difference)
    where = {"device": device.spec, "dtype": torch.bfloat16}
    left, right = torch.randn(4096, 4096, **where), torch.randn(4096, 4096, **where)
    query = torch.randn(1, 16, 4096, 128, **where)
    source, target = torch.randn(1 << 28, **where), torch.empty(1 << 28, **where)
    attention = torch.nn.functional.scaled_dot_product_attention

    def product() -> None:
        for _ in range(4):
            left @ right

    def attend() -> None:
        for _ in range(4):
            attention(query, query, query, is_causal=True)

    def copy() -> None:
        for _ in range(8):
            target.copy_(source)

    begun = time.monotonic()
    keep("overlap", "compute_by_copy", slowdown(torch, device.spec, product, copy))
    keep("overlap", "attention_by_copy", slowdown(torch, device.spec, attend, copy))
    if time.monotonic() - begun > 10:
        note("measuring overlap took over 10 s: the GPU is slow or busy")
