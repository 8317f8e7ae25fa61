"""Objectives: what a step does beside training, and adapters by module."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel import predict
from windtunnel.errors import SpecError
from windtunnel.physics.step.result import Result

LLAMA = {"global_batch": 32, "micro_batch": 1, "seq_len": 4096}


def step(**fields: Any) -> Result:
    return predict("llama-3.2-1b", "h100-sxm:8", {"framework": "fsdp", **LLAMA, **fields})


@pytest.mark.parametrize("layout", [{}, {"framework": "megatron", "tp": 2, "pp": 2, "recompute": "full"}])
def test_log_probs_come_before_a_step(layout: dict[str, Any]) -> None:
    train, dpo, grpo, forward = (step(task=one, **layout) for one in ("train", "dpo", "grpo", "forward"))
    for more, passes in ((dpo, 1), (grpo, 2)):
        assert more.step_time_ns == pytest.approx(train.step_time_ns + passes * forward.step_time_ns, rel=1e-3)
        assert more.mfu * more.step_time_ns == pytest.approx(
            train.mfu * train.step_time_ns + passes * forward.mfu * forward.step_time_ns
        )
        assert any("before the step" in warning for warning in more.warnings)
    for one in (train, dpo, grpo, forward):
        assert sum(one.breakdown_ns.values()) == one.step_time_ns
        assert min(one.breakdown_ns.values()) >= 0
    assert forward.step_time_ns < train.step_time_ns / 2
    assert "optimizer" not in forward.breakdown_ns


def test_a_reference_is_a_second_copy_and_a_forward_pass_keeps_no_state() -> None:
    train, dpo, forward = (step(task=one).peak_memory for one in ("train", "dpo", "forward"))
    parameters = train.categories["parameters"] // 4  # fp32 shards; the reference has 16 bits
    assert dpo.categories["parameters"] - train.categories["parameters"] == pytest.approx(2 * parameters, abs=8)
    assert (forward.categories["gradients"], forward.categories["optimizer"], forward.categories["activations"]) == (
        0,
        0,
        0,
    )
    assert forward.device_bytes < train.device_bytes
    adapted = [step(task=one, lora_rank=16).peak_memory.categories["parameters"] for one in ("train", "dpo")]
    assert adapted[0] == adapted[1]  # without its adapters the policy is the reference


def test_adapters_by_module_are_those_of_the_group_and_each_adapter_has_its_own() -> None:
    def learning(**fields: Any) -> int:
        return step(lora_rank=16, **fields).peak_memory.categories["optimizer"]

    hidden, kv, ffn, layers, shards, moments = 2048, 512, 8192, 16, 8, 8
    sizes = {"q": 2 * hidden, "k": hidden + kv, "v": hidden + kv, "o": 2 * hidden}
    sizes |= dict.fromkeys(("gate", "up", "down"), hidden + ffn)
    for targets in ("q,v", "o", "q,k,v,o,gate,up,down"):
        wanted = 16 * layers * sum(sizes[word] for word in targets.split(",")) * moments / shards
        assert learning(lora_targets=targets) == pytest.approx(wanted, abs=64)
    assert learning(lora_adapters=4) == pytest.approx(4 * learning(), abs=64)
    assert step(lora_rank=16, lora_adapters=4).step_time_ns >= step(lora_rank=16).step_time_ns


@pytest.mark.parametrize("targets", ["", "q,zz", "all,q"])
def test_targets_that_are_none_are_one_error(targets: str) -> None:
    with pytest.raises(SpecError, match="lora_targets"):
        step(lora_rank=16, lora_targets=targets)
