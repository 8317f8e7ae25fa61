"""Rules that frameworks follow, each against what it says, and jobs that were once priced wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.cost.communication.collectives import collective, group_of
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.engine import exposed, replay
from windtunnel.physics.graph import GraphBuilder, OpKind
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.gpu import GENERATIONS
from windtunnel.physics.model import load_model
from windtunnel.physics.model.layers.experts import ranks_per_token
from windtunnel.physics.model.operations import Transfer
from windtunnel.physics.step.result import Result
from windtunnel.studies.training import Plan, predict
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.step_actions import _apart
from windtunnel.studies.training.pricing import Pricer

MODEL = load_model("llama-3-8b").with_changes(layers=8)
MIXTURE = load_model("mixtral-8x7b").with_changes(layers=4)


def ask(model: Any = MODEL, cluster: Any = "h100-sxm:16", **plan: Any) -> Result:
    return predict(model, cluster, {"global_batch": 32, "seq_len": 2048, **plan})


def layout_of(cluster: str, **plan: Any) -> Any:
    return resolve(MODEL, parse_cluster(cluster), Plan(**{"global_batch": 4096, "seq_len": 2048, **plan}))


def test_messages_of_megatron_grow_with_the_replicas() -> None:
    assert layout_of("h100-sxm:64").message_parameters == 64e6  # max(40 M, 1 M x dp)
    assert layout_of("h100-sxm:16").message_parameters == 40e6
    assert layout_of("h100-sxm:2048").message_parameters == 2048e6
    assert layout_of("h100-sxm:2048", bucket_parameters=50_000_000).message_parameters == 50e6
    assert layout_of("h100-sxm:2048", framework="nanotron").message_parameters == 160e6


def test_many_small_messages_cost_latency() -> None:
    few = ask(cluster="h100-sxm:256", global_batch=256, overlap_grad_reduce=False)
    many = ask(cluster="h100-sxm:256", global_batch=256, overlap_grad_reduce=False, bucket_parameters=1_000_000)
    assert many.step_time_ns > few.step_time_ns


def test_late_members_hold_up_a_tensor_parallel_layer_of_nanotron_beside_a_pipeline_across_nodes() -> None:
    def launch_s(cluster: str, framework: str = "nanotron", **plan: Any) -> float:
        return Pricer(layout_of(cluster, framework=framework, **plan)).host.tp_launch_s

    alone = launch_s("h100-sxm:16", tp=8)
    late = [launch_s("h100-sxm:16", tp=tp, pp=2) - alone for tp in (1, 2, 4, 8)]
    assert late == pytest.approx([tp * late[0] for tp in (1, 2, 4, 8)])
    assert late[0] > 0.0
    assert launch_s("h100-sxm:8", tp=4, pp=2) == alone  # all on one node
    assert launch_s("h100-sxm:16", "megatron", tp=8, pp=2) == launch_s("h100-sxm:16", "megatron", tp=8)

    # The host's time: work of the GPU that takes longer hides it.
    def cost(micro_batch: int) -> float:
        shape = {"tp": 4, "pp": 2, "framework": "nanotron", "micro_batch": micro_batch}
        near = ask(cluster="h100-sxm:8", global_batch=8 * micro_batch, **shape)
        return ask(cluster="h100-sxm:16", global_batch=16 * micro_batch, **shape).step_time_ns / near.step_time_ns

    assert cost(1) > 2.0
    assert cost(32) < 1.2


def test_sends_between_stages_carry_a_part_of_the_activation_and_are_gathered_again() -> None:
    def sent(**plan: Any) -> int:
        traffic = ask(tp=4, pp=2, **plan).traffic_bytes
        return sum(value for key, value in traffic.items() if key.startswith("send_recv pp"))

    assert sent(sequence_parallel=False) == sent(sequence_parallel=True)
    assert sent(sequence_parallel=False, framework="nanotron") == 4 * sent(sequence_parallel=False)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_a_shard_group_of_one_still_sums_gradients(zero_stage: int) -> None:
    alone = ask(zero_stage=zero_stage, shard_group=1, overlap_grad_reduce=False)
    summed = [value for key, value in alone.traffic_bytes.items() if key.startswith("all_reduce replica")]
    whole = 2 * MODEL.parameters * (1 if zero_stage == 1 else 2)  # the two micro-batches apart
    assert sum(summed) == pytest.approx(whole, rel=0.01)


def test_without_replicas_there_is_nothing_to_shard() -> None:
    steps = {ask(cluster="h100-sxm:8", tp=8, zero_stage=stage).step_time_ns for stage in (0, 1, 2, 3)}
    memory = {ask(cluster="h100-sxm:8", tp=8, zero_stage=stage).peak_memory.device_bytes for stage in (0, 1, 2, 3)}
    assert len(steps) == len(memory) == 1


def test_a_graph_tells_more_than_256_categories_apart() -> None:
    builder = GraphBuilder()
    for number in range(300):
        builder.op(OpKind.COMPUTE, builder.stream(0, "compute"), duration_ns=number + 1, category=f"part {number}")
    graph = builder.build()
    timeline = replay(graph, builder.duration_ns())
    assert np.array_equal(exposed(timeline, graph).compute_ns[0], np.arange(1, 301))


@pytest.mark.parametrize(
    ("cluster", "changes", "times"),
    [
        ("gh200:8", {}, 3.0),  # one of three links
        ("gh200:8", {"overlap_tp": False}, 1.0),
        ("gh200:8", {"framework": "torchtitan"}, 1.0),
        ("gh200:8", {"tp": 2}, 1.0),
        ("h100-sxm:8", {}, 1.0),  # a switch
        ("mi300x:8", {}, 1.0),  # TransformerEngine's rings are NVIDIA's
    ],
)
def test_gathers_from_neighbour_to_neighbour_use_one_link_of_a_mesh(
    cluster: str, changes: dict[str, Any], times: float
) -> None:
    layout = layout_of(cluster, **{"tp": 4, "overlap_tp": True} | changes)
    transfer = Transfer("all_gather", "tp", 2.0**26)
    alone = collective("all_gather", 2**26, layout.group("tp"), layout.cluster).seconds
    assert Pricer(layout).links.transfer(transfer)[0].seconds == pytest.approx(times * alone)


def test_every_generation_has_constants_and_an_unknown_one_is_an_error() -> None:
    for generation in GENERATIONS:
        training_costs(generation)
    assert training_costs("blackwell-ultra").sustained == training_costs("blackwell").sustained
    with pytest.raises(SpecError, match="generation"):
        training_costs("rubin")


def test_a_gpu_without_training_runs_has_a_wider_band_and_says_so() -> None:
    known, unknown = ask(), ask(cluster="mi300x:16")
    ultra = ask(cluster="gb300:72", global_batch=72)

    def width(result: Result) -> float:
        return (result.step_time_p95_ns - result.step_time_p5_ns) / result.step_time_ns

    assert width(unknown) > width(known)
    assert any("no training run" in text for text in unknown.warnings)
    assert not any("no training run" in text for text in (*known.warnings, *ultra.warnings))


def test_a_framework_without_runs_has_a_wider_band_and_says_so() -> None:
    plain, other = ask(framework="fsdp"), ask(framework="deepspeed", zero_stage=3)
    assert any("DeepSpeed" in text for text in other.warnings)
    assert other.step_time_p95_ns / other.step_time_ns > plain.step_time_p95_ns / plain.step_time_ns
    assert "habits of DeepSpeed ZeRO" in other.defaults


@pytest.mark.parametrize(
    ("cluster", "size", "stride", "domains", "fewest"),
    [
        ("h100-sxm:24", 3, 1, 2, 1),  # 6, 7 | 8
        ("h100-sxm:48", 6, 1, 2, 2),  # 6, 7 | 8 to 11
        ("h100-sxm:8", 4, 1, 1, 0),
        ("gb200:576", 64, 1, 2, 8),  # eight full racks: 64 to 71 | 72 to 127
        ("gb200:256", 64, 1, 1, 0),  # four racks of which 64 GPUs each are taken
        ("h100-sxm:64", 4, 8, 4, 0),  # one rank of each node, as ever
    ],
)
def test_a_group_lies_where_its_worst_twin_lies(
    cluster: str, size: int, stride: int, domains: int, fewest: int
) -> None:
    group = group_of(size, stride, parse_cluster(cluster))
    assert (group.domains, group.fewest) == (domains, fewest)


def test_a_group_across_a_border_takes_longer() -> None:
    racks = parse_cluster("gb200:576")
    across, inside = group_of(64, 1, racks), group_of(72, 1, racks)
    times = [collective("all_to_all", 1e8, group, racks).seconds for group in (across, inside)]
    assert times[0] > 2 * times[1]


def test_replicas_of_experts_in_several_racks_get_a_part_of_the_nics_of_gb200_only() -> None:
    rates = {}
    for cluster in ("gb200:512", "gb300:512", "gb200:64", "h100-sxm:512"):
        layout = resolve(load_model("deepseek-v3"), parse_cluster(cluster), Plan(ep=32, global_batch=512, seq_len=4096))
        group, transfer = layout.group("edp"), Transfer("reduce_scatter", "edp", 1e9)
        plain = collective("reduce_scatter", 1e9, group, layout.cluster)
        price, _ = Pricer(layout).links.transfer(transfer)
        rates[cluster] = plain.seconds / price.seconds, transfer.bytes_total * (1 - 1 / group.size) / price.seconds
    nics = 2 * parse_cluster("gb200:512").scale_out.bandwidth_bytes_per_s
    assert rates["gb200:512"][1] == pytest.approx(nics / 8)
    assert [share for cluster, (share, _) in rates.items() if cluster != "gb200:512"] == [pytest.approx(1.0)] * 3


def test_stages_of_64_gpus_on_racks_of_72_send_across_a_border() -> None:
    assert _apart(np.array([0]), np.array([1]), 64, 72).all()
    assert not _apart(np.array([0]), np.array([1]), 4, 8).any()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "dualpipe-v"])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron"])
def test_no_part_of_the_memory_is_negative(schedule: str, framework: str) -> None:
    result = ask(framework=framework, pp=4, schedule=schedule, global_batch=64, recompute="full")
    assert all(value >= 0 for stage in result.memory for value in stage.categories.values())


def test_a_token_goes_once_to_each_rank_that_wants_it() -> None:
    block = MIXTURE.layers[0].feed_forward  # two of eight experts
    assert ranks_per_token(block, 1) == pytest.approx(1.0)
    assert ranks_per_token(block, 8) == pytest.approx(2 - 1 / 8)
    assert ranks_per_token(block, 10**6) == pytest.approx(2.0, rel=1e-5)
    deep = load_model("deepseek-v3").layers[-1].feed_forward  # eight experts in at most four of eight groups
    assert ranks_per_token(deep, 8) == pytest.approx(4 * (1 - 0.75**8))


@pytest.mark.parametrize("cluster", ["h100-sxm:8", "h100-sxm:64", "gb200:64", "b200-sxm:64"])
def test_dispatch_never_beats_the_wire(cluster: str) -> None:
    hardware = parse_cluster(cluster)
    ep = 8
    layout = resolve(MIXTURE, hardware, Plan(ep=ep, global_batch=512, seq_len=4096))
    operations = (op for piece in pieces_of(layout) for block in piece.blocks for op in block.operations)
    exchange = next(op.before for op in operations if op.name == "dispatch")
    price, tier = Pricer(layout).links.transfer(exchange)
    link = hardware.scale_up if tier == "scale_up" else hardware.scale_out
    leaving = exchange.bytes_total * (1 - 1 / ep)
    assert leaving / price.seconds < link.bandwidth_bytes_per_s


@pytest.mark.parametrize(("ep", "least", "most"), [(16, 43.0, 43.0), (32, 44.0, 58.0), (64, 45.0, 51.0)])
def test_deepep_across_nodes_is_as_fast_as_its_own_benchmark(ep: int, least: float, most: float) -> None:
    """Its README, first and later: H800, 4,096 tokens of 7,168, GB/s of bytes as it counts them (own node too)."""
    model = load_model("deepseek-v3").with_changes(layers=4)
    plan = {"ep": ep, "global_batch": 512, "seq_len": 4096, "dispatcher": "deepep"}
    layout = resolve(model, parse_cluster(f"h800-sxm:{ep}"), Plan(**plan))
    operations = (op for piece in pieces_of(layout) for block in piece.blocks for op in block.operations)
    exchange = next(op.before for op in operations if op.name == "dispatch")
    assert exchange is not None
    price, _ = Pricer(layout).links.transfer(exchange)
    assert 0.9 * least < exchange.bytes_total / price.seconds / 1e9 < 1.1 * most


def test_nccls_all_to_all_sends_a_token_for_each_choice_whatever_the_release() -> None:
    """By hand: with a token once to each of 4 ranks that has one of 8 choices, 4 (1 - .75^8) = 3.6 are sent, not 8."""
    model, plan = load_model("qwen3-30b-a3b").with_changes(layers=2), {"ep": 4, "global_batch": 32, "seq_len": 4096}
    sent = {}
    for dispatcher in (None, "deepep", "alltoall"):
        asked = Plan(**plan, release="bridge-26.04", dispatcher=dispatcher)  # type: ignore[arg-type]
        pieces = pieces_of(resolve(model, parse_cluster("h100-sxm:8"), asked))
        operations = (op for piece in pieces for block in piece.blocks for op in block.operations)
        exchange = next(op.before for op in operations if op.name == "dispatch")
        assert exchange is not None
        sent[dispatcher] = exchange.bytes_total
    assert sent[None] == sent["deepep"]
    assert sent["alltoall"] / sent["deepep"] == pytest.approx(8 / (4 * (1 - 0.75**8)), rel=0.02)


@pytest.mark.parametrize(
    ("cluster", "framework", "factor"),
    [("h100-sxm:32", "megatron", 1.25), ("h100-sxm:32", "torchtitan", 1.25), ("aws-p5:32", "megatron", 2.45)],
)
def test_every_choice_across_nodes_is_a_quarter_beyond_the_wire_but_on_efa(
    cluster: str, framework: str, factor: float
) -> None:
    """What recipes' exchanges need beyond the bytes counted for them is not what counts each choice by itself."""
    named = {"dispatcher": "alltoall"} if framework == "megatron" else {}
    plan = Plan(framework=framework, ep=32, global_batch=32, seq_len=4096, **named)  # type: ignore[arg-type]
    layout = resolve(load_model("qwen3-30b-a3b").with_changes(layers=2), parse_cluster(cluster), plan)
    exchange = Transfer("all_to_all", "ep", 200e6)
    price, _ = Pricer(layout).links.transfer(exchange)
    alone = collective("all_to_all", int(exchange.bytes_total), layout.group("ep"), layout.cluster)
    assert price.seconds / alone.seconds == pytest.approx(factor)


