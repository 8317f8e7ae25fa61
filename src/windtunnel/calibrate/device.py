"""The device at hand: what it is called, what it holds, which software drives it, and whether others use it too.

Nothing here changes the device: no clocks, no power limits. The CUDA part follows the documentation of `torch.cuda` and
NVML and is not yet run on a GPU.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from windtunnel.errors import SpecError, UserError

LEAST_TORCH = (2, 4)  # the first with rms_norm, fused AdamW on CPUs and enable_gqa soon after
_CACHE_CAP_BYTES = 256 << 20  # a ring larger than this takes memory and time and evicts no more
_CPU_RING_BYTES, _BUSY_SHARE = 1 << 30, 0.10
_CPU_TDP_W = 150.0  # nobody says; energy of a CPU is not what the file is for
_GENERATIONS = {(8, 0): "ampere", (8, 6): "ampere", (8, 9): "ada", (9, 0): "hopper", (10, 0): "blackwell"}
_BLACKWELL_ULTRA = (10, 3)


@dataclass(frozen=True, slots=True)
class Device:
    """What `describe` found."""

    spec: str  # "cpu" or "cuda:0"
    kind: str  # "cpu" or "cuda"
    name: str
    memory_bytes: int
    available_bytes: int  # when the calibration began
    ring_bytes: int  # buffers that together push each other out of the last-level cache
    units: int  # SMs, or threads
    tdp_w: float
    generation: str
    dtypes: tuple[str, ...]
    threads: int
    software: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def identity(self) -> dict[str, object]:
        """What must not change while a calibration is resumed."""
        return {"device": self.name, "kind": self.kind, "threads": self.threads, "torch": self.software.get("torch")}


def import_torch() -> Any:
    """torch, if there is one new enough.

    Raises:
        UserError: missing, or too old; says how to install it.
    """
    try:
        import torch
    except ImportError:
        raise UserError("calibrating needs PyTorch; install it with: pip install 'windtunnel[torch]'") from None
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or (int(found[1]), int(found[2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise UserError(f"PyTorch {torch.__version__} is too old; install {least} or later: pip install -U torch")
    return torch


def describe(torch: Any, spec: str | None, threads: int | None) -> Device:
    """The device called `spec` ("cpu", "cuda:0"; None takes a GPU if there is one), with `threads` host threads.

    Raises:
        SpecError: no such device.
    """
    if threads is not None:
        if not 1 <= threads <= 4096:
            raise SpecError("--threads", threads, "give 1 or more")
        torch.set_num_threads(threads)
    if spec is None:
        spec = "cuda:0" if torch.cuda.is_available() else "cpu"
    if spec == "cpu":
        return _cpu(torch)
    if not re.fullmatch(r"cuda(:\d+)?", spec):
        raise SpecError("--device", spec, "give cpu or cuda:0")
    if not torch.cuda.is_available():
        raise SpecError(
            "--device", spec, "PyTorch sees no CUDA GPU here; install a driver and a CUDA build, or give cpu"
        )
    index = int(spec.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise SpecError("--device", spec, f"there are {torch.cuda.device_count()} GPUs, from cuda:0")
    return _cuda(torch, index)


def software(torch: Any) -> dict[str, str]:
    """Versions that a time depends on."""
    found = {"torch": str(torch.__version__), "python": platform.python_version(), "os": platform.platform(terse=True)}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def today() -> str:
    """The date of a measurement."""
    return date.today().isoformat()


def _cpu(torch: Any) -> Device:
    memory = _meminfo()
    total = memory.get("MemTotal", 8 << 30)
    threads = int(torch.get_num_threads())
    cache = _last_level_cache_bytes()
    notes = []
    if cache > _CPU_RING_BYTES:
        notes.append(
            f"inputs rotate through {_CPU_RING_BYTES >> 20} MiB, less than the {cache >> 20} MiB of last-level cache "
            "that the system reports"
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = os.cpu_count() or 1
    if load > 0.5 * cores + _BUSY_SHARE:
        notes.append(f"the machine was busy: load {load:.1f} on {cores} cores when the calibration began")
    return Device(
        "cpu",
        "cpu",
        f"{_cpu_name()}, {threads} thread{'s' if threads > 1 else ''}",
        total,
        min(memory.get("MemAvailable", total), total),
        min(max(2 * cache, 64 << 20), _CPU_RING_BYTES, max(64 << 20, memory.get("MemAvailable", total) // 16)),
        threads,
        _CPU_TDP_W,
        "cpu",
        ("fp32", "bf16"),
        threads,
        software(torch),
        tuple(notes),
    )


def _cuda(torch: Any, index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    capability = (properties.major, properties.minor)
    generation = "blackwell-ultra" if capability == _BLACKWELL_ULTRA else _GENERATIONS.get(capability, "other")
    cache = int(getattr(properties, "L2_cache_size", 0) or 64 << 20)
    notes = [*_busy(index, free, total)]
    dtypes = ("fp32", "bf16", "fp16") if capability >= (8, 0) else ("fp32", "fp16")
    if "bf16" not in dtypes:
        raise SpecError("--device", f"cuda:{index}", f"{properties.name} has no bf16; Ampere or later is needed")
    watts = _nvidia_smi(index, "power.limit")
    return Device(
        f"cuda:{index}",
        "cuda",
        str(properties.name),
        int(total),
        int(free),
        min(4 * cache, _CACHE_CAP_BYTES),
        int(properties.multi_processor_count),
        watts if watts else 700.0,
        generation,
        dtypes,
        int(torch.get_num_threads()),
        software(torch),
        tuple(notes),
    )


def _busy(index: int, free: int, total: int) -> list[str]:
    notes = []
    used = _nvidia_smi(index, "utilization.gpu")
    if used is not None and used > 100 * _BUSY_SHARE:
        notes.append(f"the GPU is busy: {used:.0f} % in use by others; times will be too long")
    if total - free > _BUSY_SHARE * total:
        notes.append(f"{(total - free) / total:.0%} of the GPU's memory is taken by others")
    return notes


def _nvidia_smi(index: int, query: str) -> float | None:
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return float(done.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
        return {"MemTotal": pages, "MemAvailable": pages // 2}
    found = re.findall(r"^(\w+):\s+(\d+) kB$", "\n".join(lines), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join((found[1] if found else platform.machine()).split())


def _last_level_cache_bytes() -> int:
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        found = re.fullmatch(r"(\d+)([KMG])", text)
        if found:
            largest = max(largest, int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2]])
    return largest or 32 << 20
