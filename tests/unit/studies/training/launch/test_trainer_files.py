"""Hugging Face's Trainer as a plan: launch lines, YAML of LLaMA-Factory and axolotl, and the script itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.questions import ask
from windtunnel.studies.training.launch import is_native, read_native
from windtunnel.studies.training.launch.patch import patch, read_again
from windtunnel.studies.training.question import plan_file

LINE = """torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B-Instruct --bf16 True \\
  --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --gradient_checkpointing True \\
  --deepspeed ds.json --model_max_length 2048 --learning_rate 2e-5 --report_to none --frobnicate 3
"""
FACTORY = """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
quantization_bit: 4
dataset: identity,alpaca_en_demo
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
"""
AXOLOTL = """base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096
adapter: lora
lora_r: 32
lora_target_modules: [q_proj, v_proj]
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
"""
SCRIPT = """from transformers import AutoModelForCausalLM, TrainingArguments
name = "meta-llama/Llama-3.1-8B"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16)
def tok(x):
    return tokenizer(x["text"], truncation=True, max_length=2048)
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=8, bf16=True,
    gradient_checkpointing=True, fsdp="full_shard auto_wrap", learning_rate=float(open("/etc/hostname").read()),
)
"""
CASES: list[tuple[str, str, str | None, dict[str, Any]]] = [
    ("run.sh", LINE, "llama-3.1-8b", {
        "framework": "deepspeed", "zero_stage": 3, "micro_batch": 4, "global_batch": 256, "seq_len": 2048,
        "precision": "bf16", "recompute": "full",
    }),
    ("sft.yaml", FACTORY, "llama-3-8b", {
        "framework": "fsdp", "zero_stage": 0, "micro_batch": 1, "global_batch": 64, "seq_len": 2048, "lora_rank": 8,
        "frozen_dtype": "nf4", "precision": "bf16", "recompute": "full",
    }),
    ("axolotl.yml", AXOLOTL, "llama-3-8b", {
        "micro_batch": 2, "global_batch": 64, "seq_len": 4096, "lora_rank": 32, "lora_targets": "q,v",
        "optimizer_dtype": "int8", "precision": "bf16", "recompute": "full",
    }),
    ("replicas.py", SCRIPT.replace('fsdp="full_shard auto_wrap", ', ""), "llama-3.1-8b", {
        "framework": "pytorch", "micro_batch": 4, "global_batch": 256, "seq_len": 2048, "precision": "bf16",
    }),
    ("finetune.py", SCRIPT, "llama-3.1-8b", {
        "framework": "fsdp", "zero_stage": 3, "micro_batch": 4, "global_batch": 256, "seq_len": 2048,
        "precision": "bf16", "recompute": "full",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "model", "fields"), CASES, ids=[one[0] for one in CASES])
def test_what_a_file_states_is_the_plan(
    name: str, text: str, model: str | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    (tmp_path / "ds.json").write_text('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}')
    assert is_native(path)
    native = read_native(path, 8)
    assert native.model == model
    assert {key: native.fields.get(key) for key in fields} == fields
    assert native.unknown == (("--frobnicate 3".removeprefix("--"),) if name == "run.sh" else ())
    found = plan_file(str(path), "h100-sxm:8", None, {})
    assert found.fields == native.fields
    answer = ask({"question": "predict", "model": str(path), "cluster": "h100-sxm:8", "plan": dict(found.fields)})
    assert answer.tokens_per_step == fields["global_batch"] * fields["seq_len"]


def test_a_file_that_deepspeed_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(LINE)
    native = read_native(path, 8)
    assert native.fields["zero_stage"] == 0
    assert any("ds.json (no such file" in one for one in native.unknown)
    for name, stage, offloaded in (
        ("deepspeed_configs/zero3_bf16.json", 3, None),  # of axolotl
        ("examples/deepspeed/ds_z2_offload_config.json", 2, 1.0),  # of LLaMA-Factory
        ("zero_stage1.json", 1, None),
        ("stage-2.json", 2, None),
        ("/home/franz2/no_offload/quiz1.json", 0, None),  # folders say nothing, nor does a letter within a word
    ):
        path.write_text(LINE.replace("ds.json", name))
        native = read_native(path, 8)
        assert (native.fields["zero_stage"], native.fields.get("offload_optimizer")) == (stage, offloaded)
        assert any("(no such file beside it: " in one and f"ZeRO {stage}" in one for one in native.unknown)


def test_the_file_of_accelerate_launch_says_how_a_job_is_sharded(tmp_path: Path) -> None:
    run = tmp_path / "run.sh"
    line = LINE.replace("--deepspeed ds.json ", "").replace("torchrun --nproc_per_node 8", "accelerate launch {}")
    run.write_text(line.format("--config_file zero2.yaml"))
    found = read_native(run, 8)
    assert (found.fields["framework"], found.fields["zero_stage"]) == ("deepspeed", 2)
    assert "config_file zero2.yaml (no such file beside it: taken for deepspeed, ZeRO 2)" in found.unknown
    run.write_text(line.format(f"--config_file {'n' * 300}"))  # no file system has such a name
    assert any("no such file beside it: taken for plain replicas" in text for text in read_native(run, 8).unknown)
    run.write_text(line.format("--config_file zero2.yaml"))
    (tmp_path / "zero2.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: 'no'\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
    )
    found = read_native(run, 8)
    assert [found.fields[name] for name in ("framework", "zero_stage", "precision", "recompute")] == [
        "fsdp", 3, "bf16", "full",
    ]  # fmt: skip
    assert not any("config_file" in word for word in found.unknown)
    run.write_text(line.format("--config_file multi_gpu.yaml"))
    assert read_native(run, 8).fields["zero_stage"] == 0
    run.write_text(line.format("--use_fsdp --num_processes 8"))
    assert read_native(run, 8).fields["zero_stage"] == 3


def test_a_file_that_is_named_is_not_sought_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "job" / "scripts"
    inner.mkdir(parents=True)
    for place in (tmp_path, tmp_path / "job"):
        (place / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    path = inner / "run.sh"
    stages = {}
    for name in ("ds.json", "../../ds.json", str(tmp_path / "ds.json")):
        path.write_text(LINE.replace("ds.json", name))
        monkeypatch.chdir(tmp_path / "job")
        stages[name] = read_native(path, 8).fields["zero_stage"]
        monkeypatch.chdir(inner)
        assert read_native(path, 8).fields["zero_stage"] == 0
    assert list(stages.values()) == [3, 0, 0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.py", "import torch\nprint(1)\n", "capture"),
        ("train.py", "def broken(:\n", "is no Python"),
        ("run.sh", LINE.replace("train_batch_size 4", "train_batch_size 0"), "whole number"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(name: str, text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises((InputFileError, SpecError), match=says):
        read_native(path, 8)


def test_deepspeeds_auto_leaves_the_format_open(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    for text, precision in (('"auto"', None), ("true", "bf16"), ("false", "fp32")):
        path.write_text(f'{{"bf16": {{"enabled": {text}}}, "zero_optimization": {{"stage": 2}}}}')
        assert read_native(path, 8).fields.get("precision") == precision


FACTORY_V1 = """model: Qwen/Qwen3-4B
model_class: llm
flash_attn: flash_attention_2
peft_config: {name: lora, r: 16, lora_alpha: 32, target_modules: all}
dist_config: {name: fsdp2}
quant_config: {name: bnb, quantization_bit: 4}
train_dataset: data/v1_sft_demo.yaml
micro_batch_size: 2
cutoff_len: 2048
learning_rate: 1.0e-4
"""
TUNE = """output_dir: /tmp/out
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 8192}
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}
optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 2
gradient_accumulation_steps: 4
compile: true
dtype: bf16
enable_activation_checkpointing: true
optimizer_in_bwd: true
"""
FOUNDRY = """variables: {max_seq_len: 2048}
max_seq_len: ${variables.max_seq_len}
model: {name: mpt_causal_lm, d_model: 4096, n_heads: 32, n_layers: 32, expansion_ratio: 4, vocab_size: 50368,
  attn_config: {attn_impl: triton}}
