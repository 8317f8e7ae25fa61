"""Kernels of mixers with a fixed state: their scan over a prompt, and the recurrence of decoding.

Measured where `aiconfigurator-core` has the kernel (gated DeltaNet and KDA: convolution and scan, forward): the nearest
number of heads, scaled by heads. Prompts were timed outside of a graph: what the fewest tokens take longer than in
decoding is launches, which are host time elsewhere and left out here. Its tables of Mamba-2 hold the convolution
alone, and short convolutions have none: bytes over bandwidth or FLOPs at the rate that small products reach, in a
band that says so. No table has a backward pass: it takes BACKWARD times the forward, which is what flash attention's
takes, until it is measured.
"""

from __future__ import annotations

import math
from functools import lru_cache

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.inference import measured
from windtunnel.physics.cost.inference.surface import Curve, curve
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.physics.model.mixers import Recurrent
from windtunnel.physics.model.operations import Operation

TABLES = {"gdn": ("linear_attention", "gdn_perf"), "kda": ("kda", "kda_perf")}
BACKWARD = 2.5
SMALL_PRODUCTS = 0.15  # of the peak, of products over chunks of 64 to 128 tokens; an estimate
FORWARD_BAND, BACKWARD_BAND, UNMEASURED_BAND = (0.8, 1.3), (0.6, 1.7), (0.4, 2.5)
HEADS_FAR = 2.0  # times as many heads as were timed: no longer what was measured


def scan_price(gpu: Gpu, op: Operation, *, backward: bool) -> Price:
    """The scan of one layer over one micro-batch."""
    batch, seq, heads, d, dv, cp = op.shape
    seconds = scan_s(gpu, op.variant, heads, d, dv, seq / cp, batch)
    if seconds is not None:
        low, high = BACKWARD_BAND if backward else FORWARD_BAND
        seconds *= BACKWARD if backward else 1.0
        return Price(seconds, seconds * low, seconds * high, Source.FITTED if backward else Source.INTERPOLATED)
    low, high = UNMEASURED_BAND
    seconds = _roofline_s(
        gpu, op.flops * (2.0 if backward else 1.0), op.backward_bytes if backward else op.forward_bytes
    )
    seconds += op.kernels * roofline.launch_floor_s()
    return Price(seconds, seconds * low, seconds * high, Source.ROOFLINE)


def mixer_s(gpu: Gpu, mixer: Recurrent, tokens: float, sequences: float, tp: int) -> float:
    """One layer in serving on one of `tp` ranks: `tokens` of each sequence, 1 in decoding."""
    heads = -(-mixer.heads // tp)
    if tokens > 1:
        found = scan_s(gpu, mixer.form, heads, mixer.head_dim, mixer.value_head_dim, tokens, sequences)
    else:
        found = _decode_s(gpu, mixer.form, heads, mixer.head_dim, mixer.value_head_dim, sequences)
    if found is not None:
        return found
    chunk = int(min(mixer.chunk, tokens))
    flops = tokens * sequences * mixer.scan_flops(chunk) / tp
    moved = 2.0 * tokens * (mixer.in_width + mixer.conv_channels + mixer.heads * mixer.value_head_dim)
    states = 2.0 * mixer.state_bytes() * math.ceil(tokens / chunk)
    return _roofline_s(gpu, flops, sequences * (moved + states) / tp) + 2 * roofline.launch_floor_s()


def scan_s(gpu: Gpu, form: str, heads: float, d: float, dv: float, tokens: float, sequences: float) -> float | None:
    """Over `tokens` of each of so many sequences, as measured; None where it was not."""
    line = _line(gpu, form, "context", heads, d, dv)
    return None if line is None else line[0].at(max(1.0, tokens * sequences)) * line[1]


def _decode_s(gpu: Gpu, form: str, heads: float, d: float, dv: float, sequences: float) -> float | None:
    line = _line(gpu, form, "generation", heads, d, dv)
    return None if line is None else line[0].at(max(1.0, sequences)) * line[1]


@lru_cache(maxsize=256)
def _line(gpu: Gpu, form: str, phase: str, heads: float, d: float, dv: float) -> tuple[Curve, float] | None:
    """Seconds over tokens, and what they are to be multiplied by for the heads."""
    if form not in TABLES or gpu.kernel_tables is None:
        return None
    operation, name = TABLES[form]
    for framework in ("vllm", "sglang"):
        for _, path in measured.tables(gpu.kernel_tables, operation, name, framework):
            kinds = measured.distinct(path, ("num_v_heads", "head_k_dim", "head_v_dim"), (("phase", phase),))
            near = sorted((k for k in kinds if k[1:] == (d, dv)), key=lambda k: abs(math.log(k[0] / heads)))
            if not near or abs(math.log(near[0][0] / heads)) > math.log(HEADS_FAR):
                continue
            where = (("phase", phase), ("num_v_heads", near[0][0]), ("head_v_dim", dv))
            spent: dict[str, dict[float, float]] = {}
            found = measured.rows(path, ("kernel_source", "num_tokens", "latency"), where)
            for kernel, tokens, ms in zip(*(found[key] for key in found), strict=True):
                times = spent.setdefault("conv" if "conv1d" in str(kernel) else "scan", {})
                times[float(tokens)] = min(float(ms) * 1e-3, times.get(float(tokens), math.inf))
            both = sorted(set(spent.get("conv", {})) & set(spent.get("scan", {})))
            if len(both) > 1:
                import numpy as np

                seconds = np.array([spent["conv"][n] + spent["scan"][n] for n in both])
                if phase == "context" and (decoding := _line(gpu, form, "generation", heads, d, dv)):
                    line, scale = decoding
                    seconds = seconds - max(0.0, float(seconds.min()) - line.at(1.0) * scale)
                return curve(np.array(both), seconds), heads / near[0][0]
    return None


def _roofline_s(gpu: Gpu, flops: float, moved: float) -> float:
    return max(moved / roofline.streamed_bytes_per_s(gpu), flops / (SMALL_PRODUCTS * gpu.peak_flops("bf16")))
