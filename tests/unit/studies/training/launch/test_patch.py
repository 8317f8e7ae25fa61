"""A change of a plan as an edit of the user's file: what is read back is the change, and no other line differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.studies.training.launch import read_native
from windtunnel.studies.training.launch.patch import diff, patch, read_again, words_of

SIZES = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --vocab-size 128256"
)
# Forms in which public repositories write Megatron-Core's arguments.
STRING = f"""#!/bin/bash
TP=4
PP=${{PP:-2}}
MBS=1   # one sequence
GPT_ARGS="
    --tensor-model-parallel-size ${{TP}} \\
    --pipeline-model-parallel-size ${{PP}} \\
    --sequence-parallel \\
    {SIZES} \\
    --seq-length 4096 \\
    --micro-batch-size ${{MBS}} \\
    --global-batch-size 128 \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --use-distributed-optimizer \\
    --bf16
"
torchrun pretrain_gpt.py $GPT_ARGS
"""
ARRAY = f"""MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 4
\t--pipeline-model-parallel-size 2
\t--sequence-parallel
\t--use-distributed-optimizer
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --seq-length 4096
    # --recompute-granularity full
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --bf16
)
torchrun pretrain_gpt.py ${{MODEL_PARALLEL_ARGS[@]}} ${{TRAINING_ARGS[@]}} {SIZES}
"""
ONE_LINE = (
    "torchrun pretrain_gpt.py --tensor_model_parallel_size=4 --pipeline-model-parallel-size=2 --sequence-parallel"
    f" {SIZES}"
    " --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --recompute-granularity full"
    " --recompute-method uniform --recompute-num-layers 1 --use-distributed-optimizer --bf16\n"
)
TITAN = """[job]
description = "Llama 3 8B training"

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 8192
steps = 100  # few

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4  # NVLink

