"""A program that insists on GPUs, on CPU tensors and gloo: `on_cpu.py train.py ...` (or `-m package.train`).

`cuda` is the CPU wherever a device is named, streams are nothing, and NCCL is gloo, so that real ranks of the program
can be run where there is no GPU, and a capture of the same command line be held against them (`captured_truth.py`).
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


def on_cpu(value: object) -> object:
    """A device as it is to be, whatever else as it is."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return value


class OnCpu(TorchFunctionMode):
    """Every device that is named."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
        if "device" in kwargs and type(kwargs["device"]) is int:
            kwargs["device"] = "cpu"
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.cuda:
            return args[0]
        if name == "__get__" and func == torch.Tensor.is_cuda.__get__:
            return True
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        found = func(*(on_cpu(one) for one in args), **kwargs)
        if func is torch.Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


class Stream:
    """In which everything is done at once."""

    cuda_stream, priority, device = 0, 0, torch.device("cpu")

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *rest: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 0.0

    def _nothing(self, *args: object, **kwargs: object) -> None: ...

    wait_stream = wait_event = record = wait = synchronize = record_event = _nothing


def replace() -> None:
    """`torch.cuda`, the backend, and what has a device of its own."""
    cuda = torch.cuda

    def nothing() -> Callable[..., None]:
        """A function of its own each time: PyTorch's compiler knows functions by their identity."""
        return lambda *args, **kwargs: None

    for name in ("set_device", "synchronize", "empty_cache", "init", "reset_peak_memory_stats", "ipc_collect"):
        setattr(cuda, name, nothing())
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "current_device",
    ):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.is_available, cuda.is_initialized, cuda.device_count = (lambda: True), (lambda: True), (lambda: 8)
    cuda.is_bf16_supported = lambda *args, **kwargs: True
    cuda.get_device_capability = lambda *args: (9, 0)
    cuda.get_device_name = lambda *args: "the CPU"
    about = SimpleNamespace(name="the CPU", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132)
    cuda.get_device_properties = lambda *args: about
    cuda.memory_stats = lambda *args: dict.fromkeys(
        ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current"), 0
    )
    cuda.Stream, cuda.Event = Stream, type("Event", (Stream,), {})
    for name in ("current_stream", "default_stream", "stream"):
        setattr(cuda, name, lambda *args: Stream())
    cuda.device = contextlib.nullcontext
    cuda.default_generators = (torch.default_generator,)
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.nvtx.range_push, cuda.nvtx.range_pop = nothing(), nothing()
    cuda.manual_seed, cuda.manual_seed_all = torch.default_generator.manual_seed, nothing()
    cuda._lazy_call = lambda call, **kwargs: call()
    for name in TYPES:
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    torch.Tensor.record_stream = nothing()
    began, grouped = dist.init_process_group, dist.new_group

    def begin(backend: str | None = None, *args: object, **kwargs: object) -> None:
        kwargs.pop("device_id", None)
        began("gloo", *args, **kwargs)

    def group(*args: object, **kwargs: object) -> object:
        kwargs |= {"backend": "gloo"}
        kwargs.pop("pg_options", None)
        return grouped(*args[:2], **kwargs)

    dist.init_process_group = torch.distributed.distributed_c10d.init_process_group = begin
    dist.new_group = torch.distributed.distributed_c10d.new_group = group


@contextlib.contextmanager
def started(target: list[str]) -> Iterator[None]:
    """Arguments and path as if the program had been started itself."""
    is_module = target[0] == "-m"
    sys.argv = target[1:] if is_module else target
    sys.path.insert(0, str(Path.cwd() if is_module else Path(target[0]).resolve().parent))
    yield


def main(target: list[str]) -> None:
    """Run the program."""
    replace()
    with OnCpu(), started(target):
        if target[0] == "-m":
            runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target[0], run_name="__main__")


main(sys.argv[1:])
