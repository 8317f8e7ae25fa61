"""Adapters beside frozen weights: what they leave out of a step, and what they keep."""

from __future__ import annotations

import pytest

from windtunnel import predict
from windtunnel.errors import LayoutError, SpecError
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.model import load_model
from windtunnel.physics.model.adapters import ADAPTER, learning, with_adapters
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.operations import Shard
from windtunnel.studies.planning.plan import plan as find

MODEL = load_model("llama-3-8b")
JOB = {"global_batch": 8, "seq_len": 4096}


def _layer(rank: int, targets: str, tp: int = 1) -> float:
    shard = Shard(batch=1, seq_len=4096, tp=tp, sequence_parallel=tp > 1)
    ops = with_adapters(layer_operations(MODEL.layers[0], MODEL, shard), shard, rank, targets)
    return learning(ops)


def test_parameters_of_the_adapters_are_those_of_two_thin_matrices() -> None:
    h, kv, f = 4096, 2 * 1024, 14336
    assert _layer(16, "qkv") == 16 * (h + h + kv)
    assert _layer(16, "attention") == _layer(16, "qkv") + 16 * (h + h)
    assert _layer(16, "all") == _layer(16, "attention") + 16 * (h + 2 * f) + 16 * (f + h)


def test_nothing_but_adapters_learns() -> None:
    shard = Shard(batch=1, seq_len=4096, tp=4, sequence_parallel=True, precision="fp8")
    ops = with_adapters(layer_operations(MODEL.layers[0], MODEL, shard), shard, 8, "all")
    assert all(op.part == ADAPTER for op in ops if op.weight_elements)
    assert all(op.regather is None for op in ops)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "fsdp"])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"pp": 2}])
def test_adapters_take_less_time_and_memory_than_all_weights(framework: str, degrees: dict[str, int]) -> None:
    job = {**JOB, **degrees, "framework": framework, "compile": True}  # eagerly DTensor's host sets the pace of so few
    whole = predict(MODEL, "h100-sxm:8", job)
    thin = predict(MODEL, "h100-sxm:8", {**job, "lora_rank": 16})
    assert thin.step_time_ns < whole.step_time_ns
    for one, other in zip(thin.memory, whole.memory, strict=True):
        assert one.peak_allocated_bytes < other.peak_allocated_bytes
        assert one.categories["optimizer"] < 0.02 * max(other.categories["optimizer"], 2**30)


def test_no_faster_than_forward_and_input_gradients() -> None:
    whole = predict(MODEL, "h100-sxm:1", {**JOB, "precision": "bf16"})
    thin = predict(MODEL, "h100-sxm:1", {**JOB, "lora_rank": 1, "lora_targets": "qkv"})
    assert thin.breakdown_ns["gemm"] >= 0.6 * whole.breakdown_ns["gemm"]
    assert thin.breakdown_ns["attention"] == whole.breakdown_ns["attention"]


@pytest.mark.parametrize("targets", ["qkv", "attention", "all"])
def test_higher_rank_takes_no_less(targets: str) -> None:
    results = [predict(MODEL, "h100-sxm:8", {**JOB, "lora_rank": r, "lora_targets": targets}) for r in (8, 64, 512)]
    times = [result.step_time_ns for result in results]
    kept = [result.peak_memory.peak_allocated_bytes for result in results]
    assert times == sorted(times)
    assert kept == sorted(kept)


def test_fewer_inputs_are_kept_for_fewer_targets() -> None:
    kept = [
        predict(MODEL, "h100-sxm:8", {**JOB, "lora_rank": 8, "lora_targets": name}).peak_memory.categories[
            "activations"
        ]
        for name in ("qkv", "attention", "all")
    ]
    assert kept[0] <= kept[1] < kept[2]


def test_where_adapters_cannot_be() -> None:
    with pytest.raises(LayoutError, match="plain PyTorch trains all weights"):
        predict(MODEL, "h100-sxm:8", {**JOB, "lora_rank": 8, "framework": "pytorch"})
    with pytest.raises(LayoutError, match="inputs of frozen layers are not kept"):
        predict(MODEL, "h100-sxm:8", {**JOB, "lora_rank": 8, "offload_activations": 4})
    with pytest.raises(SpecError, match="training of all weights"):
        find(MODEL, "h100-sxm:8", JOB, lora_rank=8)


TRAINER = {
    **{"framework": "torchtitan", "release": "prime-rl-26.02", "recompute": "full"},
    **{"global_batch": 1, "seq_len": 16384},
}


def _stops_ns(**changes: object) -> int:
    return predict("llama-3.2-1b", "h100-sxm:1", TRAINER | changes).breakdown_ns.get("host stops", 0)


def test_a_host_that_reads_lengths_in_every_layer_stops_so_often() -> None:
    passes = 3 * load_model("llama-3.2-1b").n_layers  # forward, again, backward
    read_ns = 1e9 * training_costs("hopper").read_s["torchtitan"]
    assert _stops_ns() == pytest.approx(passes * read_ns, rel=1e-6)
    assert _stops_ns(cuda_graphs=True) == 0
    assert _stops_ns(release=None) == 0


def test_each_adapter_is_another_read_and_products_over_all_tokens() -> None:
    few, all_of_them = _stops_ns(lora_rank=16, lora_targets="qkv"), _stops_ns(lora_rank=16, lora_targets="all")
    assert _stops_ns() < few < all_of_them
    short, longer = (_stops_ns(lora_rank=16, seq_len=length) for length in (8192, 32768))
    assert longer - all_of_them == pytest.approx(2 * (all_of_them - short), rel=1e-6)  # in proportion to tokens


@pytest.mark.parametrize(("changes", "says"), [({"lora_rank": 16}, True), ({"seq_len": 65536}, False)])
def test_a_trainer_that_stops_the_host_is_named_where_its_release_is_not(changes: dict[str, int], says: bool) -> None:
    """Where prime-rl takes longer than the band of a torchtitan plan without a release reaches, and not else."""
    plan = {"framework": "torchtitan", "global_batch": 16, "seq_len": 8192, "recompute": "full", **changes}
    plain = predict("qwen3-8b", "h100-sxm:8", plan)
    named = predict("qwen3-8b", "h100-sxm:8", {**plan, "release": "prime-rl-26.02"})
    assert (named.step_time_ns > plain.step_time_p95_ns) == says
    assert ("name the release" in plain.band_reason) == says
