"""Clusters of two types of GPU: laws of the step, memory of each type, and plans over both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel.errors import LayoutError, SpecError
from windtunnel.hardware import parse_cluster
from windtunnel.hardware.mixed import MixedCluster, parse_mixed
from windtunnel.planning import plan
from windtunnel.report.prediction.spec_words import title
from windtunnel.training import predict

JOB = {"tp": 4, "global_batch": 32, "seq_len": 1024}


def test_two_equal_types_are_one_type() -> None:
    both, one = predict("llama-3.2-3b", "h100-sxm:8+h100-sxm:8", JOB), predict("llama-3.2-3b", "h100-sxm:16", JOB)
    assert both.step_time_ns == one.step_time_ns
    assert both.mfu == pytest.approx(one.mfu)
    assert both.breakdown_ns == one.breakdown_ns


def test_the_slower_type_bounds_the_step() -> None:
    mixed = predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", JOB)
    fast, slow = (predict("llama-3.2-3b", f"{gpu}:16", JOB) for gpu in ("h100-sxm", "a100-80gb"))
    assert mixed.step_time_ns >= slow.step_time_ns > fast.step_time_ns
    assert mixed.mfu < slow.mfu
    assert any("mixed GPU types" in text for text in mixed.warnings)
    assert title(mixed) == "llama-3.2-3b on 8 × h100-sxm + 8 × a100-80gb-sxm"


def test_the_order_of_the_types_is_all_the_same() -> None:
    one = predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", JOB)
    assert predict("llama-3.2-3b", "a100-80gb:8+h100-sxm:8", JOB).step_time_ns == one.step_time_ns


def test_the_slowest_network_is_everybodys() -> None:
    first, second = parse_cluster("h100-sxm:8"), parse_cluster("h100-sxm:8")
    narrow = replace(second, scale_out=replace(second.scale_out, bandwidth_bytes_per_s=1e9))
    both = predict("llama-3.2-3b", MixedCluster((first, narrow)), JOB)
    alone = predict("llama-3.2-3b", replace(narrow, n_gpus=16), JOB)
    assert both.step_time_ns == alone.step_time_ns


def test_a_plan_has_to_fit_on_both() -> None:
    large, small = parse_cluster("h100-sxm:8"), parse_cluster("h100-sxm:8")
    tight = replace(small, gpu=replace(small.gpu, memory_bytes=2 * 10**10, usable_memory_bytes=4 * 10**9))
    found = predict("llama-3.2-3b", MixedCluster((large, tight)), JOB)
    assert found.status == "infeasible"
    assert found.memory_capacity_bytes == 4 * 10**9


def test_a_replica_on_two_types_is_refused() -> None:
    with pytest.raises(LayoutError, match="would lie on two types"):
        predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", {**JOB, "tp": 8, "pp": 2})


def test_groups_in_a_file_are_the_same_cluster(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text("groups:\n- h100-sxm:8\n- {gpu: a100-80gb, gpus: 8}\n")
    assert parse_mixed(file) == parse_mixed("h100-sxm:8+a100-80gb:8")
    assert parse_mixed("h100-sxm:8") is None
    with pytest.raises(SpecError, match="two types or more"):
        parse_mixed({"groups": ["h100-sxm:8"]})


def test_disturbances_need_one_type() -> None:
    with pytest.raises(SpecError, match="need one type"):
        predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", JOB, slow=("gpu=1:1.5",))


def test_plans_lie_on_one_type_and_are_what_predict_says() -> None:
    fixed = {"cp": 1, "micro_batch": 1, "recompute": "none", "cuda_graphs": False, "global_batch": 48, "seq_len": 1024}
    words = "h100-sxm:16+a100-80gb:8"
    found = plan("llama-3.2-3b", words, choices_within_s=0.0, top=3, **fixed)
    assert found.gap == 0.0
    assert len(found) == 3
    for one in found.plans:
        assert 8 % (one.plan.get("tp", 1) * one.plan.get("pp", 1)) == 0
        assert predict("llama-3.2-3b", words, one.plan).step_time_s == one.step_time_s
    assert words in found[0].reproduce
