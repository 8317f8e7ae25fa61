"""Whole attention modules as engines run them, timed with the products around them: sparse attention of four kinds.

    dsa    latent attention behind an indexer (DeepSeek V3.2, GLM-5)       one table each for prompts and for decoding
    csa    compressed keys that an indexer chooses (DeepSeek V4)
    hca    compressed keys, all of them (DeepSeek V4)
    msa    blocks of keys that small heads choose (MiniMax M3)

A module has its projections in it, so they are not priced again. Of one that was timed for two models the one with as
long a latent serves; heads that were not timed take the nearest. A chunk of a prompt behind cached tokens takes what
the whole takes less what those take. Prompts were timed outside of a graph: what a few tokens take longer than in
decoding is launches, which are the engine's host time and not added again. Hyper-connections (mHC) have tables of
their own, by tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from windtunnel.physics.cost.inference import measured
from windtunnel.physics.cost.inference.surface import Curve, Surface, curve, surface
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.physics.model.architecture import Attention
from windtunnel.physics.model.mixers import Compressed, Indexed

# The latent's rank of queries by the model whose modules were timed; 0: any.
MODELS = {
    "dsa": {1536: "deepseek-ai/DeepSeek-V3.2", 2048: "zai-org/GLM-5"},
    "dsv4_csa": {1024: "sgl-project/DeepSeek-V4-Flash-FP8", 1536: "sgl-project/DeepSeek-V4-Pro-FP8"},
    "dsv4_hca": {1024: "sgl-project/DeepSeek-V4-Flash-FP8", 1536: "sgl-project/DeepSeek-V4-Pro-FP8"},
    "msa": {0: "MiniMaxAI/MiniMax-M3"},
}
STREAMS = 4  # of the hyper-connections that were timed


@dataclass(frozen=True, eq=False)
class Module:
    """Seconds of one layer's attention on one rank, projections included."""

    decode: Surface  # over sequences and context
    prompt: Curve  # over the tokens of one prompt

    def prompt_s(self, tokens: float, past: float) -> float:
        """`tokens` of a prompt behind `past` that are cached."""
        own = self.prompt.at(tokens)
        if past <= 0.0:
            return own
        return max(own, self.prompt.at(past + tokens) - self.prompt.at(past))


def module_of(gpu: Gpu, framework: str, mixer: Attention, heads: int, weights: str, kv: str) -> Module | None:
    """As timed for `heads` of this kind of attention; None where it was not, or is of another kind."""
    kind = kind_of(mixer)
    if kind is None or gpu.kernel_tables is None:
        return None
    return _module(gpu.kernel_tables, framework, kind, mixer.q_lora_rank or 0, heads, weights, kv)


def kind_of(mixer: Attention) -> str | None:
    """The table that times it."""
    if isinstance(mixer, Compressed):
        return None if not mixer.ratio else "dsv4_csa" if mixer.index_heads else "dsv4_hca"
    if isinstance(mixer, Indexed) and mixer.index_heads:
        return "dsa" if mixer.kind == "mla" else "msa"
    return None


@lru_cache(maxsize=64)
def _module(
    system: str, framework: str, kind: str, rank: int, heads: int, weights: str, kv: str
) -> Module | None:  # fmt: skip
    model = MODELS[kind].get(rank if rank in MODELS[kind] else 0)
    operation = "msa" if kind == "msa" else "sparse_attention"
    prompts = [path for _, path in measured.tables(system, operation, f"{kind}_context_module_perf", framework)]
    prompt = None if model is None else _prompts(prompts, model, heads, weights, kv)
    for _, path in measured.tables(system, operation, f"{kind}_generation_module_perf", framework):
        if model is None or prompt is None:
            continue
        nearest = _rows_of(path, model, heads, weights, kv)
        if nearest is None:
            continue
        where, more = nearest
        rows = measured.rows(path, ("batch_size", "step", "latency"), where)
        if len(rows["latency"]) < 2:
            continue
        batches, contexts = rows["batch_size"].astype(float), rows["step"].astype(float) + 1.0
        decode = surface(batches, contexts, rows["latency"] * 1e-3 * more)
        launches = max(0.0, prompt.seconds[0] - decode.at(1.0, prompt.nodes[0]))
        return Module(decode, Curve(prompt.nodes, tuple(seconds - launches for seconds in prompt.seconds)))
    return None


def _prompts(paths: list[Path], model: str, heads: int, weights: str, kv: str) -> Curve | None:
    """One prompt, from the engine whose shortest one took least.

    Where launches take milliseconds, as in some of vLLM's, their scatter hides the kernels of prompts of thousands.
    """
    curves: list[Curve] = []
    for path in paths:
        nearest = _rows_of(path, model, heads, weights, kv)
        if nearest is None:
            continue
        where, more = nearest
        own = measured.rows(path, ("batch_size", "isl", "step", "latency"), where)
        first = (own["batch_size"] == 1) & (own["step"] == 0)
        if first.sum() > 1:
            curves.append(curve(own["isl"][first].astype(float), own["latency"][first] * 1e-3 * more))
    return min(curves, key=lambda line: line.seconds[0], default=None)


def _rows_of(
    path: Path, model: str, heads: int, weights: str, kv: str
) -> tuple[tuple[tuple[str, object], ...], float] | None:
    """The nearest of what was timed, and how much longer so many heads take.

    The model's rows, then by heads, then by the formats of cache and weights.
    """
    kinds = measured.distinct(path, ("num_heads", "kv_cache_dtype", "gemm_type"), (("model", model),))
    if not kinds:
        return None
    cache = "fp8" if kv == "fp8" else "bfloat16"
    products = "bfloat16" if weights in ("bf16", "fp16") else "fp8_block"
    chosen = min(kinds, key=lambda k: (abs(math.log(k[0] / heads)), k[1] != cache, k[2] != products))
    names = ("num_heads", "kv_cache_dtype", "gemm_type")
    return (("model", model), *zip(names, chosen, strict=True)), max(1.0, heads / chosen[0])


@lru_cache(maxsize=16)
def streams_of(system: str | None, framework: str, hidden: int) -> Curve | None:
    """Hyper-connections of one half of a layer over tokens, mixed before and behind it; None where not timed."""
    for _, path in measured.tables(system, "mhc", "mhc_module_perf", framework):
        widths = sorted(kind[0] for kind in measured.distinct(path, ("hidden_size",), (("hc_mult", STREAMS),)))
        if not widths:
            continue
        near = min(widths, key=lambda width: abs(math.log(width / hidden)))
        rows = measured.rows(path, ("op_name", "num_tokens", "latency"), (("hidden_size", near), ("hc_mult", STREAMS)))
        spent: dict[float, dict[str, float]] = {}
        for name, tokens, ms in zip(*(rows[key] for key in ("op_name", "num_tokens", "latency")), strict=True):
            spent.setdefault(float(tokens), {})[str(name)] = float(ms) * 1e-3
        both = sorted(tokens for tokens, parts in spent.items() if {"pre", "post"} <= set(parts))
        if len(both) > 1:
            import numpy as np

            return curve(np.array(both), np.array([sum(spent[tokens].values()) for tokens in both]) * (hidden / near))
    return None
