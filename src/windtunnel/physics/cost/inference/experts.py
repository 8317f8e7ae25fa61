"""What routed experts cost on one GPU, in seconds, over the tokens of the expert group.

Measured for the model's own shape; else the bytes of the experts that get a token, N (1 - (1 - k/N)^T) of N, or their
FLOPs, whichever is longer, times what the nearest shape that was timed takes of the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.inference import measured
from windtunnel.physics.cost.inference.formats import GEMM_DTYPE, MARLIN, WEIGHT_BYTES, marlin_sizes, multiplied_in
from windtunnel.physics.cost.inference.surface import Curve, curve, fastest
from windtunnel.physics.hardware.gpu import AS_MEASURED, Gpu

MOE_NAMES = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "mxfp4": "w4a16_mxfp4",
    "int4": "int4_wo",
}
EIGHT_BIT = "w4a8_mxfp4_mxfp8"
EIGHT_BIT_TOKENS = {("trtllm", "mxfp4"): EIGHT_BIT}
"""How MXFP4 experts are multiplied on Blackwell unless somebody says otherwise: tokens in 8 bits under TensorRT-LLM
(_torch/model_config.py, get_mxfp4_quant_algo), in 16 under vLLM and SGLang. Where such were not timed, in the other:
DeepSeek-V4's were timed with tokens in 8 bits alone, as its checkpoint has them."""
ALIKE = {"mxfp4": "int4"}
"""Whose experts stand in where none of a format were timed on a GPU: engines multiply both in 16 bits with Marlin there
(vLLM: fused_moe/oracle/mxfp4.py)."""
SAME_CHIP = {"gb200": "b200_sxm"}
"""Whose table a kernel that is asked for by name is read from.

GB200's own has TensorRT-LLM's CUTLASS experts in NVFP4 at 0.4 to 0.9 of B200's time, which one chip cannot;
TensorRT-LLM 1.0 ran on both as B200's table says.
"""
UNPACKED = "unpacked"  # as engine profiles ask for it: 4-bit integers by a kernel that unpacks them as it multiplies
UNPACKED_PER_S = 5.5e11
"""Weights of experts in 4-bit integers that one AMD GPU unpacks in the Triton kernel of vLLM before 0.19 and of SGLang
(fused_moe, moe_wna16). Suggested by Kimi-K2.5 on 4 MI325X under vLLM 0.14 (docs.vultr.com, 2026-03), held against
Kimi-K2.6 on 4 MI350X under SGLang: docs/accuracy-serving.md."""
SKEW = "power_law_1.01"  # how unevenly tokens fall on experts where the tables give a choice; what its package assumes
BALANCED = "balanced"
WIDE = 8  # GPUs, above which experts are wide: they move while the engine runs, so that each GPU has as many tokens
ROUTED_TILE = 16  # tokens by which an expert's rows are padded, as in the grouped kernels of vLLM and SGLang


class Engine(NamedTuple):
    """Whose experts, and on which GPU."""

    gpu: Gpu
    framework: str  # of measured.FRAMEWORKS
    expert_kernel: str = ""  # whose times experts have where one table holds several: a word of the kernel's name


LEAST_SIZES = 4  # numbers of tokens that a shape was timed with: of fewer a run broke off, and they say nothing of more


class Experts(NamedTuple):
    """Routed experts of one layer, and over how many GPUs they lie."""

    hidden: int
    inter: int
    topk: int
    experts: int
    tp: int
    ep: int
    dtype: str
    gated: bool


