"""Frameworks' own files as they are found in the wild: what is read, and that what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.questions import read
from windtunnel.questions.asked.parts import ModelPart
from windtunnel.questions.asked.predict import Predict
from windtunnel.studies.predict import answer_at_first
from windtunnel.studies.training.launch import is_native, launch_flags, read_native
from windtunnel.studies.training.question import model_of, plan_file

TITAN = """
[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]
[optimizer]
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 8192
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[weather]
sunny = true
"""
MEGATRON = """#!/bin/bash
# Runs the "175B" parameter model
GPUS_PER_NODE=8
WORLD_SIZE=$(($GPUS_PER_NODE*16))
TP=${TP_SIZE:-8}
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --vocab-size 51200   # padded later
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size 1536 --lr 6.0e-5 --bf16 --mystery-option 5"
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 3 \\
    --sequence-parallel --use-distributed-optimizer --recompute-activations
"""
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "zero_quantized_weights": True},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
}
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_activation_checkpointing: true
  fsdp_magic: 3
"""


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _read(path: Path) -> None:
    assert is_native(path)
    read_native(path, 8)


def test_torchtitan(tmp_path: Path) -> None:
    found = read_native(_write(tmp_path, "train.toml", TITAN), 64)
    want = {
        "framework": "torchtitan", "tp": 4, "pp": 2, "global_batch": 16, "micro_batch": 1, "seq_len": 8192,
        "zero_stage": 3, "schedule": "interleaved", "virtual_stages": 2, "precision": "fp8-current",
        "recompute": "selective:ops", "compile": False,
    }  # fmt: skip
    assert {name: found.fields[name] for name in want} == want
    assert found.model == "llama-3.1-8b"
    assert found.unknown == ("weather.sunny",)


def test_megatron_script(tmp_path: Path) -> None:
    found = read_native(_write(tmp_path, "pretrain.sh", MEGATRON), 128)
    want = {
        "tp": 8, "pp": 8, "virtual_stages": 4, "sequence_parallel": True, "zero_stage": 1, "overlap_grad_reduce": False,
        "micro_batch": 1, "global_batch": 1536, "seq_len": 2048, "recompute": "selective:core_attention",
        "precision": "bf16", "gradient_dtype": "fp32", "overlap_tp": False, "overlap_p2p": True,
    }  # fmt: skip
    assert {name: found.fields[name] for name in want} == want
    assert found.unknown == ("--mystery-option 5",)
    launcher = "srun --container-image=nvcr.io/nvidia/pytorch:25.04-py3 --mpi=pmix --ntasks-per-node 8 --cpu-bind none"
    started = read_native(_write(tmp_path, "srun.sh", f"{launcher} {MEGATRON}"), 128)
    assert started.unknown == found.unknown
    assert isinstance(found.model, dict)
    assert (found.model["layers"], found.model["hidden"], found.model["vocab"]) == (96, 12288, 51200)


def test_deepspeed(tmp_path: Path) -> None:
    found = read_native(_write(tmp_path, "ds.json", json.dumps(DEEPSPEED)), 16)
    want = {"zero_stage": 3, "micro_batch": 2, "global_batch": 128, "offload_optimizer": 1.0, "precision": "bf16"}
    assert {name: found.fields[name] for name in want} == want
    assert found.unknown == (
        "zero_optimization.zero_quantized_weights",
        'train_batch_size ("auto": the script says)',
    )


def test_accelerate_with_a_strategy_of_an_odd_number(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: '²'}\n")
    assert read_native(file, 8).fields["zero_stage"] == 3  # as where none is given


def test_accelerate(tmp_path: Path) -> None:
    found = read_native(_write(tmp_path, "fsdp.yaml", ACCELERATE), 16)
    assert found.fields == {
        "precision": "bf16", "tp": 1, "cp": 1, "framework": "fsdp", "zero_stage": 2, "recompute": "full",
    }  # fmt: skip
    assert found.unknown == ("fsdp_config.fsdp_magic",)


