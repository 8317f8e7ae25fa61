"""YAML of Primus and GPT-NeoX: degrees, batch, formats and model as their trainers take them; what is left is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model, transformer
from windtunnel.studies.training.launch import is_native, read_native
from windtunnel.studies.training.launch.patch import patch
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.plan import read_plan

PRIMUS = """
work_group: ${{TEAM:amd}}
modules:
  pre_trainer:
    framework: {framework}
    config: pre_trainer.yaml
    model: ${{MODEL:{model}}}.yaml
    overrides:
      stderr_sink_level: DEBUG
{overrides}
"""
NEOX = """
# as GPT-NeoX writes it
{
  "pipe_parallel_size": 2,
  "model-parallel-size": 4,
  "num_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 2048,
  "norm": "rmsnorm", "activation": "swiglu", "intermediate_size": 4608, "mlp_multiple_of": 256,
  "no_weight_tying": true,
  "attention_config": [[["flash"], 4]],
  "zero_optimization": {"stage": 1, "overlap_comm": True, "cpu_offload": False},
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8,
  "checkpoint_activations": true, "checkpoint_num_layers": 1,
  "fp16": {"enabled": true, "type": "bfloat16", "loss_scale": 0},
  "train_iters": 10, "tokenizer_type": "HFTokenizer",
}
"""


def written(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def primus(folder: Path, framework: str, model: str, *lines: str, name: str = "job.yaml") -> Path:
    overrides = "\n".join(f"      {line}" for line in lines)
    return written(folder, PRIMUS.format(framework=framework, model=model, overrides=overrides), name)


def test_primus_is_megatrons_variables(tmp_path: Path) -> None:
    path = primus(
        tmp_path, "megatron", "qwen2.5_7B", "tensor_model_parallel_size: ${PRIMUS_TP:2}", "global_batch_size: 640",
        "pipeline_model_parallel_size: 4", "virtual_pipeline_model_parallel_size: 2", "seq_length: 4096", "fp8: hybrid",
        "recompute_granularity: full", "recompute_method: block", "recompute_num_layers: 3",
        "use_turbo_attention: true", "lr: 1.0e-5", "save: ${OUT:null}",
    )  # fmt: skip
    assert is_native(path)
    native = read_native(path, 64)
    fields = {
        name: native.fields[name] for name in ("tp", "pp", "virtual_stages", "global_batch", "seq_len", "micro_batch")
    }
    assert fields == {"tp": 2, "pp": 4, "virtual_stages": 2, "global_batch": 640, "seq_len": 4096, "micro_batch": 2}
    assert (native.fields["precision"], native.fields["zero_stage"], native.fields["recompute"]) == ("fp8", 1, "full:3")
    assert native.model == "qwen2.5-7b"
    assert native.unknown == ("--use-turbo-attention",)
    assert patch(str(path), ({"tp": 2}, 8), ({"tp": 4}, 4), 64, "qwen2.5-7b") == ""  # it is read alone


def test_gradients_of_primus_are_megatrons(tmp_path: Path) -> None:
    """Its file and its release say the same: fp32, as `grad_reduce_in_bf16` is false where a file says nothing."""
    native = read_native(primus(tmp_path, "megatron", "llama3.1_8B", "global_batch_size: 64"), 8)
    fields = {"framework": "megatron", "precision": "bf16", "global_batch": 64, "seq_len": 4096}
    plan = read_plan(fields | {"release": "primus-26.05"})
    layout = resolve(load_model("llama-3.1-8b"), parse_cluster("mi355x:8"), plan)
    assert (native.fields["gradient_dtype"], layout.plan.gradient_dtype) == ("fp32", "fp32")
    assert layout.deduplicates  # its mixtures' files use DeepEP


def test_primus_names_of_llama(tmp_path: Path) -> None:
    for name, own in (("llama3.1_8B", "llama-3.1-8b"), ("llama2_70B", "llama-2-70b"), ("llama3_8B", "llama-3-8b")):
        assert read_native(primus(tmp_path, "megatron", name, "global_batch_size: 8"), 8).model == own


def test_primus_reads_the_model_of_its_checkout(tmp_path: Path) -> None:
    models = "primus/configs/models/megatron"
    written(
        tmp_path, "swiglu: true\nuntie_embeddings_and_output_weights: true\nnum_layers: 24\n", f"{models}/base.yaml"
    )
    sizes = "hidden_size: 1024\nffn_hidden_size: 4096\nnum_attention_heads: 16\nadd_bias_linear: false\n"
    written(tmp_path, f"extends:\n  - base.yaml\n{sizes}", f"{models}/ours.yaml")
    native = read_native(primus(tmp_path, "megatron", "ours", "num_layers: 8", name="examples/a/job.yaml"), 8)
    assert isinstance(native.model, dict)
    assert (native.model["layers"], native.model["ffn"], native.model["gated"]) == (8, 4096, True)
    written(tmp_path, f"extends: base.yaml\n{sizes}", f"{models}/alone.yaml")  # one base, no list
    alone = read_native(primus(tmp_path, "megatron", "alone", name="examples/a/alone.yaml"), 8).model
    assert isinstance(alone, dict)
    assert alone["layers"] == 24
    written(tmp_path, f"extends: [ours.yaml]\nnum_experts: 4\nmoe_layer_freq: 2\n{sizes}", f"{models}/mixed.yaml")
    assert read_native(primus(tmp_path, "megatron", "mixed", name="examples/a/mixed.yaml"), 8).model is None


def test_primus_with_torchtitan_and_with_what_is_not_read(tmp_path: Path) -> None:
    lines = ("training:", "  local_batch_size: 4", "  seq_len: 8192", "parallelism:", "  tensor_parallel_degree: 2")
    native = read_native(primus(tmp_path, "torchtitan", "qwen3_4B", *lines), 16)
    assert (native.framework, native.model, native.fields["tp"]) == ("torchtitan", "qwen3-4b", 2)
    assert native.fields["micro_batch"] == 4
    with pytest.raises(InputFileError, match="is of Primus' maxtext, which is not read"):
        read_native(primus(tmp_path, "maxtext", "llama3_8B"), 16)
    with pytest.raises(InputFileError, match="which is not read"):
        read_native(primus(tmp_path, "../..", "llama3_8B"), 16)


def test_neox_is_deepspeed_with_degrees_and_a_model(tmp_path: Path) -> None:
    path = written(tmp_path, NEOX, "small.yml")
    assert is_native(path)
    native = read_native(path, 64)
    expected = {
        "tp": 4, "pp": 2, "zero_stage": 1, "micro_batch": 2, "global_batch": 2 * 8 * 8, "seq_len": 2048,
        "precision": "bf16", "recompute": "full",
    }  # fmt: skip
    assert {name: native.fields[name] for name in expected} == expected
    assert isinstance(native.model, dict)
    assert (native.model["ffn"], native.model["gated"], native.model["family"]) == (1536, True, "llama")
    assert native.unknown == ()


def test_neox_names_what_it_has_no_model_for(tmp_path: Path) -> None:
    mamba = read_native(written(tmp_path, NEOX.replace('"flash"', '"mamba"')), 64)
    assert mamba.model is None
    assert mamba.unknown == ("attention_config",)
    mixture = read_native(written(tmp_path, NEOX.replace('"train_iters"', '"moe_num_experts": 8, "train_iters"')), 64)
    assert mixture.model is None
    assert mixture.unknown == ("moe_num_experts",)
    bare = NEOX.replace('"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8,', "")
    assert set(read_native(written(tmp_path, bare), 64).fields) == {"framework", "tp", "pp", "cp", "seq_len"}


def test_neox_offloads_by_its_own_switch_and_names_what_it_keeps_apart(tmp_path: Path) -> None:
    plain = read_native(written(tmp_path, NEOX), 64)
    assert "offload_optimizer" not in plain.fields
    text = NEOX.replace('"cpu_offload": False', '"cpu_offload": True')
    native = read_native(
        written(tmp_path, text.replace('"train_iters"', '"partition_activations": true, "train_iters"')), 64
    )
    assert native.fields["offload_optimizer"] == 1.0
    assert native.unknown == ("partition_activations",)


def test_neox_with_attention_and_mlp_side_by_side_is_the_published_20b(tmp_path: Path) -> None:
    sizes = (
        '"num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "seq_length": 2048, "gpt_j_residual": true'
    )
    degrees = '"pipe-parallel-size": 4, "model-parallel-size": 2'
    text = f'{{{degrees}, {sizes}, "no-weight-tying": true, "padded_vocab_size": 50432}}'
    native = read_native(written(tmp_path, text), 96)
    assert isinstance(native.model, dict)
    model, published = transformer(**native.model), load_model("gpt-neox-20b")
    assert model.parameters == published.parameters
    assert model.layers[0].parallel_block
    assert native.unknown == ()
