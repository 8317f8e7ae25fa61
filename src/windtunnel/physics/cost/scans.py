"""Kernels of mixers with a fixed state: their scan over a prompt, and the recurrence of decoding.

Measured where `aiconfigurator-core` has the kernel (gated DeltaNet and KDA: convolution and scan, forward): over
sequences and tokens of each, since a kernel that works on heads and sequences side by side walks along one sequence;
the nearest number of heads, scaled by heads. Training runs flash-linear-attention's kernels (Triton), as SGLang does.
Prompts were timed outside of a graph: what the fewest tokens take longer than in decoding is launches, which are host
time elsewhere and left out here. No table has a backward pass: it takes BACKWARD times the forward, as counted in
flash-linear-attention (`ops/gated_delta_rule`, 2026-08; heads of 128, chunks of 64): forward 20 times the bytes of the
values and 1,408 x 128 FLOPs a head and token, backward 46 times and 4,096 x 128, which is 2.3 and 2.9 times as many;
and of the kernels that walk along a sequence two after one, of three products and of two after one of two.

Tables of Mamba-2 hold the convolution alone, and other mixers have none: bytes over bandwidth, and FLOPs at the rate
that small products reach, one after the other since they are kernels apart, in a band that says so.
"""

from __future__ import annotations

import math
from functools import lru_cache

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.inference import measured
from windtunnel.physics.cost.inference.surface import Surface, surface
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.physics.model.mixers import Recurrent, absent
from windtunnel.physics.model.operations import Operation

TABLES = {"gdn": ("linear_attention", "gdn_perf"), "kda": ("kda", "kda_perf")}
BACKWARD, BACKWARD_FLOPS = 2.5, 2.7  # times the forward; Mamba-2's backward has 8 products for 3 (`ssd_combined.py`)
# Of the peak, of Triton's products over chunks of 64 to 256 tokens: what is left of the time of
# `chunk_gated_delta_rule` and `chunk_kda` behind their bytes, 32,768 tokens of one sequence (H100 and H200 0.037 to
# 0.068, B200 and GB300 0.020 to 0.046). Mamba-2 of 2.7B on MI300X, the whole mixer (3.7 ms of 4,096 tokens,
# ROCm/triton#777), says 0.05, too.
SMALL_PRODUCTS = {"blackwell": 0.035}
SMALL_PRODUCTS_ELSEWHERE = 0.05
FORWARD_BAND, BACKWARD_BAND, UNMEASURED_BAND = (0.8, 1.3), (0.6, 1.7), (0.5, 2.0)
HEADS_FAR = 2.0  # times as many heads as were timed: no longer what was measured
TRAINED_WITH = "sglang"  # whose tables hold flash-linear-attention's kernels


def scan_price(gpu: Gpu, op: Operation, *, backward: bool) -> Price:
    """The scan of one layer over one micro-batch."""
    batch, seq, heads, d, dv, cp = op.shape
    seconds = scan_s(gpu, TRAINED_WITH, op.variant, heads, d, dv, seq / cp, batch)
    if seconds is not None:
        low, high = BACKWARD_BAND if backward else FORWARD_BAND
        seconds *= BACKWARD if backward else 1.0
        return Price(seconds, seconds * low, seconds * high, Source.FITTED if backward else Source.INTERPOLATED)
    low, high = UNMEASURED_BAND
    flops = op.flops * (BACKWARD_FLOPS if backward else 1.0)
    seconds = _roofline_s(gpu, flops, op.backward_bytes if backward else op.forward_bytes)
    seconds += op.kernels * roofline.launch_floor_s()
    return Price(seconds, seconds * low, seconds * high, Source.ROOFLINE)


def mixer_s(gpu: Gpu, framework: str, mixer: Recurrent, tokens: float, sequences: float, tp: int) -> float:
    """One layer in serving on one of `tp` ranks: `tokens` of each sequence, 1 in decoding."""
    if absent(mixer):
        return 0.0
    sizes = -(-mixer.heads // tp), mixer.head_dim, mixer.value_head_dim
    phase = "context" if tokens > 1 else "generation"
    seconds = scan_s(gpu, framework, mixer.form, *sizes, tokens, sequences, phase)
    if seconds is not None:
        return seconds
    chunk = int(min(mixer.chunk, tokens))
    # In decoding the state's bytes rule.
    flops = tokens * sequences * mixer.scan_flops(chunk) / tp if tokens > 1 else 0.0
    moved = 2.0 * tokens * (mixer.in_width + mixer.conv_channels + mixer.heads * mixer.value_head_dim)
    states = 2.0 * mixer.state_bytes() * math.ceil(tokens / chunk)
    return _roofline_s(gpu, flops, sequences * (moved + states) / tp) + 2 * roofline.launch_floor_s()


def scan_s(
    gpu: Gpu,
    framework: str,
    form: str,
    heads: float,
    d: float,
    dv: float,
    tokens: float,
    sequences: float,
    phase: str = "context",
) -> float | None:
    """Over `tokens` of each of so many sequences, as measured; None where it was not."""
    table = _table(gpu, framework, form, phase, heads, d, dv)
    return None if table is None else table[0].at(max(1.0, sequences), max(1.0, tokens)) * table[1]


@lru_cache(maxsize=256)
def _table(
    gpu: Gpu, framework: str, form: str, phase: str, heads: float, d: float, dv: float
) -> tuple[Surface, float] | None:
    """Seconds over sequences and tokens of each, and what they are to be multiplied by for the heads."""
    if form not in TABLES or gpu.kernel_tables is None:
        return None
    operation, name = TABLES[form]
    for _, path in measured.tables(gpu.kernel_tables, operation, name, framework):
        kinds = measured.distinct(path, ("num_v_heads", "head_k_dim", "head_v_dim"), (("phase", phase),))
        near = sorted((k for k in kinds if k[1:] == (d, dv)), key=lambda k: abs(math.log(k[0] / heads)))
        if not near or abs(math.log(near[0][0] / heads)) > math.log(HEADS_FAR):
            continue
        where = (("phase", phase), ("num_v_heads", near[0][0]), ("head_v_dim", dv))
        spent: dict[str, dict[tuple[float, float], float]] = {}
        rows = measured.rows(path, ("kernel_source", "batch_size", "seq_len", "latency"), where)
        for kernel, sequences, tokens, ms in zip(*(rows[key] for key in rows), strict=True):
            times = spent.setdefault("conv" if "conv1d" in str(kernel) else "scan", {})
            key = (float(sequences), float(tokens))
            times[key] = min(float(ms) * 1e-3, times.get(key, math.inf))
        both = sorted(set(spent.get("conv", {})) & set(spent.get("scan", {})))
        if len(both) > 1:
            import numpy as np

            seconds = np.array([spent["conv"][at] + spent["scan"][at] for at in both])
            if phase == "context" and (decoding := _table(gpu, framework, form, "generation", heads, d, dv)):
                alone, scale = decoding
                seconds = seconds - max(0.0, float(seconds.min()) - alone.at(1.0, 1.0) * scale)
            batches, lengths = (np.array([at[place] for at in both]) for place in (0, 1))
            return surface(batches, lengths, seconds), heads / near[0][0]
    return None


def _roofline_s(gpu: Gpu, flops: float, moved: float) -> float:
    rate = SMALL_PRODUCTS.get(gpu.generation, SMALL_PRODUCTS_ELSEWHERE) * gpu.peak_flops("bf16")
    return moved / roofline.streamed_bytes_per_s(gpu) + flops / rate
