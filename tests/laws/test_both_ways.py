"""What holds of a step whether it was planned or captured: the same questions, the same rules of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest
from calibrated_cpu import calibrated_cpu
from every_rank import whole_job
from handmade import Grid, Script, folded_job
from sound import assert_sound

from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster, cluster_with
from windtunnel.physics.model import transformer
from windtunnel.physics.step.band import band_of
from windtunnel.physics.step.result import RankClass, Result
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.predict import predict_captured
from windtunnel.studies.training import predict

GRID = Grid(2, 2, 2)
RANKS, STAGES = GRID.world, GRID.pp


@lru_cache
def cluster() -> Cluster:
    """Nodes of two: data-parallel groups and the pipeline cross them."""
    return cluster_with(parse_cluster("h100-sxm:8"), gpus_per_node=2)


def planned(slow: list[str], **more: Any) -> Result:
    model = transformer(hidden=4096, layers=4, heads=32, vocab=4096, ffn=16384, name="wide")
    plan = {"tp": 2, "pp": 2, "global_batch": 16, "seq_len": 4096}
    return predict(model, cluster(), plan, slow=slow, **more)


def captured(slow: list[str], **more: Any) -> Result:
    heavy = {"layers": 2, "micro_batches": 3, "rows": 4096, "width": 8192}
    return predict_captured(folded_job(GRID, **heavy), cluster(), slow=slow, **more)


WAYS = pytest.mark.parametrize("ask", [planned, captured])
Ask = Callable[..., Result]


def class_of(result: Result, rank: int) -> RankClass:
    assert result.disturbed is not None
    at = 0
    for number, count in result.disturbed.class_runs:
        at += count
        if rank < at:
            return result.disturbed.rank_classes[number]
    raise AssertionError(f"no class of rank {rank}")


@WAYS
@pytest.mark.parametrize(
    "slow",
    [["gpu=1:1.3"], ["stage=1:1.2"], ["link=node0.nic1:0.25"], ["lost=node1.nic0"], ["thermal=3:1.4:60s", "gpu=0:1.1"],
     ["noise=3%", "random=25%:1.2"]],
    ids=" ".join,
)  # fmt: skip
def test_disturbed_answers_are_sound_and_account_for_every_rank(ask: Ask, slow: list[str]) -> None:
    found = ask(slow, samples=16 if "noise" in slow[0] else 0)
    assert_sound(found)
    told = found.disturbed
    assert told is not None
    assert sum(count for _, count in told.class_runs) == sum(one.ranks for one in told.rank_classes) == RANKS
    whole = {one.busy_ns + one.waiting_ns for one in told.rank_classes}
    assert len(whole) == 1
    assert all(one.busy_ns > 0 for one in told.rank_classes)
    path = told.critical_path
    assert path[0].start_ns == 0
    assert {path[-1].end_ns} == whole
    assert {one.what for one in told.blame} == set(slow)


@WAYS
def test_ranks_with_sound_links_wait_for_the_one_whose_link_is_slow(ask: Ask) -> None:
    # GPU 5 is in stage 1; a mild fault that is no more than noise, and a severe one, told apart by the same ranks.
    mild, severe = ask(["link=node2.nic1:0.999"]), ask(["link=node2.nic1:0.02"])
    added = severe.step_time_ns - mild.step_time_ns
    assert added > 0.2 * mild.step_time_ns
    for rank in range(RANKS):
        before, after = class_of(mild, rank), class_of(severe, rank)
        assert after.busy_ns + after.waiting_ns - before.busy_ns - before.waiting_ns == added
        if rank == 5:
            assert after.disturbed_by == ("link=node2.nic1:0.02",)
            assert after.busy_ns - before.busy_ns > 0.5 * added
        else:
            assert after.busy_ns <= before.busy_ns + 0.05 * added  # of its own transfers less is hidden
            assert after.waiting_ns - before.waiting_ns >= 0.95 * added


@WAYS
def test_a_lost_nics_own_gpu_and_the_one_that_takes_over_are_busy_and_the_others_wait(ask: Ask) -> None:
    found, calm = ask(["lost=node2.nic1"]), ask(["lost=node2.nic1", "link=node0.nic0:0.999"])
    told = [class_of(found, rank) for rank in range(RANKS)]
    assert [one.disturbed_by != () for one in told] == [rank in (4, 5) for rank in range(RANKS)]
    assert calm.disturbed is not None
    assert min(told[rank].waiting_ns for rank in (6, 7)) > max(told[rank].waiting_ns for rank in (4, 5))


@WAYS
def test_blame_follows_the_first_eight_through_the_samples_and_works_out_all_others(ask: Ask) -> None:
    slow = [f"gpu={number}:1.{number + 1}" for number in range(8)] + ["noise=2%", "thermal=2:1.3:1ms"]
    found = ask(slow, samples=8).disturbed
    assert found is not None
    spread = {one.what for one in found.blame if one.without_p5_p50_p95_ns is not None}
    # What varies comes first, then the steady ones in their order.
    assert spread == {"noise=2%", "thermal=2:1.3:1ms", *slow[:6]}
    assert {one.what for one in found.blame} == set(slow)
    for one in found.blame:
        if one.without_p5_p50_p95_ns is not None:
            low, middle, high = one.without_p5_p50_p95_ns
            assert low <= one.without_ns == middle <= high


@WAYS
def test_one_disturbance_that_varies_costs_what_the_samples_take_longer(ask: Ask) -> None:
    found = ask(["noise=5%"], samples=24)
    told = found.disturbed
    assert told is not None
    assert told.samples is not None
    (blame,) = told.blame
    assert blame.alone_ns == blame.without_ns == told.samples.p50_ns - told.undisturbed_step_time_ns
    assert told.samples.count == 24
    assert told.programs == sum(told.replica_classes) * (STAGES if ask is planned else 1)


def layers_of(experts: str) -> CapturedJob:
    """One rank and a layer of large products; `experts`: what else makes them those of routed experts."""
    script = Script(0, 1)
    for number in range(4):
        script.module = f"model.layers.{number}.mlp"
        if experts == "router":
            script.move("topk", 8)
        elsewhere = experts == "elsewhere"
        if elsewhere and number == 0:
            script.module = "accuracy"
            script.move("topk", 8)
            script.module = "model.layers.0.mlp"
        script.mm(8192, 8192, 8192)
    return whole_job([script.program()])


def test_products_of_routed_experts_widen_the_band_of_a_captured_step() -> None:
    one = cluster_with(parse_cluster("h100-sxm:8"), n_gpus=1, gpus_per_node=1)

    def width(experts: str) -> float:
        found = predict_captured(layers_of(experts), one)
        assert found.breakdown_ns["gemm"] > 0.9 * found.step_time_ns
        return found.step_time_p95_ns / found.step_time_ns

    assert width("router") > 1.3
    assert width("none") < 1.2
    assert width("elsewhere") == pytest.approx(width("none"), abs=0.01)  # a metric picks the top too


def test_products_of_routed_experts_widen_the_band_of_a_planned_step() -> None:
    build = partial(transformer, hidden=4096, layers=4, heads=32, vocab=4096, name="one")
    uncertainty = training_costs(parse_cluster("h100-sxm:8").gpu.generation).uncertainty
    dense, routed = build(ffn=16384), build(ffn=8192, experts=4, topk=2, family="mixtral")
    for model, is_routed in ((dense, False), (routed, True)):
        plan = {"global_batch": 64, "micro_batch": 2, "seq_len": 4096, "release": "nemo-25.04"}
        found = predict(model, "h100-sxm:8", plan)
        usual, wider = (band_of(found.breakdown_ns, 0.0, uncertainty, experts=experts)[1] for experts in (False, True))
        assert wider > usual + 0.01
        told = found.step_time_p95_ns / found.step_time_ns
        assert (told >= wider - 1e-6) == is_routed


def test_a_calibrated_cluster_is_told_without_its_points() -> None:
    document = calibrated_cpu(gpus=8)
    model = transformer(hidden=256, layers=2, heads=4, vocab=512, ffn=512, name="small")
    plan = {"global_batch": 8, "seq_len": 128, "precision": "fp32"}
    one, other = (
        predict(model, document, plan),
        predict_captured(replace(folded_job(GRID, layers=1), facts={"device": "cpu"}), parse_cluster(document)),
    )
    for found in (one, other):
        assert found.spec["cluster"]["calibration"] == parse_cluster(document).calibration.summary_dict()
    assert one.spec["cluster"] == other.spec["cluster"]