def test_transformers_trainer_updates_with_one_kernel_since_pytorch_has_it() -> None:
    """AdamW over lists of tensors passes over its state two and a half times as often (`FOREACH_PASSES`)."""
    plan = {"framework": "fsdp", "global_batch": 8, "micro_batch": 8, "seq_len": 256}
    before, since = (
        ask(load_model("llama-3.2-3b"), "h100-sxm:1", release=release, **plan).breakdown_ns["optimizer"]
        for release in ("transformers-4.50", "transformers-4.57")
    )
    assert 1.8 < before / since < 2.5  # the gradients' norm and clearing them stay as they are


def test_experts_in_one_kernel_take_the_host_least_and_in_a_loop_the_gpu_most() -> None:
    """Left open, Megatron launches each on streams, torch._grouped_mm one kernel for all, a plain script a loop."""
    plan = {"ep": 8, "global_batch": 64, "seq_len": 4096}
    model = load_model("qwen3-30b-a3b").with_changes(layers=4)
    runs = {
        impl: ask(model, "b200-sxm:8", experts_impl=impl, **plan) for impl in (None, "grouped", "streams", "sequential")
    }
    assert runs[None].step_time_ns == runs["streams"].step_time_ns
    host = {impl: run.breakdown_ns["host"] for impl, run in runs.items()}
    gemm = {impl: run.breakdown_ns["gemm"] for impl, run in runs.items()}
    assert host["grouped"] < 0.1 * host["streams"]
    assert host["streams"] < host["sequential"]
    assert gemm["grouped"] == gemm["streams"] < gemm["sequential"]
    for framework in ("torchtitan", "fsdp", "deepspeed", "maxtext"):
        left_open, said = (ask(model, "b200-sxm:8", framework=framework, experts_impl=i, global_batch=64, seq_len=4096)
                           for i in (None, "grouped"))  # fmt: skip
        assert left_open.step_time_ns == said.step_time_ns


