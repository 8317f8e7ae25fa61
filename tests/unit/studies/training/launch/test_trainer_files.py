"""Hugging Face's Trainer as a plan: launch lines, YAML of LLaMA-Factory and axolotl, and the script itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import InputFileError, SpecError
from windtunnel.questions import ask
from windtunnel.studies.training.launch import is_native, read_native
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