[activation_checkpoint]
mode = "full"  # ["none", "selective", "full"]
"""
DEEPSPEED = """{
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "overlap_comm": false, "reduce_bucket_size": 2e8},
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 1
}
"""
ACCELERATE = """distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true # saves memory
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
mixed_precision: bf16
num_processes: 64
"""
MEGATRON_CHANGES: list[dict[str, Any]] = [
    {"recompute": "none"},
    {"recompute": "selective:core_attention"},
    {"recompute": "full:8"},
    {"tp": 2},
    {"tp": 1},
    {"pp": 1},
    {"pp": 4, "virtual_stages": 2},
    {"micro_batch": 2},
    {"zero_stage": 0},
    {"overlap_tp": True},
    {"overlap_grad_reduce": True, "overlap_param_gather": True},
    {"gradient_dtype": "bf16"},
]
CASES = [
    (name, text, change)
    for name, text in (("s.sh", STRING), ("a.sh", ARRAY), ("o.args", ONE_LINE))
    for change in MEGATRON_CHANGES
]
CASES += [
    ("t.toml", TITAN, change) for change in ({"recompute": "none"}, {"tp": 2}, {"compile": True}, {"micro_batch": 2})
]
CASES += [
    ("d.json", DEEPSPEED, change) for change in ({"overlap_grad_reduce": True}, {"zero_stage": 3}, {"micro_batch": 2})
]
CASES += [("c.yaml", ACCELERATE, change) for change in ({"recompute": "none"}, {"compile": True}, {"zero_stage": 2})]
BATCH = {"global_batch": 128, "seq_len": 4096}


def replicas(fields: dict[str, Any]) -> int:
    return 64 // (fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1))


@pytest.mark.parametrize(("name", "text", "change"), CASES, ids=[f"{name}-{'-'.join(c)}" for name, _, c in CASES])
def test_what_is_read_back_is_the_change(
    name: str, text: str, change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    own = dict(read_native(name, 64).fields)
    before = {**BATCH, **own}
    after = {**before, **change}
    patched = patch(name, (before, replicas(before)), (after, replicas(after)), 64, "m")
    assert patched
    again = dict(read_again(name, patched, 64).fields)
    for field, value in change.items():
        assert again.get(field, {"virtual_stages": 1}.get(field)) == value, diff(name, patched)
    follows = {
        "sequence_parallel",
        "overlap_tp",
        "overlap_p2p",
        "overlap_param_gather",
        "virtual_stages",
        "shard_group",
    }
    kept = {field for field in own if field not in change and field not in follows}
    assert {field: again.get(field) for field in kept} == {field: own[field] for field in kept}
    changed = sum(
        line.startswith(("-", "+")) and not line.startswith(("---", "+++")) for line in diff(name, patched).splitlines()
    )
    assert 0 < changed <= 10
    comments = [line for line in text.splitlines() if line.strip().startswith("#")]
    assert all(line in patched for line in comments)


def test_what_a_format_has_no_option_for_is_no_patch(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(TITAN)
    own = dict(read_native(path, 64).fields)
    after = {**own, "recompute": "selective:core_attention"}
    assert patch(str(path), (own, 16), (after, 16), 64, "m") == ""


def test_a_file_without_a_last_line_break_gives_a_patch_that_applies(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("a = 1\nb = 2")
    text = diff(str(path), "a = 1\nb = 3\n")
    assert text.endswith("-b = 2\n\\ No newline at end of file\n+b = 3\n")


def test_a_command_whose_last_line_goes_ends_with_the_line_before(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    first = "torchrun pretrain_gpt.py --seq-length 4096 --micro-batch-size 1 --global-batch-size 16"
    recompute = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    path.write_text(f"{first} \\\n  {recompute}\necho done\n")
    before = dict(read_native(path, 8).fields)
    patched = patch(str(path), (before, 8), ({**before, "recompute": "none"}, 8), 8, "m")
    assert patched == f"{first}\necho done\n"  # with the backslash `echo done` would be arguments of the training


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 1\n"),
        ("a.sh", "torchrun pretrain_gpt.py --seq-length 4096 --micro-batch-size 2\n"),
    ],
)
def test_a_batch_that_follows_as_before_is_not_said(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    before = {**dict(read_native(path, 8).fields), "global_batch": 16}
    after = {**before, "tp": 2, "micro_batch": 4}  # 4 replicas of 4 are 8 of 2
    assert "global" not in patch(str(path), (before, 8), (after, 4), 8, "m")


@pytest.mark.parametrize(
    ("name", "text", "changes", "said"),
    [
        (  # torchtitan's global batch follows from the ranks
            "a.toml", "[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 1\n",
            {"tp": 2}, "global_batch_size = 16",
        ),
        (  # DeepSpeed overlaps by itself with stage 3 only
            "a.json",
            '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}',
            {"zero_stage": 3}, '"overlap_comm": false',
        ),
        (  # Megatron-Core's global batch is the micro-batch on each rank
            "a.sh", "torchrun pretrain_gpt.py --seq-length 4096 --micro-batch-size 2\n", {"tp": 2},
            "--global-batch-size 16",
        ),
        (  # and its older option of recomputation wins over the newer
            "b.sh", "torchrun pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 --recompute-activations\n",
            {"recompute": "none"}, "--global-batch-size 16\n",
        ),
    ],
)  # fmt: skip
def test_what_follows_from_a_change_is_said(
    tmp_path: Path, name: str, text: str, changes: dict[str, Any], said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    fields = {"seq_len": 4096, **read_native(path, 8).fields}
    after = {**fields, **changes}
    patched = patch(str(path), (fields, 8), (after, 8 // after.get("tp", 1)), 8, "llama-3-8b")
    assert said in patched
    again = read_again(str(path), patched, 8).fields
    assert {one: again.get(one, value) for one, value in after.items()} == after


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("x \\\n --micro-batch-size 1 \\\n", "x \\\n --micro-batch-size 2 \\\n", "with --micro-batch-size 2"),
        ("x --tp 4 --recompute full --bf16\n", "x --tp 4 --bf16\n", "without --recompute full"),
        ("x --tp 4 --bf16\n", "x --tp 4 --recompute full --bf16\n", "with --recompute full"),
        ("mode = \"full\"  # none\n", "mode = \"none\"  # none\n", 'with mode="none"'),
        ('{"zero": {"stage": 3, "x": 1}}\n', '{"zero": {"stage": 2, "x": 1}}\n', 'with "stage": 2'),
        ("a: 1\nfsdp: full_shard auto_wrap\n", "a: 1\nfsdp: shard_grad_op auto_wrap\n", "with fsdp: shard_grad_op"),
        ("TP=4\n", "TP=2\n", "with TP=2"),
        ("f(a=1, b=False)\n", "f(a=1, b=True)\n", "with b=True"),
    ],
)  # fmt: skip
def test_a_change_is_said_in_words_of_the_file(before: str, after: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text(before)
    assert words_of(diff(str(path), after)) == said
