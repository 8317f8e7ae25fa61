"""Each term of what a technique costs and brings, by hand beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from windtunnel.physics.cost.price import nanoseconds
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import transformer
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.flat import FlatStep, lower_flat, play
from windtunnel.studies.techniques.flat.lower import layer_tasks
from windtunnel.studies.techniques.local_sgd.price import averaging_s, rewrite
from windtunnel.studies.techniques.offload.price import chosen, layer_times, price_offload, sizes_of
from windtunnel.studies.techniques.offload.window import STEPS, LayerTimes, by_formula, timeline
from windtunnel.studies.techniques.parameters import OffloadPlan, SparsePlan
from windtunnel.studies.techniques.priced import TechniquePrice
from windtunnel.studies.techniques.sparse_gradients.price import sparse
from windtunnel.studies.training import predict, read_plan
from windtunnel.studies.training.schedules import Kind

MODEL = transformer(hidden=2048, layers=8, heads=16, vocab=8000, ffn=8192, name="small")
PLAN = {"global_batch": 16, "micro_batch": 1, "seq_len": 512, "zero_stage": 0, "overlap_grad_reduce": False}
CLUSTER = "a100-80gb:16"


@cache
def flat() -> FlatStep:
    return lower_flat(MODEL, parse_cluster(CLUSTER), read_plan(PLAN))


# Offloading

TIMES = LayerTimes(forward=1.0, backward=2.0, fetch=0.25, gradients=0.25, update=0.5, resident_update=0.125)


def test_a_step_with_a_window_by_its_formula() -> None:
    assert by_formula(TIMES, 8, 8, 0.5) == 8 * (1 + 2 + 0.125) + 0.5
    assert by_formula(TIMES, 8, 3, 0.5) == 3 * (1 + 2 + 0.125) + 5 * (1 + 2) + 0.5
    slow = replace(TIMES, update=4.0)  # longer than a backward pass: the host is what one waits for
    assert by_formula(slow, 8, 3) == 3 * (1 + 2 + 0.125) + 5 * (1 + 4)
    late = replace(TIMES, fetch=3.0)
    assert by_formula(late, 8, 3) == 3 * (1 + 2 + 0.125) + 5 * (3 + 3)
    assert by_formula(replace(TIMES, drive=7.0), 8, 3) == 3 * (1 + 2 + 0.125) + 5 * (1 + 7)
    assert by_formula(TIMES, 8, 99) == by_formula(TIMES, 8, 8)


def test_a_timeline_without_copies_is_its_computing() -> None:
    found = timeline(TIMES, 8, 8, micro_batches=2, before_s=0.25, after_s=0.5, end_s=0.75)
    assert found.step_s == pytest.approx(2 * (0.25 + 8 * 1 + 0.5 + 8 * 2) + 0.75 + 8 * 0.125)
    hidden = timeline(TIMES, 8, 4)
    names = [task.name.split()[0] for task in hidden.tasks]
    assert names.count("fetch") == STEPS * 2 * 4  # of four layers, forward and backward
    assert names.count("gradients") == names.count("update") - STEPS == STEPS * 4
    assert names.count("drive") == names.count("reduce") == 0
    both = timeline(replace(TIMES, drive=0.5, reduce=0.5), 8, 4, drive_layers=3)
    names = [task.name.split()[0] for task in both.tasks]
    assert (names.count("drive"), names.count("reduce")) == (STEPS * 3, STEPS * 4)


def test_the_smallest_window_that_hides_all_is_chosen() -> None:
    ends = (0.0, 0.0, 0.0)
    assert chosen(TIMES, 8, [1, 2, 3, 4], ends) == 2
    assert chosen(TIMES, 8, [1], ends) == 1
    assert chosen(TIMES, 8, [], ends) == 1
    assert chosen(replace(TIMES, update=4.0), 8, [1, 2, 3, 4], ends) == 4  # each layer that stays is no update there


def offloaded(**asked: object) -> TechniquePrice:
    return price_offload(flat(), predict(MODEL, CLUSTER, PLAN), OffloadPlan(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("window", "host_layers"), [(2, 0), (2, 3), (2, 6), (5, 2)])
def test_a_drive_takes_the_layers_that_neither_device_nor_host_holds(window: int, host_layers: int) -> None:
    blocks = [block for block in flat().blocks if not block.is_end]
    sizes = sizes_of(flat(), blocks, predict(MODEL, CLUSTER, PLAN))
    state = sizes.layer_parameters * sizes.state_width
    found = offloaded(window=window, nvme=True, host_memory=int(state * (host_layers + 0.5)) or 1)
    drives = sum(task.name.startswith("drive") for task in found.after.tasks)
    assert drives == STEPS * max(0, 8 - window - host_layers)
    assert found.details["host_bytes"] == pytest.approx((8 - window) * state)


def test_a_gpus_share_of_its_host_is_what_may_be_away_unless_told() -> None:
    host = parse_cluster(CLUSTER).host.memory_bytes
    found = offloaded(window=2)
    assert found.parameters["host_memory"] == host // parse_cluster(CLUSTER).gpus_per_node
    assert offloaded(window=2, host_memory=12345678901).parameters["host_memory"] == 12345678901


def test_what_a_window_stalls_is_what_it_takes_longer() -> None:
    for window in (1, 8):
        found = offloaded(window=window)
        assert found.details["stall_s"] == pytest.approx(max(0.0, found.with_s - found.without_s), abs=1e-12)
    assert found.details["stall_s"] == 0.0  # all layers are there


def test_times_of_a_layer_are_its_bytes_over_its_links() -> None:
    step = flat()
    blocks = [block for block in step.blocks if not block.is_end]
    times, _ = layer_times(step, blocks, OffloadPlan(nvme=True, host_threads=4, optimizer="eager"))
    parameters = sum(block.dense_parameters for block in blocks) / 8
    link = step.layout.cluster.host.offload_bandwidth_bytes_per_s * constants.PCIE_EFFICIENCY
    assert times.fetch == pytest.approx(parameters * 2 / link)
    assert times.gradients == pytest.approx(parameters * step.layout.gradient_bytes / link)
    assert times.update == pytest.approx(
        parameters * constants.EAGER_ADAM_BYTES / (4 * constants.HOST_BYTES_PER_S_PER_THREAD)
    )
    for took, phase in ((times.forward, Kind.FORWARD), (times.backward, Kind.BACKWARD)):
        alone = [play(layer_tasks(step.pricer, block, phase), step.lanes).makespan_ns / 1e9 for block in blocks]
        assert took == pytest.approx(sum(alone) / 8)
    fused = layer_times(step, blocks, OffloadPlan(host_threads=4, optimizer="fused"))[0]
    assert fused.update / times.update == pytest.approx(constants.FUSED_ADAM_BYTES / constants.EAGER_ADAM_BYTES)
    assert fused.drive == 0.0
    state = 12  # master and moments in fp32, written and read again
    assert times.drive == pytest.approx(parameters * state * 2 / constants.NVME_BYTES_PER_S)
    reduce = step.pricer.links.transfer(Transfer("all_reduce", "dp", parameters * step.layout.gradient_bytes))[0]
    assert times.reduce == pytest.approx(reduce.seconds)


def test_what_a_window_holds() -> None:
    blocks = [block for block in flat().blocks if not block.is_end]
    sizes = replace(sizes_of(flat(), blocks, predict(MODEL, CLUSTER, PLAN)), layer_parameters=10.0, copied_width=2.0)
    assert sizes.layers == 8
    assert sizes.pool(2) == 2 * 2 * 10 * 2
    assert sizes.pool(7) == 2 * 1 * 10 * 2  # no more buffers than layers that come and go
    assert sizes.pool(8) == 0
    assert sizes.device(3) == int(sizes.resident(3) + sizes.pool(3) + sizes.stays)
    assert sizes.reserved(3) == int(sizes.device(3) * constants.RESERVED_OVER_ALLOCATED) + sizes.outside


# Local SGD


def test_averaging_moves_all_weights_and_the_steps_reduce_nothing() -> None:
    step = flat()
    count = sum(block.dense_parameters for block in step.blocks)
    assert averaging_s(step) == pytest.approx(
        step.pricer.links.transfer(Transfer("all_reduce", "dp", count * 2))[0].seconds
    )
    assert any(task.role == "reduce" for task in step.one_batch)
    assert not any(task.role == "reduce" for task in rewrite(step).one_batch)


# Sparse gradients


@pytest.mark.parametrize("chunk", [1, 1024])
def test_a_sparse_reduction_chooses_and_sends_its_share(chunk: int) -> None:
    step, ratio = flat(), 0.1
    reduces = [task for task in step.one_batch if task.role == "reduce"]
    made = sparse(step.one_batch, step.pricer, SparsePlan(ratio=ratio, chunk=chunk))
    choose = [task for task in made if task.role == "choose"]
    width = step.layout.gradient_bytes
    assert [task.work_ns for task in choose] == [
        nanoseconds(step.pricer.copied(task.bytes_total).scaled(constants.SELECT_PASSES / 2).seconds)
        for task in reduces
    ]
    sent = [task for task in made if task.role == "reduce"]
    if chunk == 1:
        gathered = [16 * ratio * task.bytes_total / width * (width + 4) for task in reduces]
        assert [task.bytes_total for task in sent] == pytest.approx(gathered)
        return
    norms, packed = sent[::2], sent[1::2]
    assert [task.bytes_total for task in norms] == pytest.approx([4 * t.bytes_total / width / chunk for t in reduces])
    assert [task.bytes_total for task in packed] == pytest.approx([ratio * task.bytes_total for task in reduces])
    by_hand = [task.latency_ns + round((task.work_ns - task.latency_ns) * ratio) for task in reduces]
    assert [task.work_ns for task in packed] == by_hand