optimizer: {name: decoupled_adamw}
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}
"""
SWIFT = """CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-7B-Instruct --dataset alpaca --deepspeed zero2 \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --max_length 2048 --attn_impl flash_attn
"""
MEGATRON_SWIFT = """megatron sft --model Qwen/Qwen3-32B --tensor_model_parallel_size 8 --packing true \\
  --sequence_parallel true --micro_batch_size 1 --global_batch_size 16 --max_length 8192
"""
XTUNER = """import torch
from torch.optim import AdamW
pretrained_model_name_or_path = 'meta-llama/Llama-2-7b-hf'
max_length = 2048
sequence_parallel_size = 2
batch_size = 1  # per_device
accumulative_counts = 16
accumulative_counts *= sequence_parallel_size
max_epochs = 3
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True, load_in_8bit=False)),
    lora=dict(type=LoraConfig, r=64, lora_alpha=16))
optim_wrapper = dict(type=AmpOptimWrapper, accumulative_counts=accumulative_counts, dtype='float16')
"""
OTHERS: list[tuple[str, str, object, dict[str, Any], tuple[str, ...]]] = [
    ("v1.yaml", FACTORY_V1, "qwen3-4b", {
        "framework": "fsdp", "zero_stage": 3, "micro_batch": 2, "global_batch": 128, "seq_len": 2048, "lora_rank": 16,
        "frozen_dtype": "nf4", "attention_impl": "flash2", "recompute": "full", "precision": "bf16",
    }, ()),
    ("tune.yaml", TUNE, "llama-3.1-8b", {
        "framework": "fsdp", "zero_stage": 3, "micro_batch": 2, "global_batch": 512, "seq_len": 8192,
        "recompute": "full", "compile": True, "loss": "fused", "optimizer": "adam", "optimizer_dtype": "int8",
        "master_dtype": "bf16",
    }, ("optimizer_in_bwd",)),
    ("foundry.yaml", FOUNDRY, {
        "layers": 32, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 50368, "gated": False, "family": "gpt",
        "tied_embeddings": True,
    }, {
        "framework": "fsdp", "zero_stage": 3, "micro_batch": 8, "global_batch": 1024, "seq_len": 2048,
        "recompute": "full", "precision": "bf16", "attention_impl": "triton",
    }, ()),
    ("swift.sh", SWIFT, "qwen2.5-7b", {
        "framework": "deepspeed", "zero_stage": 2, "micro_batch": 1, "global_batch": 1024, "seq_len": 2048,
        "lora_rank": 8, "recompute": "full", "precision": "bf16", "attention_impl": "flash2",
    }, ()),
    ("megatron_swift.sh", MEGATRON_SWIFT, "qwen3-32b", {
        "framework": "megatron", "tp": 8, "zero_stage": 1, "global_batch": 16, "seq_len": 8192,
        "sequence_parallel": True, "recompute": "selective:core_attention", "precision": "bf16",
    }, ("--packing",)),
    ("xtuner.py", XTUNER, "llama-2-7b", {
        "framework": "fsdp", "zero_stage": 0, "micro_batch": 1, "cp": 2, "cp_kind": "ulysses", "global_batch": 1024,
        "seq_len": 2048, "lora_rank": 64, "frozen_dtype": "nf4", "recompute": "full", "precision": "fp16",
    }, ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "model", "fields", "unknown"), OTHERS, ids=[one[0] for one in OTHERS])
def test_other_trainers(
    tmp_path: Path, name: str, text: str, model: object, fields: dict[str, Any], unknown: tuple[str, ...]
) -> None:
    """What their files say by other names, and mean where they say nothing, is read; the rest is named."""
    path = tmp_path / name
    path.write_text(text)
    assert is_native(path)
    native = read_native(path, 64)
    assert native.model == model
    assert {field: native.fields[field] for field in fields} == fields
    assert {option.split()[0] for option in native.unknown} == set(unknown)


@pytest.mark.parametrize(
    ("asked", "launched", "unknown"),
    [
        ("eager", "sequential", ()),
        ("grouped_mm", "grouped", ()),
        ("batched_mm", None, ("experts_implementation batched_mm",)),
    ],
)
def test_how_transformers_launches_experts_is_read(
    asked: str, launched: str | None, unknown: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("torch_dtype=", f'experts_implementation="{asked}", torch_dtype='))
    found = read_native(path, 8)
    assert (found.fields.get("experts_impl"), found.unknown) == (launched, unknown)


def test_a_script_of_no_framework_is_refused(tmp_path: Path) -> None:
    """It was taken for Megatron-Core's with a plan of defaults in fp32."""
    path = tmp_path / "train.sh"
    path.write_text("python3 -m maxtext.train base.yml model_name=llama3.1-405b --xla-tpu-enable-all true --bf16\n")
    with pytest.raises(InputFileError, match="states no argument of Megatron-Core"):
        read_native(path, 64)


