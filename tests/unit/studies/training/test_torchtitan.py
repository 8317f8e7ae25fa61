"""torchtitan's own: DTensor's host, norms of heads before October 2025, FSDP's gathers across racks."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.pricing import Pricer

QWEN = load_model("qwen3-8b").with_changes(layers=4)


def step_s(model: Any = QWEN, cluster: str = "h100-sxm:8", **plan: Any) -> float:
    asked = {"framework": "torchtitan", "global_batch": 8, "seq_len": 4096, "micro_batch": 8, "tp": 8, **plan}
    return predict(model, cluster, asked).step_time_ns / 1e9


def test_a_host_that_dispatches_dtensors_sets_the_pace_of_few_tokens() -> None:
    """Four exchanges of a layer forward and four back, each with what DTensor dispatches around it, and launches."""
    few: dict[str, Any] = {"seq_len": 256, "global_batch": 1, "micro_batch": 1}
    eager, compiled = (step_s(**few, compile=on) for on in (False, True))
    extra = 4 * 8 * training_costs("hopper").dtensor_s
    assert eager > extra > 0.5 * (eager - compiled)
    whole = {**few, "global_batch": 8, "tp": 1}
    assert step_s(**whole, compile=False) < step_s(**whole, compile=True) + 0.1 * extra, "no DTensors at tp 1"


def test_qwen_before_october_2025_gathered_all_heads_on_every_rank() -> None:
    before, after = (step_s(release=f"torchtitan-25.{month}", recompute="full") for month in ("09", "11"))
    assert 1.2 * after < before < 2.0 * after
    assert step_s(release="torchtitan-25.09", tp=1, micro_batch=1) == step_s(tp=1, micro_batch=1)


def test_llama_has_no_norms_of_heads_to_gather_for() -> None:
    llama = load_model("llama-3-8b").with_changes(layers=4)
    assert step_s(llama, release="torchtitan-25.09") == step_s(llama)


@pytest.mark.parametrize(("stage", "slower"), [(1, True), (3, False)])
def test_experts_gathered_layer_by_layer_have_the_whole_nic_across_racks(stage: int, slower: bool) -> None:
    asked = {"framework": "torchtitan", "ep": 16, "zero_stage": stage, "global_batch": 256, "seq_len": 8192}
    layout = resolve(load_model("llama-4-scout"), parse_cluster("gb200:256"), read_plan(asked))
    moved = Transfer("all_gather", "edp", 250e6)
    pricer = Pricer(layout)
    alone = pricer.links._between_racks(moved, pricer.links.transfer(Transfer("all_gather", "edp", 250e6 + 8), 1.0)[0])
    assert (pricer.links.transfer(moved)[0].seconds > 0.9 * alone.seconds) is slower
