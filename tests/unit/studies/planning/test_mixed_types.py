"""Clusters of two types of GPU: laws of the step, memory of each type, and plans over both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_plan import every_plan

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.mixed import MixedCluster, parse_mixed
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.objectives.by_stage import ByStage
from windtunnel.studies.planning.plan import plan
from windtunnel.studies.planning.search.best_first import Search
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.planning.space.plan_space import Space
from windtunnel.studies.training import predict

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


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_utilisation_is_of_the_peak_of_both_types_together(recompute: str) -> None:
    mixed = predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", {**JOB, "recompute": recompute})
    peaks = [parse_cluster(f"{gpu}:8").gpu.peak_flops("bf16") for gpu in ("h100-sxm", "a100-80gb")]
    alone = predict("llama-3.2-3b", "a100-80gb:16", {**JOB, "recompute": recompute})
    flops = {"mfu": alone.mfu, "hfu": alone.hfu}
    for name, share in flops.items():  # FLOPs of the step, over what both types could do in it
        done = share * 16 * peaks[1] * alone.step_time_s
        by_hand = done / (8 * sum(peaks)) / mixed.step_time_s
        assert getattr(mixed, name) == pytest.approx(by_hand, rel=1e-6)
    assert (mixed.hfu > 1.2 * mixed.mfu) == (recompute == "full")


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


def test_neither_replica_nor_stage_on_one_type_is_refused() -> None:
    with pytest.raises(LayoutError, match="would lie on two types"):
        predict("llama-3.2-3b", "h100-sxm:24+a100-80gb:8", {**JOB, "tp": 8, "pp": 2})
    with pytest.raises(LayoutError, match="would lie on two types"):
        predict("llama-3.2-3b", "h100-sxm:24+a100-80gb:8", {**JOB, "tp": 8, "pp": 2, "schedule": "dualpipe"})


STAGES = {"tp": 8, "pp": 2, "global_batch": 32, "seq_len": 8192}
BOTH = "h100-sxm:8+a100-80gb:8"


@pytest.mark.parametrize("more", [{}, {"virtual_stages": 2}, {"schedule": "zb-v"}, {"layers_per_stage": (20, 8)}])
def test_stages_on_two_equal_types_are_one_cluster(more: dict[str, Any]) -> None:
    both, one = (
        predict("llama-3.2-3b", words, {**STAGES, **more}) for words in ("h100-sxm:8+h100-sxm:8", "h100-sxm:16")
    )
    assert both.step_time_ns == one.step_time_ns
    assert both.breakdown_ns == one.breakdown_ns
    assert both.memory == tuple(replace(stage, capacity_bytes=one.memory_capacity_bytes) for stage in one.memory)
    assert both.mfu == pytest.approx(one.mfu)
    assert both.traffic_bytes == one.traffic_bytes
    assert any("pipeline stages, 1 on h100-sxm, 1 on h100-sxm" in text for text in both.warnings)


def test_a_stage_takes_what_its_type_takes() -> None:
    fast, slow = (predict("llama-3.2-3b", f"{gpu}:16", STAGES) for gpu in ("h100-sxm", "a100-80gb"))
    mixed = predict("llama-3.2-3b", BOTH, STAGES)
    assert fast.step_time_ns < mixed.step_time_ns < slow.step_time_ns
    assert mixed.stages[0].breakdown_ns["gemm"] < mixed.stages[1].breakdown_ns["gemm"]
    less = predict("llama-3.2-3b", BOTH, {**STAGES, "layers_per_stage": (20, 8)})
    assert less.step_time_ns < mixed.step_time_ns
    other = predict("llama-3.2-3b", "a100-80gb:8+h100-sxm:8", {**STAGES, "layers_per_stage": (8, 20)})
    assert other.step_time_ns != less.step_time_ns  # embedding and head are on other types


def test_a_send_between_types_takes_the_slower_network() -> None:
    first, second = parse_cluster("h100-sxm:8"), parse_cluster("h100-sxm:8")
    narrow = replace(second, scale_out=replace(second.scale_out, bandwidth_bytes_per_s=1e8))
    one = predict("llama-3.2-3b", MixedCluster((first, second)), STAGES)
    for parts in ((first, narrow), (narrow, first)):
        assert predict("llama-3.2-3b", MixedCluster(parts), STAGES).step_time_ns > one.step_time_ns


def test_memory_of_a_stage_is_held_against_its_own_type() -> None:
    large, small = parse_cluster("h100-sxm:8"), parse_cluster("h100-sxm:8")
    needs = predict("llama-3.2-3b", "h100-sxm:16", STAGES).memory
    tight = replace(small, gpu=replace(small.gpu, usable_memory_bytes=needs[0].device_bytes - 1))
    assert needs[1].device_bytes < needs[0].device_bytes
    assert predict("llama-3.2-3b", MixedCluster((large, tight)), STAGES).status == "ok"
    found = predict("llama-3.2-3b", MixedCluster((tight, large)), STAGES)
    assert found.status == "infeasible"
    assert found.infeasible is not None
    assert found.infeasible.stage == 0


def test_plans_with_stages_on_types_are_the_best_of_all_of_them() -> None:
    mixed = parse_mixed(BOTH)
    assert mixed is not None
    model = load_model("llama-3.2-1b").with_changes(layers=8)
    fixed = {"pp": 2, "cp": 1, "micro_batch": 1, "cuda_graphs": False, "recompute": "none", "global_batch": 64}
    given = {**fixed, "seq_len": 2048, "tp": 8}
    own = ByStage(mixed)
    space = Space(model, mixed.clusters_on_own_network()[0], given, mixed=mixed, by_stage=True)
    found = Search(space, own, memory=own.memory, step=own.step).run(1)
    every = [layout for layout in every_plan(space) if own.memory(layout) <= layout.cluster.gpu.usable_memory_bytes]
    assert len(every) > 8
    assert found.gap == 0.0
    assert found.plans[0].replay.step_ns == min(own.step(layout) for layout in every)
    for layout in every:
        assert own.step_ns(layout) <= own.step(layout)
        assert own.memory_bytes(layout) <= own.memory(layout)
    told = plan(model, mixed, choices_within_s=0.0, top=2, **given)
    assert told[0].step_time_s * 1e9 <= found.plans[0].replay.step_ns
    counts = told[0].plan["layers_per_stage"]
    assert counts[0] > counts[1]
    assert predict(model, mixed, told[0].plan).step_time_s == told[0].step_time_s


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
    fixed = {"cp": 1, "micro_batch": 1, "recompute": "none", "cuda_graphs": False, "zero_stage": 1}
    fixed |= {"tp": 4, "global_batch": 48, "seq_len": 1024}
    words = "h100-sxm:16+a100-80gb:8"
    found = plan("llama-3.2-3b", words, choices_within_s=0.0, top=3, **fixed)
    assert found.gap == 0.0
    assert len(found) == 3
    for one in found.plans:
        replica, stages = one.plan.get("tp", 1) * one.plan.get("pp", 1), one.plan.get("pp", 1)
        assert 8 % replica == 0 or (stages > 1 and 8 % (24 // stages) == 0)
        assert predict("llama-3.2-3b", words, one.plan).step_time_s == one.step_time_s
    assert words in found[0].reproduce


def test_what_lies_on_another_type_decides_nothing_about_this_one() -> None:
    """Stage 0 gives cached memory back on its own GPU, however many layers the larger GPU holds."""
    job = {"pp": 2, "global_batch": 16, "seq_len": 2048, "micro_batch": 1, "framework": "deepspeed"}
    found = []
    for beyond in (16, 32):
        model = replace(load_model("llama-3-8b"), layers=load_model("llama-3-8b").layers[:1] * (16 + beyond))
        plan = {**job, "layers_per_stage": (16, beyond)}
        found.append(predict(model, "a100-40gb:8+h200-sxm:8", plan))
    first, second = (one.memory[0] for one in found)
    assert (first.device_bytes, first.gives_back) == (second.device_bytes, second.gives_back)
    for one in found:
        assert one.peak_memory.capacity_bytes == one.memory_capacity_bytes
        assert [stage.capacity_bytes for stage in one.memory] == [
            parse_cluster(name).gpu.usable_memory_bytes for name in ("a100-40gb:8", "h200-sxm:8")
        ]


def test_a_step_of_two_types_is_as_uncertain_as_the_less_known_one() -> None:
    job = {"tp": 4, "pp": 2, "global_batch": 32, "seq_len": 1024}
    one, other = (predict("llama-3.2-3b", words, job) for words in ("h100-sxm:8+mi300x:8", "mi300x:8+h100-sxm:8"))
    for found in (one, other):
        assert any("generation cdna3" in text for text in found.warnings)
    width = [(one.step_time_p95_ns - one.step_time_p5_ns) / one.step_time_ns for one in (one, other)]
    assert width[0] == pytest.approx(width[1], rel=0.03)


def test_the_command_asks_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text("groups: [h100-sxm:8, {gpu: a100-80gb, gpus: 8, nic: 100Gb/s}]\n")
    found = predict("llama-3.2-3b", str(file), JOB)
    assert found.reproduce.startswith(f"windtunnel predict llama-3.2-3b --cluster {file} --tp 4")
    named = predict("llama-3.2-3b", parse_mixed("h100-sxm:8+a100-80gb:8") or "", JOB)
    assert "--cluster h100-sxm:8+a100-80gb-sxm:8 " in named.reproduce
    assert "--set" not in named.reproduce


def test_fields_that_a_cluster_of_two_types_has_not_are_refused() -> None:
    with pytest.raises(UserError, match="foo"):
        predict("llama-3.2-3b", {"groups": ["h100-sxm:8", "a100-80gb:8"], "foo": 1}, JOB)
    with pytest.raises(SpecError, match="need one type"):
        predict("llama-3.2-3b", "h100-sxm:8+a100-80gb:8", JOB, router_load="")


def test_the_gap_of_two_searches_is_that_of_the_best_plan() -> None:
    """Llama 3 8B does not fit on the small type in a replica: that search finds nothing, the one by stages does."""
    found = plan("llama-3-8b", "a100-80gb:4+h100-sxm:4+l40s:8", global_batch=32, seq_len=1024, within_s=4)
    assert found.plans
    assert 0 <= found.gap < 1


def test_a_search_that_finds_nothing_ends_in_time_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.studies.planning.search.best_first.FIRST_S", 0.0)
    space = Space(load_model("llama-3-70b"), parse_cluster("h100-sxm:8"), {"global_batch": 64, "seq_len": 8192})
    answer = Search(space, Bounds(0.0)).run(1, 0.0)
    assert not answer.plans
    assert answer.gap == 1.0
    assert Search(space, Bounds(0.0)).run(1).gap == 0.0  # proven: nothing fits


def test_a_plan_that_would_lie_on_two_types_is_refused_by_that() -> None:
    with pytest.raises(LayoutError, match="would lie on two types"):
        plan("llama-3-8b", "h100-sxm:8+a100-80gb:8", tp=16, pp=1, global_batch=64, seq_len=4096)
