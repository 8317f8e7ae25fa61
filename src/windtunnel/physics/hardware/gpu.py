"""One accelerator: what its data sheet promises and what a framework sees of it.

Rates are *dense* (data sheets often print the 2:4-sparse rate, which is twice that) and at boost clock: speed of light,
not what a kernel reaches. What a kernel reaches is measured, and lives in `cost`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from windtunnel.errors import SpecError

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4", "int8")
GENERATIONS = (
    *("volta", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "blackwell-rtx"),  # NVIDIA
    *("cdna3", "cdna4", "tpu-v5", "tpu-v6", "gaudi2", "cpu", "other"),
)


class KernelScale(NamedTuple):
    """How this GPU differs from the one its kernel tables were measured on: multiply measured *rates* by these."""

    compute: float = 1.0  # of the matrix units, for compute-bound kernels
    memory: float = 1.0  # of HBM bandwidth, for memory-bound kernels
    clock: float = 1.0  # what a lower power limit leaves of the clock behind the data sheet's rates


AS_MEASURED = KernelScale()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. Sizes in bytes, rates per second, dense; see `sources` for where each number comes from."""

    name: str
    vendor: str
    generation: str  # one of GENERATIONS
    memory_bytes: int  # HBM capacity as sold
    usable_memory_bytes: int  # what a framework can allocate from: total of cudaMemGetInfo, below what is sold
    memory_bandwidth_bytes_per_s: float
    flops_per_s: Mapping[str, float] = field(hash=False)  # dense rate by dtype; a dtype that is absent is unsupported
    sm_count: int  # streaming multiprocessors, compute units, or tensor cores of a TPU chip
    tdp_w: float
    kernel_tables: str | None = None  # system name in aiconfigurator-core, None where it has none
    kernel_scale: KernelScale = AS_MEASURED
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        one_of("generation", self.generation, GENERATIONS)
        for name in ("usable_memory_bytes", "sm_count", "tdp_w"):
            positive(name, getattr(self, name))
        check_unit("memory_bytes", self.memory_bytes, 1e6, "80 GiB")
        check_unit("memory_bandwidth_bytes_per_s", self.memory_bandwidth_bytes_per_s, 1e6, "3.35 TB/s")
        for name, factor in self.kernel_scale._asdict().items():
            positive(f"kernel_scale.{name}", factor)
        for dtype, rate in self.flops_per_s.items():
            one_of(f"flops_per_s.{dtype}", dtype, DTYPES)
            check_unit(f"flops_per_s.{dtype}", rate, 1e6, "989 TFLOP/s")
        if "bf16" not in self.flops_per_s:
            raise SpecError("flops_per_s", dict(self.flops_per_s), "must name at least the bf16 rate")
        if self.usable_memory_bytes > self.memory_bytes:
            remedy = f"cannot exceed the capacity, {self.memory_bytes}"
            raise SpecError("usable_memory_bytes", self.usable_memory_bytes, remedy)

    def supports(self, dtype: str) -> bool:
        """Whether the matrix units have a rate of their own for `dtype`."""
        return dtype in self.flops_per_s

    def peak_flops(self, dtype: str) -> float:
        """Dense FLOP per second of the matrix units in `dtype`.

        Raises:
            SpecError: this GPU has no such rate; names those it has.
        """
        if dtype not in self.flops_per_s:
            raise SpecError("dtype", dtype, f"{self.name} has no such rate; it has {', '.join(self.flops_per_s)}")
        return self.flops_per_s[dtype]

    def to_dict(self) -> dict[str, object]:
        """The resolved spec, ready for JSON; `parse_cluster` reads it back under `gpu`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        nested = {"flops_per_s": dict(self.flops_per_s), "kernel_scale": self.kernel_scale._asdict()}
        return {**plain, **nested, "sources": dict(self.sources)}


def positive(name: str, value: float) -> None:
    """Raise SpecError unless `value` is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise SpecError(name, value, "must be above zero")


def check_unit(name: str, value: float, least: float, example: str) -> None:
    """Raise SpecError for a number so small that its unit must have been forgotten."""
    positive(name, value)
    if value < least:
        raise SpecError(name, value, f"too small to be meant: write the unit, such as {example}")


def one_of(name: str, value: str, names: tuple[str, ...]) -> None:
    """Raise SpecError unless `value` is in `names`."""
    if value not in names:
        raise SpecError(name, value, f"must be one of {', '.join(names)}")