def test_a_plain_script_has_no_grouped_kernel() -> None:
    with pytest.raises(SpecError, match="experts_impl"):
        ask(MIXTURE, "h100-sxm:8", framework="pytorch", experts_impl="grouped", global_batch=8, seq_len=2048)


def test_dual_pipe_hides_dispatch_across_nodes() -> None:
    plan = {"pp": 4, "ep": 16, "global_batch": 1024, "seq_len": 4096, "schedule": "dualpipe"}
    model = load_model("qwen3-30b-a3b").with_changes(layers=16)
    hidden, open_ = (ask(model, "h800-sxm:64", overlap_ep=wish, **plan) for wish in (None, False))

    def waiting(result: Result) -> int:
        return sum(value for key, value in result.breakdown_ns.items() if key.startswith("exposed ep"))

    assert waiting(hidden) < 0.5 * waiting(open_)
    assert hidden.step_time_ns < open_.step_time_ns


def test_deepseek_v3_as_published() -> None:
    """2,048 H800, 180 K GPU hours per trillion tokens, in 80 GB (arXiv 2412.19437, sections 3.1 to 3.3)."""
    result = predict(
        "deepseek-v3",
        "h800-sxm:2048",
        {
            "pp": 16,
            "ep": 64,
            "zero_stage": 1,
            "global_batch": 15360,
            "seq_len": 4096,
            "precision": "fp8-current",
            "schedule": "dualpipe",
            "recompute": "selective:norms,mla_up_proj,moe_activation,activation",
            "fp8_activation_input": True,
            "optimizer_dtype": "bf16",
            "gradient_dtype": "fp32",
        },
    )
    measured_s = 15360 * 4096 / (1e12 / (180e3 * 3600) * 2048)
    assert result.status == "ok"
    assert result.step_time_p5_ns / 1e9 < measured_s < result.step_time_p95_ns / 1e9


