"""What one kernel costs alone on one GPU: GEMM, grouped GEMM, attention and memory-bound kernels.

    time = speed-of-light / utilisation

with the utilisation interpolated between measured kernels of the same system (`tables`, `compaction`,
`interpolation`), or from the roofline where there are none. What was measured, and how sure it is:

* MEASURED: the shape is one of those timed (the value is the grid's, smoothed over frameworks and neighbours).
* INTERPOLATED: between them, or beyond them by less than a factor of 40 over all axes together, with
  utilisation clamped.
* FITTED: grouped GEMMs (dense GEMM of all rows, plus tile edges) and backward attention (factor on the forward).
* ROOFLINE: no table, or further out.

Bands: on a node the p4-p96 of single frameworks' measurements around the grid, between nodes that of held-out shapes,
outside 10 % (attention 4 %) more per factor e.

A GPU that borrows the tables of its sibling states how its rates differ (`Gpu.kernel_scale`): a time grows as what
binds on each does, bytes or products (`roofline.beside_sibling`), and is never below the bytes over its own bandwidth.

Laws, by construction: every time grows or stays when any size grows (GEMM m, n, k; groups; batch, heads, head_dim,
keys, or queries and keys together; bytes), and no GEMM beats its data-sheet rate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from windtunnel.errors import SpecError
from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.physics.cost.measured.interpolation import BAND_EDGES_S, Reading
from windtunnel.physics.cost.measured.tables import KernelTables, Table, load_tables
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware.gpu import Gpu

_TABLE_OF = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8_block", "nvfp4": "nvfp4"}
_BORROWED_BAND = 0.15  # fp64, fp32, tf32 and int8 take the bf16 utilisation: log half-width added
_OUTSIDE_BAND = 0.10  # log half-width added per factor e beyond the table
_LONGER_BAND = 0.04  # the same for attention: its utilisation is flat beyond 16k (FA2, FA3)
_UNMASKED_BAND = 0.12  # log half-width added where the mask is not the tables' causal square; encoder attention, H100
_WINDOW_BAND = 0.25  # and where a window cuts; windows of 128 to 8192 on H100 and B200
_ROOFLINE_BEYOND = math.log(40.0)
_GROUP_EDGE_ROWS = 32  # rows lost per expert at tile edges
_GROUPED_BAND = (-0.10, 0.25)  # of the rule, for wide experts; an estimate, see docs/physics/kernels.md
_MASK_BLOCK = 128  # causal masking computes whole blocks: half a block per query row is wasted


@final
@dataclass(frozen=True, eq=False)
class KernelCosts:
    """Prices of single kernels on `gpu`. Get it from `kernel_costs`; every method remembers its answers."""

    gpu: Gpu
    tables: KernelTables | None  # None: roofline for everything

    def gemm(self, m: float, n: float, k: float, dtype: str) -> Price:
        """m x k times k x n, result in 2 bytes, operands already in `dtype` (a cast is a kernel of its own).

        `dtype`: one of `hardware.DTYPES` that the GPU has a rate for.

        Raises:
            SpecError: the GPU has no such dtype, or a size below 1.
        """
        return _gemm(self, m, n, k, dtype)

    def grouped_gemm(self, groups: int, m_per_group: float, n: int, k: float, dtype: str) -> Price:
        """`groups` GEMMs of (m_per_group, n, k), weights of their own: one MoE layer's experts on this GPU.

        `m_per_group` is the mean and may be fractional. Imbalance is the caller's: price the busiest rank's mean.
        """
        return _grouped_gemm(self, groups, m_per_group, n, k, dtype)

    def attention(
        self,
        batch: int,
        seq_q: int,
        seq_kv: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        causal: bool = True,
        window: int | None = None,
        backward: bool = False,
        dtype: str = "bf16",
        value_head_dim: int | None = None,
    ) -> Price:
        """Fused attention over `batch` sequences, forward, or backward alone.

        Causal masks align at the end (the last query sees all keys). `window` is the number of keys a query sees at
        most. `value_head_dim` where it differs from `head_dim` (MLA).
        """
        return _attention(
            self, batch, seq_q, seq_kv, heads, kv_heads, head_dim, causal, window, backward, dtype, value_head_dim
        )

    def memory_bound(self, bytes_total: float) -> Price:
        """A kernel that reads and writes `bytes_total` altogether: element-wise, norm, cast, optimizer."""
        price = roofline.memory_bound(self.gpu, bytes_total)
        return price if self.tables is None else price._replace(source=Source.FITTED)


@lru_cache(maxsize=64)
def kernel_costs(gpu: Gpu) -> KernelCosts:
    """Kernel prices of `gpu`, from the measured tables it names if they are to be had."""
    return KernelCosts(gpu, load_tables(gpu.kernel_tables) if gpu.kernel_tables else None)


@lru_cache(maxsize=65536)
def _gemm(costs: KernelCosts, m: float, n: float, k: float, dtype: str) -> Price:
    _at_least_one(m=m, n=n, k=k)
    gpu = costs.gpu
    rate_dtype = "bf16" if dtype == "fp16" and not gpu.supports("fp16") else dtype
    rate = gpu.peak_flops(rate_dtype)
    table_name = _TABLE_OF.get(dtype, "bf16")
    table = costs.tables.gemm.get(table_name) if costs.tables else None
    if table is None:
        return roofline.gemm(gpu, m, n, k, rate_dtype)
    reading = table.grid.read((math.log(m), math.log(n), math.log(k)))
    seconds = math.exp(reading.log_value)
    price = _banded(table, reading, seconds, on_node=reading.between == 0.0 and reading.outside == 0.0)
    if dtype not in _TABLE_OF:  # fp64, fp32, tf32, int8: the bf16 kernel at the ratio of the rates, but never faster
        slower = max(1.0, gpu.peak_flops("bf16") / rate)
        price = price.scaled(slower).widened(-_BORROWED_BAND, _BORROWED_BAND, Source.FITTED)
    timed = rate_dtype if dtype in _TABLE_OF else "bf16"
    shortest_s = table.grid.shortest_s
    price = _scaled(costs, price, roofline.gemm_bytes(m, n, k, dtype), 2.0 * m * n * k / rate, shortest_s, timed)
    return _at_least(price, 2.0 * m * n * k / rate)


@lru_cache(maxsize=65536)
def _grouped_gemm(costs: KernelCosts, groups: int, m_per_group: float, n: int, k: float, dtype: str) -> Price:
    _at_least_one(groups=groups, n=n, k=k)
    if not (math.isfinite(m_per_group) and m_per_group > 0):
        raise SpecError("m_per_group", m_per_group, "must be above zero")
    if groups == 1:
        return _gemm(costs, max(1.0, m_per_group), n, k, dtype)
    active = groups * -math.expm1(-m_per_group)  # experts that get a token at all, tokens falling at random
    rows = groups * m_per_group + active * _GROUP_EDGE_ROWS
    dense = _gemm(costs, max(1.0, rows), n, k, dtype)
    operand = roofline.OPERAND_BYTES[dtype]
    bytes_total = operand * active * n * k + groups * m_per_group * (operand * k + max(2.0, operand) * n)
    memory = roofline.memory_bound(costs.gpu, bytes_total)
    price = _at_least(dense.scaled(1.0 / roofline.grouped_share(costs.gpu)), memory.seconds)
    return price.widened(*_GROUPED_BAND, Source.ROOFLINE if price.source is Source.ROOFLINE else Source.FITTED)


@lru_cache(maxsize=65536)
def _attention(
    costs: KernelCosts,
    batch: int,
    seq_q: int,
    seq_kv: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    causal: bool,
    window: int | None,
    backward: bool,
    dtype: str,
    value_head_dim: int | None,
) -> Price:
    _at_least_one(batch=batch, seq_q=seq_q, seq_kv=seq_kv, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    gpu = costs.gpu
    value_dim = head_dim if value_head_dim is None else value_head_dim
    mean_dim = (head_dim + value_dim) / 2.0
    seq_q = min(seq_q, seq_kv) if causal else seq_q  # rows above the diagonal see nothing
    query_rows = float(batch * heads * seq_q)
    mean_length = mean_kv_length(seq_q, seq_kv, causal, window)
    operand = 1.0 if dtype in ("fp8", "mxfp8") else 2.0
    io_elements = query_rows * (head_dim + value_dim) + batch * kv_heads * seq_kv * (head_dim + value_dim)
    bytes_total = operand * io_elements
    rate_dtype = "fp8" if dtype in ("fp8", "mxfp8") else "bf16"
    table = costs.tables.attention.get(rate_dtype) if costs.tables else None
    if table is None:
        rate_dtype = rate_dtype if gpu.supports(rate_dtype) else "bf16"
        price = roofline.attention(gpu, query_rows, mean_length, mean_dim, bytes_total, rate_dtype)
    else:
        length = 2.0 * mean_length  # of the causal square whose rows see as many keys on average
        reading = table.grid.read((math.log(mean_dim), math.log(length), math.log(query_rows)))
        cuts = window is not None and window < seq_kv
        square = causal and seq_q == seq_kv and not cuts
        timed = square and value_dim == head_dim and (head_dim, seq_q, int(query_rows)) in table.measured
        price = _banded(table, reading, math.exp(reading.log_value), timed, _LONGER_BAND)
        if not square:
            extra = _WINDOW_BAND if cuts else _UNMASKED_BAND
            price = price.widened(-extra, extra, price.source)
        memory_s = bytes_total / roofline.streamed_bytes_per_s(gpu)
        products_s = 4.0 * query_rows * mean_length * mean_dim / gpu.peak_flops("bf16")
        price = _at_least(_scaled(costs, price, bytes_total, products_s, table.grid.shortest_s), memory_s)
    if dtype in ("fp32", "fp64"):  # no flash kernel takes it: the fused one that does computes at that rate
        slower = max(1.0, gpu.peak_flops("bf16") / gpu.flops_per_s.get(dtype, gpu.peak_flops("bf16")))
        idle = _attention(costs, 1, 1, 1, 1, 1, 128, True, None, False, "bf16", None).seconds  # starts, ends
        price = price.scaled(slower - (slower - 1.0) * min(1.0, idle / price.seconds))
    return _backward(gpu, price) if backward else price


def mean_kv_length(seq_q: int, seq_kv: int, causal: bool, window: int | None) -> float:
    """Keys that a query row is multiplied with on average, counted as the tables count.

    They time causal squares of side s, s / 2 keys per row, each row wasting half a block at the diagonal. No diagonal
    saves that half block; a window that cuts adds another.
    """
    longest = float(seq_kv if window is None else min(window, seq_kv))
    if causal:
        first = seq_kv - seq_q  # keys before the first row's own
        ramp = min(float(seq_q), max(0.0, longest - first))  # rows that see fewer than `longest`
        whole = first + seq_q / 2.0
        cut = (ramp * (min(float(first), longest) + longest) / 2.0 + (seq_q - ramp) * longest) / seq_q
    else:
        whole = seq_kv - _MASK_BLOCK / 2.0
        cut = longest - _MASK_BLOCK / 2.0
    return max(1.0, min(whole, cut + _MASK_BLOCK / 2.0))


def _backward(gpu: Gpu, forward: Price) -> Price:
    constants = read_calibration("attention_backward.yaml")
    entry = roofline.by_generation(constants["generations"], gpu.generation)
    factor = float(constants["flops_ratio"]) / float(entry["utilisation"])
    source = Source.ROOFLINE if forward.source is Source.ROOFLINE else Source.FITTED
    return forward.scaled(factor).widened(-float(entry["band"]), float(entry["band"]), source)


def _banded(
    table: Table, reading: Reading, seconds: float, on_node: bool, outside_band: float = _OUTSIDE_BAND
) -> Price:
    """The reading with the band of its size class, growing from node to held-out with the distance."""
    size = bisect_right(BAND_EDGES_S, seconds)
    node, between = table.node_band[size], table.between_band[size]
    share = 0.0 if on_node else reading.between
    extra = outside_band * reading.outside
    low = min(0.0, node[0] + share * min(0.0, between[0] - node[0])) - extra
    high = max(0.0, node[1] + share * max(0.0, between[1] - node[1])) + extra
    if on_node:
        source = Source.MEASURED
    else:
        source = Source.ROOFLINE if reading.outside > _ROOFLINE_BEYOND else Source.INTERPOLATED
    return Price(seconds, seconds * math.exp(low), seconds * math.exp(high), source)


def _scaled(
    costs: KernelCosts, price: Price, bytes_total: float, products_s: float, shortest_s: float, dtype: str = "bf16"
) -> Price:  # fmt: skip
    """From the measured GPU to the one that borrows its tables; `products_s`: of its matrix units' peak in `dtype`.

    `shortest_s`: of the table, a launch that takes as long here (`roofline.borrowed_s`).

    Where they lose far more than the memory does (H20), a kernel keeps its time but for the memory, and is not faster
    than its products at the share of the peak that a large one reaches: on such a GPU nearly every kernel reaches it.
    """
    scale = costs.gpu.kernel_scale
    if scale.compute == 1.0 and scale.memory == 1.0:
        return price
    source = Source(max(price.source, Source.INTERPOLATED))
    compute = roofline.compute_beside_sibling(costs.gpu, dtype)
    if compute < 0.5 * scale.memory:
        launch = min(price.seconds, max(roofline.launch_floor_s(), shortest_s))
        seconds = launch + (price.seconds - launch) / scale.memory
        price = price.scaled(seconds / price.seconds).widened(-0.15, 0.15, source)
        return _at_least(price, products_s / roofline.gemm_efficiency(costs.gpu, "bf16").peak)
    seconds = roofline.borrowed_s(costs.gpu, price.seconds, bytes_total, products_s, dtype, shortest_s)
    price = price.scaled(seconds / price.seconds).widened(-0.05, 0.05, source)
    if scale.memory < compute:
        price = _at_least(price, bytes_total / roofline.streamed_bytes_per_s(costs.gpu))
    return price


def _at_least(price: Price, floor_s: float) -> Price:
    """The price raised to a floor it cannot be below, band and all."""
    if price.seconds >= floor_s:
        return price
    return price.scaled(floor_s / price.seconds)


def _at_least_one(**sizes: float) -> None:
    for name, value in sizes.items():
        if not (math.isfinite(value) and value >= 1):
            raise SpecError(name, value, "a kernel's size must be 1 or more")
