"""What one kernel of an inference engine costs on one GPU, in seconds.

    decode attention   measured over (batch, context) for the nearest (heads, KV heads, head size); else
                       KV bytes / (bandwidth x efficiency) + launch
    latent attention   the same, over heads alone: one latent of 576 numbers per token is read by all heads (MLA)
    experts            `cost.inference.experts`
    all-reduce         the engines' own one-shot and two-shot kernels inside a CUDA graph; NCCL's above 8 GPUs
    dense products     `cost.kernels`, as in training

A GPU that borrows the tables of its sibling takes their times at its own rates (`roofline.borrowed_s`), but for whole
modules of sparse attention and hyper-connections (`modules`) and all-reduces, whose times it takes as they are.
Where a shape was not timed, the nearest one is scaled by bytes moved. Nothing timed is taken to read a cache or
weights of experts faster than the memory of the GPU gives them: a kernel that is timed over and over finds them on the
chip, where in a real step other layers have been meanwhile. Tables: aiconfigurator-core 0.12 (Apache-2.0).

The tables of low-precision GEMMs time *quantise, then multiply*, which is what serving pays in every layer; training's
prices (`cost.kernels`) take the first out. Here it stays in. As there: the median of three frameworks, filled and made
monotone (`cost.compaction`), kept in a small cache file per system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

import numpy as np

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.communication.collectives import collective, group_of
from windtunnel.physics.cost.inference import measured
from windtunnel.physics.cost.inference.experts import Engine, Experts, experts_of
from windtunnel.physics.cost.inference.formats import WEIGHT_BYTES, multiplied_in
from windtunnel.physics.cost.inference.surface import FAR_CONTEXT, Curve, Surface, at_least, curve, surface
from windtunnel.physics.cost.kernels import KernelCosts, kernel_costs
from windtunnel.physics.cost.measured.cache import Arrays, cached_arrays, package_data
from windtunnel.physics.cost.measured.interpolation import Array, LogGrid, as_axis
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.hardware.gpu import AS_MEASURED, Gpu

LONG_SUM = float(1 << 20)  # bytes from which a sum over PCIe waits for bandwidth


@final
@dataclass(frozen=True, eq=False)
class InferenceKernels:
    """Kernel times of `framework` on one GPU of `cluster`; get it from `inference_kernels`."""

    cluster: Cluster
    framework: str  # of measured.FRAMEWORKS
    release: str  # of the framework: sums over PCIe changed much between releases
    dense: KernelCosts
    expert_kernel: str = ""  # whose times experts have where one table holds several: a word of the kernel's name

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self.cluster.gpu

    @property
    def measured(self) -> bool:
        """Whether attention and experts come from measured kernels."""
        return self.gpu.kernel_tables is not None and measured.available()

    def gemm_s(self, m: float, n: float, k: float, dtype: str) -> float:
        """m x k times k x n with weights in `dtype`."""
        if grid := self._grid(dtype):
            m = max(1.0, m)
            moved = WEIGHT_BYTES[dtype] * n * k + 2.0 * m * (n + k)
            multiplied = multiplied_in(self.gpu, dtype)
            products_s = 2.0 * m * n * k / self.gpu.peak_flops(multiplied)
            return roofline.borrowed_s(self.gpu, gemm_s(grid, m, n, k), moved, products_s, multiplied, grid.shortest_s)
        multiplied = self._multiplied(dtype)
        seconds = self.dense.gemm(max(1.0, m), n, k, multiplied).seconds
        ratio = WEIGHT_BYTES[dtype] / WEIGHT_BYTES[multiplied]
        if ratio < 1.0:  # fewer bytes of weights, though multiplied in more
            saved = (1.0 - ratio) * WEIGHT_BYTES[multiplied] * n * k / self.bandwidth
            floor = 2.0 * m * n * k / (self.gpu.peak_flops("bf16") * roofline.gemm_efficiency(self.gpu, "bf16").peak)
            seconds = max(seconds - saved, floor, ratio * seconds)
        return seconds

    def derived_from(self, dtype: str) -> str | None:
        """The format whose products stand in for those of `dtype`, less the bytes saved; None where they were timed."""
        other = self._multiplied(dtype)
        return None if self._grid(dtype) or WEIGHT_BYTES[other] <= WEIGHT_BYTES[dtype] else other

    def _grid(self, dtype: str) -> LogGrid | None:
        tables = self.gpu.kernel_tables
        return quantised_grids(tables).get(dtype) if tables and dtype in DTYPES else None

    def _multiplied(self, dtype: str) -> str:
        # Matrix units of CDNA4 multiply MXFP4 as it is.
        return dtype if self.gpu.supports(dtype) else multiplied_in(self.gpu, dtype)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a long kernel streams."""
        return roofline.streamed_bytes_per_s(self.gpu)

    def stream_s(self, bytes_total: float) -> float:
        """A kernel that reads and writes so many bytes."""
        return self.dense.memory_bound(max(1.0, bytes_total)).seconds

    def decode_attention(self, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, window: int | None) -> Surface:
        """Over (sequences, mean context): one new token each against the cache, one layer."""
        return _decode_attention(self.gpu, self.framework, heads, kv_heads, head_dim, kv_dtype, window)

    def latent_attention(self, heads: int, latent: int, kv_dtype: str) -> Surface:
        """Over (sequences, mean context): MLA in its absorbed form, one layer, without the products around it."""
        return _latent_attention(self.gpu, self.framework, heads, latent, kv_dtype)

    def absorbed_s(self, tokens: float, heads: int, nope: int, value: int, rank: int) -> float:
        """The two batched products that bring queries into the latent space and values out of it."""
        weights = 2.0 * heads * rank * (nope + value)
        flops = 2.0 * tokens * heads * rank * (nope + value)
        rows = 2.0 * tokens * heads * (2 * rank + nope + value)
        return 2 * roofline.launch_floor_s() + max(
            (weights + rows) / self.bandwidth, flops / (0.5 * self.gpu.peak_flops("bf16"))
        )

    def prefill_attention_s(
        self, chunk: int, past: int, heads: int, kv_heads: int, head_dim: int, value_dim: int, window: int | None
    ) -> float:
        """`chunk` new tokens of one sequence after `past` cached ones, one layer, causal."""
        return self.dense.attention(
            1, chunk, chunk + past, heads, max(1, kv_heads), head_dim, True, window, value_head_dim=value_dim
        ).seconds

    def experts(
        self, hidden: int, inter: int, topk: int, experts: int, tp: int, ep: int, dtype: str, gated: bool = True
    ) -> Curve:
        """Over the tokens of the whole expert group: routing, both products and the sum, on the busiest GPU."""
        layer = Experts(hidden, inter, topk, experts, tp, ep, dtype, gated)
        return experts_of(Engine(self.gpu, self.framework, self.expert_kernel), layer)

    def all_reduce_s(self, bytes_total: float, gpus: int) -> float:
        """Sum over `gpus` neighbours."""
        if gpus <= 1:
            return 0.0
        return _all_reduce(self.cluster, self.framework, self.release, gpus).at(max(1.0, bytes_total))

    def exchange_s(self, kind: str, bytes_total: float, gpus: int) -> float:
        """Another collective between `gpus` neighbours: all_gather, reduce_scatter, all_to_all, send_recv."""
        if gpus <= 1:
            return 0.0
        return collective(kind, bytes_total, group_of(gpus, 1, self.cluster), self.cluster).seconds


