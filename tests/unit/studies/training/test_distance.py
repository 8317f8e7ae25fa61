"""Bands that know what they do not know: near what was measured narrow, far from it wide, and in words why."""

from __future__ import annotations

import math
from typing import Any

import pytest

from windtunnel.physics.step.band import band_of
from windtunnel.physics.step.result import StageMemory
from windtunnel.studies.training import predict

DENSE: dict[str, Any] = {"global_batch": 64, "seq_len": 8192}
NAMED = {"release": "nemo-25.04"}


def width(**plan: Any) -> tuple[float, str]:
    """p95 over p5, and the reason, of Llama 3 8B on GPUs."""
    gpus = plan.pop("gpus", "h100-sxm:16")
    result = predict("llama-3-8b", gpus, {**DENSE, **plan})
    return result.step_time_p95_ns / result.step_time_p5_ns, result.band_reason


def test_what_was_measured_often_has_a_narrow_band() -> None:
    near, reason = width(**NAMED)
    assert near < 1.4
    assert "measured" not in reason


def test_a_release_that_is_not_named_makes_the_band_wider_and_is_said() -> None:
    open_, reason = width()
    assert open_ > width(**NAMED)[0] + 0.2
    assert "releases of Megatron-Core differ, and none is given" in reason


@pytest.mark.parametrize(("release", "name"), [("foo", "foo"), ("mcore-0.15", "mcore")])
def test_a_release_of_which_no_run_was_measured_says_of_which_some_were(release: str, name: str) -> None:
    _, reason = width(release=release)
    assert f"of {name} no run was measured (of bridge, megatron, mlperf, nemo, primus some were)" in reason


def test_of_one_project_the_band_is_the_mean_of_what_its_runs_and_their_parts_say() -> None:
    sigma = {"software": 0.1, "gemm": 0.0, "other": 0.0}
    like, own = (band_of({"gemm": 100}, 0.0, sigma, [("", 0.2, of)], experts=False).high - 1 for of in ("like", "own"))
    assert own**2 == pytest.approx(like**2 * (0.1**2 + 0.2**2) / 2 / 0.2**2)


def test_a_host_that_launches_experts_one_by_one_is_less_certain() -> None:
    sigma = {"software": 0.0, "host": 0.1, "host_moe": 0.2, "attention": 0.1, "other": 0.0}
    dense, mixture = (band_of({"host": 50, "attention": 50}, 0.0, sigma, experts=one).high - 1 for one in (False, True))
    assert mixture**2 == pytest.approx(dense**2 * (0.2**2 + 0.1**2) / (2 * 0.1**2))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"framework": "torchtitan", "gpus": "mi300x:16"}, "no run of torchtitan (FSDP2) on cdna3 was measured"),
        ({"gpus": "tpu-v6e:16"}, "no run of GPUs of generation tpu-v6 was measured"),
        ({"gpus": "gh200:16", "tp": 2}, "gh200's kernels are another GPU's, scaled"),
        ({"gpus": "b300-sxm:4096", "global_batch": 4096, "precision": "bf16"}, " on more than"),
        ({"lora_rank": 16, "framework": "nanotron"}, "with adapters was measured"),
    ],
)
def test_distance_from_it_makes_the_band_wider_and_is_said(plan: dict[str, Any], words: str) -> None:
    far, reason = width(**plan)
    assert far > width()[0]
    assert words in reason


def test_images_whose_loading_is_left_out_make_the_band_wider_and_are_said() -> None:
    seen = [
        predict("qwen3-vl-8b", "h100-sxm:16", {**DENSE, **plan}) for plan in ({}, {"images": 8, "image_patches": 1024})
    ]
    assert seen[1].band_reason.startswith("the step may wait for images")
    assert seen[1].step_time_p95_ns / seen[1].step_time_ns > seen[0].step_time_p95_ns / seen[0].step_time_ns + 0.5


def test_mixtures_have_the_error_of_mixtures() -> None:
    plan = {"global_batch": 64, "seq_len": 4096, "release": "bridge-26.02", "precision": "mxfp8"}
    mixture = predict("qwen3-30b-a3b", "b200-sxm:8", {**plan, "ep": 8})
    dense = predict("qwen3-8b", "b200-sxm:8", plan)
    assert "runs like it that informed nothing were off by 12%" in mixture.band_reason
    assert "runs like it that informed nothing" not in dense.band_reason  # 9 %: not worth saying


def test_a_mixture_without_a_release_says_that_it_hangs_on_it() -> None:
    plan = {"global_batch": 64, "seq_len": 4096, "ep": 8}
    open_, stated = (
        predict("qwen3-30b-a3b", "h100-sxm:64", {**plan, "release": one}) for one in (None, "bridge-26.04")
    )
    assert "releases of Megatron-Core differ, and none is given" in open_.band_reason
    assert "releases of" not in stated.band_reason


