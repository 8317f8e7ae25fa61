"""One pass of one piece: order, overlap, recomputation, sharding and offload, op by op."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.graph import OpKind
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.layers.layer import head_operations
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of, shard_of
from windtunnel.studies.training.lowering.pass_lowering import Segment, build_segment
from windtunnel.studies.training.predict import predict
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

MODEL = load_model("llama-3-8b").with_changes(layers=2)
MOE = load_model("mixtral-8x7b").with_changes(layers=2)


def pass_of(
    phase: Kind = Kind.FORWARD, model: Any = MODEL, gpus: int = 8, launch: bool = False, **plan: Any
) -> Segment:
    """The pass of all layers. Without `launch` the host is infinitely fast."""
    cluster = parse_cluster(f"h100-sxm:{gpus}")
    if not launch:
        cluster = cluster_with(cluster, host=replace(cluster.host, cpu_speed=1e12))
    layout = resolve(model, cluster, read_plan({"global_batch": 8, "seq_len": 4096, **plan}))
    return build_segment(Pricer(layout), pieces_of(layout)[0].blocks, phase)


def labels(segment: Segment, kind: int = 0) -> list[str]:
    """Labels of the ops of one kind (compute unless said) in order of start."""
    graph = segment.graph
    order = np.argsort(segment.start_ns, kind="stable")
    return [graph.labels[graph.label[op]] for op in order if graph.kind[op] == kind]


def exposed(segment: Segment, group: str) -> int:
    return sum(time for name, time in segment.breakdown_ns.items() if name.startswith(f"exposed {group}"))


def test_a_forward_pass_runs_the_ops_in_order() -> None:
    found = labels(pass_of())
    assert found[0] == "embedding"
    assert found[1:5] == ["norm_1", "qkv", "rope", "core_attention"]
    assert found[-3:] == ["final_norm", "head", "loss"]
    assert found.count("mlp_up") == 2


@pytest.mark.parametrize("tp", [1, 8])
def test_a_slower_host_makes_a_pass_longer_by_what_was_exposed_and_no_shorter_than_itself(tp: int) -> None:
    """At tp 1 the kernels of 4,096 tokens hide the host; at tp 8 an eighth of each does so no longer."""
    found, never = pass_of(launch=True, tp=tp), pass_of(tp=tp)
    issued = int((found.end_ns - found.start_ns)[found.graph.kind == OpKind.HOST].sum())
    assert found.with_host_ns(1.0) == max(found.duration_ns, issued)
    assert found.with_host_ns(100.0) == pytest.approx(100.0 * issued, rel=0.05)
    waited = found.breakdown_ns.get("host", 0)
    assert found.with_host_ns(2.0) == max(found.duration_ns + waited, 2.0 * issued)
    assert (found.with_host_ns(2.0) > 1.2 * found.duration_ns) == (tp == 8)
    assert never.with_host_ns(2.0) == pytest.approx(never.duration_ns, rel=1e-3)


def test_a_backward_pass_runs_them_in_reverse_with_two_gemms_each() -> None:
    found = labels(pass_of(Kind.BACKWARD))
    assert found[:3] == ["loss backward", "head backward input", "head backward weight"]
    assert (
        found.index("mlp_down backward input")
        < found.index("mlp_up backward input")
        < found.index("qkv backward input")
    )
    assert found[-1] == "embedding backward"


def test_nodes_of_autograd_are_launched_faster_than_modules_but_recomputation_runs_modules_again() -> None:
    def host_s(phase: Kind, framework: str, **plan: Any) -> dict[str, float]:
        segment = pass_of(phase, launch=True, framework=framework, zero_stage=0, **plan)
        graph = segment.graph
        names = [graph.labels[graph.label[op]] for op in range(graph.n_ops) if graph.kind[op] == OpKind.HOST]
        times = (segment.end_ns - segment.start_ns)[graph.kind == OpKind.HOST] / 1e9
        return dict(zip(names, times.tolist(), strict=True))

    forward = host_s(Kind.FORWARD, "megatron-deepspeed")
    backward = host_s(Kind.BACKWARD, "megatron-deepspeed", recompute="full")
    assert backward["qkv backward input"] < forward["qkv"]
    assert backward["recompute qkv"] == forward["qkv"]
    forward, backward = host_s(Kind.FORWARD, "torchtitan"), host_s(Kind.BACKWARD, "torchtitan")
    assert backward["qkv backward input"] == forward["qkv"]


def test_halves_of_a_split_backward_hold_the_same_kernels() -> None:
    whole, halves = pass_of(Kind.BACKWARD), [pass_of(Kind.BACKWARD_INPUT), pass_of(Kind.BACKWARD_WEIGHT)]
    assert sorted(labels(whole)) == sorted(labels(halves[0]) + labels(halves[1]))
    assert all("weight" in label for label in labels(halves[1]))
    assert sum(half.duration_ns for half in halves) == whole.duration_ns


def test_alone_a_pass_is_as_long_as_its_kernels() -> None:
    for phase in (Kind.FORWARD, Kind.BACKWARD):
        segment = pass_of(phase, gpus=1)
        kernels = segment.graph.kind == 0
        assert segment.duration_ns == int((segment.end_ns - segment.start_ns)[kernels].sum())
        assert set(segment.breakdown_ns) == {"gemm", "attention", "memory-bound"}


def test_a_slow_host_is_felt_and_a_graph_helps() -> None:
    small = {"model": load_model("gpt2"), "gpus": 1, "seq_len": 128, "launch": True, "framework": "nanotron"}
    eager, graph = pass_of(**small), pass_of(**small, cuda_graphs=True)
    assert eager.breakdown_ns["host"] > eager.duration_ns / 4
    assert graph.duration_ns < eager.duration_ns
    assert graph.breakdown_ns.get("host", 0) < eager.breakdown_ns["host"]


def test_tensor_parallel_traffic_hides_when_overlapped() -> None:
    for phase in (Kind.FORWARD, Kind.BACKWARD):
        serial, chunked = (pass_of(phase, tp=8, overlap_tp=on) for on in (False, True))
        assert 0 < exposed(chunked, "tp") < exposed(serial, "tp")
        assert chunked.duration_ns < serial.duration_ns
        assert chunked.traffic_bytes == pytest.approx(serial.traffic_bytes)


def test_async_tp_leaves_the_reduce_scatters_behind_sums_of_gradients() -> None:
    def backward(**plan: Any) -> Segment:
        return pass_of(Kind.BACKWARD, tp=8, framework="torchtitan", overlap_tp=True, **plan)

    beside = exposed(backward(overlap_tp_backward=True), "tp")
    assert exposed(backward(), "tp") > 1.5 * beside  # of queries, keys and values, and of gate and up
    assert backward().traffic_bytes == backward(overlap_tp_backward=True).traffic_bytes


def test_recomputation_runs_forward_kernels_again() -> None:
    def again(**plan: Any) -> set[str]:
        found = labels(pass_of(Kind.BACKWARD, **plan))
        return {label.removeprefix("recompute ") for label in found if label.startswith("recompute ")}

    assert again() == set()
    assert again(recompute="selective:core_attention") == {"core_attention"}
    assert again(recompute="selective:norms") >= {"norm_1", "norm_2"}
    assert again(recompute="selective:mlp") == {"mlp_up", "activation", "mlp_down"}
    per_op = again(model=load_model("mixtral-8x7b"), recompute="selective:ops", framework="torchtitan")
    assert {"experts_up", "experts_down"} <= per_op
    assert "core_attention" not in per_op
    assert {"qkv", "core_attention", "mlp_down"} <= again(recompute="full")
    assert "mlp_down" not in again(recompute="full", framework="torchtitan")  # its output is not needed again
    assert not {"head", "embedding"} & again(recompute="full")
    assert pass_of(recompute="full").duration_ns == pass_of().duration_ns, "the forward pass stays what it is"


def test_full_recomputation_of_n_layers_recomputes_n() -> None:
    found = labels(pass_of(Kind.BACKWARD, recompute="full:1"))
    assert found.count("recompute qkv") == 1


def test_sharded_parameters_are_gathered_ahead_and_gradients_reduced_behind() -> None:
    forward, backward = (pass_of(phase, framework="fsdp") for phase in (Kind.FORWARD, Kind.BACKWARD))
    assert labels(forward, kind=1) == ["gather parameters"] * 3  # embedding with head, two layers
    assert labels(backward, kind=1).count("gather parameters") == 2, "embedding and head are there"
    assert labels(backward, kind=1).count("reduce gradients") == 3
    serial = pass_of(framework="fsdp", overlap_param_gather=False)
    assert exposed(serial, "dp") > exposed(forward, "dp") > 0, "the first gather has nothing to hide behind"
    assert forward.traffic_bytes == {"all_gather dp (scale-up)": pytest.approx(2 * MODEL.parameters)}


def test_hybrid_sharding_gathers_in_its_group_and_sums_the_copies() -> None:
    backward = pass_of(Kind.BACKWARD, framework="fsdp", shard_group=4, gpus=16, global_batch=16)
    assert backward.traffic_bytes["all_reduce replica (scale-out)"] == pytest.approx(2 * MODEL.parameters / 4)
    assert backward.traffic_bytes["reduce_scatter dp (scale-up)"] == pytest.approx(2 * MODEL.parameters)


def test_a_ring_hides_what_attention_is_long_enough_for() -> None:
    long, short = pass_of(cp=8, seq_len=131072, global_batch=1), pass_of(cp=8, seq_len=1024, global_batch=1)
    assert labels(long, kind=2).count("core_attention exchange") == 7 * 2  # per layer, one less than ranks
    assert exposed(long, "cp") / long.duration_ns < exposed(short, "cp") / short.duration_ns


def test_experts_wait_for_their_tokens() -> None:
    segment = pass_of(model=MOE, ep=8, etp=1)
    found = labels(segment, kind=1)
    assert found.count("dispatch") == found.count("combine") == 2
    assert exposed(segment, "ep") > 0
    hidden = pass_of(model=MOE, ep=8, etp=1, overlap_ep=True)
    assert hidden.duration_ns < segment.duration_ns


def test_an_overlapped_exchange_hides_wholly_in_a_graph_and_partly_without() -> None:
    def waiting(**plan: Any) -> int:
        return exposed(pass_of(model=MOE, ep=8, etp=1, **plan), "ep")

    assert waiting(cuda_graphs=True) > waiting(overlap_ep=True) > waiting(overlap_ep=True, cuda_graphs=True)


def test_offloaded_activations_travel_to_the_host_and_back() -> None:
    forward, backward = (pass_of(phase, offload_activations=1) for phase in (Kind.FORWARD, Kind.BACKWARD))
    assert labels(forward, kind=2) == ["offload activations"]
    assert labels(backward, kind=2) == ["fetch activations"]
    moved = [float(segment.graph.bytes[segment.graph.kind == 2].sum()) for segment in (forward, backward)]
    assert moved[0] == moved[1] > 0


def test_of_a_recomputed_layer_its_input_travels() -> None:
    plan = {"offload_activations": 1, "recompute": "full"}
    forward, backward = (pass_of(phase, **plan) for phase in (Kind.FORWARD, Kind.BACKWARD))
    moved = [float(segment.graph.bytes[segment.graph.kind == 2].sum()) for segment in (forward, backward)]
    assert moved[0] == moved[1] == 4096 * MODEL.hidden_size * 2  # in bf16


def test_low_precision_adds_casts_and_shortens_gemms() -> None:
    high, low = pass_of(), pass_of(precision="fp8")
    assert low.breakdown_ns["gemm"] < high.breakdown_ns["gemm"]
    assert {"qkv cast", "mlp_down cast"} <= set(labels(low))
    assert not [label for label in labels(high) if label.endswith("cast")]
    assert "head cast" not in labels(low)


def test_the_band_of_a_pass_surrounds_it() -> None:
    for phase in Kind:
        segment = pass_of(phase)
        assert 0 < segment.p5 <= 1 <= segment.p95


def test_nothing_to_do_takes_no_time() -> None:
    layout = resolve(MODEL, parse_cluster("h100-sxm:8"), read_plan({"global_batch": 8, "seq_len": 512}))
    empty = build_segment(Pricer(layout), (), Kind.FORWARD)
    assert (empty.duration_ns, empty.breakdown_ns, empty.flops) == (0, {}, 0.0)


def test_the_root_stays_from_the_forward_to_the_end_of_the_backward() -> None:
    """Embedding, final norm and head are one unit: gathered first of all, reduced last of all."""
    forward, backward = (pass_of(phase, framework="torchtitan") for phase in (Kind.FORWARD, Kind.BACKWARD))
    root = 2 * MODEL.vocab_size * MODEL.hidden_size + MODEL.norm_parameters
    moved = sizes(forward, "gather parameters")
    assert moved[0] == pytest.approx(2 * root)
    assert sum(moved) == pytest.approx(2 * MODEL.parameters)
    assert sum(sizes(backward, "gather parameters")) == pytest.approx(2 * (MODEL.parameters - root))
    reduced = sizes(backward, "reduce gradients")
    assert reduced[-1] == pytest.approx(4 * root)
    assert sum(reduced) == pytest.approx(4 * MODEL.parameters)
    (ends,) = (backward.end_ns[op] for op in ops_of(backward, "embedding backward", 0))
    assert max(backward.start_ns[op] for op in ops_of(backward, "reduce gradients", 1)) >= ends


def ops_of(segment: Segment, label: str, kind: int) -> list[int]:
    """Ops of one kind with a label, in order of start."""
    graph = segment.graph
    order = np.argsort(segment.start_ns, kind="stable").tolist()
    return [op for op in order if graph.kind[op] == kind and graph.labels[graph.label[op]] == label]


def sizes(segment: Segment, label: str) -> list[float]:
    """Bytes of the collectives with a label, in order of start."""
    return [float(segment.graph.bytes[op]) for op in ops_of(segment, label, 1)]


def test_dtensor_keeps_what_it_gathered_and_megatron_gathers_again() -> None:
    for phase in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
        again = {
            framework: sum("regather" in label for label in labels(pass_of(phase, tp=4, framework=framework), kind=1))
            for framework in ("megatron", "nanotron", "torchtitan")
        }
        assert again == {"megatron": 5, "nanotron": 5, "torchtitan": 0}  # two a layer, and the head


@pytest.mark.parametrize(
    ("framework", "release", "forward", "backward"),
    [
        ("megatron", "nemo-24.04", 38, 14),  # op by op
        ("megatron", "nemo-25.02", 26, 10),  # compiled
        ("megatron", "bridge-26.02", 8, 6),  # TransformerEngine's kernel
        ("megatron", None, 8, 6),
        ("maxtext", "nemo-24.04", 8, 6),  # published by the same project
    ],
)
def test_megatrons_own_loss_goes_over_fp32_logits_more_often(
    framework: str, release: str | None, forward: int, backward: int
) -> None:
    plan = read_plan({"global_batch": 8, "seq_len": 4096, "framework": framework, "release": release})
    shard = shard_of(resolve(MODEL, parse_cluster("h100-sxm:8"), plan))
    loss = head_operations(MODEL, shard, 128256)[-1]
    logits = shard.tokens * 128256
    assert (loss.forward_bytes, loss.backward_bytes) == (forward * logits, backward * logits)


def test_a_loss_over_vocabulary_shards_is_shared_three_times() -> None:
    shared = ["loss maximum", "loss sum", "loss target"]
    for framework in ("megatron", "torchtitan", "nanotron"):
        segment = pass_of(tp=4, framework=framework)
        assert [label for label in labels(segment, kind=1) if label.startswith("loss")] == shared
        assert sum(sizes(segment, label)[0] for label in shared) == 3 * 4 * 4096
    assert not [label for label in labels(pass_of(), kind=1) if label.startswith("loss")]
    for plan in ({}, {"recompute": "full"}):
        again = labels(pass_of(Kind.BACKWARD, tp=4, framework="torchtitan", **plan), kind=1)
        assert not [label for label in again if "loss" in label]


def test_gradients_of_norms_are_summed_where_tokens_are_split() -> None:
    split = pass_of(Kind.BACKWARD, tp=4, framework="torchtitan")
    assert sizes(split, "sum norms") == [2 * MODEL.hidden_size] * 5
    whole = pass_of(Kind.BACKWARD, tp=4, framework="torchtitan", sequence_parallel=False)
    assert not sizes(whole, "sum norms")
    assert not sizes(pass_of(Kind.BACKWARD, tp=4), "sum norms"), "Megatron does it at the end of the step"


def test_dtensor_copies_what_it_cuts_or_joins_along_the_second_dimension() -> None:
    def copies(phase: Kind = Kind.FORWARD, **plan: Any) -> list[str]:
        found = labels(pass_of(phase, **{"framework": "torchtitan", "tp": 8, **plan}))
        return sorted(label for label in found if label.endswith(" copy"))

    one, two = (copies(micro_batch=n) for n in (1, 2))
    scattered = ["embedding", *["mlp_down"] * 2, *["out"] * 2]
    assert one == [f"{name} reduce_scatter copy" for name in scattered], "one sequence is gathered into its place"
    gathered = [f"{name} all_gather copy" for name in ("head", *["mlp_up"] * 2, *["qkv"] * 2)]
    assert two == sorted(one + gathered)
    assert len(copies(Kind.BACKWARD)) == len(gathered)
    assert not copies(micro_batch=2, overlap_tp=True)
    behind = copies(Kind.BACKWARD, micro_batch=2, overlap_tp=True)
    assert behind == ["embedding backward all_gather copy", *(one for one in behind if "reduce_scatter" in one)]
    assert len(behind) == 5, "of a sum of gradients, which async TP does not find"
    assert not copies(micro_batch=2, framework="megatron", overlap_tp=False)
    assert not copies(tp=1)


@pytest.mark.parametrize(
    ("name", "cluster", "degrees"),
    [
        ("deepseek-v2-lite", "b200:8", {"tp": 4, "etp": 1, "ep": 4, "micro_batch": 1}),
        ("deepseek-v2-lite", "h100-sxm:8", {"ep": 4, "micro_batch": 1}),
        ("mixtral-8x7b", "b200:8", {"ep": 4}),
    ],
)
def test_an_exchange_that_is_hidden_in_part_is_no_longer_than_one_that_is_not(
    name: str, cluster: str, degrees: dict[str, int]
) -> None:
    """What the bounds of the search rest on: the part that is hidden is the same collective, and launched with it."""
    model = load_model(name).with_changes(layers=4)
    asked = {"global_batch": 32, "seq_len": 1024, "framework": "megatron", "pp": 2, "virtual_stages": 2, **degrees}
    plain, hidden = (predict(model, cluster, {**asked, "overlap_ep": on}).step_time_ns for on in (False, True))
    assert hidden <= plain
