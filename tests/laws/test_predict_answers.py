"""Laws of a predicted step: every plan has a sound answer, or is refused in one message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_jobs import FRAMEWORKS, jobs, model_of
from sound import assert_sound

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.catalogue import catalogue_names
from windtunnel.studies.training import predict
from windtunnel.studies.training.schedules import NAMES

law = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


def assert_one_message(error: UserError) -> None:
    """One line that says more than what is wrong."""
    text = str(error)
    assert "\n" not in text
    assert len(text.split()) > 5
    assert any(mark in text for mark in (";", ":")), text


@law
@given(jobs())
def test_every_legal_job_has_a_sound_answer(job):
    assert_sound(predict(job.model, job.cluster, job.plan))


small = st.sampled_from([1, 1, 1, 2, 3, 4, 8])
switch = st.sampled_from([None, None, True, False])
any_plans = st.fixed_dictionaries(
    {
        "global_batch": st.sampled_from([1, 8, 12, 16, 32, 64]),
        "seq_len": st.sampled_from([1, 100, 128, 1000, 2048, 8192]),
        "tp": small,
        "pp": small,
    },
    optional={
        "framework": st.sampled_from(FRAMEWORKS),
        "release": st.sampled_from(["mlperf-v3.0", "no such release"]),
        "cp": small,
        "ep": small,
        "etp": small,
        "dp": small,
        "virtual_stages": small,
        "layers_per_stage": st.lists(st.integers(-1, 4), max_size=4).map(tuple),
        "account_for_embedding": switch,
        "schedule": st.sampled_from([*NAMES, "2f2b"]),
        "sequence_parallel": switch,
        "cp_kind": st.sampled_from(["ring", "ulysses"]),
        "zero_stage": st.integers(0, 4),
        "shard_group": small,
        "micro_batch": small,
        "precision": st.sampled_from(["fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4"]),
        "fp8_parameters": switch,
        "gradient_dtype": st.sampled_from(["fp32", "bf16"]),
        "optimizer": st.sampled_from(["adam", "sgd", "muon"]),
        "optimizer_dtype": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(["none", "full", "full:2", "selective:mlp", "selective:ops", "selective:x", ""]),
        "offload_activations": st.integers(0, 5),
        "offload_optimizer": st.floats(0, 1.2),
        "attention_impl": st.sampled_from(["flash", "flash2", "triton", "unfused"]),
        "overlap_grad_reduce": switch,
        "overlap_param_gather": switch,
        "overlap_tp": switch,
        "overlap_p2p": switch,
        "overlap_ep": switch,
        "dispatcher": st.sampled_from(["deepep", "hybridep", "ncclep"]),
        "cuda_graphs": switch,
        "compile": switch,
    },
)  # fmt: skip


@settings(law, max_examples=800)
@given(
    any_plans,
    st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2", "llama-4-scout", "bloom-176b"]),
    st.integers(1, 5),
    st.sampled_from(["h100-sxm", "a100-40gb-sxm", "gb200", "mi300x", "l40s", "tpu-v5p", "gaudi2"]),
    st.sampled_from([1, 2, 4, 8, 16, 64]),
)  # fmt: skip
def test_any_plan_is_answered_or_refused_in_one_message(plan, name, layers, gpu, n):
    try:
        cluster = parse_cluster(f"{gpu}:{n}")
        result = predict(load_model(name).with_changes(layers=layers), cluster, plan)
    except UserError as error:
        assert_one_message(error)
    else:
        assert_sound(result)


@pytest.mark.parametrize("name", catalogue_names())
def test_every_model_of_the_catalogue_has_a_sound_answer(name):
    model = load_model(name)
    heads = min(layer.attention.heads for layer in model.layers)
    shared = {layer.attention.kv_heads for layer in model.layers if layer.attention.kv_heads}
    tp = max(n for n in (1, 2, 4, 8) if heads % n == 0 and all(kv % n == 0 or n % kv == 0 for kv in shared))
    moe = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": 4,
        "global_batch": 64,
        "seq_len": min(2048, model.max_sequence_length),
    }
    if moe:
        plan |= {"ep": 8, "etp": 1}
    result = predict(name, f"h100-sxm:{plan['tp'] * 4 * 8}", plan)
    assert_sound(result)
    assert sum(stage.layers for stage in result.stages) == model.n_layers


EVERY = [
    *({"framework": name} for name in FRAMEWORKS),
    *({"schedule": name, "virtual_stages": 2 if name == "interleaved" else 1} for name in NAMES),
    *({"precision": name} for name in ("fp32", "bf16", "fp16", "fp8", "fp8-current", "mxfp8", "nvfp4")),
    *({"recompute": kind} for kind in ("none", "full", "full:1")),
    *({"recompute": f"selective:{part}"} for part in
      ("attention", "core_attention", "mlp", "norms", "activation", "moe_activation", "ops", "mlp,norms,activation")),
    *({"zero_stage": stage, "framework": name} for stage in range(4) for name in FRAMEWORKS),
    *({"zero_stage": stage, "shard_group": 2} for stage in (1, 2, 3)),
    *({"attention_impl": kind} for kind in ("flash", "flash2", "triton", "unfused")),
    *({"optimizer": kind, "optimizer_dtype": "bf16"} for kind in ("adam", "sgd", "muon")),
    *({"cp": 2, "cp_kind": kind} for kind in ("ring", "ulysses")),
    {"offload_activations": 2, "offload_optimizer": 0.5},
    {"fp8_parameters": True, "precision": "fp8"},
    {"ep": 2}, {"ep": 2, "etp": 1}, {"ep": 4, "overlap_ep": True, "etp": 1}, {"etp": 1},
    {"layers_per_stage": (5, 3)}, {"layers_per_stage": (0, 8)}, {"account_for_embedding": True},
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "experts"),
    [(changes, experts) for changes in EVERY for experts in (0, 8) if experts or not {"ep", "etp"} & set(changes)],
    ids=str,
)
def test_every_option_has_a_sound_answer(changes, experts):
    plan = {"tp": 2, "pp": 2, "global_batch": 32, "seq_len": 512} | changes
    result = predict(model_of(layers=8, experts=experts), "gb200:16", plan)
    assert_sound(result)
    for name, value in changes.items():
        spec = result.spec["plan"][name]
        assert (tuple(spec) if isinstance(spec, list) else spec) == value