def test_plans_are_told_from_frameworks_files(tmp_path: Path) -> None:
    assert not is_native(_write(tmp_path, "plan.yaml", "tp: 8\nglobal_batch: 8\n"))
    assert not is_native(_write(tmp_path, "plan.json", '{"tp": 8, "global_batch": 8}'))
    assert is_native(_write(tmp_path, "ds.json", json.dumps(DEEPSPEED)))
    assert is_native(_write(tmp_path, "acc.yaml", ACCELERATE))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "[training\n", "not TOML"),
        ("a.toml", "[training]\nlocal_batch_size = -1\n", "local_batch_size"),
        ("a.toml", "[parallelism]\ndata_parallel_shard_degree = 5\n", "data-parallel ranks"),
        ("a.sh", "echo hello\n", "holds no --options"),
        ("a.sh", "--bf16 'open", "quotes"),
        ("a.sh", "--tensor-model-parallel-size $((2*4))", "whole number"),
        ("a.args", "--seq-length", "needs a value"),
        (
            "a.json",
            '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}',
            "7",
        ),
        (
            "a.json",
            '{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": "x"}}}',
            "offload_optimizer.ratio",
        ),
        ("a.json", "[1, 2]", "mapping"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = _write(tmp_path, name, text)
    with pytest.raises((InputFileError, SpecError), match=words.replace("(", r"\(")):
        _read(path)


def test_a_job_and_its_model_from_one_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "pretrain.sh", MEGATRON)
    asked, notes = read_question(str(path), "a100-80gb:128", None, micro_batch=2)
    model = model_of(asked.model, 128)
    assert model.n_layers == 96
    assert 170e9 < model.parameters < 180e9
    assert (asked.plan.tp, asked.plan.micro_batch) == (8, 2)
    result, _ = answer_at_first(asked, notes)
    assert any("--mystery-option 5" in one for one in result.warnings)
    assert result.reproduce.startswith(f"windtunnel predict {path}")


def test_no_model_in_the_file_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path, "few.args", "--tensor-model-parallel-size 2 --global-batch-size 8 --seq-length 2048")
    with pytest.raises(SpecError, match="states none"):
        model_of(ModelPart(base=str(path)), 8)
    asked, _ = read_question("llama-3-8b", "h100-sxm:8", path)
    assert asked.plan.tp == 2


def test_what_has_no_option_stands_in_a_comment() -> None:
    plan = {"tp": 2, "global_batch": 8, "seq_len": 2048, "schedule": "zb-h1", "pp": 2, "attention_impl": "triton"}
    _, text, left = launch_flags("megatron", plan, 8, "m")
    assert left == ("schedule zb-h1", "attention_impl triton")
    assert text.splitlines()[-1] == "# no argument for: schedule zb-h1; attention_impl triton"


@pytest.mark.parametrize(
    ("fields", "wanted", "refused"),
    [
        ({"zero_stage": 3}, "--ckpt-format fsdp_dtensor", ""),
        ({"ep": 8}, "--moe-token-dispatcher-type flex", "backend"),
        ({"ep": 8, "release": "megatron-25.12"}, "--moe-token-dispatcher-type alltoall", "flex"),
        ({"ep": 8, "dispatcher": "deepep"}, "--moe-flex-dispatcher-backend deepep", "alltoall"),
        ({"ep": 8, "dispatcher": "ncclep"}, "--moe-flex-dispatcher-backend ncclep", "alltoall"),
        ({"ep": 8, "dispatcher": "alltoall"}, "--moe-token-dispatcher-type alltoall", "flex"),
        ({"ep": 8}, "--moe-grouped-gemm", "--moe-use-grouped-tensor"),
        ({"experts_impl": "grouped"}, "--moe-grouped-gemm --moe-use-grouped-tensor", ""),
        ({"ep": 8, "experts_impl": "sequential"}, "--expert-model-parallel-size 8", "--moe-grouped-gemm"),
        ({"offload_optimizer": 1.0}, "--use-precision-aware-optimizer", ""),
        ({"ep": 8, "overlap_ep": True}, "--overlap-moe-expert-parallel-comm", ""),
        ({"ep": 8, "overlap_ep": True, "pp": 2, "virtual_stages": 2}, "--overlap-moe-expert-parallel-comm", ""),
        ({"ep": 8, "overlap_ep": True, "pp": 2}, "overlap_ep", "--overlap-moe-expert-parallel-comm"),
        ({"ep": 8, "overlap_ep": True, "recompute": "full:2"}, "overlap_ep", "--overlap-moe-expert-parallel-comm"),
        ({"cuda_graphs": True, "recompute": "full"}, "cuda_graphs", "--cuda-graph-impl"),
        ({"optimizer": "muon"}, "--optimizer dist_muon", "--use-distributed-optimizer"),
        ({"optimizer": "muon", "zero_stage": 0}, "--optimizer muon", "--overlap-grad-reduce"),
        ({"optimizer": "muon", "overlap_grad_reduce": True}, "overlap_grad_reduce", "--overlap-grad-reduce"),
        ({"optimizer": "muon", "zero_stage": 3}, "zero_stage 3", "--use-megatron-fsdp"),
        ({"pp": 2, "virtual_stages": 2, "overlap_p2p": False}, "overlap_p2p off", "--no-overlap-p2p-communication"),
        ({"pp": 4, "virtual_stages": 2, "overlap_p2p": False}, "--no-overlap-p2p-communication", ""),
    ],
)
def test_megatron_gets_what_an_argument_needs_and_nothing_that_it_asserts_against(
    fields: dict[str, Any], wanted: str, refused: str
) -> None:
    _, text, left = launch_flags("megatron", {"global_batch": 64, "seq_len": 2048, **fields}, 64, "a model")
    assert wanted in (text if wanted.startswith("--") else " ".join(left))
    assert not refused or refused not in text


