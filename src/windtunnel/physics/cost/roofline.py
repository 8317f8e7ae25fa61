"""Kernels without a measurement: data-sheet rates times a utilisation that depends on the size, by generation.

    GEMM       time = floor + max(2mnk / (rate * u), bytes / (bandwidth * e_mem))
               u = peak * m/(m+32) * n/(n+32) * k/(k+k_half) * tiles/(tiles + 0.05 SMs),  tiles = mn / 128^2
    attention  time = floor + max(flops / (rate * u), bytes / (bandwidth * e_mem))
               u = peak * L/(L + 650) * T/(T + 0.3 SMs),  L = twice the mean kv length, T = tiles of 128 query rows
    memory     time = floor + bytes / (bandwidth * e_mem)

The forms were fitted on the measured grids (mean absolute error 5-9 % for bf16, 8-9 % for fp8 on m, n, k >= 256), the
constants are in `calibration/roofline.yaml` with their sources. Each time never falls when a size grows: in u * 1/work
every factor x/(x+c) meets the x of the work, leaving x + c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware.catalogue import get_gpu
from windtunnel.physics.hardware.gpu import Gpu

TILE = 128  # rows and columns of an output tile; rows of a query tile
OPERAND_BYTES = {
    **{"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0},
    **{"fp8": 1.0, "int8": 1.0, "mxfp8": 1.03125, "nvfp4": 0.5625, "mxfp4": 0.53125},
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """A share of the data-sheet rate, the size at which half of it is reached, and the log half-width of its band."""

    peak: float
    k_half: float
    band: float


def constants() -> dict[str, Any]:
    """`calibration/roofline.yaml`."""
    return read_calibration("roofline.yaml")


def by_generation(generations: dict[str, Any], generation: str) -> dict[str, Any]:
    """The entry of a generation, or that of `other`."""
    entry: dict[str, object] = generations.get(generation, generations["other"])
    return entry


def launch_floor_s() -> float:
    """The shortest time any kernel takes on the device."""
    return float(constants()["launch_floor_s"])


def gemm_efficiency(gpu: Gpu, dtype: str) -> Efficiency:
    """Peak utilisation of the matrix units for `dtype`; fp16 as bf16."""
    entry = by_generation(constants()["generations"], gpu.generation)["gemm"]
    numbers = entry.get("bf16" if dtype == "fp16" else dtype) or constants()["gemm_dtype_default"]
    return Efficiency(float(numbers["peak"]), float(numbers["k_half"]), float(numbers["band"]))


def grouped_share(gpu: Gpu) -> float:
    """What grouped GEMMs reach of the rate of one GEMM of all their rows, where that is known; else 1."""
    return float(by_generation(constants()["generations"], gpu.generation).get("grouped", 1.0))


def streamed_bytes_per_s(gpu: Gpu) -> float:
    """What a long kernel streams."""
    return gpu.memory_bandwidth_bytes_per_s * memory_efficiency(gpu)[0]


def memory_efficiency(gpu: Gpu) -> tuple[float, float]:
    """Share of HBM bandwidth that a long streaming kernel reaches, and the log half-width of its band."""
    entry = by_generation(constants()["generations"], gpu.generation)["memory"]
    return float(entry["efficiency"]), float(entry["band"])


def gemm_bytes(m: float, n: float, k: float, dtype: str) -> float:
    """Bytes a GEMM must move at least: both operands once, and the result in 2 bytes (4 from fp32 operands)."""
    operand = OPERAND_BYTES[dtype]
    return operand * (m * k + k * n) + max(2.0, operand) * m * n


def gemm(gpu: Gpu, m: float, n: float, k: float, dtype: str) -> Price:
    """An untimed GEMM, m x k by k x n."""
    efficiency = gemm_efficiency(gpu, dtype)
    edge = float(constants()["edge_rows"])
    # 2mnk / u, written as a product of sums so that it plainly never falls
    tiles_and_tail = (m + edge) * (n + edge) + constants()["wave_share"] * gpu.sm_count * TILE * TILE
    rate = gpu.peak_flops(dtype) * efficiency.peak * gpu.kernel_scale.clock
    compute_s = 2.0 * tiles_and_tail * (k + efficiency.k_half) / rate
    return _of(gpu, compute_s, gemm_bytes(m, n, k, dtype), efficiency.band)


def attention(
    gpu: Gpu, query_rows: float, mean_length: float, head_dim: float, bytes_total: float, dtype: str
) -> Price:
    """Untimed forward attention: `query_rows` (batch x heads x seq_q) each over `mean_length` keys."""
    entry = by_generation(constants()["generations"], gpu.generation)["attention"]
    half_rows = float(constants()["attention_half_waves"]) * gpu.sm_count * TILE
    half_length = float(constants()["attention_half_length"]) / 2.0
    work = 4.0 * (query_rows + half_rows) * (mean_length + half_length) * head_dim
    compute_s = work / (gpu.peak_flops(dtype) * float(entry["peak"]) * gpu.kernel_scale.clock)
    return _of(gpu, compute_s, bytes_total, float(entry["band"]))


def compute_beside_sibling(gpu: Gpu, dtype: str) -> float:
    """Rate of the matrix units over those of the sibling whose tables a GPU borrows, in a format.

    `kernel_scale.compute` is that of bf16; consumer cards halve some formats and not others (RTX 5090: bf16 0.42 of an
    RTX PRO 6000's, nvfp4 0.83).
    """
    scale = gpu.kernel_scale.compute
    if dtype in ("bf16", "fp16") or gpu.kernel_tables is None:
        return scale
    sibling = get_gpu(gpu.kernel_tables)
    if not (gpu.supports(dtype) and sibling.supports(dtype)):
        return scale
    here, there = (card.peak_flops(dtype) / card.peak_flops("bf16") for card in (gpu, sibling))
    return scale * here / there


def beside_sibling(gpu: Gpu, bytes_total: float, products_s: float, dtype: str = "bf16") -> float:
    """How many times as long a kernel takes as on the sibling whose tables a GPU borrows, by what binds on each.

        max(bytes / bandwidth, products) here / the same there

    `products_s`: of this GPU's matrix units at their peak in `dtype`.
    """
    read_s = bytes_total / gpu.memory_bandwidth_bytes_per_s
    there_s = max(gpu.kernel_scale.memory * read_s, compute_beside_sibling(gpu, dtype) * products_s)
    return max(read_s, products_s) / there_s if there_s else 1.0


def borrowed_s(
    gpu: Gpu, seconds: float, bytes_total: float, products_s: float, dtype: str = "bf16", shortest_s: float = 0.0
) -> float:
    """A kernel that took `seconds` on the sibling: what is beyond a launch takes `beside_sibling` times as long.

    `shortest_s`: of its table, where that is longer than one launch. A product in 8 or 4 bits is timed with the kernel
    that quantises its operand, which for one row moves next to nothing.
    """
    launch = min(seconds, max(launch_floor_s(), shortest_s))
    return launch + (seconds - launch) * beside_sibling(gpu, bytes_total, products_s, dtype)


def memory_bound(gpu: Gpu, bytes_total: float) -> Price:
    """A kernel that only moves `bytes_total` (read plus written) through HBM."""
    band = memory_efficiency(gpu)[1]
    return _of(gpu, 0.0, bytes_total, band)


def _of(gpu: Gpu, compute_s: float, bytes_total: float, band: float) -> Price:
    efficiency, memory_band = memory_efficiency(gpu)
    memory_s = bytes_total / (gpu.memory_bandwidth_bytes_per_s * efficiency)
    seconds = launch_floor_s() + max(compute_s, memory_s)
    width = math.exp(max(band, memory_band))
    return Price(seconds, seconds / width, seconds * width, Source.ROOFLINE)
