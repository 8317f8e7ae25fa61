"""The device at hand: what it is called, what it holds, which software drives it, and whether others use it too.

Nothing here changes the device: no clocks, no power limits. The CUDA part follows the documentation of `torch.cuda` and
nvidia-smi and is not yet run on a GPU.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError, UserError

if TYPE_CHECKING:
    from types import ModuleType

LEAST_TORCH = (2, 5)  # the first with enable_gqa; rms_norm and fused AdamW on CPUs came before
_CACHE_CAP_BYTES = 256 << 20  # a ring larger than this takes memory and time and evicts no more
_CPU_RING_BYTES, _BUSY_SHARE = 1 << 30, 0.10
BUSY = "the machine was busy"
_CPU_TDP_W = 150.0  # nobody says; energy of a CPU is not what the file is for
_GENERATIONS = {
    **{(8, 0): "ampere", (8, 6): "ampere", (8, 9): "ada", (9, 0): "hopper"},
    **{(10, 0): "blackwell", (12, 0): "blackwell-rtx"},
}
_BLACKWELL_ULTRA = (10, 3)
NOT_RUN = "the CUDA path of calibrate is written against the documentation and not yet run on a GPU: check its numbers"
_ASSUMED_TDP_W = 700.0
_SMI_FIELDS = ("utilization.gpu", "memory.used", "power.limit", "driver_version")
_LEAST_CONTEXT_BYTES = 32 << 20  # a context takes more; less was seen because it was there before
_GPU_FAILURE = r"CUDA (driver )?error|CUBLAS_STATUS_|CUDNN_STATUS_"
_CONTEXT_BYTES = 1 << 30  # what a context takes at most, where its own size is not known


@dataclass(frozen=True, slots=True)
class Device:
    """A device as `describe` found it."""

    spec: str  # "cpu" or "cuda:0"
    kind: str  # "cpu" or "cuda"
    name: str
    memory_bytes: int
    available_bytes: int  # when the calibration began; of a GPU what others leave, our own context included
    ring_bytes: int  # buffers that together push each other out of the last-level cache
    units: int  # SMs, or threads
    tdp_w: float
    generation: str
    dtypes: tuple[str, ...]
    threads: int
    software: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    context_bytes: int = 0  # of a GPU: what our context took when it was made

    def identity(self) -> dict[str, object]:
        """What must not change while a calibration is resumed."""
        return {"device": self.name, "kind": self.kind, "threads": self.threads, "torch": self.software.get("torch")}


def import_torch() -> ModuleType:
    """torch, if there is one new enough.

    Raises:
        UserError: missing, or too old; says how to install it.
    """
    try:
        import torch
    except ImportError:
        raise UserError("calibrating needs PyTorch; install it with: pip install 'windtunnel[torch]'") from None
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or (int(match[1]), int(match[2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise UserError(f"PyTorch {torch.__version__} is too old; install {least} or later: pip install -U torch")
    module: ModuleType = torch
    return module


def describe(torch: ModuleType, spec: str | None, threads: int | None) -> Device:
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


def software(torch: ModuleType) -> dict[str, str]:
    """Versions that a time depends on."""
    versions = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "os": platform.platform(terse=True),
    }
    if torch.cuda.is_available():
        versions["cuda"] = str(torch.version.cuda)
        if torch.backends.cudnn.is_available():
            versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def today() -> str:
    """The date of a measurement."""
    return date.today().isoformat()


def _cpu(torch: ModuleType) -> Device:
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
        notes.append(f"{BUSY}: load {load:.1f} on {cores} cores when the calibration began")
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


@contextmanager
def gpu_errors() -> Iterator[None]:
    """What CUDA and its libraries say went wrong, as one message; out of memory as what the caller handles.

    After such an error the context is lost: every later call fails too. What was measured is in the journal.

    Raises:
        UserError: the device failed.
        MemoryError: a library had no memory left (what PyTorch itself has not is `torch.OutOfMemoryError`).
    """
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())
        if "_ALLOC_FAILED" in words:
            raise MemoryError(f"out of memory: {words[:120]}") from error
        if "out of memory" in words.lower() or not re.search(_GPU_FAILURE, words):
            raise
        raise UserError(
            f"the GPU failed ({words[:160]}); what was measured is kept: look at `dmesg` and nvidia-smi, run it again"
        ) from error


def _cuda(torch: ModuleType, index: int) -> Device:
    with _starting(index):
        properties = torch.cuda.get_device_properties(index)
    name, capability = str(properties.name), (properties.major, properties.minor)
    if capability < (8, 0):
        raise SpecError("--device", f"cuda:{index}", f"{name} has no bf16; Ampere or later is needed")
    where = _nvidia_smi_id(properties)
    seen = _nvidia_smi(where)  # before mem_get_info makes our context
    notes = [NOT_RUN, *_used_by_others(where, seen)]
    with _starting(index):
        free, total = map(int, torch.cuda.mem_get_info(index))
    used, context = total - free, 0
    used_mib = _number(seen, "memory.used")
    if used_mib is not None:  # what the driver reserves is in neither: cudaMemGetInfo's total is without it
        context = max(0, used - int(used_mib * 2**20))
    if context < _LEAST_CONTEXT_BYTES:
        context = min(used, _CONTEXT_BYTES)
        notes.append("what a context takes could not be told from what others hold: taken as 1 GiB at most")
    if used - context > _BUSY_SHARE * total:
        notes.append(f"{(used - context) / total:.0%} of the GPU's memory is taken by others or its driver")
    watts = _number(seen, "power.limit")
    if not watts:
        notes.append(f"the GPU's power limit is not known: {_ASSUMED_TDP_W:.0f} W assumed")
    cache = int(getattr(properties, "L2_cache_size", 0) or 64 << 20)
    return Device(
        f"cuda:{index}",
        "cuda",
        name,
        total,
        min(free + context, total),
        min(4 * cache, _CACHE_CAP_BYTES),
        int(properties.multi_processor_count),
        watts or _ASSUMED_TDP_W,
        "blackwell-ultra" if capability == _BLACKWELL_ULTRA else _GENERATIONS.get(capability, "other"),
        ("fp32", "bf16", "fp16"),
        int(torch.get_num_threads()),
        software(torch) | ({"driver": seen["driver_version"]} if seen else {}),
        tuple(notes),
        context,
    )


@contextmanager
def _starting(index: int) -> Iterator[None]:
    """A GPU that is there but cannot be used: held by one program alone, full, or broken."""
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())[:160]
        remedy = f"cannot be used ({words}); see nvidia-smi for who holds it, or give cpu"
        raise SpecError("--device", f"cuda:{index}", remedy) from error


def _used_by_others(where: str | None, entry: dict[str, str]) -> list[str]:
    """Notes about who else uses the GPU, as nvidia-smi says. Nothing of ours runs there yet."""
    used = _number(entry, "utilization.gpu")
    if used is None:
        return ["whether others use the GPU is not known: nvidia-smi does not say"]
    notes = []
    if used > 100 * _BUSY_SHARE:
        notes.append(f"the GPU is busy: {used:.0f} % in use by others; times will be too long")
    processes = _nvidia_smi_lines(where, "--query-compute-apps=pid")
    others = [pid for pid in processes if pid.isdecimal() and int(pid) != os.getpid()]
    if others:
        notes.append(f"{len(others)} other program{'s' * (len(others) > 1)} on the GPU; times may be too long")
    return notes


def _nvidia_smi_id(properties: object) -> str | None:
    """What nvidia-smi knows the GPU by. Its numbers are not torch's: those follow CUDA_VISIBLE_DEVICES and speed."""
    uuid = str(getattr(properties, "uuid", "") or "")
    if uuid:
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return None


def _nvidia_smi(where: str | None) -> dict[str, str]:
    """What nvidia-smi says of the GPU, field by field; nothing where it is not there or does not know it."""
    lines = _nvidia_smi_lines(where, f"--query-gpu={','.join(_SMI_FIELDS)}")
    words = [word.strip() for word in lines[0].split(",")] if lines else []
    return dict(zip(_SMI_FIELDS, words, strict=True)) if len(words) == len(_SMI_FIELDS) else {}


def _number(seen: dict[str, str], field: str) -> float | None:
    try:
        return float(seen[field])
    except (KeyError, ValueError):  # [N/A], [Not Supported]
        return None


def _nvidia_smi_lines(where: str | None, query: str) -> list[str]:
    if where is None:
        return []
    command = ["nvidia-smi", f"--id={where}", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
        return {"MemTotal": pages, "MemAvailable": pages // 2}
    matches = re.findall(r"^(\w+):\s+(\d+) kB$", "\n".join(lines), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in matches}


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join((match[1] if match else platform.machine()).split())


def _last_level_cache_bytes() -> int:
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG])", text)
        if match:
            largest = max(largest, int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]])
    return largest or 32 << 20