@pytest.mark.parametrize(
    ("words", "launched"),
    [
        ("--num-layers 2", None),
        ("--num-experts 8", "sequential"),
        ("--expert-model-parallel-size 8", "sequential"),
        ("--num-experts 8 --moe-grouped-gemm", "streams"),
        ("--num-experts 8 --moe-grouped-gemm --moe-use-grouped-tensor", "grouped"),
        ("--num-experts 8 --moe-grouped-gemm --use-transformer-engine-op-fuser", "grouped"),
        ("--num-experts 8 --use-transformer-engine-op-fuser", "sequential"),
    ],
)
def test_how_experts_are_launched_is_read(tmp_path: Path, words: str, launched: str | None) -> None:
    path = tmp_path / "pretrain.args"
    path.write_text(f"--global-batch-size 64 --seq-length 2048 {words}\n", encoding="utf-8")
    found = read_native(path, 8)
    assert found.fields.get("experts_impl") == launched
    assert found.unknown == ()


def test_each_backend_of_the_flexible_dispatcher_is_read(tmp_path: Path) -> None:
    for backend in ("deepep", "hybridep", "ncclep"):
        path = tmp_path / f"{backend}.args"
        flex = f"--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend}"
        path.write_text(f"--global-batch-size 64 --seq-length 2048 {flex}\n", encoding="utf-8")
        found = read_native(path, 8)
        assert found.fields["dispatcher"] == backend
        assert found.unknown == ()


def test_experts_gathered_instead_of_sent_are_not_passed_over(tmp_path: Path) -> None:
    for kind, unknown in (("alltoall", ()), ("allgather", ("--moe-token-dispatcher-type allgather",))):
        path = tmp_path / f"{kind}.args"
        path.write_text(
            f"--global-batch-size 64 --seq-length 2048 --moe-token-dispatcher-type {kind}\n", encoding="utf-8"
        )
        found = read_native(path, 8)
        assert found.unknown == unknown
        assert found.fields.get("dispatcher") == ("alltoall" if kind == "alltoall" else None)


