"""Experts of mixtures on serving engines: kernels, formats, buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windtunnel.errors import LayoutError
from windtunnel.physics.cost.inference import inference_kernels
from windtunnel.physics.cost.measured.cache import package_data
from windtunnel.physics.hardware import get_gpu, parse_cluster
from windtunnel.physics.model import Model, load_model
from windtunnel.studies.serving import Deployment, engine_of, load_engine
from windtunnel.studies.serving.kv.capacity import memory_of

TABLES = pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")


def test_experts_in_a_format_that_a_gpu_cannot_multiply_are_no_faster_than_its_16_bits_allow() -> None:
    kernels = inference_kernels(parse_cluster("a100-80gb-sxm:4"), "vllm")
    plain, fp8 = (kernels.experts(4096, 1536, 8, 128, 4, 1, dtype) for dtype in ("bf16", "fp8_block"))
    read = 128 * 3 * 4096 * 384 / kernels.bandwidth  # the byte of each weight that is not read
    assert plain.at(2048) > fp8.at(2048) > plain.at(2048) - 1.05 * read
    assert fp8.at(1) < plain.at(1)


@pytest.mark.parametrize(
    ("gpu", "engine", "dtype"), [("a100-80gb-sxm:4", "vllm", "bf16"), ("h200-sxm:4", "sglang", "fp8")]
)
def test_experts_of_a_shape_that_was_not_timed_cost_what_the_nearest_one_makes_of_its_flops(
    gpu: str, engine: str, dtype: str
) -> None:
    kernels = inference_kernels(parse_cluster(gpu), engine)
    timed, between = (kernels.experts(4096, inter, 8, 128, 4, 1, dtype) for inter in (1536, 1472))
    for tokens in (16, 256, 2048, 8192):  # formula alone: half of it from 1,024 tokens on
        assert between.at(tokens) == pytest.approx(timed.at(tokens) * 1472 / 1536, rel=0.1)


def test_experts_of_a_format_that_was_not_timed_follow_those_with_the_same_kernels() -> None:
    """MXFP4 on A100, where nothing of it was timed: what Marlin takes for 4-bit integers."""
    kernels = inference_kernels(parse_cluster("a100-80gb-sxm:1"), "vllm")
    mxfp4, int4 = (kernels.experts(2880, 2880, 4, 128, 1, 1, dtype) for dtype in ("mxfp4", "int4"))
    for tokens in (1.0, 64.0, 1024.0):
        assert mxfp4.at(tokens) == pytest.approx(int4.at(tokens), rel=0.02)


@pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")
def test_mxfp4_experts_run_on_marlin_where_vllm_brings_no_other_kernels() -> None:
    model, layout = load_model("gpt-oss-120b"), Deployment(expert_weights="mxfp4")

    def engine(gpu: str, release: str) -> Any:
        return engine_of(model, parse_cluster(f"{gpu}:1"), replace(layout, engine=release))

    old, new = engine("h100-sxm", "vllm-0.11.0"), engine("h100-sxm", "vllm-0.12")
    assert old.times.prices.group(8192) > 1.5 * new.times.prices.group(8192)
    # 2,880 x 2,880 is held as 3,072 x 2,944: what experts gain in memory, the cache loses.
    part = sum(model.parameters_of(layer).experts for layer in model.layers) * 0.53125
    assert old.memory.weights - new.memory.weights == pytest.approx(part * (3072 * 2944 / 2880**2 - 1.0))
    assert old.memory.kv < new.memory.kv
    assert engine("a100-80gb", "vllm").memory.weights == old.memory.weights
    assert engine("b200-sxm", "vllm-0.11.0").memory.weights == new.memory.weights


def test_experts_are_spread_where_there_are_some_and_evenly() -> None:
    cluster = parse_cluster("h100-sxm:8")
    with pytest.raises(LayoutError, match="has no experts to spread"):
        engine_of(load_model("llama-3.1-8b"), cluster, Deployment(moe_ep=4))
    with pytest.raises(LayoutError, match="ep 16 does not divide the 8 GPUs of tp 1 x dp 8; use one of 1, 2, 4, 8"):
        engine_of(load_model("mixtral-8x7b"), cluster, Deployment(attn_dp=8, moe_ep=16))
    assert engine_of(load_model("mixtral-8x7b"), cluster, Deployment(tp=4, moe_ep=2)).deployment.expert_sizes == (2, 2)


def test_experts_run_on_the_kernel_that_is_named_where_it_was_timed() -> None:
    cluster, shape = parse_cluster("b200-sxm:1"), (2048, 768, 8, 128, 1, 1)
    usual, named = (inference_kernels(cluster, "trtllm", "1.0", word) for word in ("", "cutlass"))
    assert named.experts(*shape, "nvfp4").at(8192) > 1.5 * usual.experts(*shape, "nvfp4").at(8192)
    unknown = inference_kernels(cluster, "trtllm", "1.0", "no-such-kernel")
    assert unknown.experts(*shape, "nvfp4").seconds == usual.experts(*shape, "nvfp4").seconds


def test_nvfp4_experts_are_the_releases_own() -> None:
    model, cluster = load_model("qwen3-30b-a3b"), parse_cluster("b200-sxm:1")

    def tokens_at_once(engine: str, weights: str) -> float:
        return engine_of(model, cluster, Deployment(engine=engine, weights=weights)).times.prices.group(8192)

    assert tokens_at_once("trtllm-1.0", "nvfp4") > 1.5 * tokens_at_once("trtllm-1.3", "nvfp4")
    assert tokens_at_once("trtllm-1.0", "bf16") == tokens_at_once("trtllm-1.3", "bf16")


@TABLES
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200", "gb200"])
def test_experts_scaled_per_tensor_take_no_longer_than_those_scaled_by_blocks(gpu: str, engine: str) -> None:
    """Block scales are more work on the same weights; SGLang's kernels with them were timed everywhere."""
    blocks, own = (
        inference_kernels(parse_cluster(f"{gpu}:8"), "sglang"),
        inference_kernels(parse_cluster(f"{gpu}:8"), engine),
    )
    for shape in ((4096, 1536, 8, 128), (5120, 8192, 1, 16), (2048, 768, 8, 128)):
        for ep in (1, 4, 8):
            timed, per_tensor = blocks.experts(*shape, 1, ep, "fp8_block"), own.experts(*shape, 1, ep, "fp8")
            for tokens in (1, 64, 512, 4096, 16384):
                assert per_tensor.at(tokens) <= 1.01 * timed.at(tokens)