def test_a_price_that_a_fitted_factor_touched_is_fitted() -> None:
    timed = Price(1.0, 0.99, 1.01, Source.MEASURED)
    assert timed.fitted(1.0, 0.1) == timed
    touched = timed.fitted(1.2, 0.1)
    assert touched.source is Source.FITTED
    assert touched.p5 < 1.2 / 1.15
    assert touched.p95 > 1.2 * 1.15
    assert ask().provenance["measured"] < 0.2  # hardly anything of a step runs just as timed alone


def test_host_work_between_steps_grows_with_nodes_only() -> None:
    one, two = (Pricer(layout_of(f"h100-sxm:{n}")) for n in (8, 16))
    assert one.host.step_s == 0.0 < two.host.step_s


def test_a_cluster_of_racks_is_taken_in_equal_blocks() -> None:
    racks = parse_cluster("gb200:256")
    assert racks.used_per_domain == 64
    assert cluster_with(racks, n_gpus=576).used_per_domain == 72
    assert parse_cluster("h100-sxm:64").used_per_domain == 8


def test_tokens_are_gathered_by_kernels_of_their_own_with_megatrons_own_dispatcher() -> None:
    def permuting(release: str | None) -> float:
        plan: dict[str, Any] = {"global_batch": 32, "seq_len": 2048, "ep": 4, "release": release}
        layout = resolve(MIXTURE, parse_cluster("h100-sxm:8"), Plan(**plan))
        pricer, ops = (
            Pricer(layout),
            [op for piece in pieces_of(layout) for block in piece.blocks for op in block.operations],
        )
        return next(pricer.forward(op).seconds for op in ops if op.name == "permute")

    assert permuting("nemo-25.02") > 1.4 * permuting("bridge-26.02") == 1.4 * permuting(None)