@pytest.mark.parametrize(
    ("words", "graphs", "whole"),
    [
        ("--num-layers 2", False, False),
        ("--cuda-graph-impl local", True, False),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn", True, False),
        ("--num-experts 8 --cuda-graph-impl local --cuda-graph-scope attn moe_router", False, False),
        ("--num-experts 8 --cuda-graph-impl transformer_engine --cuda-graph-modules attn moe", True, False),
        ("--num-experts 8 --cuda-graph-impl local --cuda-graph-scope full_iteration", True, True),
        ("--cuda-graph-impl full_iteration", True, True),
    ],
)  # fmt: skip
def test_graphs_of_a_mixture_without_its_experts_are_none(
    tmp_path: Path, words: str, graphs: bool, whole: bool
) -> None:
    path = tmp_path / "pretrain.args"
    path.write_text(f"--global-batch-size 64 --seq-length 2048 {words}\n", encoding="utf-8")
    found = read_native(path, 8)
    assert (found.fields["cuda_graphs"], found.fields.get("full_graph", False)) == (graphs, whole)
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("fields", "wanted", "left"),
    [
        ({}, "zero_stage: 1", ()),
        ({"zero_stage": None, "micro_batch": None, "tp": None}, "batch_accumulation_per_replica: 8", ()),
        ({"pp": 2, "schedule": "gpipe"}, "pp_engine: afab", ()),
        ({"pp": 2, "schedule": "zb-h1"}, "no key for: schedule zb-h1", ("schedule zb-h1",)),
        ({"cp": 2}, "context_parallel_size: 2", ()),
        ({"ep": 8}, "expert_parallel_size: 8", ()),
        ({"recompute": "full:2"}, "recompute_layer: false", ("recompute full:2",)),
        ({"zero_stage": 3}, "zero_stage: 1", ("zero_stage 3",)),
        ({"precision": "fp8"}, "no key for: precision fp8", ("precision fp8",)),
    ],
)
def test_nanotron_says_what_it_has_no_key_for(fields: dict[str, Any], wanted: str, left: tuple[str, ...]) -> None:
    plan = {"framework": "nanotron", "global_batch": 64, "seq_len": 2048, **fields}
    _, text, found = launch_flags("nanotron", plan, 8, "a model")
    assert wanted in text
    assert found == left


LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256"
)


@pytest.mark.parametrize(
    ("was", "instead", "words"),
    [
        ("--num-layers 32", "--num-layers 40", "layers 40 in the file, 32 in the model"),
        ("--hidden-size 4096", "--hidden-size 5120", "hidden 5,120 in the file"),
        ("--ffn-hidden-size 14336", "--ffn-hidden-size 11008", "ffn 11,008 in the file"),
        ("--num-attention-heads 32", "--num-attention-heads 16", "heads 16 in the file"),
        ("--num-query-groups 8", "--num-query-groups 4", "kv_heads 4 in the file"),
        ("--group-query-attention --num-query-groups 8", "", "kv_heads 32 in the file, 8 in the model"),
        ("--swiglu", "", "gated no in the file, yes in the model"),
        ("--untie-embeddings-and-output-weights", "", "tied_embeddings yes in the file, no in the model"),
        ("--vocab-size 128256", "--vocab-size 32000", "vocab 32,000 in the file"),
        ("--swiglu", "--swiglu --num-experts 8", "experts 8 in the file, 0 in the model"),
        ("--swiglu", "--swiglu --qk-layernorm", "qk_norm yes in the file, no in the model"),
        ("--swiglu", "--swiglu --kv-channels 64", "head_dim 64 in the file, 128 in the model"),
        (LLAMA_8B, "--num-layers 40", "layers 40 in the file, 32 in the model"),  # all that it says of the model
    ],
)
def test_a_script_that_contradicts_the_model_in_one_field_is_one_error(
    tmp_path: Path, was: str, instead: str, words: str
) -> None:
    script = tmp_path / "train.sh"
    rest = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16\n"
    script.write_text(f"torchrun pretrain.py {LLAMA_8B} {rest}")
    asked("llama-3-8b", script)
    script.write_text(f"torchrun pretrain.py {LLAMA_8B.replace(was, instead)} {rest}")
    with pytest.raises(UserError, match=words):
        asked("llama-3-8b", script)


def test_a_flavour_that_the_catalogue_has_not_is_said(tmp_path: Path) -> None:
    toml = tmp_path / "train.toml"
    toml.write_text('[model]\nname = "llama3"\nflavor = "debugmodel"\n[training]\nseq_len = 4096\n')
    assert "model llama3 of flavor debugmodel" in read_native(toml, 8).unknown


def test_a_plan_file_of_another_model_is_one_error(tmp_path: Path) -> None:
    toml = tmp_path / "train.toml"
    toml.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n')
    script = tmp_path / "train.sh"
    script.write_text(
        f"torchrun pretrain.py {LLAMA_8B} --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16\n"
    )
    for path in (toml, script):
        asked("llama-3-8b", path)
        with pytest.raises(UserError, match="layers 32 in the file, 80 in the model; hidden 4,096 in the file, 8,192"):
            asked("llama-3-70b", path)


