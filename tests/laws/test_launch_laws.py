"""Launch files of frameworks: a plan written, read and written again is the same, and nothing is dropped silently."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training.launch import FORMATS, launch_flags, read_native
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.plan import FIELDS, read_plan

DENSE, MIXTURE = load_model("llama-3-8b"), load_model("mixtral-8x7b")
CLUSTER = parse_cluster("b200:64")
OWN = {"megatron": "megatron", "torchtitan": "torchtitan", "deepspeed": "deepspeed", "accelerate": "fsdp"}
# The script states these, not the file.
OPEN = {"deepspeed": ("seq_len",), "accelerate": ("seq_len", "global_batch", "micro_batch")}
SILENT = {"release", "lora_targets", "etp", "dp", "account_for_embedding", "offload_optimizer", "framework"}
DEGREE = st.sampled_from([1, 2, 4])
SWITCH = st.none() | st.booleans()

PLANS = st.fixed_dictionaries(
    {
        "tp": DEGREE, "pp": DEGREE, "cp": DEGREE, "ep": DEGREE, "cp_kind": st.sampled_from(["ring", "ulysses"]),
        "virtual_stages": st.sampled_from([1, 1, 2, 4]), "micro_batch": DEGREE, "global_batch": st.just(256),
        "seq_len": st.sampled_from([2048, 4096]), "zero_stage": st.none() | st.integers(0, 3),
        "shard_group": st.none() | st.sampled_from([2, 4, 8, 16]), "sequence_parallel": SWITCH,
        "schedule": st.sampled_from([None, None, "gpipe", "zb-h1", "zb-v"]),
        "precision": st.sampled_from(["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4"]),
        "fp8_parameters": SWITCH, "gradient_dtype": st.sampled_from([None, "fp32", "bf16"]),
        "optimizer": st.sampled_from(["adam", "sgd", "muon"]), "optimizer_dtype": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(
            ["none", "full", "full:2", "selective:ops", "selective:core_attention", "selective:mlp,norms"]
        ),
        "offload_optimizer": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        "bucket_parameters": st.none() | st.just(20_000_000),
        "overlap_grad_reduce": SWITCH, "overlap_param_gather": SWITCH, "overlap_tp": SWITCH, "overlap_p2p": SWITCH,
        "overlap_ep": SWITCH, "dispatcher": st.sampled_from([None, "deepep", "hybridep", "ncclep"]),
        "experts_impl": st.sampled_from([None, "grouped", "streams", "sequential"]),
        "cuda_graphs": SWITCH, "compile": SWITCH,
        "attention_impl": st.sampled_from(["flash", "unfused", "flash2"]),
    }
)  # fmt: skip


def _resolved(fields: dict[str, Any], mixture: bool) -> dict[str, Any]:
    layout = resolve(MIXTURE if mixture else DENSE, CLUSTER, read_plan(fields))
    asked = {"etp": layout.user_plan.etp, "schedule": layout.schedule, "dp": layout.dp}
    asked |= {"experts_impl": layout.experts_impl if mixture else None}
    return {**layout.plan.to_dict(), **asked}


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(fields=PLANS, mixture=st.booleans(), foreign=st.booleans())
def test_written_read_and_written_again_is_the_same(
    kind: str, fields: dict[str, Any], mixture: bool, foreign: bool
) -> None:
    framework = "megatron" if foreign else OWN[kind]
    fields = {**fields, **_without(kind), "framework": framework}
    if fields["pp"] == 1 or fields["schedule"]:
        fields |= {"virtual_stages": 1, "schedule": fields["schedule"] if fields["pp"] > 1 else None}
    if not mixture:
        fields["ep"] = 1
    try:
        plan = _resolved(fields, mixture)
    except UserError:
        assume(False)
    name, text, left = launch_flags(kind, plan, CLUSTER.n_gpus, "a model")
    dropped = {word.split()[0] for word in left}
    dropped |= {"shard_group"} if "zero_stage" in dropped else set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8")
        native = read_native(path, CLUSTER.n_gpus)
    assert native.unknown == ()
    assert set(native.fields) <= set(FIELDS)
    stated = {**{field: plan[field] for field in OPEN.get(kind, ())}, **native.fields}
    _, again, _ = launch_flags(kind, stated, CLUSTER.n_gpus, "a model")
    assert _bare(again) == _bare(text)
    for field, value in native.fields.items():
        if field not in dropped | SILENT and not (field == "cp_kind" and plan["cp"] == 1):
            assert value == plan[field], field


def _without(kind: str) -> dict[str, Any]:
    """Degrees that a format has no option for: no job of it has them."""
    return {"accelerate": {"pp": 1, "ep": 1}, "deepspeed": {"ep": 1}}.get(kind, {})


def _bare(text: str) -> list[str]:
    """Without comments: what has no option stands in one."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]
