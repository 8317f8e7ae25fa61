"""What has to be replaced for `torch.cuda` to exist on a build without it, each with why. Tried on 2.13.

Public names of `torch.cuda` and `torch.accelerator` are replaced because they ask the driver; private ones are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private import factories as plain
from windtunnel.real.capture.torch_private.cuda_kernels import choose_attention, keep_whole

if TYPE_CHECKING:
    from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedCuda


def replace_torch_cuda(
    stack: ExitStack, state: PretendedCuda, classes: tuple[type, type, type], refuse: Callable[..., object]
) -> None:
    """Make `torch.cuda` answer for `state`; `stack` puts everything back."""

    patches = Replacements()
    stack.callback(patches.undo)
    _devices(patches, state)
    _streams(patches, state, classes)
    _memory(patches, state)
    _random(patches)
    _graphs(patches, refuse)
    _tensors(patches)
    _accelerator(patches, state)
    _fake_tensors(patches, state)
    _autograd(stack, state)
    choose_attention(stack, state)
    keep_whole(stack)


def nothing(*_: object, **__: object) -> None:
    """What a driver would have to do."""


def _both(patches: Replacements, modules: tuple[object, ...], name: str, value: torch.Tensor) -> None:
    for module in modules:
        if name in vars(module):
            patches.set(module, name, value)


def _index(device: torch.device, state: PretendedCuda) -> int:
    if device is None:
        return state.device
    device = getattr(device, "idx", device)  # of a `torch.cuda.device`, which `set_device` takes too
    if isinstance(device, int):
        return device if device >= 0 else state.device
    index = torch.device(device).index
    return state.device if index is None else index


# ---- devices


def _devices(patches: Replacements, state: PretendedCuda) -> None:
    cuda = torch.cuda
    gpu = state.gpu
    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.sm_count,
        warp_size=32,
        L2_cache_size=gpu.l2_bytes,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=227 << 10,
        shared_memory_per_multiprocessor=228 << 10,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )

    def set_device(device: torch.device) -> None:
        state.set_device(_index(device, state))

    class Device:
        """`torch.cuda.device`: the device is another one inside."""

        def __init__(self, device: torch.device) -> None:
            self.idx, self.prev_idx = _index(device, state), -1

        def __enter__(self) -> None:
            self.prev_idx = state.device
            state.set_device(self.idx)

        def __exit__(self, *_: object) -> None:
            state.set_device(self.prev_idx)

    class DeviceOf(Device):
        """`torch.cuda.device_of`: that of a tensor."""

        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor.device if tensor.is_cuda else state.device)

    answers: dict[str, object] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,  # private: asks the driver
        "_lazy_call": nothing,  # private: would queue calls for an initialisation that never comes
        "_is_compiled": lambda: True,  # private: pin_memory threads and amp ask it
        "_is_in_bad_fork": lambda: False,  # private: manual_seed asks it
        "device_count": lambda: state.count,
        "_device_count_nvml": lambda: state.count,
        "current_device": lambda: state.device,
        "set_device": set_device,
        "device": Device,
        "device_of": DeviceOf,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: gpu.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "can_device_access_peer": lambda *_: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "synchronize": lambda device=None: state.synchronise("device"),
        "ipc_collect": nothing,
        "current_blas_handle": lambda: 0,
        "set_sync_debug_mode": nothing,
        "get_sync_debug_mode": lambda: 0,
        **dict.fromkeys(
            ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"), lambda device=None: 0
        ),
    }
    for name, value in answers.items():
        if hasattr(cuda, name):
            patches.set(cuda, name, value)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        if hasattr(cuda.nvtx, name):
            patches.set(cuda.nvtx, name, lambda *_, **__: 0)
    for name in ("start", "stop"):
        patches.set(cuda.profiler, name, nothing)
    patches.set(torch.version, "cuda", "12.8")
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: 91002)
    if torch.distributed.is_available():  # DDP's C++ logger wants a timer of the device
        patches.set(torch.distributed.Logger, "set_runtime_stats_and_log", nothing)
        if torch._C._has_cuda:  # there its reducer times itself with events of the driver, once it counts iterations
            patches.set(torch.distributed.Reducer, "prepare_for_forward", nothing)
    patches.set(cuda.nccl, "version", lambda: (2, 27, 5))


# ---- streams


def _streams(patches: Replacements, state: PretendedCuda, classes: tuple[type, type, type]) -> None:
    stream_class, event_class, on_stream = classes
    cuda = torch.cuda
    streams: dict[int, object] = {}

    def current(device: torch.device = None) -> torch.cuda.Stream:
        if state.stream not in streams:
            streams[state.stream] = stream_class(device=state.device, stream_id=state.stream)
        return streams[state.stream]

    def default(device: torch.device = None) -> torch.cuda.Stream:
        return stream_class(device=state.device, stream_id=0)

    def set_stream(stream: torch.cuda.Stream) -> None:
        if stream is not None:
            state.use_stream(stream.stream_id)

    class ExternalStream(stream_class):  # type: ignore[misc,valid-type]
        def __init__(self, stream_ptr: int, device: object = None) -> None:
            super().__init__(device, stream_id=stream_ptr)

    places = (cuda, cuda.streams)
    _both(patches, places, "Stream", stream_class)
    _both(patches, places, "Event", event_class)
    _both(patches, places, "ExternalStream", ExternalStream)
    for name, value in {
        "current_stream": current,
        "default_stream": default,
        "set_stream": set_stream,
        "stream": on_stream,
        "StreamContext": on_stream,
        "is_current_stream_capturing": lambda: False,
    }.items():
        patches.set(cuda, name, value)
    patches.set(torch, "Stream", stream_class)  # C types: they ask the driver
    patches.set(torch, "Event", event_class)


def _accelerator(patches: Replacements, state: PretendedCuda) -> None:
    accelerator, cuda = torch.accelerator, torch.cuda

    def set_index(device: torch.device) -> None:
        state.set_device(_index(device, state))

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: state.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: state.device,
        "current_device_idx": lambda: state.device,
        "set_device_index": set_index,
        "set_device_idx": set_index,
        "current_stream": lambda device=None: cuda.current_stream(),
        "set_stream": lambda stream: cuda.set_stream(stream),
        "synchronize": lambda device=None: state.synchronise("device"),
        "device_index": lambda device: cuda.device(device),
        "get_device_capability": lambda device=None: {"supported_dtypes": set()},
        "empty_cache": nothing,
        **{
            name: getattr(cuda, name)
            for name in (
                *("memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
                *("reset_peak_memory_stats", "reset_accumulated_memory_stats"),
            )
        },
    }.items():
        _both(patches, (accelerator, accelerator.memory), name, value)
    # Private: `torch.get_device_module()` and the fork of the random state ask which accelerator was compiled in.
    patches.set(
        torch._C, "_cuda_getCurrentRawStream", lambda device: state.stream
    )  # imported by name where there is CUDA
    patches.set(torch._C, "_get_accelerator", lambda check=None: torch.device("cuda"))
    patches.set(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))


# ---- memory


def _memory(patches: Replacements, state: PretendedCuda) -> None:
    cuda = torch.cuda

    def stats(device: torch.device = None) -> dict[str, int]:
        now, peak = state.allocated_bytes(), state.peak_bytes()
        figures: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": 0, "num_device_alloc": 0, "num_device_free": 0}
        for kind in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes"):
            for pool in ("all", "small_pool", "large_pool"):
                whole = pool != "small_pool" and kind != "inactive_split_bytes"
                figures |= {
                    f"{kind}.{pool}.current": now if whole else 0,
                    f"{kind}.{pool}.peak": peak if whole else 0,
                    f"{kind}.{pool}.allocated": now if whole else 0,
                    f"{kind}.{pool}.freed": 0,
                }
        return figures

    now, peak = lambda device=None: state.allocated_bytes(), lambda device=None: state.peak_bytes()
    reset = lambda device=None: state.reset_peak()  # noqa: E731

    def info(device: torch.device = None) -> tuple[int, int]:
        return max(0, state.gpu.memory_bytes - state.allocated_bytes()), state.gpu.memory_bytes

    for name, value in {
        "memory_allocated": now,
        "max_memory_allocated": peak,
        "memory_reserved": now,
        "max_memory_reserved": peak,
        "memory_cached": now,
        "max_memory_cached": peak,
        "memory_stats": stats,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": nothing,
        "empty_cache": nothing,
        "mem_get_info": info,
        "memory_summary": lambda *_, **__: f"{state.allocated_bytes()} bytes allocated, {state.peak_bytes()} at most",
        "memory_snapshot": lambda *_, **__: [],
        "_record_memory_history": nothing,  # private, and what the documentation of snapshots tells one to call
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
        "_dump_snapshot": nothing,
        "set_per_process_memory_fraction": nothing,
        "get_allocator_backend": lambda: "native",
        "_set_allocator_settings": nothing,
    }.items():
        _both(patches, (cuda, cuda.memory), name, value)


# ---- random numbers


def _random(patches: Replacements) -> None:
    cuda = torch.cuda

    def real_state(device: torch.device = "cuda") -> object:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # read back as integers by DTensor: must hold data
            return plain.zeros(16, dtype=torch.uint8)

    for name, value in {
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": real_state,
        "get_rng_state_all": lambda: [real_state()],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "_get_rng_state_offset": lambda *_: 0,
        "_set_rng_state_offset": nothing,
    }.items():
        _both(patches, (cuda, cuda.random), name, value)

    class Generator(torch._C.Generator):  # type: ignore[misc]
        def __new__(cls, device: torch.device = "cpu") -> torch.Generator:
            return super().__new__(cls, torch.device("cpu"))

    patches.set(torch, "Generator", Generator)


# ---- what cannot be


def _graphs(patches: Replacements, refuse: Callable[..., object]) -> None:
    cuda = torch.cuda
    for name in ("CUDAGraph", "graph"):  # classes: libraries name them in type annotations
        refused = type(name, (), {"__new__": lambda cls, *args, **kwargs: refuse(*args, **kwargs)})
        _both(patches, (cuda, cuda.graphs), name, refused)
    _both(patches, (cuda, cuda.graphs), "make_graphed_callables", refuse)


# ---- tensors


def _tensors(patches: Replacements) -> None:
    patches.set(torch.Tensor, "record_stream", lambda self, stream: None)
    patches.set(torch.Tensor, "pin_memory", lambda self, device=None: self)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: False)


def _fake_tensors(patches: Replacements, state: PretendedCuda) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    # As on a machine without a GPU: make no real tensor on the device to learn from.
    patches.set(FakeTensorMode, "avoid_device_init", property(lambda self: True))
    make = FakeTensor.__new__

    def make_on_a_gpu_of_this_node(cls: type, *args: object, **kwargs: object) -> object:
        tensor = make(cls, *args, **kwargs)
        if tensor.fake_device.type == "cuda":  # with the index of the current device where none was asked for
            state.check(tensor.fake_device.index)
        return tensor

    patches.set(FakeTensor, "__new__", staticmethod(make_on_a_gpu_of_this_node))


def _autograd(stack: ExitStack, state: PretendedCuda) -> None:
    """Backward on the calling thread: there is no thread for a device that is not there."""
    torch._C._ensureCUDADeviceGuardSet()
    if not torch._C._has_cuda or torch._C._cuda_getDeviceCount() == 0:
        from windtunnel.real.capture.torch_private.guard import stand_in_for_cuda

        stack.enter_context(stand_in_for_cuda(lambda: state.device, state.count, state.watch_device))
    stack.enter_context(torch.autograd.set_multithreading_enabled(False))