def asked(model: str, plan: Path) -> tuple[str, ...]:
    return read_question(model, "h100-sxm:64", plan)[1]


def read_question(model: str, cluster: str, plan: Path | None, **fields: Any) -> tuple[Predict, tuple[str, ...]]:
    """The question, and what was not understood in its files."""
    stated = plan_file(model, cluster, plan, {})
    data = {"question": "predict", "model": model, "cluster": cluster, "plan": {**stated.fields, **fields}}
    return read(data), stated.notes


@pytest.mark.parametrize("name", ["nowhere.sh", "nowhere.toml"])
def test_a_file_that_is_not_there_is_no_unknown_model(name: str, tmp_path: Path) -> None:
    for word in (str(tmp_path / name), name):
        with pytest.raises(InputFileError, match="no such file"):
            read_question(word, "h100-sxm:64", None, global_batch=8, seq_len=512)


def test_latent_attention_is_not_taken_for_another(tmp_path: Path) -> None:
    sizes = "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 --swiglu"
    experts = "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-layer-freq '([0]*3+[1]*58)'"
    latent = "--multi-latent-attention --kv-lora-rank 512 --q-lora-rank 1536 --v-head-dim 128"
    batch = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 512 --bf16 --vocab-size 129280"
    path = _write(tmp_path, "v3.sh", f"torchrun pretrain_gpt.py {sizes} {experts} {latent} {batch} --fp9-recipe x")
    with pytest.raises(SpecError, match="--multi-latent-attention is not read: name a model"):
        model_of(ModelPart(base=str(path)), 64)
    stated = plan_file("deepseek-v3", "h100-sxm:512", path, {})
    assert stated.notes == (f"{path}: not understood: --fp9-recipe x",)


def test_every_second_layer_of_torchtitan_is_recomputed(tmp_path: Path) -> None:
    model = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
    toml = f'{model}[activation_checkpoint]\nmode = "selective"\n'
    found = read_native(_write(tmp_path, "train.toml", toml), 8)
    assert found.fields["recompute"] == "full:16"  # of 32: selective_ac_option is "2" where it is not given
    assert found.unknown == ()


@pytest.mark.parametrize(("n_gpus", "named"), [(32, ()), (64, ("num_processes 32 (of a job on 64 GPUs)",))])
def test_accelerates_processes_are_the_gpus_or_are_named(n_gpus: int, named: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\nnum_processes: 32\n")
    assert read_native(path, n_gpus).unknown == named


@pytest.mark.parametrize("option", ["--tensor-model-parallel-size", "--context-parallel-size", "--micro-batch-size"])
def test_a_size_of_zero_is_one_error(tmp_path: Path, option: str) -> None:
    """It was a division by zero."""
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py --num-layers 2 {option} 0 --bf16\n")
    with pytest.raises(SpecError, match=f"{option} = 0: give a whole number of at least 1"):
        read_native(tmp_path / "run.sh", 8)


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ("Et*7|t*8|t*7L", (7, 8, 7)),
        ("Et*2|(t*2|)*3,t*3|tmL", (2, 2, 2, 2, 3, 1)),
        ("E|(tt|)*2mL", (0, 2, 2, 0)),
    ],
)
def test_layouts_of_pipelines(tmp_path: Path, layout: str, layers: tuple[int, ...]) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py --pipeline-model-parallel-layout '{layout}' --bf16\n")
    assert read_native(tmp_path / "run.sh", 8).fields["layers_per_stage"] == layers


@pytest.mark.parametrize("layout", ["Et*7|x", "((t)*2)*3", "(t)*999999", "t|" * 20_000])
def test_what_a_layout_may_hold_besides_is_named(tmp_path: Path, layout: str) -> None:
    (tmp_path / "run.sh").write_text(f"torchrun pretrain_gpt.py --pipeline-model-parallel-layout '{layout}' --bf16\n")
    job = read_native(tmp_path / "run.sh", 8)
    assert "layers_per_stage" not in job.fields
    assert any(word.startswith("--pipeline-model-parallel-layout") for word in job.unknown)