@lru_cache(maxsize=64)
def inference_kernels(cluster: Cluster, framework: str, release: str = "", expert_kernel: str = "") -> InferenceKernels:
    """Kernel times of an engine (`vllm`, `sglang`, `trtllm`) on a cluster's GPU; `release` "" = the newest."""
    return InferenceKernels(cluster, framework, release, kernel_costs(cluster.gpu), expert_kernel)


@lru_cache(maxsize=512)
def _decode_attention(
    gpu: Gpu, framework: str, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, window: int | None
) -> Surface:
    per_token = 2.0 * kv_heads * head_dim * (1.0 if kv_dtype == "fp8" else 2.0)
    for _, path in measured.tables(gpu.kernel_tables, "attention", "generation_attention_perf", framework):
        kinds = measured.distinct(path, ("num_heads", "num_key_value_heads", "head_dim"), ())
        # Multi-head attention is listed with as many KV heads as heads, or with 0 for "the same".
        fits = [kind for kind in kinds if kind[1] > 0]
        kv = "fp8" if kv_dtype == "fp8" else "bfloat16"
        by_window = (("window_size", window or 0),) if measured.has_column(path, "window_size") else ()
        if not fits:
            continue
        chosen = min(fits, key=lambda kind: _distance(kind, (heads, kv_heads, head_dim)))
        where = (
            *zip(("num_heads", "num_key_value_heads", "head_dim"), chosen, strict=True),
            ("kv_cache_dtype", kv),
            *by_window,
        )
        rows = measured.rows(path, ("batch_size", "step", "latency"), where)
        if not len(rows["latency"]) and by_window:
            where = (*where[:-1], ("window_size", 0))
            rows = measured.rows(path, ("batch_size", "step", "latency"), where)
        if not len(rows["latency"]):
            continue
        # A kernel with other heads of the cache reads as much as one with other sequences does.
        more = kv_heads * head_dim / (chosen[1] * chosen[2])
        batches, contexts = rows["batch_size"].astype(float) / more, rows["step"].astype(float) + 1.0
        table = _borrowed(gpu, surface(batches, contexts, rows["latency"] * 1e-3), per_token, 4.0 * heads * head_dim)
        if window is not None and by_window and where[-1][1] == window:
            return _windowed(table, window, timed=True)
        table = at_least(table, per_token / gpu.memory_bandwidth_bytes_per_s)
        return table if window is None else _windowed(table, window)
    table = _streamed(gpu, per_token)
    return table if window is None else _windowed(table, window)


