"""Files of Hugging Face's Trainer: a change of the plan, patched in and read back, is the plan that was meant."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.questions import ask
from windtunnel.studies.diagnose import Diagnosis
from windtunnel.studies.training.launch import read_native
from windtunnel.studies.training.launch.patch import patch, read_again

GPUS = 8
CLUSTER = f"h100-sxm:{GPUS}"
SHARDED = {0: "", 2: "shard_grad_op auto_wrap", 3: "full_shard auto_wrap"}
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "micro_batch": st.sampled_from([1, 2, 4]),
        "recompute": st.sampled_from(["none", "full"]),
        "compile": st.booleans(),
        "zero_stage": st.sampled_from([0, 2, 3]),
    },
)


def factory(stage: int, recompute: bool, compiled: bool) -> str:
    """LLaMA-Factory's YAML, which recomputes unless that is disabled."""
    own = ["gradient_checkpointing: true"] if recompute and stage else []
    words = [
        "### model\nmodel_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\ncutoff_len: 4096  # tokens",
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 8\nbf16: true",
        *(["disable_gradient_checkpointing: true"] if not recompute else []),
        *own,
        *([f"fsdp: {SHARDED[stage]}"] if stage else []),
        *(["torch_compile: true"] if compiled else []),
    ]
    return "\n".join(words) + "\n"


def axolotl(stage: int, recompute: bool, compiled: bool) -> str:
    """axolotl's YAML, of FSDP 2."""
    inner = f"fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: {'true' if stage == 3 else 'false'}\n"
    inner += f"  activation_checkpointing: {'true' if recompute else 'false'}\n"
    text = "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 1\n"
    text += f"gradient_accumulation_steps: 8\nbf16: auto\ngradient_checkpointing: {'true' if recompute else 'false'}\n"
    return text + (inner if stage else "") + ("torch_compile: true\n" if compiled else "")


def line(stage: int, recompute: bool, compiled: bool) -> str:
    """A launch line, with a variable that is used once and one that holds other options."""
    words = ["BS=1", 'MORE="--report_to none"', "torchrun --nproc_per_node 8 train.py \\"]
    words += ["  --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size $BS \\"]
    words += ["  --gradient_accumulation_steps=8 $MORE \\", "  --block_size 4096 --bf16 \\"]
    words += [f'  --fsdp "{SHARDED[stage]}" \\'] if stage else []
    words += ["  --gradient_checkpointing \\"] if recompute else []
    words += ["  --torch_compile True \\"] if compiled else []
    return "\n".join([*words, "  --learning_rate 2e-5\n"])


def script(stage: int, recompute: bool, compiled: bool) -> str:
    """A script, with letters of several bytes ahead of the call."""
    more = f', fsdp="{SHARDED[stage]}"' if stage else ""
    more += ", gradient_checkpointing=True" if recompute else ""
    more += ", torch_compile=True" if compiled else ""
    return (
        'model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")\n'
        'tok = tokenizer(x, truncation=True, max_length=4096); note = "größer"; args = TrainingArguments(\n'
        f'    "out", per_device_train_batch_size=1, gradient_accumulation_steps=8, bf16=True{more},  # größer\n)\n'
    )


FORMS = {"sft.yaml": factory, "axolotl.yml": axolotl, "run.sh": line, "train.py": script}


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=60, deadline=None)
@given(stage=st.sampled_from([0, 2, 3]), recompute=st.booleans(), compiled=st.booleans(), change=CHANGES)
def test_a_change_is_read_back(name: str, stage: int, recompute: bool, compiled: bool, change: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        text = FORMS[name](stage, recompute, compiled)
        path.write_text(text)
        own = dict(read_native(path, GPUS).fields)
        after = {**own, **change}
        patched = patch(str(path), (own, GPUS), (after, GPUS), GPUS, "m")
        moved = {field for field, value in after.items() if own.get(field, False) != value}
        if not moved:
            assert patched == ""
            return
        if "zero_stage" in moved and (after["zero_stage"] == 0 or (stage == 0 and name == "axolotl.yml")):
            assert patched == ""  # the file would need more than one name
            return
        again = dict(read_again(str(path), patched, GPUS).fields)
        assert {field: again.get(field, False) for field in after} == after
        lines = text.splitlines()
        assert sum(one not in patched.splitlines() for one in lines) <= 2 * len(moved)


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("name", FORMS)
def test_advice_is_a_patch_that_predicts_what_was_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(FORMS[name](3, True, False))
    asked = {"question": "diagnose", "model": name, "cluster": CLUSTER, "measured": "9s"}
    answer = ask(asked)
    assert isinstance(answer, Diagnosis)
    written = [one for one in answer.advice if one.diff]
    assert {"recompute", "micro_batch"} <= {field for one in written for field in one.changes}
    for one in written:
        before = Path(name).read_text()
        subprocess.run(["patch", "-p1"], input=one.diff, text=True, check=True)
        predicted = ask({"question": "predict", "model": name, "cluster": CLUSTER})
        assert predicted.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)  # type: ignore[attr-defined]
        Path(name).write_text(before)