def quantising_ns(**plan: Any) -> int:
    """Of one GPU in a step: what quantising gathered weights adds to its memory-bound kernels."""
    fields = {"cluster": "b200:16", "zero_stage": 3, "precision": "fp8-current", "global_batch": 64} | plan
    gathered, kept = (ask(**{**fields, "fp8_parameters": low}) for low in (False, True))
    return gathered.breakdown_ns["memory-bound"] - kept.breakdown_ns["memory-bound"]


def test_gathered_weights_are_quantised_in_every_pass() -> None:
    once = quantising_ns(global_batch=16)
    assert once > 0
    assert quantising_ns(global_batch=64) == pytest.approx(4 * once, rel=0.01)
    assert quantising_ns(zero_stage=1) == 0
    # What is recomputed quantises again; torchao does in any backward.
    assert quantising_ns(recompute="full") > 1.5 * quantising_ns()
    assert quantising_ns(framework="torchtitan") == pytest.approx(2 * quantising_ns(), rel=0.1)


def test_passes_with_parameters_in_another_format_are_not_the_same() -> None:
    plan = {"zero_stage": 3, "precision": "fp8", "release": "nemo-25.02"}  # keeps fp8, and gathers 16 bits
    usual, asked = (
        resolve(MODEL, parse_cluster("h100-sxm:16"), checked)
        for checked in (
            Plan(global_batch=32, seq_len=2048, **plan),
            Plan(global_batch=32, seq_len=2048, fp8_parameters=False, **plan),
        )
    )
    assert usual.plan == asked.plan
    assert usual.pass_key != asked.pass_key
    assert ask(**plan).step_time_ns != ask(**plan, fp8_parameters=False).step_time_ns