@lru_cache(maxsize=128)
def _latent_attention(gpu: Gpu, framework: str, heads: int, latent: int, kv_dtype: str) -> Surface:
    kv = "fp8" if kv_dtype == "fp8" else "bfloat16"
    per_token = latent * (1.0 if kv_dtype == "fp8" else 2.0)
    for _, path in measured.tables(gpu.kernel_tables, "mla", "generation_mla_perf", framework):
        timed = [kind[0] for kind in measured.distinct(path, ("num_heads",), (("kv_cache_dtype", kv),))]
        if not timed:
            continue
        nearest = min(timed, key=lambda n: abs(math.log(n / heads)))
        rows = measured.rows(path, ("batch_size", "step", "latency"), (("num_heads", nearest), ("kv_cache_dtype", kv)))
        # Beyond the most heads that were timed products take the time, not the cache: it grows with the heads.
        seconds = rows["latency"] * 1e-3 * max(1.0, heads / max(timed))
        table = surface(rows["batch_size"].astype(float), rows["step"].astype(float) + 1.0, seconds)
        table = _borrowed(gpu, table, per_token, 4.0 * heads * latent)
        return at_least(table, per_token / gpu.memory_bandwidth_bytes_per_s)
    return _streamed(gpu, per_token, flops_per_token=4.0 * heads * latent)


@lru_cache(maxsize=64)
def _all_reduce(cluster: Cluster, framework: str, release: str, gpus: int) -> Curve:
    """Inside a node as engines do it, from tables; NCCL's elsewhere.

    Over NVLink TensorRT-LLM's own kernels, timed inside a graph, stand for those of the same kind in all engines: the
    tables of vLLM and SGLang hold some 12 us of launch that a CUDA graph takes away. Over PCIe a
    release's table is as much of the machine it was timed on: those before 2026-06 had no peer access (15 GB/s on two
    RTX PRO 6000 whatever the engine, 36 since). Published runs have it: their long sums, of prompts, are of the newest.
    """
    group = group_of(gpus, 1, cluster)
    nodes = tuple(float(2**i) for i in range(7, 31))
    ours = tuple(collective("all_reduce", b, group, cluster).seconds for b in nodes)
    system = cluster.gpu.kernel_tables
    if system is None or gpus > cluster.gpus_in_domain:
        return Curve(nodes, ours)
    nvlink = cluster.scale_up.protocol == "nvlink"
    whose, of = ("trtllm", "") if nvlink else (framework, release)
    line = _timed_sums(system, whose, of, gpus)
    if line is None:
        return Curve(nodes, ours)
    if nvlink:
        return Curve(nodes, tuple(min(line.at(b), o) for b, o in zip(nodes, ours, strict=True)))
    newest = _timed_sums(system, whose, "", gpus) or line
    return Curve(nodes, tuple(min(line.at(b), newest.at(b)) if b >= LONG_SUM else line.at(b) for b in nodes))


def _timed_sums(system: str, framework: str, release: str, gpus: int) -> Curve | None:
    """Sums of so many GPUs as a table has them, by bytes."""
    for _, path in measured.tables(system, "comm", "custom_allreduce_perf", framework, release):
        if (gpus,) in measured.distinct(path, ("num_gpus",), ()):
            rows = measured.rows(path, ("message_size", "latency"), (("num_gpus", gpus),))
            return curve(rows["message_size"].astype(float) * 2.0, rows["latency"] * 1e-3)  # elements of 2 bytes
    return None


