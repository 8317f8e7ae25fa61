"""Each term of what an iteration's layers take, by hand: kernels here take as long as the sizes they are asked for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.physics.model import load_model
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.step_time.layers import SMALL_KERNELS, Layers

GEMM, STREAM, SUM, GATHER, SCATTER, EXPERTS = 1.0, 1e3, 1e6, 1e9, 1e12, 1e15  # so that no term hides another


class Line:
    def at(self, tokens: float) -> float:
        return EXPERTS * tokens


class Kernels(SimpleNamespace):
    """Seconds that are sizes."""

    asked: list[tuple[Any, ...]]

    def gemm_s(self, m: float, n: float, k: float, dtype: str) -> float:
        return GEMM * m * n * k

    def stream_s(self, moved: float) -> float:
        return STREAM * moved

    def all_reduce_s(self, moved: float, gpus: int) -> float:
        return SUM * moved if gpus > 1 else 0.0

    def exchange_s(self, kind: str, moved: float, gpus: int) -> float:
        self.asked.append((kind, moved, gpus))
        return {"all_gather": GATHER, "reduce_scatter": SCATTER}[kind] * moved

    def experts(self, *shape: Any, **more: Any) -> Line:
        self.asked.append(shape)
        return Line()


def layers(name: str, **deployment: Any) -> tuple[Layers, Kernels]:
    model = load_model(name)
    kernels = Kernels(asked=[])
    return Layers(model, Deployment(**deployment), kernels, "bf16"), kernels  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_dense_layer_is_its_four_products_two_sums_and_small_kernels(tp: int) -> None:
    found, _ = layers("llama-3-8b", tp=tp)
    model, tokens = found.model, 8.0
    h, inner, heads, kv, dim = 4096, 14336, 32 // tp, 8 // tp, 128
    products = (heads + 2 * kv) * dim * h + h * heads * dim + 2 * inner // tp * h + h * inner // tp
    moved = 2 * tokens * h * 3
    small = 2 * moved + (SMALL_KERNELS - 2) * moved / 2 / tp
    sums = 2 * SUM * 2 * tokens * h if tp > 1 else 0.0
    assert found.dense(tokens) == pytest.approx(32 * (GEMM * tokens * products + sums + STREAM * small))
    assert found.group(tokens) == 0.0
    assert model.hidden_size == h


def test_a_stage_has_its_share_of_the_layers() -> None:
    whole, _ = layers("llama-3-8b")
    half, _ = layers("llama-3-8b", pp=2)
    assert half.dense(8.0) == pytest.approx(whole.dense(8.0) / 2)


def test_tokens_of_attention_ranks_are_gathered_quantised_and_their_sums_scattered_whole() -> None:
    """All-gather of a byte per element over tp x attention ranks, reduce-scatter of two."""
    found, kernels = layers("mixtral-8x7b", tp=2, attn_dp=4, moe_ep=8)
    tokens, h = 8.0, 4096
    block = found.model.layers[0].feed_forward
    assert found._exchange(tokens, block) == pytest.approx(GATHER * tokens * h + SCATTER * 2 * tokens * h)
    assert kernels.asked == [("all_gather", tokens * h, 8), ("reduce_scatter", 2 * tokens * h, 8)]
    alone, _ = layers("mixtral-8x7b", tp=8)
    assert alone._exchange(tokens, block) == 0.0


def test_routed_experts_are_those_of_the_group_and_a_router_sees_each_token() -> None:
    found, kernels = layers("mixtral-8x7b", tp=8)
    tokens, h = 8.0, 4096
    assert found.group(tokens) == pytest.approx(32 * EXPERTS * tokens)
    assert kernels.asked[0][:4] == (h, 14336, 2, 8)
    dense, _ = layers("mixtral-8x7b", tp=8)
    kind = dense.model.layers[0]
    plain = replace(kind, feed_forward=replace(kind.feed_forward, experts=16))
    more = dense._dense(plain, tokens) - dense._dense(kind, tokens)
    assert more == pytest.approx(GEMM * tokens * 8 * h, rel=1e-3)  # a router of eight more experts