def test_a_patch_says_the_file_s_own_names(tmp_path: Path) -> None:
    """Of torchtune `enable_activation_checkpointing`, not the Trainer's name for it; what has no name is no patch."""
    path = tmp_path / "tune.yaml"
    path.write_text(TUNE)
    fields = read_native(path, 64).fields
    text = patch(str(path), (fields, 64), ({**fields, "recompute": "none", "micro_batch": 4}, 64), 64, "")
    assert "enable_activation_checkpointing: false\n" in text
    assert "batch_size: 4\ngradient_accumulation_steps: 2\n" in text
    again = read_again(str(path), text, 64).fields
    assert (again["recompute"], again["micro_batch"], again["global_batch"]) == ("none", 4, 512)
    assert patch(str(path), (fields, 64), ({**fields, "tp": 2}, 32), 64, "") == ""


def test_steps_are_multiplied_where_the_configuration_says_so(tmp_path: Path) -> None:
    """xtuner itself does not: without the line half of the GPUs' sequences would be counted twice."""
    path = tmp_path / "xtuner.py"
    path.write_text(XTUNER.replace("accumulative_counts *= sequence_parallel_size\n", ""))
    plain = read_native(path, 64).fields
    path.write_text(XTUNER)
    assert read_native(path, 64).fields == {**plain, "global_batch": 1024}
    assert plain["global_batch"] == 64 // plain["cp"] * 16


