"""A kernel that holds a given number of SMs and does nothing else: a collective's channels without their traffic.

One block takes all the shared memory that a block may have. From compute capability 8.0 on, CUDA reserves 1 KiB of each
SM's shared memory for every block, so beside such a block no other fits: N blocks hold N SMs. That is checked on the
device: one block more than there are SMs must take twice as long.

The kernel is PTX, which the driver compiles: `torch.cuda._compile_kernel` would need a CUDA toolkit for its include
paths. It is loaded and launched with what that function uses, `torch.cuda._utils`. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.real.calibrate.device_wait import DeviceWait

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_NAME, _THREADS = "windtunnel_hold", 32
_PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry windtunnel_hold(.param .u32 cycles)
{
  .reg .pred %more;
  .reg .b64 %begun, %now, %spent, %wanted;
  .reg .b32 %given;
  ld.param.u32 %given, [cycles];
  cvt.u64.u32 %wanted, %given;
  mov.u64 %begun, %clock64;
again:
  mov.u64 %now, %clock64;
  sub.u64 %spent, %now, %begun;
  setp.lt.u64 %more, %spent, %wanted;
  @%more bra again;
  ret;
}
"""
_RESERVED_BYTES = 1024  # of shared memory, by CUDA, for every block
_MOST_CYCLES = 2**31 - 1  # torch passes whole numbers to a kernel as C ints
_CHECK_S, _TWICE = 200e-6, 1.6


@dataclass(frozen=True, slots=True)
class SmHolder:
    """The loaded kernel."""

    kernel: Callable[..., object]
    shared_bytes: int
    wait: DeviceWait

    def hold(self, sms: int, seconds: float) -> None:
        """Queue it on the current stream: `sms` SMs, for `seconds`."""
        cycles = min(self.wait.cycles(seconds), _MOST_CYCLES)
        self.kernel(grid=(sms, 1, 1), block=(_THREADS, 1, 1), args=[cycles], shared_mem=self.shared_bytes)


def sm_holder(torch: ModuleType, wait: DeviceWait) -> tuple[SmHolder | None, str]:
    """The kernel, loaded on the current device and checked there, or None and why not."""
    cuda = torch.cuda
    properties = cuda.get_device_properties(cuda.current_device())
    whole = int(getattr(properties, "shared_memory_per_multiprocessor", 0))
    shared = int(getattr(properties, "shared_memory_per_block_optin", 0)) or whole - _RESERVED_BYTES
    load = getattr(getattr(cuda, "_utils", None), "_cuda_load_module", None)
    if load is None or whole <= 0:
        return None, "this PyTorch cannot load a kernel of ours (2.13 can)"
    if (properties.major, properties.minor) < (8, 0) or shared + 2 * _RESERVED_BYTES <= whole:
        return None, "on this GPU a block cannot have an SM to itself"
    try:
        kernel = load(_PTX, [_NAME])[_NAME]
        kernel.set_shared_memory_config(shared)
        holder = SmHolder(kernel, shared, wait)
        ratio = _one_more(cuda, holder, int(properties.multi_processor_count))
    except (AttributeError, KeyError, TypeError, OSError, RuntimeError) as error:
        return None, f"the kernel that holds SMs did not run ({' '.join(str(error).split())[:120]})"
    if ratio < _TWICE:
        return None, f"its blocks did not get an SM each: one more than there are took {ratio:.2f} times as long"
    return holder, ""


def _one_more(cuda: ModuleType, holder: SmHolder, sms: int) -> float:
    """Time of one block more than there are SMs over that of as many as there are."""
    seconds = []
    for blocks in (sms, sms, sms + 1):  # the first one loads the kernel
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))

        def queue(
            gate: object, begin: torch.cuda.Event = begin, end: torch.cuda.Event = end, blocks: int = blocks
        ) -> None:
            begin.record()
            holder.hold(blocks, _CHECK_S)
            end.record()

        holder.wait.queued(_CHECK_S, queue)
        seconds.append(begin.elapsed_time(end))
    return float(seconds[2] / max(seconds[1], 1e-6))
