from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_rows import LLAMA_8B, row

from windtunnel.errors import LayoutError
from windtunnel.evidence.accuracy.cases import Case, Skip, case_of
from windtunnel.evidence.accuracy.fabric import cluster_of
from windtunnel.evidence.accuracy.nanotron import layers_per_stage
from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.evidence.accuracy.table import REQUIRED
from windtunnel.evidence.accuracy.words import UNREAD
from windtunnel.physics.cost.price import Z95
from windtunnel.physics.model import transformer
from windtunnel.studies.training import predict


@pytest.fixture
def case(tmp_path: Path) -> Any:
    def build(**changes: Any) -> Case:
        found = case_of(row(tmp_path, **changes))
        assert isinstance(found, Case), found.reason
        return found

    return build


@pytest.fixture
def skip(tmp_path: Path) -> Any:
    def build(**changes: Any) -> str:
        found = case_of(row(tmp_path, **changes))
        assert isinstance(found, Skip)
        return found.reason

    return build


def test_a_complete_row_is_one_plan_and_no_assumption(case: Any) -> None:
    found = case()
    assert len(found.plans) == 1
    assert found.swept == found.assumptions == ()
    plan = found.plan
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage, plan.sequence_parallel) == (2, 1, 8, 1, True)
    assert (plan.global_batch, plan.micro_batch, plan.seq_len, plan.framework) == (32, 1, 8192, "megatron")
    assert found.model.parameters == 8_030_261_248
    assert found.cluster.n_gpus == 16


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"notes": "synthetic balanced routing; cuda graphs full_iteration"}, "cuda_graphs", True),
        ({"notes": "TP comm overlap"}, "overlap_tp", True),
        ({"notes": "AsyncTP no"}, "overlap_tp", False),
        ({"notes": "torch.compile: no"}, "compile", False),
        ({"notes": "fp32 gradient accumulation"}, "gradient_dtype", "fp32"),
        ({"notes": "FSDP group 8", "zero_stage": 3}, "shard_group", 8),
        ({"precision": "fp8"}, "precision", "fp8"),
        ({"precision": "fp8_cs"}, "precision", "fp8-current"),
        ({"precision": "fp8", "framework": "torchtitan (PyTorch FSDP2)"}, "precision", "fp8-current"),
        ({"recompute": "selective (attention core)"}, "recompute", "selective:core_attention"),
        ({"recompute": "selective: layernorm+moe_act"}, "recompute", "selective:norms,moe_activation"),
        ({"framework": "Meta (Megatron-like)"}, "recompute", "selective:activation"),  # SwiGLU's product
        ({"offload": "activations of 20 layers"}, "offload_activations", 20),
        ({"attention_impl": "unfused (fused softmax kernel)"}, "attention_impl", "unfused"),
        ({"source": "MLPerf Training v4.1"}, "release", "mlperf-v4.1"),
        ({"source": "NVIDIA Megatron-Bridge performance summary 26.02.01"}, "release", "bridge-26.02"),
        ({"framework": "Megatron-LM", "date": "2022-05"}, "overlap_p2p", False),
    ],
)
def test_words_become_plan_fields(case: Any, changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(case(**changes).plan, field) == value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "H47"}, "unknown GPU"),
        ({"hidden": None, "model": "of nobody"}, "hidden"),
        ({"global_batch": None, "dp": None}, "global_batch"),
        ({"micro_batch": 3}, "micro_batch 3 x grad_accum 4 x dp 8 = 96, but global_batch is 32"),
    ],
)
def test_what_cannot_be_represented_is_skipped_with_its_reason(skip: Any, changes: dict[str, Any], words: str) -> None:
    assert words in skip(**changes)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"precision": "FP8 rowwise"}, "precision", "fp8-current"),
        ({"precision": "fp8 (delayed scaling)"}, "precision", "fp8"),
        ({"precision": "fp8_blockwise"}, "precision", "fp8-current"),
        ({"precision": "MXFP8", "gpu": "B200"}, "precision", "mxfp8"),
        ({"precision": "fp4", "gpu": "MI355X"}, "precision", "mxfp4"),
        ({"precision": "fp4", "gpu": "B200"}, "precision", "nvfp4"),
        ({"precision": "bf16-mixed"}, "precision", "bf16"),
        ({"task": "QLoRA"}, "frozen_dtype", "nf4"),
        ({"task": "LoRA SFT"}, "lora_rank", 16),
        ({"task": "lora", "notes": "rank 8; q_proj, v_proj; 4 adapters"}, "lora_targets", "q,v"),
        ({"task": "lora", "notes": "rank 8; q_proj, v_proj; 4 adapters"}, "lora_adapters", 4),
        ({"task": "DPO"}, "task", "dpo"),
        ({"task": "log-probs"}, "task", "forward"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer_dtype", "int8"),
        ({"optimizer": "AdamW, bf16 moments"}, "optimizer_dtype", "bf16"),
        ({"optimizer": "dist_muon"}, "optimizer", "muon"),
        ({"recompute": "off"}, "recompute", "none"),
        ({"recompute": "gradient checkpointing"}, "recompute", "full"),
        ({"recompute": "full (uniform 1)"}, "recompute", "full"),
        ({"recompute": "full, block 21"}, "recompute", "full:21"),
        ({"recompute": "every other layer"}, "recompute", "full:16"),
        ({"recompute": "selective: moe_act, layernorm, mlp"}, "recompute", "selective:moe_activation,norms,mlp"),
        ({"recompute": "selective: core_attn+fancy_part"}, "recompute", "selective:core_attention"),
        ({"recompute": "selective", "framework": "torchtitan"}, "recompute", "selective:ops"),
        ({"offload": "optimizer 50 %"}, "offload_optimizer", 0.5),
        ({"cuda_graph": "per-layer"}, "cuda_graphs", True),
        ({"cuda_graph": "attn+moe_router", "experts": 8, "topk": 2, "ep": 1}, "cuda_graphs", False),
        ({"grad_reduce_dtype": "float32"}, "gradient_dtype", "fp32"),
        ({"schedule": "ZBVZeroBubble", "pp": 2, "dp": 4, "grad_accum": 8}, "schedule", "zb-v"),
        ({"cp_kind": "a2a+p2p"}, "cp_kind", "ring"),
        ({"framework": "axolotl"}, "framework", "fsdp"),
        ({"framework": "SkyRL (Megatron)"}, "framework", "megatron"),
    ],
)
def test_other_spellings_mean_the_same(case: Any, changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(case(**changes).plan, field) == value


@pytest.mark.parametrize(
    "cell",
    [
        *({"task": word} for word in ("chanting",)),
        *({"precision": word} for word in ("posit16", "int8")),
        *({"recompute": word} for word in ("some of it", "offload", "selective: the best")),
        *({"offload": word} for word in ("everything", "nvme")),
        *({"optimizer": "Lbfgs"}, {"cuda_graph": "sometimes"}, {"grad_reduce_dtype": "fp6"}, {"cp_kind": "spiral"}),
        *({"pipeline_layout": word} for word in ("Et|tL", "even", "Et*9|tL")),
        *({"schedule": "zigzag", "pp": 2, "dp": 4, "grad_accum": 8}, {"vpp": 4, "pp": 1}, {"framework": "Fleetwood"}),
        *({"gpu": "A100-SXM-80GB", "precision": "nvfp4"}, {"gpu": "MI355X", "precision": "mxfp6"}),
        {"model_family": "perceptron", "model": "Perceptron-1"},
    ],
)
def test_a_cell_that_no_rule_understands_is_answered_named_and_widens_the_band(
    case: Any, tmp_path: Path, cell: dict[str, Any]
) -> None:
    found = case(**cell)
    assert len(found.unread) == 1
    assert found.unread[0] in found.assumptions
    assert not case().unread
    widened = outcome_of(row(tmp_path, **cell), predict)
    assert found.unread[0] in widened.band_reason
    assert widened.step_time_s is not None
    assert widened.p95_s is not None
    assert widened.p95_s / widened.step_time_s > 1.0 + Z95 * UNREAD


@pytest.mark.parametrize(
    ("framework", "taken"),
    [
        ("MaxText (JAX)", "maxtext"),
        ("PaxML (JAX)", "maxtext"),
        ("Megatron-DeepSpeed (Gaudi)", "megatron-deepspeed"),
        ("DeepSpeed ZeRO-3", "deepspeed"),
        ("InternEvo", "internevo"),
        ("ColossalAI", "colossalai"),
        ("NeMo/Megatron (ROCm)", "megatron"),
    ],
)
def test_every_framework_has_habits(case: Any, framework: str, taken: str) -> None:
    assert case(framework=framework).plan.framework == taken


@pytest.mark.parametrize(
    ("changes", "rank", "targets"),
    [
        ({"source": "MLPerf Training v5.0", "notes": "LoRA rank 8, packed 8192"}, 8, "attention"),
        ({"source": "NVIDIA NeMo performance summary v2.1.0", "notes": ""}, 16, "qkv"),
        ({"source": "somebody's benchmark"}, 16, "all"),
    ],
)
def test_adapters_are_those_of_the_source(case: Any, changes: dict[str, Any], rank: int, targets: str) -> None:
    found = case(task="lora", **changes)
    assert (found.plan.lora_rank, found.plan.lora_targets) == (rank, targets)
    assert any("rank of the adapters" in assumption for assumption in found.assumptions) == (
        "rank" not in changes.get("notes", "")
    )


def test_packed_documents_of_unknown_length_widen_the_band(case: Any) -> None:
    assert case(task="sft", source="NVIDIA NeMo performance summary v2.1.0").packed
    assert not case(task="pretrain", source="NVIDIA NeMo performance summary v2.1.0").packed


def test_expert_degrees_that_nobody_states_are_swept(case: Any) -> None:
    found = case(experts=8, topk=2, ep=None)
    assert "ep" in found.swept
    assert {plan.ep for plan in found.plans} == {1, 8}


@pytest.mark.parametrize(
    ("changes", "plans"),
    [
        ({"date": "2026-08", "recompute": ""}, 4),
        # Recipes with `tokendrop` overlapped nothing, and say who ran in graphs, for the models that they were for.
        ({"date": "2025-09", "recompute": "", "notes": "tokendrop; synthetic balanced routing"}, 2),
        ({"date": "2025-09", "recompute": "", "notes": "tokendrop", "model": "Qwen3-30B-A3B proxy"}, 1),
        ({"date": "2026-02", "recompute": ""}, 1),  # recipes of that time had graphs around the experts at most
        ({"date": "2026-08"}, 1),  # the recipe is cited
    ],
)
def test_a_recipe_that_is_not_cited_may_have_run_in_graphs(case: Any, changes: dict[str, Any], plans: int) -> None:
    bridge = {"source": "NVIDIA Megatron-Bridge performance summary", "framework": "Megatron-Bridge/Megatron-Core"}
    experts = {"model_family": "mixtral", "experts": 8, "topk": 2, "ep": 8, "tp": 1, "dp": 16, "sp": 0}
    found = case(**bridge, **experts, **changes)
    assert len({(plan.cuda_graphs, plan.overlap_ep) for plan in found.plans}) == plans


def test_moments_are_in_the_format_of_the_cited_recipe(case: Any) -> None:
    def cited(page: str) -> str:
        return f"github:NVIDIA/dgxc-benchmarking@v24.11.1:nemotron/{page}.md#L52"

    assert case(url_or_file=cited("README_340b")).plan.optimizer_dtype == "bf16"
    assert case(url_or_file=cited("README_15b")).plan.moments_dtype == "fp32"


def test_what_no_rule_knows_is_answered_and_said(case: Any) -> None:
    assert "framework 'Fleetwood' not known, taken as megatron" in case(framework="Fleetwood").assumptions
    found = case(model_family="perceptron", model="Perceptron-1")
    assert "model family 'perceptron' not known, taken as Llama's" in found.assumptions
    assert "grad_accum 5 does not agree with global_batch 32, which is taken" in case(grad_accum=5).assumptions


def test_nothing_overlaps_where_a_source_says_so(case: Any) -> None:
    plan = case(notes="gradients reduced after the backward pass, nothing overlaps", tp=2).plan
    assert not any(getattr(plan, field.name) for field in fields(plan) if field.name.startswith("overlap_"))


def test_columns_of_overlap_and_buckets_become_plan_fields(case: Any) -> None:
    plan = case(overlap_grad_reduce=0, overlap_ep=1, bucket_parameters=50_000_000, cp_kind="a2a").plan
    assert (plan.overlap_grad_reduce, plan.overlap_ep) == (False, True)
    assert (plan.bucket_parameters, plan.cp_kind) == (50_000_000, "ulysses")


def test_models_that_numbers_cannot_describe_come_from_the_catalogue(case: Any) -> None:
    shape = {"model_family": "deepseek", "hidden": 7168, "layers": 8, "heads": 128, "kv_heads": 128, "head_dim": 128}
    shape |= {
        "ffn": 2048,
        "vocab": 129280,
        "experts": 256,
        "topk": 8,
        "ep": 8,
        "tp": 1,
        "dp": 16,
        "sp": 0,
        "grad_accum": 2,
    }
    model = case(model="DeepSeek-V3-671B", **shape).model
    assert model.layers[-1].attention.kind == "mla"
    assert model.n_layers == 8  # a depth-reduced proxy keeps the rest
    other = case(model="DeepSeek-V3", **{**shape, "heads": 256})
    assert other.model.layers[-1].attention.heads == 256
    assert other.unread == ("DeepSeek-V3 with other sizes than the catalogue's, taken as Llama's",)


def test_what_is_open_is_swept_and_named(case: Any) -> None:
    found = case(recompute=None, micro_batch=None, grad_accum=None)
    assert found.swept == ("micro_batch", "recompute")
    assert {(p.micro_batch, p.recompute) for p in found.plans} == {
        (size, kind) for size in (1, 2, 4) for kind in ("none", "full")
    }


def test_too_much_unknown_is_no_sweep(skip: Any) -> None:
    open_fields = dict.fromkeys(("vpp", "micro_batch", "grad_accum", "zero_stage", "sp", "recompute"))
    assert "too much is unknown" in skip(pp=8, dp=1, **open_fields)


@pytest.mark.parametrize(
    ("text", "per_node", "gbits", "protocol"),
    [
        ("IB NDR 400 Gb/s per GPU", 8, 400, "infiniband"),
        ("RoCE 1600 Gb/s per node", 8, 200, "roce"),
        ("8x HDR InfiniBand 200 Gb/s per node", 8, 200, "infiniband"),
        ("Storage: 2x CX-7 IB NDR 400Gb/s; Compute: 8x CX-7 IB NDR 400Gb/s; Management: 100Gb/s", 8, 400, "infiniband"),
        ("AWS EFA (p5-class nodes)", 8, 400, "efa"),
    ],
)
def test_fabric_as_stated(tmp_path: Path, text: str, per_node: int, gbits: int, protocol: str) -> None:
    cluster, notes = cluster_of(row(tmp_path, inter_link=text, gpus_per_node=per_node))
    assert cluster.scale_out.bandwidth_bytes_per_s * 8 / 1e9 == pytest.approx(gbits)
    assert cluster.scale_out.protocol == protocol
    assert notes == ()


def test_an_unstated_fabric_is_an_assumption_only_where_it_matters(tmp_path: Path) -> None:
    assert cluster_of(row(tmp_path, inter_link=""))[1] == ("NIC bandwidth not stated, taken as 400 Gb/s per GPU",)
    inside = row(tmp_path, inter_link="", n_gpus=8, dp=4, grad_accum=8)
    assert cluster_of(inside)[1] == ()


def test_the_head_shows_in_the_published_size(case: Any) -> None:
    """A family that ties embeddings, a published size that only an untied head explains."""
    shape = {"model": "GPT-7.1B", "model_family": "gpt", "layers": 30, "ffn": 16384, "gated_mlp": 0, "kv_heads": 32}
    shape |= {"vocab": 131072, "seq_len": 4096}
    assert case(**shape, params_b=7.1).model.tied_embeddings is False
    assert case(**shape, params_b=6.6).model.tied_embeddings is True


def test_nanotron_counts_the_head_as_layers() -> None:
    model = transformer(hidden=2048, layers=16, heads=32, vocab=131072, ffn=8192, tied_embeddings=True)
    assert layers_per_stage(model, 1) == (16,)
    # The head costs four layers, so that both cuts are ties: a tie ends the stage.
    assert layers_per_stage(model, 2) == (10, 6)
    assert layers_per_stage(model, 4) == (5, 5, 5, 1)


@given(st.integers(1, 40), st.integers(1, 48), st.sampled_from((1024, 32000, 131072)))
@settings(max_examples=60, deadline=None)
def test_nanotron_places_every_layer_once_or_refuses(layers: int, pp: int, vocab: int) -> None:
    model = transformer(hidden=2048, layers=layers, heads=16, vocab=vocab, ffn=8192)
    try:
        counts = layers_per_stage(model, pp)
    except LayoutError:
        assert pp > 1
        return
    assert len(counts) == pp
    assert sum(counts) == layers


def test_nanotron_row_with_an_empty_stage_is_infeasible(tmp_path: Path) -> None:
    changes = {"framework": "nanotron", "pp": 64, "dp": 1, "grad_accum": 32, "n_gpus": 128, "tp": 2}
    found = case_of(row(tmp_path, **changes))
    assert isinstance(found, Skip)
    assert found.infeasible
    assert "without any block" in found.reason


OPTIONAL = sorted(set(LLAMA_8B) - set(REQUIRED) - {"step_time_s"})


@given(
    st.sets(st.sampled_from(OPTIONAL), max_size=6),
    st.fixed_dictionaries(
        {},
        optional={
            "tp": st.integers(1, 64),
            "pp": st.integers(1, 64),
            "vpp": st.integers(1, 16),
            "heads": st.integers(1, 100),
            "experts": st.integers(1, 300),
            "topk": st.integers(1, 300),
            "precision": st.sampled_from(["bf16", "fp8", "nvfp4", "FP64", "?"]),
            "framework": st.sampled_from(["nanotron", "Composer/FSDP", "Megatron-LM", "NeMo"]),
            "notes": st.text(alphabet="abc;: 0123456789", max_size=20),
            "inter_link": st.text(alphabet="0123456789x GbIB/s;.", max_size=20),
        },
    ),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_row_is_a_case_or_a_skip(tmp_path: Path, emptied: set[str], changes: dict[str, Any]) -> None:
    found = case_of(row(tmp_path, **changes, **{name: None for name in emptied if name not in changes}))
    assert isinstance(found, Case | Skip)
    if isinstance(found, Skip):
        assert found.reason


@pytest.mark.parametrize(("date", "kernel"), [("2023-06", "triton"), ("2023-11", "flash"), ("", "flash")])
def test_megatron_had_the_first_flash_attention_before_the_second_came_out(case: Any, date: str, kernel: str) -> None:
    framework = "NeMo/Megatron-Core + Transformer Engine"
    assert case(framework=framework, date=date, attention_impl="fused (cuDNN/flash)").plan.attention_impl == kernel


@pytest.mark.parametrize(
    ("gpu", "date", "kernel"),
    [("H100 SXM 80GB", "2025-06", "flash2"), ("H100 SXM 80GB", "2026-04", "flash"), ("A100 SXM", "2026-04", "flash2")],
)
def test_sdpa_is_cudnns_from_pytorch_2_11_on_where_the_gpu_has_its_kernel(
    case: Any, gpu: str, date: str, kernel: str
) -> None:
    found = case(framework="torchtitan", date=date, attention_impl="SDPA", gpu=gpu)
    assert found.plan.attention_impl == kernel


def test_gradients_of_megatron_lm_are_in_bf16_where_its_example_says_so(case: Any) -> None:
    url = "github:NVIDIA/Megatron-LM@HEAD:examples/llama/README.md"
    assert case(framework="Megatron-LM", url_or_file=url).plan.gradient_dtype == "bf16"
    assert case(framework="Megatron-LM", date="2024-07").plan.gradient_dtype is None


def test_nvidias_lora_exchanges_heads_between_context_ranks_since_its_round_of_2025(case: Any) -> None:
    run = {
        "task": "lora",
        "source": "MLPerf Training v5.0",
        "notes": "LoRA rank 16",
        "gpu": "H100-SXM",
        "cp": 2,
        "dp": 1,
    }
    kinds = {
        name: case(**run | changes).plan.cp_kind
        for name, changes in {
            "theirs": {},
            "the round before": {"source": "MLPerf Training v4.1"},
            "its container": {"url_or_file": "results/n8_ngc24.09_nemo/llama2_70b_lora"},
            "AMD's": {"gpu": "MI300X"},
        }.items()
    }
    assert kinds == {"theirs": "ulysses", "the round before": "ring", "its container": "ring", "AMD's": "ring"}


def test_lora_on_mi300x_recomputes_what_its_configuration_says(case: Any) -> None:
    run = {"gpu": "MI300X", "task": "lora", "source": "MLPerf Training v5.0", "recompute": "", "notes": "LoRA rank 16"}
    assert {plan.recompute for plan in case(**run).plans} == {"full:21"}
    assert {plan.recompute for plan in case(**run | {"gpu": "MI325X"}).plans} == {"none", "full"}


def test_a_run_of_2026_says_graphs_formats_stages_and_layers_ahead(case: Any) -> None:
    found = case(
        cuda_graph="full iteration", grad_reduce_dtype="bf16", param_gather_dtype="bf16 buffer", etp=1,
        precision="mxfp8", pipeline_layout="Et*5|(t*8|)*2t*3L", layers=24, pp=4, dp=4, mtp_layers=1,
    )  # fmt: skip
    plan = found.plan
    assert (plan.cuda_graphs, plan.full_graph, plan.gradient_dtype, plan.fp8_parameters) == (True, True, "bf16", False)
    assert plan.layers_per_stage == (5, 8, 8, 3)
    assert found.model.mtp_layers == 1


def test_recompute_modules_are_megatrons(case: Any) -> None:
    for name in ("mlp", "moe", "shared_experts"):
        assert case(recompute=f"selective: {name}").plan.recompute == f"selective:{name}"