def test_a_patch_of_a_configuration_changes_its_constants(tmp_path: Path) -> None:
    path = tmp_path / "xtuner.py"
    path.write_text(XTUNER.replace("sequence_parallel_size = 2", "sequence_parallel_size = 1"))
    fields = read_native(path, 64).fields
    text = patch(str(path), (fields, 64), ({**fields, "micro_batch": 4}, 64), 64, "")
    assert "batch_size = 4  # per_device\naccumulative_counts = 4\n" in text
    assert read_again(str(path), text, 64).fields == {**fields, "micro_batch": 4}
    assert patch(str(path), (fields, 64), ({**fields, "recompute": "none"}, 64), 64, "") == ""


def test_a_script_that_mentions_a_word_of_xtuner_is_patched_as_a_script(tmp_path: Path) -> None:
    """Its keywords were sought as constants, and "have no place in this script"."""
    path = tmp_path / "train.py"
    path.write_text("# as accumulative_counts of xtuner\n" + SCRIPT)
    fields = read_native(path, 64).fields
    text = patch(str(path), (fields, 64), ({**fields, "micro_batch": 2}, 64), 64, "")
    assert "per_device_train_batch_size=2, gradient_accumulation_steps=16" in text


def test_swift_s_megatron_recomputes_unless_it_is_told_not_to(tmp_path: Path) -> None:
    """Without the option it recomputes selectively: leaving it out is no way to recompute nothing."""
    path = tmp_path / "swift.sh"
    path.write_text(MEGATRON_SWIFT.replace("--packing", "--recompute_granularity full --packing"))
    fields = read_native(path, 64).fields
    text = patch(str(path), (fields, 8), ({**fields, "recompute": "none"}, 8), 64, "")
    assert "--recompute_granularity none" in text
    assert read_again(str(path), text, 64).fields["recompute"] == "none"


@pytest.mark.parametrize(("option", "named"), [("--packing true", True), ("--packing false", False), ("", False)])
def test_packed_documents_are_named_where_their_lengths_are_not_stated(
    option: str, named: bool, tmp_path: Path
) -> None:
    """Attention stays inside documents: Qwen2.5-7B at 32,768 tokens was 23 % too slow, and nothing said why."""
    path = tmp_path / "swift.sh"
    path.write_text(f"{SWIFT.rstrip()} {option}\n")
    assert any("--lengths" in option for option in read_native(path, 64).unknown) == named


def test_a_hash_inside_a_word_begins_no_comment(tmp_path: Path) -> None:
    """All options behind `data.jsonl#1000` were lost, and defaults read in their place."""
    path = tmp_path / "swift.sh"
    path.write_text(SWIFT.replace("alpaca", "alpaca.jsonl#1000").rstrip() + " # --max_length 9\n")
    fields = read_native(path, 64).fields
    assert (fields["micro_batch"], fields["global_batch"], fields["seq_len"]) == (1, 1024, 2048)


@pytest.mark.parametrize("line", ["export X=1;# it's so", "(cd x)# it's so", "sleep 1 &# it's so", "true |# it's so"])
def test_a_hash_behind_an_operator_begins_a_comment(tmp_path: Path, line: str) -> None:
    """Bash begins a word there; its apostrophe was "No closing quotation"."""
    path = tmp_path / "swift.sh"
    path.write_text(SWIFT)
    plain = read_native(path, 64).fields
    path.write_text(f"{line}\n{SWIFT}")
    assert read_native(path, 64).fields == plain


def test_a_script_says_how_the_allocator_is_set_up(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    for before, said in (
        ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n", {"expandable_segments": True}),
        ('PYTORCH_ALLOC_CONF="max_split_size_mb:64,expandable_segments:False" ', {"expandable_segments": False}),
        ('PYTORCH_ALLOC_CONF="max_split_size_mb:64, expandable_segments:True" ', {"expandable_segments": True}),
        ("# PYTORCH_ALLOC_CONF=expandable_segments:True\n", {}),
        ("", {}),
    ):
        path.write_text(before + LINE.replace("--deepspeed ds.json ", ""))
        fields = read_native(path, 8).fields
        assert {name: value for name, value in fields.items() if name == "expandable_segments"} == said
    script = tmp_path / "train.py"
    batch = "TrainingArguments(output_dir='o', per_device_train_batch_size=2, bf16=True)"
    script.write_text(f'import os\nos.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"\nargs = {batch}\n')
    assert read_native(script, 8).fields["expandable_segments"] is True
