"""What the host costs, each term by hand: launches, a step's own time, collectives, where the GPU waits for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from windtunnel.physics.cost.price import Source
from windtunnel.physics.cost.training import TrainingCosts, training_costs
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import transformer
from windtunnel.physics.model.adapters import ADAPTER
from windtunnel.physics.model.operations import Operation
from windtunnel.studies.training.host_prices import STOPS_BAND, HostPrices
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.plan import read_plan

MODEL = transformer(hidden=2048, layers=8, heads=16, vocab=8192, ffn=8192, name="small")


def layout(gpus: int = 64, gpu: str = "h100-sxm", cpu_speed: float | None = None, **plan: Any) -> Layout:
    cluster = parse_cluster(f"{gpu}:{gpus}")
    if cpu_speed is not None:
        cluster = replace(cluster, host=replace(cluster.host, cpu_speed=cpu_speed))
    return resolve(MODEL, cluster, read_plan({"global_batch": 4 * gpus, "micro_batch": 1, "seq_len": 2048, **plan}))


def costs(asked: Layout, **changes: Any) -> TrainingCosts:
    """Round numbers: no two alike."""
    names = ("megatron", "torchtitan", "fsdp", "nanotron")
    numbers = {
        "launch_s": dict.fromkeys(names, 7.0),
        "backward_launch": dict.fromkeys(names, 0.5),
        "collective_launch_s": dict.fromkeys(names, 11.0),
        "step_per_doubling_s": dict.fromkeys(names, 13.0),
        "exchange_s": {"nanotron": 17.0},
        "late_member_s": {"nanotron": {"pp": 19.0, "tp": 23.0}},
        "dtensor_s": 29.0,
        "read_s": {"torchtitan": 31.0},
        "adapter_token_s": 0.25,
        "graphed_step_share": 0.125,
        "graph_launch_s": 2.0,
    }
    return replace(training_costs(asked.cluster.gpu.generation), **{**numbers, **changes})


def prices(asked: Layout, **changes: Any) -> HostPrices:
    return HostPrices(asked, costs(asked, **changes))


def test_launches_are_the_frameworks_at_the_speed_of_the_cpu() -> None:
    found = prices(layout(cpu_speed=2.0, framework="fsdp"))
    assert (found.launch_s, found.backward_launch_s) == (3.5, 1.75)
    assert (found.collective_launch_s, found.unmeasured_launch_s) == (5.5, 0.0)
    graphed = prices(layout(cpu_speed=2.0, framework="megatron", cuda_graphs=True))
    assert (graphed.launch_s, graphed.backward_launch_s, graphed.collective_launch_s) == (1.0, 1.0, 1.0)
    compiled = prices(layout(cpu_speed=2.0, framework="torchtitan", compile=True))
    assert compiled.launch_s == compiled.backward_launch_s == 3.5  # nodes of autograd are compiled too


@pytest.mark.parametrize(("gpus", "doublings"), [(8, 0), (16, 1), (64, 3), (96, math.log2(12))])
def test_a_steps_own_time_grows_with_each_doubling_beyond_eight_gpus(gpus: int, doublings: float) -> None:
    assert prices(layout(gpus, cpu_speed=2.0)).step_s == pytest.approx(13.0 * doublings / 2.0)
    assert prices(layout(1, cpu_speed=2.0)).step_s == 0.0


def test_one_graph_of_the_whole_step_leaves_a_share_of_it() -> None:
    eager, whole = layout(cpu_speed=1.0), layout(cpu_speed=1.0, cuda_graphs=True, full_graph=True)
    assert prices(whole).step_s == 0.125 * prices(eager).step_s


def test_members_are_late_where_a_pipeline_or_the_group_itself_crosses_nodes() -> None:
    by_hand = {
        (8, 1): 11.0,
        (4, 2): 11.0 + 4 * 19.0,  # a pipeline of two over eight nodes
        (16, 1): 11.0 + 16 * 23.0,  # a group of two nodes
        (16, 2): 11.0 + 16 * (19.0 + 23.0),
    }
    for (tp, pp), expected in by_hand.items():
        asked = layout(64, cpu_speed=2.0, framework="nanotron", tp=tp, pp=pp)
        assert prices(asked).tp_launch_s == pytest.approx(expected / 2.0)
        assert prices(asked).exchange_s == 17.0 / 2.0
    assert prices(layout(framework="fsdp")).exchange_s == 0.0


def test_dtensor_costs_where_it_runs_eagerly() -> None:
    eager = layout(cpu_speed=2.0, framework="torchtitan", tp=2)
    assert prices(eager).tp_launch_s == 5.5 + 14.5
    assert prices(layout(cpu_speed=2.0, framework="torchtitan", tp=2, compile=True)).tp_launch_s == 5.5
    assert prices(layout(cpu_speed=2.0, framework="megatron", tp=2)).tp_launch_s == 5.5


def op(kind: str, part: str, name: str, *shape: int) -> Operation:
    return Operation(name=name, kind=kind, part=part, shape=shape)  # type: ignore[arg-type]


ADAPTERS = [op("gemm", ADAPTER, "qkv A", 3, 5, 7, 9), op("gemm", ADAPTER, "qkv B", 3, 5, 7, 9)]
EXPERTS = [op("grouped_gemm", "mlp", "experts up", 2, 2, 2)]
OF_EXPERTS = [op("grouped_gemm", ADAPTER, "experts up A", 2, 2, 2)]


@pytest.mark.parametrize(
    ("operations", "release", "reads"),
    [
        ([], {}, 0),
        (EXPERTS, {}, 1),  # tokens of each expert
        (EXPERTS + OF_EXPERTS, {"expert_reads": 2, "adapted_expert_reads": 5}, 5),
        (EXPERTS, {"expert_reads": 2, "adapted_expert_reads": 5}, 2),
        (OF_EXPERTS, {}, 0),
        (ADAPTERS, {"layer_reads": 3}, 3),
        (ADAPTERS + OF_EXPERTS, {"layer_reads": 3, "expert_reads": 2}, 3),
    ],
)
def test_the_gpu_waits_once_for_each_read(operations: list[Operation], release: dict[str, float], reads: float) -> None:
    host = prices(layout(framework="torchtitan"))
    host.software = replace(host.software, **release)
    found = host.stops(operations)
    if not reads:
        assert found is None
        return
    assert found is not None
    assert (found.seconds, found.source) == (reads * 31.0, Source.FITTED)
    assert (found.p5, found.p95) == (found.seconds * STOPS_BAND[0], found.seconds * STOPS_BAND[1])


def test_adapters_that_read_sum_over_all_tokens() -> None:
    host = prices(layout(framework="torchtitan"))
    host.software = replace(host.software, adapter_reads=2.0)
    found = host.stops(ADAPTERS)
    assert found is not None
    assert found.seconds == 2.0 * 31.0 + 0.25 * 3 * 5  # one adapter; its rows before the two sides of the product
    graphed = prices(layout(framework="megatron", cuda_graphs=True), read_s={"megatron": 31.0})
    assert graphed.stops(EXPERTS) is None


def test_flash_attention_4_is_launched_from_python_on_blackwell_alone() -> None:
    for gpu, reads in (("b200", 4.0), ("h100-sxm", 0.0)):
        host = prices(layout(gpu=gpu, framework="torchtitan", attention_impl="flash"))
        host.software = replace(host.software, flash4_reads=4.0)
        found = host.stops([])
        assert (0.0 if found is None else found.seconds) == reads * 31.0
