"""A Layout: what is filled in, who is in which group, how layers are dealt, and what cannot be."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.errors import LayoutError, SpecError, UnknownNameError, UserError
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training import Plan, layout_checks, predict, read_plan
from windtunnel.studies.training.layout import Layout, resolve


def layout(model: str = "llama-3-8b", cluster: str = "h100-sxm:32", layers: int | None = None, **plan: Any) -> Layout:
    built = load_model(model)
    if layers is not None:
        built = built.with_changes(layers=layers)
    return resolve(built, parse_cluster(cluster), read_plan({"global_batch": 96, "seq_len": 4096, **plan}))


def test_what_is_left_open_follows_the_framework_and_is_said() -> None:
    one = layout(tp=4, pp=2)
    assert (one.dp, one.micro_batches, one.schedule, one.plan.zero_stage) == (4, 24, "1f1b", 1)
    assert one.plan.sequence_parallel is True
    assert one.defaults[0] == "habits of Megatron-Core"
    assert {"sequence_parallel on", "zero_stage 1", "schedule 1f1b", "overlap_tp on"} <= set(one.defaults)
    assert all(len(entry.split()) <= 4 for entry in one.defaults), "one default per entry"
    assert one.user_plan.zero_stage is None


def test_what_makes_no_difference_is_not_said() -> None:
    alone = layout()
    assert not [entry for entry in alone.defaults if entry.startswith(("overlap_tp", "overlap_p2p", "schedule"))]
    said = layout(tp=4, zero_stage=2, overlap_tp=False, overlap_tp_backward=True)
    assert not [entry for entry in said.defaults if entry.startswith(("zero_stage", "overlap_tp"))]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "fsdp", "nanotron"])
def test_resolving_twice_changes_nothing(framework: str) -> None:
    one = layout(framework=framework, tp=2, pp=2)
    again = resolve(one.model, one.cluster, one.plan)
    assert again.plan == one.plan
    assert None not in {
        getattr(one.plan, field.name)
        for field in fields(one.plan)
        if field.name.startswith(("overlap", "zero", "gradient", "compile"))
    }
    assert again.defaults[1:] == ("schedule 1f1b",)


def test_groups_are_laid_over_the_ranks_as_megatron_lays_them() -> None:
    """tp fastest, then cp, dp and pp; experts over tp x cp x dp with expert-tensor fastest."""
    one = layout("mixtral-8x7b", "h100-sxm:64", tp=2, cp=2, pp=2, ep=4, etp=1, zero_stage=1, shard_group=8)
    span = {name: (one.group(name).size, one.group(name).span) for name in
            ("tp", "cp", "dp", "replica", "pp", "ep", "edp", "world")}  # fmt: skip
    assert span == {
        "tp": (2, 2),
        "cp": (2, 3),
        "dp": (8, 15),
        "replica": (2, 17),
        "pp": (2, 33),
        "ep": (4, 4),
        "edp": (8, 29),
        "world": (64, 64),
    }


def test_groups_multiply_to_the_cluster() -> None:
    one = layout("mixtral-8x7b", "h100-sxm:64", tp=2, cp=2, pp=2, ep=4)
    size = {name: one.group(name).size for name in ("tp", "cp", "dp", "replica", "ep", "etp", "edp")}
    assert size["tp"] * size["dp"] * size["replica"] * one.plan.pp == 64
    assert size["etp"] * size["ep"] * size["edp"] * one.plan.pp == 64


@pytest.mark.parametrize(
    ("layers", "plan", "counts"),
    [
        (32, {"pp": 4}, [8, 8, 8, 8]),
        (30, {"pp": 4}, [7, 8, 8, 7]),  # embedding and loss count as a layer each
        (30, {"pp": 2, "account_for_embedding": True}, [15, 15]),
        (6, {"pp": 4, "account_for_embedding": True}, [1, 2, 2, 1]),
        (31, {"pp": 4}, [8, 8, 8, 7]),
        (8, {"pp": 2, "virtual_stages": 2}, [2, 2, 2, 2]),
        (8, {"pp": 2, "schedule": "zb-v"}, [2, 2, 2, 2]),
        (8, {"pp": 2, "schedule": "dualpipe-v"}, [2, 2, 2, 2]),
        (8, {"pp": 2, "schedule": "dualpipe"}, [4, 4]),
        (2, {"pp": 4}, [0, 1, 1, 0]),
        (8, {"pp": 2, "layers_per_stage": (5, 3)}, [5, 3]),
        (8, {"pp": 2, "layers_per_stage": (0, 8)}, [0, 8]),
    ],
)
def test_layers_are_dealt(layers: int, plan: dict[str, Any], counts: list[int]) -> None:
    one = layout(layers=layers, **plan)
    assert [len(stage) for stage in one.virtual_layers] == counts
    assert [number for stage in one.virtual_layers for number in stage] == list(range(layers))


def test_a_stage_may_have_the_embedding_or_the_loss_alone_and_none_may_be_empty() -> None:
    assert [len(stage) for stage in layout(layers=6, pp=8).virtual_layers] == [0, *[1] * 6, 0]
    with pytest.raises(LayoutError, match="5 layers cannot fill pp 8"):
        layout(layers=5, pp=8)


def test_the_vocabulary_is_padded_as_the_framework_pads_it() -> None:
    assert layout("gpt2", tp=4).vocab_padded == 50688  # 99 x 128 x 4
    assert layout("gpt2", framework="fsdp", tp=4).vocab_padded == 50260


def test_experts_keep_the_tensor_degree_where_the_framework_does() -> None:
    assert layout("mixtral-8x7b", tp=4).etp == 4
    assert layout("mixtral-8x7b", tp=4, ep=2).etp == 4
    assert layout("mixtral-8x7b", tp=4, ep=2, framework="torchtitan").etp == 1
    assert layout("mixtral-8x7b", tp=4, ep=2, etp=1).etp == 1


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        ("llama-3-8b", {"tp": 3}, "tp 3 x pp 1 x cp 1 = 3 does not divide 32 GPUs"),
        ("llama-3-8b", {"pp": 64}, "use 64 GPUs"),
        ("llama-3-8b", {"dp": 8}, "dp = 8, but 32 GPUs .* = 32"),
        ("llama-3-8b", {"global_batch": 40}, "global_batch 40 .* use a multiple of 32"),
        ("llama-3-8b", {"micro_batch": 2, "global_batch": 32}, "use a multiple of 64"),
        ("gpt2", {"tp": 8}, "tp = 8 does not divide the 12 heads"),
        ("qwen2.5-7b", {"tp": 8}, "tp = 8 does not divide the 28 heads"),
        ("llama-3-8b", {"ep": 2}, "ep = 2, but llama-3-8b has no experts"),
        ("llama-3-8b", {"etp": 2}, "etp = 2, but llama-3-8b has no experts"),
        ("mixtral-8x7b", {"ep": 16}, "ep = 16 does not divide the 8 experts"),
        ("mixtral-8x7b", {"ep": 8, "etp": 8, "tp": 2}, "ep 8 x etp 8 does not divide"),
        ("mixtral-8x7b", {"ep": 2, "etp": 4, "tp": 2, "framework": "torchtitan"}, "torchtitan takes etp 1 or etp = tp"),
        ("llama-3-8b", {"cp": 2, "seq_len": 4098}, "seq_len 4098 cannot be cut"),
        ("llama-3-8b", {"cp": 4, "cp_kind": "ulysses", "tp": 8, "seq_len": 4098}, "seq_len 4098 cannot be cut"),
        ("gpt2", {"cp": 8, "cp_kind": "ulysses"}, "cp = 8 does not divide the 12 heads per rank"),
        ("llama-3-8b", {"tp": 8, "seq_len": 100}, "100 tokens are no multiple of tp 8"),
        ("llama-3-8b", {"schedule": "zb-h1", "virtual_stages": 2, "pp": 2}, "has no virtual stages"),
        ("llama-3-8b", {"virtual_stages": 2}, "interleaving needs pp > 1"),
        ("llama-3-8b", {"pp": 2, "layers_per_stage": (16, 15)}, "must be 2 counts that sum to 32"),
        ("llama-3-8b", {"pp": 2, "layers_per_stage": (33, -1)}, "must be 2 counts"),
        ("llama-3-8b", {"pp": 16, "virtual_stages": 4}, "32 layers cannot fill pp 16 x 4 = 64"),
        ("llama-3-8b", {"shard_group": 5}, "shard_group = 5 does not divide dp x cp = 32"),
        ("llama-3-8b", {"shard_group": 8, "zero_stage": 0}, "zero_stage 0 shards nothing"),
        ("llama-3-8b", {"offload_activations": 33}, "33 of 32 layers"),
        ("llama-3-8b", {"fp8_parameters": True}, "no low-precision copy"),
        ("llama-3-8b", {"pp": 32, "global_batch": 10**6}, "passes per step"),
        ("llama-3.1-405b", {"global_batch": 320_000, "seq_len": 10**6}, "s per step at peak"),
    ],
)
def test_an_impossible_layout_says_which_numbers_clash(model: str, plan: dict[str, Any], words: str) -> None:
    with pytest.raises(LayoutError, match=words) as caught:
        layout(model, **plan)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_format_that_the_gpu_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(SpecError, match="a100-80gb-sxm has no fp8 rate; use fp32, bf16, fp16") as caught:
        layout(cluster="a100-80gb-sxm:32", precision="fp8")
    assert caught.value.field == "precision"


def test_an_unknown_schedule_names_what_there_is() -> None:
    for extra in ({}, {"virtual_stages": 2, "pp": 2}):
        with pytest.raises(UnknownNameError, match="did you mean 1f1b"):
            layout(schedule="1f2b", **extra)


def test_a_million_token_context_is_no_mistake() -> None:
    assert layout("llama-4-scout", seq_len=2**20, cp=8, tp=4).tokens_per_rank == 2**17


def test_groups_know_the_tiers() -> None:
    one = layout(tp=8)
    assert one.group("tp").domains == 1
    assert one.group("dp").per_domain == 1
    small = resolve(one.model, cluster_with(one.cluster, scale_up_domain=4), one.user_plan)
    assert small.group("tp").domains == 2


def test_the_first_mistake_alone_is_reported() -> None:
    with pytest.raises(UserError) as caught:
        layout("gpt2", tp=8, ep=4, cp=3, precision="nvfp4")
    assert str(caught.value).count(";") == 1


def test_a_stage_may_be_empty():
    """Some frameworks deal layers so that a rank in the middle gets none; it passes activations on."""
    plan = {"pp": 4, "layers_per_stage": (16, 0, 0, 16), "global_batch": 32, "seq_len": 512}
    result = predict("llama-3-8b", "h100-sxm:32", plan)
    assert [stage.layers for stage in result.stages] == [16, 0, 0, 16]
    assert sum(result.breakdown_ns.values()) == result.step_time_ns


def test_megatron_lm_by_itself_reduces_in_fp32_and_once_in_line() -> None:
    def shared(release: str | None, precision: str = "bf16") -> tuple[object, object, object]:
        plan = layout(tp=2, release=release, precision=precision).plan
        return plan.gradient_dtype, plan.overlap_grad_reduce, plan.overlap_param_gather

    assert shared(None) == shared("nemo-25.02") == ("bf16", True, True)
    assert shared("megatron-24.05") == ("fp32", True, True)
    assert shared("megatron-23.07") == ("fp32", False, False)
    assert shared("megatron-23.07", "fp16") == ("bf16", False, False)


def test_sizes_are_refused_beyond_what_a_step_may_have_and_not_at_it() -> None:
    def check(micro_batches: int, seconds_share: float = 0.5) -> None:
        cluster = SimpleNamespace(
            n_gpus=2, gpu=SimpleNamespace(peak_flops=lambda dtype: {"bf16": 1e3, "fp8": 2e3}[dtype])
        )
        flops = seconds_share * layout_checks.STEP_MOST_S * 2 * 1e3 / (3 * 5 * 7)
        model = SimpleNamespace(forward_flops_per_token=lambda seq_len: flops * (seq_len == 7))
        plan = Plan(global_batch=5, seq_len=7, pp=4, virtual_stages=2, micro_batch=1)
        layout_checks.check_size(plan, model, cluster, micro_batches)  # type: ignore[arg-type]

    check(layout_checks.PASSES_MOST // 8)
    with pytest.raises(LayoutError, match="passes per step"):
        check(layout_checks.PASSES_MOST // 8 + 1)
    check(1, 0.999)
    with pytest.raises(LayoutError, match="s per step at peak"):
        check(1, 1.001)


def test_only_the_last_models_keep_their_work() -> None:
    for _ in range(layout_checks.FLOPS_KEPT + 5):
        layout_checks._flops_per_token(SimpleNamespace(forward_flops_per_token=float), 3)  # type: ignore[arg-type]
    assert len(layout_checks._FLOPS) == layout_checks.FLOPS_KEPT


@pytest.mark.parametrize(
    ("gpus", "tp", "said"),
    [(512, 7, "504 or 560 GPUs"), (7, 2, "6 or 8 GPUs"), (8, 3, "6 or 24 GPUs"), (16, 32, "use 32 GPUs")],
)
def test_numbers_of_gpus_that_are_proposed_are_whole_nodes(gpus: int, tp: int, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        layout(cluster=f"h100-sxm:{gpus}", tp=tp)
