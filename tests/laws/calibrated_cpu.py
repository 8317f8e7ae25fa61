"""A calibrated device that is made up: every op's time follows from its FLOPs and bytes; and models to run on it."""

from __future__ import annotations

import itertools
from typing import Any

FLOPS, BANDWIDTH, LAUNCH = {"fp32": 1e11, "bf16": 2e11}, 1e10, 5e-6
WIDTH = {"fp32": 4, "bf16": 2}
# Tensors of rows x width that each moves.
MOVED = {
    **{"rms_norm": 5, "layer_norm": 3, "swiglu": 4, "gelu": 2, "rope": 6, "add": 3, "softmax": 3, "embedding": 2},
    **{"cross_entropy": 4, "gather_rows": 2, "scatter_add_rows": 3},
}
ROWS, WIDTHS = (32, 512, 4096), (4, 64, 1024, 16384)
SIZES = (64, 512, 4096)


def row(sizes: tuple[float, ...], seconds: float) -> list[float]:
    return [*sizes, seconds, 0.95 * seconds, 1.05 * seconds]


def calibrated_cpu(pace: float = 1.0, gpus: int = 1, **host: float) -> dict[str, Any]:
    """A cluster document. `pace`: every measured time so many times as long; `host`: costs of the host in seconds."""
    points: dict[str, dict[str, list[list[float]]]] = {}

    def put(op: str, dtype: str, sizes: tuple[float, ...], flops: float, elements: float) -> None:
        seconds = pace * (LAUNCH + flops / FLOPS[dtype] + elements * WIDTH[dtype] / BANDWIDTH)
        points.setdefault(op, {}).setdefault(dtype, []).append(row(sizes, seconds))

    for dtype in WIDTH:
        for m, n, k in itertools.product(SIZES, repeat=3):
            for role in ("forward", "dgrad", "wgrad"):
                put(f"gemm {role}", dtype, (m, n, k), 2.0 * m * n * k, m * n + m * k + n * k)
        for groups, m, n, k in itertools.product((2, 8), SIZES[:2], SIZES[:2], SIZES[:2]):
            for role in ("forward", "dgrad", "wgrad"):
                put(
                    f"grouped_gemm {role}", dtype, (groups, m, n, k), groups * 2.0 * m * n * k,
                    groups * (m * n + m * k + n * k),
                )  # fmt: skip
        for batch, seq, heads, dim in itertools.product((1, 8), (64, 512, 2048), (2, 8), (64, 128)):
            flops, elements = 2.0 * batch * heads * seq * seq * dim, 4.0 * batch * seq * heads * dim
            for kv in {heads, heads // 2}:
                put("attention forward", dtype, (batch, seq, heads, kv, dim), flops, elements)
                put("attention backward", dtype, (batch, seq, heads, kv, dim), 2.5 * flops, 2 * elements)
        for (op, moved), rows, width in itertools.product(MOVED.items(), ROWS, WIDTHS):
            put(f"{op} forward", dtype, (rows, width), 0.0, moved * rows * width)
            put(f"{op} backward", dtype, (rows, width), 0.0, 2.0 * moved * rows * width)
        for exponent in range(6, 28, 3):
            for kind, moved in (("adamw single", 14), ("adamw foreach", 12), ("zero_grad", 1)):
                put(kind, dtype, (2.0**exponent,), 0.0, moved * 2.0**exponent)
    points["copy forward"] = {
        "fp32": [row((2.0**e,), pace * (LAUNCH + 2.0 * 2.0**e / BANDWIDTH)) for e in range(6, 30, 3)]
    }
    link = {"name": "memory", "bandwidth_bytes_per_s": "10 GB/s", "latency_s": "1 us"}
    return {
        "name": "made-up",
        "gpus": gpus,
        "gpus_per_node": gpus,
        "scale_up_domain": 1,
        "gpu": {
            "name": "made-up CPU",
            "vendor": "nobody",
            "generation": "cpu",
            "memory_bytes": "32 GiB",
            "usable_memory_bytes": "30 GiB",
            "memory_bandwidth_bytes_per_s": "20 GB/s",
            "flops_per_s": {"bf16": "400 GFLOP/s", "fp32": "200 GFLOP/s"},
            "sm_count": 2,
            "tdp_w": 100,
        },
        "scale_up": link | {"protocol": "pcie"},
        "scale_out": link | {"protocol": "ethernet"},
        "host": {"pcie_bandwidth_bytes_per_s": "10 GB/s", "memory_bytes": "32 GiB"},
        "calibration": {
            "device": "made-up CPU",
            "kind": "cpu",
            "date": "2026-11-21",
            "threads": 2,
            "host": {"launch_eager_s": pace * LAUNCH, **host},
            "points": points,
        },
    }


def config(
    kind: str = "llama", *, h: int = 256, layers: int = 2, heads: int = 4, kv: int | None = None, f: int = 688,
    v: int = 1000, experts: int = 4, top: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """A small model as Hugging Face describes it: llama, mixtral, or nemotron with GELU."""
    document: dict[str, Any] = {
        "model_type": kind,
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "hidden_size": h,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv or heads,
        "head_dim": h // heads,
        "intermediate_size": f,
        "vocab_size": v,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "hidden_act": "gelu" if kind == "nemotron" else "silu",
    }
    if kind == "nemotron":
        return document | {"norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False}
    if kind == "mixtral":
        return document | {"rms_norm_eps": 1e-5, "num_local_experts": experts, "num_experts_per_tok": top}
    return document | {"rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False}