@TABLES
def test_experts_of_deepseek_in_eight_bits_are_scaled_by_blocks() -> None:
    deepseek, qwen = load_model("deepseek-v3"), load_model("qwen3-235b-a22b")
    eight = Deployment(weights="fp8")
    assert {eight.experts_as(layer) for layer, _ in deepseek.distinct_layers()} == {"fp8_block"}
    assert {eight.experts_as(layer) for layer, _ in qwen.distinct_layers()} == {"fp8"}
    cluster = parse_cluster("h200-sxm:8")
    said = [
        engine_of(deepseek, cluster, Deployment(engine="trtllm-1.2", weights="fp8", expert_weights=one, moe_ep=8, tp=8))
        for one in (None, "fp8_block")
    ]
    assert said[0].times.prices.group(4096) == pytest.approx(said[1].times.prices.group(4096), rel=0.01)


def test_experts_of_tensorrt_llm_hold_buffers_for_the_tokens_of_all_ranks() -> None:
    """As many times as there are attention ranks; none in dense models, none where engines cut the step in chunks."""
    mixture, dense, cluster = load_model("qwen3-235b-a22b"), load_model("llama-3.1-70b"), parse_cluster("h200-sxm:8")

    def held(model: Model, engine: str, ranks: int, **others: bool) -> float:
        layout = Deployment(tp=8 // ranks, attn_dp=ranks, moe_ep=8 if model is mixture else None, weights="fp8")
        profile = replace(load_engine(engine), sampler_bytes=0.0, **others)
        return memory_of(model, layout, profile, cluster, "fp8").activations

    with_them = [
        held(mixture, "trtllm-1.0", ranks) - held(mixture, "trtllm-1.0", ranks, expert_workspace=False)
        for ranks in (1, 2, 8)
    ]
    budget = load_engine("trtllm-1.0").max_num_batched_tokens
    assert with_them[0] == pytest.approx(budget * 8 * (4096 + 2 * 4096))
    assert with_them[1:] == pytest.approx([2 * with_them[0], 8 * with_them[0]])
    assert held(dense, "trtllm-1.0", 1) == held(dense, "trtllm-1.0", 1, expert_workspace=False)
    assert not load_engine("vllm").expert_workspace
    assert not load_engine("sglang").expert_workspace


@TABLES
@pytest.mark.parametrize(("engine", "gpu"), [("sglang", "b200-sxm:8"), ("vllm", "gb300:4"), ("sglang", "b300-sxm:8")])
def test_experts_of_deepseek_v4_are_priced_as_they_were_timed_tokens_in_eight_bits(engine: str, gpu: str) -> None:
    """Nobody timed them with tokens in 16: vLLM multiplies FP8 by FP4 (issue 42845 of vllm-project/vllm).

    No sooner than 8 bits are multiplied at their peak, and no later than vLLM's one kernel for all of it on 8 GPUs
    takes and half as much again: 899 us of a layer with 2,048 tokens a rank (pull request 49636).
    """
    kernels = inference_kernels(parse_cluster(gpu), engine)
    seconds = kernels.experts(7168, 3072, 6, 384, 1, 8, "mxfp4").at(8 * 2048)
    flops = 2 * 8 * 2048 * 6 / 8 * 3 * 7168 * 3072
    assert flops / kernels.gpu.peak_flops("fp8") < seconds < 1.5 * 899e-6
    assert kernels.experts(2880, 2880, 4, 128, 1, 1, "mxfp4").at(4096) > 0.0  # timed in 16 bits, which stays


def test_mxfp4_experts_of_tensorrt_llm_take_tokens_in_eight_bits_on_blackwell() -> None:
    """Many tokens take less time than under vLLM, which multiplies in 16 bits."""
    model, cluster = load_model("gpt-oss-120b"), parse_cluster("b200-sxm:1")
    stored = Deployment(weights="bf16", expert_weights="mxfp4")
    times = [
        engine_of(model, cluster, replace(stored, engine=name)).times.over("group", 8192.0)
        for name in ("trtllm-1.2", "vllm-0.22")
    ]
    assert times[0] < 0.8 * times[1]


@pytest.mark.parametrize(("gpu", "alike"), [("mi355x", True), ("mi300x", True), ("b200-sxm", False)])
def test_a_factor_on_prompts_beside_a_roofline_holds_where_attention_ranks_share_experts(gpu: str, alike: bool) -> None:
    profile = load_engine("sglang-0.5.12").on(get_gpu(gpu))
    assert (profile.expert_prefill_factor_ranks == profile.expert_prefill_factor) is alike


def test_experts_behind_buffers_of_one_size_take_the_same_at_every_captured_batch() -> None:
    model, cluster = load_model("deepseek-v3"), parse_cluster("mi355x:8")
    wide = Deployment(engine="sglang-0.5.12", attn_dp=8, moe_tp=1, moe_ep=8, weights="mxfp4", kv="fp8")
    plain = engine_of(model, cluster, wide)
    assert plain.profile.all_to_all_buffer == 0  # whoever says nothing of MoRI has none
    mori = replace(load_engine("sglang-0.5.12"), all_to_all_buffer=512)
    padded = engine_of(model, cluster, wide, profile=mori)
    few, many = (padded.times.decode(n).at(1000 * n) for n in (8, 512))
    assert many / few < 1.2 < plain.times.decode(512).at(512_000) / plain.times.decode(8).at(8_000)
    # At the buffer's size both compute as many; beyond a smaller buffer so do both.
    assert plain.times.decode(4096).at(4_096_000) == padded.times.decode(4096).at(4_096_000)
    small = engine_of(model, cluster, wide, profile=replace(mori, all_to_all_buffer=160))
    assert small.times.decode(4096).at(4_096_000) == plain.times.decode(4096).at(4_096_000)
    assert plain.times.decode(8).at(8_000) < small.times.decode(8).at(8_000) < few