def test_gathered_fp8_weights_are_transposed_on_hopper() -> None:
    def each(cluster: str, **plan: Any) -> int:
        """What so many more micro-batches add to memory-bound kernels."""
        few, many = (ask(cluster=cluster, precision="fp8", global_batch=n, **plan) for n in (16, 64))
        return many.breakdown_ns["memory-bound"] - few.breakdown_ns["memory-bound"]

    def turned(cluster: str) -> int:
        return each(cluster, zero_stage=3) - each(cluster, zero_stage=2)

    assert turned("b200:16") < 0.1 * turned("h100-sxm:16")
    weights = 8 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    at_peak = 3 * 2.0 * weights / 3.35e12 * 1e9
    assert at_peak < turned("h100-sxm:16") < 2 * at_peak


def test_recipes_gather_fp8_parameters_in_fp8() -> None:
    def gathered(**plan: Any) -> float:
        return ask(**plan).traffic_bytes["all_gather dp (scale-out)"]

    assert gathered(precision="fp8") == pytest.approx(gathered(precision="bf16") / 2)
    assert gathered(precision="fp8", release="nemo-25.02") == gathered(precision="bf16")
    assert gathered(precision="nvfp4", cluster="b200:16") == gathered(precision="bf16", cluster="b200:16")
    assert "fp8_parameters on" in ask(precision="fp8").defaults