@lru_cache(maxsize=512)
def experts_of(engine: Engine, layer: Experts) -> Curve:
    """Routing, both products and the sum, on the busiest GPU."""
    if engine.expert_kernel == MARLIN and layer.dtype in ALIKE:
        hidden, inner = marlin_sizes(layer.hidden, -(-layer.inter // layer.tp))
        layer = layer._replace(hidden=hidden, inter=inner * layer.tp)
    line = _priced_experts(engine, layer)
    weights = layer.topk / layer.ep * _weights_of_one(layer) * WEIGHT_BYTES[layer.dtype]  # what one token takes
    least = weights / engine.gpu.memory_bandwidth_bytes_per_s
    return Curve(line.nodes, tuple(max(least, s) for s in line.seconds))


def _priced_experts(engine: Engine, layer: Experts) -> Curve:
    marlin = engine.expert_kernel == MARLIN and layer.dtype in ALIKE  # though others were timed
    timed = None if marlin else _timed_experts(engine, layer)
    if timed is not None:
        return timed
    nodes = tuple(float(2**i) for i in range(0, 15))
    seconds = tuple(_experts_s(engine, tokens, layer) for tokens in nodes)
    if engine.gpu.supports(GEMM_DTYPE.get(layer.dtype, layer.dtype)):
        near = None if marlin else _nearest_experts(engine, layer)
        if near is None and layer.dtype in ALIKE:
            near = _nearest_experts(engine, layer._replace(dtype=ALIKE[layer.dtype]))
        line = None if near is None else _timed_experts(engine, near)
        if near is None or line is None:
            return Curve(nodes, seconds)
        # What the nearest shape takes beyond its bytes or FLOPs: 0.5 to 3 times, alike for shapes that are.
        over = [line.at(tokens) / _experts_s(engine, tokens, near) for tokens in nodes]
        return curve(np.array(nodes), np.array(seconds) * np.array(over))
    # Multiplied in 16 bits, as dense products are: what that takes less the bytes of weights that are not read.
    plain = experts_of(engine, layer._replace(dtype="bf16"))
    saved = (WEIGHT_BYTES["bf16"] - WEIGHT_BYTES[layer.dtype]) / roofline.streamed_bytes_per_s(engine.gpu)
    weights = tuple(_touched(tokens, layer) / layer.ep * _weights_of_one(layer) for tokens in nodes)
    rows = zip(nodes, seconds, weights, strict=True)
    return Curve(nodes, tuple(max(own, plain.at(tokens) - saved * value) for tokens, own, value in rows))


def _nearest_experts(engine: Engine, layer: Experts) -> Experts | None:
    """The shape that is most like it of those that were timed in its format, by any engine, all experts on each GPU.

    So how uneven a table has its experts lie over GPUs does not come along: the formula's are even.
    """
    shapes = ("hidden_size", "inter_size", "topk", "num_experts")
    where = (("moe_dtype", MOE_NAMES.get(layer.dtype, "bfloat16")),)
    layers = [
        layer._replace(hidden=kind[0], inter=kind[1], topk=kind[2], experts=kind[3], ep=1)
        for _, path in measured.tables(engine.gpu.kernel_tables, "moe", "moe_perf", engine.framework)
        for kind in measured.distinct(path, shapes, where)
    ]

    def unlike(experts: Experts) -> float:
        shared = experts.experts / experts.topk * layer.topk / layer.experts
        sizes = (experts.hidden / layer.hidden, experts.inter / layer.inter, shared)
        return sum(abs(math.log(ratio)) for ratio in sizes)

    return min(layers, key=unlike, default=None)


def _timed_experts(engine: Engine, layer: Experts) -> Curve | None:
    """Of the tables, where they hold the shape, at this GPU's own rates."""
    line, gpu = _experts_in_tables(engine, layer), engine.gpu
    if line is None or gpu.kernel_scale == AS_MEASURED:
        return line
    multiplied = multiplied_in(gpu, layer.dtype)
    rate = gpu.peak_flops(multiplied)
    seconds = []
    for tokens, s in zip(line.nodes, line.seconds, strict=True):
        moved, flops = _work_of(tokens, layer)
        seconds.append(roofline.borrowed_s(gpu, s, moved, flops / rate, multiplied))
    return Curve(line.nodes, tuple(seconds))


def _experts_in_tables(engine: Engine, layer: Experts) -> Curve | None:
    """Of the tables, where they hold the shape.

    FP8 scaled per tensor never takes longer than the same scaled by blocks, which reads as much and computes more: the
    fastest of the engine's own tables in that format, of any version, and of the table that is read first. Where one
    says otherwise, its kernel was not tuned (vLLM 0.24 on Hopper: 3 to 5 times what 0.19 and blocks take).
    """
    name = MOE_NAMES.get(layer.dtype, "bfloat16")
    if layer.ep > WIDE and engine.framework == "trtllm" and engine.gpu.kernel_tables:
        # Wide experts have kernels of their own in TensorRT-LLM (moe_config backend WIDEEP; its guide for DeepSeek-R1:
        # NVFP4 with a balancer, FP8 without), so no other engine's stand in.
        for path in measured.every(engine.gpu.kernel_tables, "moe", "moe_perf", engine.framework):
            timed = _timed_in(path, (), name, layer, moved=name == "nvfp4")
            if timed is not None:
                return timed[1]
    blackwell = engine.gpu.generation.startswith("blackwell")
    before = EIGHT_BIT_TOKENS.get((engine.framework, layer.dtype), name) if blackwell else name
    names = [(wanted, True) for wanted in dict.fromkeys((before, name, "fp8_block" if name == "fp8" else name))]
    names += [(EIGHT_BIT, False)] * (blackwell and layer.dtype == "mxfp4")
    matches = (
        timed
        for first in (True, False)
        for path, source in _expert_tables(engine, name)
        for wanted, at_first in names
        if at_first is first and (timed := _timed_in(path, source, wanted, layer)) is not None
    )
    first = next(matches, None)
    if first is None or name != "fp8":
        return None if first is None else first[1]
    system = engine.gpu.kernel_tables
    own = measured.every(system, "moe", "moe_perf", engine.framework) if system else []
    others = [_timed_in(path, (), "fp8", layer) for path in own]
    by_blocks = measured.tables(system, "moe", "moe_perf", "sglang")
    others += [_timed_in(path, (), "fp8_block", layer) for _, path in by_blocks]
    like = [match[1] for match in (first, *others) if match is not None and match[0] <= first[0]]
    return fastest(like)


def _timed_in(
    path: Path, source: tuple[tuple[str, object], ...], dtype: str, layer: Experts, moved: bool = False
) -> tuple[float, Curve] | None:
    """From one table: how unlike its parallel sizes are (0: the same), and the times of the nearest, scaled by them.

    `moved`: experts lie so that tokens fall evenly on the GPUs.
    """
    hidden, inter, topk, experts, tp, ep = layer[:6]
    shape = {"hidden_size": hidden, "inter_size": inter, "topk": topk, "num_experts": experts}
    where: tuple[tuple[str, object], ...] = (*shape.items(), ("moe_dtype", dtype), *source)
    kinds = measured.distinct(path, ("moe_tp_size", "moe_ep_size", "distribution"), where)
    if not kinds:
        return None

    def unlike(kind: tuple[Any, ...]) -> float:
        return abs(math.log(kind[0] / tp)) + abs(math.log(kind[1] / ep))

    fall = BALANCED if moved else SKEW
    sizes = [kind for kind in kinds if kind[2] == fall] or list(kinds)
    for chosen in sorted(sizes, key=lambda kind: (unlike(kind), kind[2])):
        rows = (*where, ("moe_tp_size", chosen[0]), ("moe_ep_size", chosen[1]), ("distribution", chosen[2]))
        columns = measured.rows(path, ("num_tokens", "latency"), rows)
        line = curve(columns["num_tokens"].astype(float), columns["latency"] * 1e-3)
        if len(line.nodes) >= LEAST_SIZES:
            break
    else:
        return None
    ratio = chosen[0] * chosen[1] / (tp * ep)
    if ratio != 1.0:
        scaled = tuple(s * ratio if ratio > 1.0 else max(s * ratio, line.seconds[0]) for s in line.seconds)
        line = Curve(line.nodes, scaled)
    return unlike(chosen), line


def _expert_tables(engine: Engine, dtype: str) -> Iterator[tuple[Path, tuple[tuple[str, object], ...]]]:
    """Tables of experts and, where a kernel was asked for by name, which of their rows; that kernel's come first."""
    system, word = engine.gpu.kernel_tables, engine.expert_kernel
    board = SAME_CHIP.get(system or "", system)
    for path in measured.every(board, "moe", "moe_perf", engine.framework) if board and word else ():
        for (source,) in measured.distinct(path, ("kernel_source",), (("moe_dtype", dtype),)):
            if word in source:
                yield path, (("kernel_source", source),)
    for _, path in measured.tables(engine.gpu.kernel_tables, "moe", "moe_perf", engine.framework):
        yield path, ()


def _touched(tokens: float, layer: Experts) -> float:
    """Experts of the layer that get a token."""
    if layer.topk >= layer.experts:
        return float(layer.experts)
    return layer.experts * -math.expm1(tokens * math.log1p(-layer.topk / layer.experts))


def _weights_of_one(layer: Experts) -> float:
    """Weights of one expert on one GPU."""
    return (3 if layer.gated else 2) * layer.hidden * layer.inter / layer.tp


def _work_of(tokens: float, layer: Experts) -> tuple[float, float]:
    """(bytes, FLOPs) on one of tp x ep GPUs."""
    hidden, inter, topk, _, tp, ep, dtype, _ = layer
    touched, of_one = _touched(tokens, layer), _weights_of_one(layer)
    bytes_total = touched / ep * of_one * WEIGHT_BYTES[dtype] + 4.0 * tokens * topk / ep * (hidden + inter / tp)
    rows = tokens * topk / ep + touched / ep * ROUTED_TILE / 2
    return bytes_total, 2.0 * rows * of_one


def _experts_s(engine: Engine, tokens: float, layer: Experts) -> float:
    """Weights of the experts that get a token, or their products, whichever is longer, on one of tp x ep GPUs."""
    bytes_total, flops = _work_of(tokens, layer)
    product_dtype = multiplied_in(engine.gpu, layer.dtype)
    rate, efficiency = engine.gpu.peak_flops(product_dtype), roofline.gemm_efficiency(engine.gpu, product_dtype).peak
    launch = 4 * roofline.launch_floor_s()  # sort, two grouped products, sum
    read_s = bytes_total / roofline.streamed_bytes_per_s(engine.gpu)
    if engine.expert_kernel == UNPACKED and engine.gpu.generation.startswith("cdna"):
        read_s = max(read_s, _touched(tokens, layer) / layer.ep * _weights_of_one(layer) / UNPACKED_PER_S)
    return launch + max(read_s, flops / (rate * efficiency * 0.7))