@pytest.mark.parametrize("size", [-1, math.inf, math.nan])
def test_no_part_of_memory_is_below_zero_or_without_end(size: float) -> None:
    with pytest.raises(ValueError, match="workspace of"):
        StageMemory(0, 1, {"workspace": size}, 0, 0, 0, 0, ())  # type: ignore[dict-item]


def test_memory_of_a_pass_that_frees_more_than_it_makes_has_no_part_below_zero() -> None:
    plan = {"framework": "fsdp", "tp": 4, "ep": 8, "seq_len": 512, "zero_stage": 3, "recompute": "full:1",
            "attention_impl": "unfused", "gradient_dtype": "bf16", "global_batch": 8}  # fmt: skip
    memory = predict("mixtral-8x7b", "mi300x:32", plan).peak_memory
    assert min(memory.categories.values()) >= 0
    assert sum(memory.categories.values()) == memory.peak_allocated_bytes


def test_the_loss_decides_how_much_of_the_logits_there_is() -> None:
    plan = {"framework": "torchtitan", "global_batch": 8, "seq_len": 16384, "recompute": "full"}
    peak = {
        loss: predict("qwen3-8b", "h200-sxm:8", {**plan, "loss": loss}).peak_memory.peak_allocated_bytes
        for loss in ("eager", "compiled", "fused", "chunked")
    }
    logits = 16384 * 151_936
    assert peak["eager"] - peak["chunked"] > 12 * logits
    assert peak["compiled"] - peak["fused"] > logits
    assert peak["fused"] < peak["chunked"] * 1.1


def test_frozen_weights_of_four_bits_take_a_quarter_and_cost_time() -> None:
    plan = {"framework": "torchtitan", "zero_stage": 0, "global_batch": 1, "seq_len": 2048, "lora_rank": 16,
            "master_dtype": "bf16"}  # fmt: skip
    wide, narrow = (predict("llama-3-8b", "h100-sxm:1", {**plan, "frozen_dtype": one}) for one in ("bf16", "nf4"))
    saved = wide.peak_memory.categories["parameters"] - narrow.peak_memory.categories["parameters"]
    assert saved == pytest.approx((2.0 - 0.516) * 8.03e9, rel=0.01)
    assert narrow.step_time_ns > wide.step_time_ns


def test_the_same_question_is_answered_from_what_was_kept() -> None:
    assert predict("llama-3-8b", "h100-sxm:16", DENSE) is predict("llama-3-8b", "h100-sxm:16", dict(DENSE))
    assert predict("llama-3-8b", "h100-sxm:16", {**DENSE, "tp": 2}) is not predict("llama-3-8b", "h100-sxm:16", DENSE)


def test_the_band_reaches_to_a_host_that_nobody_tuned_where_kernels_are_short_and_no_graph_holds_them() -> None:
    words = "a host that issues kernels 3.5 times as slowly would take"
    few = {"tp": 8, "ep": 8, "etp": 1, "global_batch": 64, "seq_len": 2048, "release": "bridge-26.04"}
    eager, graph = (
        predict("qwen3-30b-a3b", "h100-sxm:16", few | {"cuda_graphs": on, "full_graph": on}) for on in (False, True)
    )
    assert words in eager.band_reason
    assert words not in graph.band_reason
    assert eager.step_time_p95_ns > 2.0 * eager.step_time_ns
    assert graph.step_time_p95_ns < 2.0 * graph.step_time_ns
    assert words not in width(**NAMED)[1]  # 8,192 tokens a rank


@pytest.mark.parametrize("micro_batches", [1, 2])  # of the same exchange: half as much of a step in two
def test_an_answer_that_an_old_release_would_change_by_more_than_its_band_says_so(micro_batches: int) -> None:
    plan = {"global_batch": 128 * micro_batches, "seq_len": 2048}
    ours, old = (
        predict("llama-3-8b", "h100-sxm:128", plan),
        predict("llama-3-8b", "h100-sxm:128", plan | {"release": "megatron-23.09"}),
    )
    beyond = old.step_time_ns > ours.step_time_p95_ns
    assert beyond == ("name the release" in ours.band_reason) == (micro_batches == 1)
    assert "releases of Megatron-Core differ, and none is given" in ours.band_reason
    assert "name" not in old.band_reason


def test_nothing_is_said_of_releases_where_little_is_exchanged() -> None:
    ours = predict("llama-3-70b", "h100-sxm:256", {"tp": 8, "pp": 4, "global_batch": 256, "seq_len": 8192})
    assert "name the release" not in ours.band_reason
