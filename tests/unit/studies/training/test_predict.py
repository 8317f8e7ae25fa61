"""What a prediction says: numbers by their definitions, what limits it, the excerpt, how to ask again."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.physics.hardware import cluster_with, parse_cluster, with_settings
from windtunnel.physics.model import load_model
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import Plan, predict
from windtunnel.studies.training.excerpt import EXCERPT_OPS
from windtunnel.studies.training.inside_passes import INSIDE_OPS
from windtunnel.studies.training.lowering.step import STREAMS
from windtunnel.studies.training.plan import FIELDS

MODEL = load_model("llama-3-8b").with_changes(layers=8)
FLAGS = {"--" + name.replace("_", "-") for name in FIELDS}


def ask(model: Any = MODEL, cluster: Any = "h100-sxm:16", **plan: Any) -> Result:
    return predict(model, cluster, {"global_batch": 32, "seq_len": 2048, **plan})


def test_throughput_and_utilisation_follow_from_the_step() -> None:
    result = ask(tp=2, pp=2)
    assert result.tokens_per_step == 32 * 2048
    assert result.tokens_per_s_per_gpu == pytest.approx(32 * 2048 / result.step_time_s / 16)
    flops = 3 * 32 * 2048 * MODEL.forward_flops_per_token(2048, "full")
    assert result.mfu == pytest.approx(flops / result.step_time_s / 16 / 989.4e12, rel=1e-3)
    assert result.model_tflops_per_gpu == pytest.approx(result.mfu * 989.4, rel=1e-3)
    assert "attention counted in full" in result.mfu_convention


def test_names_objects_files_and_mappings_are_the_same_question(tmp_path: Path) -> None:
    plan = {"tp": 2, "global_batch": 16, "seq_len": 1024}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    (tmp_path / "cluster.yaml").write_text("name: hgx-h100\ngpu: h100-sxm\ngpus: 16\n")
    named = predict("llama-3-8b", "h100-sxm:16", plan)
    for other in (
        predict(load_model("llama-3-8b"), parse_cluster("h100-sxm:16"), Plan(**plan)),
        predict("llama-3-8b", {"gpu": "h100-sxm", "gpus": 16, "name": "hgx-h100"}, tmp_path / "plan.yaml"),
        predict("llama-3-8b", tmp_path / "cluster.yaml", str(tmp_path / "plan.yaml")),
    ):
        assert other.step_time_ns == named.step_time_ns
        assert other.breakdown_ns == named.breakdown_ns
        assert other.memory == named.memory


def test_the_spec_is_enough_to_ask_again() -> None:
    result = ask(tp=2, pp=2, precision="fp8", recompute="full")
    spec = json.loads(result.to_json())["spec"]
    assert re.fullmatch(r"\d+\.\d+.*", spec["version"])
    again = predict(MODEL, spec["cluster"], spec["plan"])
    assert again.step_time_ns == result.step_time_ns
    assert Result.from_dict(json.loads(result.to_json())).to_json() == result.to_json()


def test_a_job_that_does_not_fit_is_an_answer() -> None:
    result = predict("llama-3-70b", "h100-sxm:8", {"tp": 4, "micro_batch": 4, "global_batch": 8, "seq_len": 4096})
    trouble = result.infeasible
    assert result.status == "infeasible"
    assert trouble is not None
    assert trouble.needed_bytes > trouble.capacity_bytes == result.memory_capacity_bytes
    assert result.step_time_ns > 0


JOBS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 4},
    {"tp": 8, "overlap_tp": False, "recompute": "full"},
    {"framework": "fsdp", "seq_len": 256},
    {"framework": "torchtitan", "zero_stage": 3, "global_batch": 16},
    {"pp": 4, "virtual_stages": 2, "micro_batch": 2},
    {"cp": 4, "seq_len": 8192},
    {"framework": "nanotron", "tp": 2, "seq_len": 128},
]


@pytest.mark.parametrize("plan", JOBS, ids=str)
def test_limits_name_overheads_first(plan: dict[str, Any]) -> None:
    plain = [limit.what in ("gemm", "attention", "memory-bound", "optimizer") for limit in ask(**plan).limits]
    assert plain
    assert plain == sorted(plain)


def test_recomputation_is_a_limit_of_its_own() -> None:
    found = {limit.what: limit for limit in ask(recompute="full").limits}
    assert 0.1 < found["recomputation"].share < 0.3
    assert "recomputation" not in {limit.what for limit in ask().limits}
    assert ask(recompute="full").hfu > ask(recompute="full").mfu


def test_the_excerpt_of_a_small_step_is_all_of_it() -> None:
    result = ask(tp=2, pp=2)
    labels = {op.label for op in result.excerpt}
    assert {"forward mb 0", "backward mb 7", "optimizer"} <= labels
    assert {op.stage for op in result.excerpt} == {0, 1}
    assert not [op for op in result.excerpt if op.category.startswith("exposed")]


def test_one_pass_of_each_kind_is_opened_and_each_rank_ends_with_the_step() -> None:
    result = ask(tp=2, pp=2, zero_stage=3, sequence_parallel=True)
    for stage in (0, 1):
        mine = [op for op in result.excerpt if op.stage == stage]
        assert max(op.end_ns for op in mine) == result.step_time_ns
        passes = [op for op in mine if op.stream == "compute"]
        for op in mine:
            if op.stream in ("layers", "tp"):
                assert any(one.start_ns <= op.start_ns and op.end_ns <= one.end_ns for one in passes), op
    layers = [op for op in result.excerpt if op.stream == "layers"]
    assert {f"layer {number}" for number in range(MODEL.n_layers)} <= {op.label for op in layers}
    assert {"embedding", "head"} <= {op.label for op in layers}
    assert [op for op in result.excerpt if op.stream == "tp"]
    plan = {"global_batch": 32, "seq_len": 2048, "tp": 2, "pp": 2}
    slowed = predict(MODEL, "h100-sxm:16", plan, slow=["gpu=1:1.3"])
    lost = {op.stage: op.end_ns - op.start_ns for op in slowed.excerpt if op.category == "waiting for disturbed ranks"}
    assert set(lost) == {0, 1}
    assert all(ns == slowed.breakdown_ns["waiting for disturbed ranks"] for ns in lost.values())
    assert {max(op.end_ns for op in slowed.excerpt if op.stage == stage) for stage in (0, 1)} == {slowed.step_time_ns}


def test_labels_name_the_micro_batch_and_the_chunk() -> None:
    found = {op.label for op in ask(pp=2, virtual_stages=2, overlap_p2p=True).excerpt}
    assert {"forward mb 3 chunk 1", "backward mb 0 chunk 0"} <= found
    assert "receive forward mb 3 chunk 0 from stage 0" in found
    sent = {op.label for op in ask(pp=2, schedule="zb-h1").excerpt}
    assert {"send forward mb 3", "backward input mb 3", "backward weight mb 3"} <= sent


@pytest.mark.parametrize("plan", [{"pp": 16}, {"pp": 16, "virtual_stages": 7}], ids=str)
def test_the_excerpt_of_a_large_step_shows_its_steady_state(plan: dict[str, Any]) -> None:
    cluster = cluster_with(parse_cluster("h100-sxm:16"), n_gpus=16)
    result = predict(MODEL.with_changes(layers=112), cluster, {"global_batch": 96, "seq_len": 512, **plan})
    inside = [op for op in result.excerpt if op.stream not in STREAMS]
    assert 0 < len(inside) <= INSIDE_OPS
    assert len(result.excerpt) - len(inside) <= EXCERPT_OPS + 3 * 16  # gaps and what is waited for
    for stage in range(16):
        mine = [op for op in result.excerpt if op.stage == stage and op.stream == "compute"]
        kinds = [op.label.split()[0] for op in mine]
        assert "forward" in kinds
        assert "backward" in kinds, f"stage {stage} never turns"
        assert [op.start_ns for op in mine] == sorted(op.start_ns for op in mine)
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(mine)), "ops of one stream overlap"
    first = [op for op in result.excerpt if op.stage == 0 and op.start_ns < result.step_time_ns / 20]
    assert first, "the beginning is there"
    for stage in range(16):
        assert max(op.end_ns for op in result.excerpt if op.stage == stage) == result.step_time_ns


def test_reproduce_is_short_and_says_only_what_was_asked() -> None:
    result = predict("llama-3-8b", "h100-sxm:16", {"tp": 2, "global_batch": 32, "seq_len": 2048, "overlap_tp": False})
    assert result.reproduce == (
        "windtunnel predict llama-3-8b --cluster h100-sxm:16 --tp 2 --global-batch 32 --seq-len 2048 --overlap-tp false"
    )


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"layers_per_stage": (3, 5), "pp": 2}, "--layers-per-stage 3,5"),
        ({"recompute": "selective:mlp,norms"}, "--recompute selective:mlp,norms"),
        ({"offload_optimizer": 1e-7}, "--offload-optimizer 1e-07"),
        ({"cuda_graphs": True}, "--cuda-graphs true"),
        ({"release": "a b"}, "--release 'a b'"),
        ({"release": "-x"}, "--release=-x"),
        ({"tp": 1, "micro_batch": 1}, "--global-batch 32 --seq-len 2048"),
    ],
)
def test_reproduce_spells_every_kind_of_value(plan: dict[str, Any], words: str) -> None:
    assert ask(**plan).reproduce.endswith(words) or f"{words} " in ask(**plan).reproduce


def test_reproduce_names_what_was_given(tmp_path: Path) -> None:
    plan = {"global_batch": 16, "seq_len": 512}
    file = tmp_path / "my cluster.yaml"
    file.write_text("gpu: h100-sxm\ngpus: 16\n")
    shown = predict("llama-3-8b", str(file), plan).reproduce
    assert shown.startswith(f"windtunnel predict llama-3-8b --cluster '{file}' --global-batch 16")
    assert "--cluster h100-sxm:16" in predict("llama-3-8b", parse_cluster("h100-sxm:16"), plan).reproduce
    assert "--set model.layers=8" in predict(MODEL, "h100-sxm:16", plan).reproduce
    other = cluster_with(parse_cluster("h100-sxm:16"), oversubscription=2.0)
    assert "--set cluster.oversubscription=2.0" in predict(MODEL, other, plan).reproduce


def test_few_tokens_per_expert_are_no_mistake() -> None:
    maverick = load_model("llama-4-maverick").with_changes(layers=2)
    result = predict(maverick, "h100-sxm:16", {"tp": 4, "etp": 1, "global_batch": 4, "seq_len": 128})
    assert result.step_time_ns > 0


def test_matrix_units_twice_as_fast_halve_the_matrix_products() -> None:
    machine = parse_cluster("h100-sxm:8")
    doubled = {"flops": {dtype: 2 * rate for dtype, rate in machine.gpu.flops_per_s.items()}}
    plan = {"tp": 2, "global_batch": 32, "seq_len": 4096}
    before, after = (
        predict("llama-3.1-8b", cluster, plan).breakdown_ns["gemm"]
        for cluster in (machine, with_settings(machine, {"gpu": doubled}))
    )
    assert 1.85 < before / after < 2.001  # small ones are bound by memory or by their launch


def test_several_residual_streams_pass_from_layer_to_layer() -> None:
    plan = {"framework": "nanotron", "ep": 4, "micro_batch": 4, "global_batch": 128, "seq_len": 64}
    result = predict("deepseek-v4-flash", "a100-80gb-sxm:4", plan)  # an allocator frees what was allocated, no less
    assert min(result.memory[0].categories.values()) >= 0
    sent = predict(
        "deepseek-v4-flash", "h200:16", {"pp": 2, "ep": 8, "global_batch": 64, "seq_len": 4096}
    ).traffic_bytes
    hop = next(value for name, value in sent.items() if name.startswith("send_recv pp"))
    micro_batches, hidden = 64 // 8, load_model("deepseek-v4-flash").hidden_size
    assert hop == pytest.approx(micro_batches * 4096 * hidden * 2 * 4, rel=0.01)  # four streams, there or back


@pytest.mark.parametrize("name", ["wan2.1-t2v-14b", "flux.1-dev", "sd3.5-large"])
def test_attention_without_a_mask_is_not_faster_than_its_products(name: str) -> None:
    """It once was, by half: every attention of training was priced as a causal one."""
    model = load_model(name)
    result = predict(model, "h100-sxm:8", {"global_batch": 8, "seq_len": 16384, "framework": "fsdp"})
    scores = sum(layer.attention.score_flops_per_token(16384, "full") for layer in model.layers)
    assert result.breakdown_ns["attention"] * 1e-9 > 3.5 * 16384 * scores / 989.4e12


@pytest.mark.parametrize("overlaps", [True, False])
def test_that_an_old_release_waited_for_gradients_is_told_where_they_are_overlapped(overlaps: bool) -> None:
    plan = {"global_batch": 256, "seq_len": 2048, "framework": "megatron", "overlap_grad_reduce": overlaps}
    result = windtunnel.predict("llama-3-8b", "h100-sxm:256", plan)
    assert ("gradients waited for the passes" in result.band_reason) == overlaps
