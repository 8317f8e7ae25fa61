"""Each term of what an iteration's layers take, by hand: kernels here take as long as the sizes they are asked for."""

from __future__ import annotations

from dataclasses import replace
from math import log
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.physics.model import load_model
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.step_time.layers import SMALL_KERNELS, Layers
from windtunnel.studies.serving.step_time.times import (
    EXPERT_KNEE,
    LONG_CHUNK,
    TICKS_PER_S,
    DecodeLine,
    StepTimes,
    _between,
)

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


def test_behind_an_indexer_only_the_chosen_keys_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek V3.2: 2,048 keys, and of each token of the context 128 numbers in 16 bits, in 61 layers."""
    monkeypatch.setattr(Layers, "_module", lambda self, layer: None)  # not timed whole
    found, kernels = layers("deepseek-v3.2")
    kernels.gpu = kernels.framework = None
    kernels.latent_attention = lambda heads, width, kv: SimpleNamespace(
        at=lambda sequences, context: sequences * context
    )
    kernels.absorbed_s = lambda *sizes: 0.0
    spent = found.decode_surface()
    index = STREAM * 2 * 4 * 128
    assert spent(4, 1024) == pytest.approx(61 * (4 * 1024 + index * 1024))
    assert spent(4, 8192) == pytest.approx(61 * (4 * 2048 + index * 8192))


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


def test_the_head_gathers_logits_and_draws_in_four_bytes() -> None:
    for tp in (1, 2):
        found, _ = layers("llama-3-8b", tp=tp)
        vocab = 128256
        gathered = GATHER * 2 * 8 * vocab if tp > 1 else 0.0
        by_hand = GEMM * 8 * vocab / tp * 4096 + gathered + 3 * STREAM * 4 * 8 * vocab
        assert found.head(8.0) == pytest.approx(by_hand)


# Steps, of prices that are straight lines: dense 1 a token, experts 10, attention 1e-3 a cached token, head 100


class Straight:
    def __init__(self, stages: int = 1) -> None:
        self.stages = stages

    def dense(self, tokens: float) -> float:
        return tokens

    def group(self, tokens: float) -> float:
        return 10 * tokens

    def exchange(self, tokens: float) -> float:
        return 5 * tokens

    def decode_surface(self, queries: int = 1) -> Any:
        return lambda sequences, context: 1e-3 * sequences * context * queries

    def decode_nodes(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (1.0, 4096.0), (1.0, 1024.0, 4096.0)

    def prefill(self, chunk: int, past: int) -> float:
        return 1e-2 * chunk + 1e-4 * past

    def head(self, sequences: float) -> float:
        return 100 * sequences

    def handover(self, tokens: float) -> float:
        return 7.0 if self.stages > 1 else 0.0


def times(stages: int = 1, ranks: int = 1, more: dict[str, Any] | None = None, **profile: Any) -> StepTimes:
    own = Profile(engine="by hand", release="1", graph_sizes=tuple(range(1, 513)), **profile)
    return StepTimes(Straight(stages), own, layers=4.0, ranks=ranks, sums=8.0, **(more or {}))


def seconds(ticks: int) -> float:
    return ticks / TICKS_PER_S


def test_a_decode_step_is_its_kernels_gaps_and_host() -> None:
    profile = {
        "layer_gap_s": 0.5, "collective_gap_s": 0.25, "expert_factor": 2.0, "attention_factor": 3.0, "step_s": 11.0,
        "sequence_s": 13.0,
    }  # fmt: skip
    found = times(**profile)
    gpu = 16 + 2 * 160 + 100 * 16 + 4 * 0.5 + 8 * 0.25 + 3 * 1e-3 * 16 * 512
    host = 11 + 13 * 16
    assert seconds(found.decode(16).at(16 * 512)) == pytest.approx(gpu + host)
    hidden = times(asynchronous=True, **profile)
    assert seconds(hidden.decode(16).at(16 * 512)) == pytest.approx(max(gpu, host))
    slow = times(asynchronous=True, **{**profile, "step_s": 1e5})
    assert seconds(slow.decode(16).at(16 * 512)) == pytest.approx(1e5 + 13 * 16)
    # Beyond the last context the line goes on.
    assert seconds(found.decode(16).at(16 * 8192)) == pytest.approx(gpu - 3e-3 * 16 * 512 + 3e-3 * 16 * 8192 + host)


def test_attention_ranks_share_sequences_and_have_their_own_expert_factor() -> None:
    found = times(ranks=4, expert_factor=2.0, expert_factor_ranks=3.0)
    by_hand = 4 + 3 * 10 * 16 + 100 * 4 + 1e-3 * 4 * 512  # of 16 sequences each has four; experts see all
    assert seconds(found.decode(16).at(16 * 512)) == pytest.approx(by_hand)


def test_a_pipeline_takes_as_many_times_a_micro_batch_as_it_has_stages() -> None:
    found = times(stages=2, layer_gap_s=0.5, collective_gap_s=0.25)
    by_hand = 2 * (8 + 80 + 7 + 100 * 8 + 4 * 0.5 + 8 * 0.25) + 2 * 1e-3 * 8 * 512
    assert seconds(found.decode(16).at(16 * 512)) == pytest.approx(by_hand)
    shown = times(stages=2, pipeline_hides_host=False, step_s=3.0, sequence_s=1.0)
    by_hand = 2 * (8 + 80 + 7 + 100 * 8) + 2 * 1e-3 * 8 * 512 + 2 * (3 + 16)
    assert seconds(shown.decode(16).at(16 * 512)) == pytest.approx(by_hand)


def test_a_batch_without_a_graph_takes_what_launching_does() -> None:
    plain = times(graph_limit=8, eager_layer_s=1e6)
    assert seconds(plain.decode(8).at(8)) == pytest.approx(8 + 80 + 800 + 1e-3 * 8)
    assert seconds(plain.decode(16).at(16)) == pytest.approx(4e6 + 1e-3 * 16)


def test_drafting_adds_a_layer_and_a_head_a_draft_and_gives_more_tokens() -> None:
    drafting = {"speculative": (2, 0.5), "draft_step_s": 17.0}
    found = times(more=drafting)
    rows = 8 * 3
    fixed = rows + 10 * rows + 100 * rows
    fixed += 2 * (fixed / 4 + 100 * 8) + 17
    gpu = fixed + 1e-3 * 8 * 512 * 3 * (1 + 2 / 4)
    assert found.tokens_per_step == 1 + 0.5 + 0.25
    assert seconds(found.decode(8).at(8 * 512)) == pytest.approx(gpu / 1.75)


def test_a_mixed_step_is_tokens_attention_of_both_kinds_and_head() -> None:
    profile = {
        "prefill_factor": 1.5, "expert_prefill_factor": 1.25, "prefill_attention_factor": 2.0, "mixed_step_s": 19.0,
        "layer_gap_s": 0.5, "collective_gap_s": 0.25, "step_s": 11.0, "sequence_s": 13.0,
    }  # fmt: skip
    found = times(more={"dense_factor": 1.1}, **profile)
    tokens = 8 + 64 + 128
    kernels = tokens * 1.5 * 1.1 + 10 * tokens * 1.25 + 4 * 0.5 + 8 * 0.25
    attention = (1e-2 * 64 + 1e-2 * 128 + 1e-4 * 256) + 1e-3 * 8 * 100
    by_hand = kernels + 2 * attention + 100 * (8 + 1) + 19 + 11 + 13 * (8 + 2)
    assert seconds(found.mixed(8, 800, [(64, 0), (128, 256)], 1)) == pytest.approx(by_hand)
    eager = times(eager_layer_s=1e6)
    assert seconds(eager.mixed(0, 0, [(64, 0)], 1)) == pytest.approx(4e6)


def test_prompts_go_to_the_least_loaded_rank_and_the_fullest_is_waited_for() -> None:
    found = times(ranks=2, uneven_exchange_hop=0.5, expert_prefill_factor=9.0, expert_prefill_factor_ranks=2.0)
    chunks = [(128, 0), (64, 0), (64, 0)]  # one rank has 128, the other 64 + 64
    own = 128 + 8 / 2
    by_hand = own + 2 * 10 * (8 + 256) + 1e-2 * 128 + 1e-3 * 4 * 100 + 100 * (8 + 1) / 2
    assert seconds(found.mixed(8, 800, chunks, 1)) == pytest.approx(by_hand)
    four = times(ranks=4, uneven_exchange_hop=0.5)
    plain = times(ranks=4)
    more = seconds(four.mixed(8, 800, chunks, 1)) - seconds(plain.mixed(8, 800, chunks, 1))
    assert more == pytest.approx(0.5 * (4 - 2) * 5 * (8 + 256))  # a chain longer by each rank beyond two


def test_experts_beyond_the_knee_cost_their_marginal_share() -> None:
    found = times(more={"expert_marginal": 0.25})
    assert found._group(EXPERT_KNEE) == pytest.approx(10 * EXPERT_KNEE)
    assert found._group(2 * EXPERT_KNEE) == pytest.approx(10 * EXPERT_KNEE * (1 + 0.25))
    assert found.doubt(16, 512) == 0.0
    assert times().doubt(4096, 512) == 0.0
    rest = 4096 + 100 * 4096 + 1e-3 * 4096 * 512
    capped = 10 * (EXPERT_KNEE + 0.25 * (4096 - EXPERT_KNEE))
    assert found.doubt(4096, 512) == pytest.approx(log((rest + 10 * 4096) / (rest + capped)), rel=1e-4)


def test_a_tile_of_a_decoding_sequence_beside_prompts_is_its_part_of_a_long_chunk() -> None:
    found = times(mixed_decode_tile=64)
    share = 64 / LONG_CHUNK
    by_hand = (1e-2 * LONG_CHUNK + 1e-4 * 100) * share * 100 / (100 + LONG_CHUNK / 2)
    assert found._tile(100.0) == pytest.approx(by_hand, rel=1e-3)


def test_a_line_holds_up_to_its_end() -> None:
    line = DecodeLine((10, 1 << 62), (100, 0), (1, 11))
    assert [line.at(at) for at in (0, 10, 11)] == [100, 110, 121]


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_a_size_lies_between_its_nodes(size: int) -> None:
    low, high, share = _between(size)
    assert low <= size <= max(high, 1)
    assert low + share * (high - low) == pytest.approx(size)