def _borrowed(gpu: Gpu, table: Surface, bytes_per_token: float, flops_per_token: float) -> Surface:
    """Attention of a GPU that borrows its sibling's tables."""
    if gpu.kernel_scale == AS_MEASURED:
        return table
    rate = gpu.peak_flops("bf16")
    curves = []
    for batch, own in zip(table.batches, table.curves, strict=True):
        seconds = []
        for context, s in zip(own.nodes, own.seconds, strict=True):
            tokens = batch * context
            seconds.append(roofline.borrowed_s(gpu, s, tokens * bytes_per_token, tokens * flops_per_token / rate))
        curves.append(Curve(own.nodes, tuple(seconds)))
    return Surface(table.batches, tuple(curves))


def _distance(timed: tuple[int, int, int], wanted: tuple[int, int, int]) -> tuple[float, float]:
    """How unlike two shapes are: head size first, then KV heads, then query heads."""
    heads, kv, dim = (abs(math.log(a / b)) for a, b in zip(timed, wanted, strict=True))
    return (4.0 * dim + 2.0 * kv + heads, heads)


def _streamed(gpu: Gpu, bytes_per_token: float, flops_per_token: float = 0.0) -> Surface:
    """Bytes of the cache over bandwidth, FLOPs over the rate, and a launch, for a GPU without tables."""
    bandwidth = roofline.streamed_bytes_per_s(gpu)
    per_token = max(bytes_per_token / bandwidth, flops_per_token / (0.4 * gpu.peak_flops("bf16")))
    launch = 2 * roofline.launch_floor_s()
    batches, contexts = (1.0, 4096.0), (1.0, 1 << 20)
    return Surface(
        batches, tuple(Curve(contexts, tuple(launch + b * c * per_token for c in contexts)) for b in batches)
    )


def _windowed(table: Surface, window: int, timed: bool = False) -> Surface:
    """A cache of which at most `window` tokens are read: contexts beyond add nothing.

    `timed`: with its window, so what was timed beyond it stands.
    """
    curves = []
    for line in table.curves:
        nodes = sorted({*(n for n in line.nodes if timed or n < window), float(window)})
        seconds = [line.at(n) for n in nodes]
        curves.append(Curve((*nodes, FAR_CONTEXT), (*seconds, seconds[-1])))
    return Surface(table.batches, tuple(curves))


FORMAT_VERSION = 2
DTYPES = ("fp8", "fp8_block", "nvfp4")


@lru_cache(maxsize=16)
def quantised_grids(system: str) -> dict[str, LogGrid]:
    """Per dtype: log seconds over log m, n, k; empty where there are no tables."""
    package = package_data()
    if package is None or not (package[0] / system / "gemm").is_dir():
        return {}
    name = f"serving-gemm-{system}-{package[1]}-f{FORMAT_VERSION}.npz"
    return _grids(cached_arrays(name, lambda: _compacted(package[0] / system)))


def gemm_s(grid: LogGrid, m: float, n: float, k: float) -> float:
    """Seconds of one product."""
    return math.exp(grid.read((math.log(m), math.log(n), math.log(k))).log_value)


def _grids(arrays: Arrays) -> dict[str, LogGrid]:
    names = bytes(arrays["dtypes"].astype(np.uint8)).decode().split()
    axes = tuple(as_axis(arrays[f"axis{place}"]) for place in range(3))
    return {name: LogGrid(axes, arrays[name].astype(np.float32), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)) for name in names}


def _compacted(folder: Path) -> Arrays:
    from windtunnel.physics.cost.measured import compaction

    per_framework, axes = compaction.timed_gemms(folder)
    arrays: Arrays = {f"axis{place}": logs for place, logs in enumerate(compaction.logs_of(axes))}
    names = []
    for dtype in DTYPES:
        cubes: list[Array] = [
            np.log(compaction.cube_of(*times[dtype], axes)) for times in per_framework if dtype in times
        ]
        if not cubes:
            continue
        arrays[dtype] = compaction.median_grid(cubes, compaction.logs_of(axes)).astype(np.float32)
        names.append(dtype)
    arrays["dtypes"] = np.frombuffer(" ".join(names).encode(), dtype=np.uint8)
    return arrays
