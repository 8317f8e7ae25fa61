"""Advice: what is printed was predicted, fits and helps; nothing single that is better is left out."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest

import windtunnel
from windtunnel import UserError
from windtunnel.studies.planning.advice.advise import TOLD, TOLD_OF_A_FIELD, WORTH, advise
from windtunnel.studies.planning.advice.changes import OTHERS, PLAN, change_fields, changes_of, flags_of
from windtunnel.studies.planning.oracle import laid_out, memory_bytes, read_plan
from windtunnel.studies.planning.space.plan_space import Space, switches

MODEL = windtunnel.load_model("llama-3.2-1b")
CLUSTER = windtunnel.parse_cluster("h100-sxm:16")
SMALL = {"global_batch": 32, "seq_len": 2048}
JOBS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 4},
    {"pp": 4, "virtual_stages": 2, "micro_batch": 2, "dp": 4},
    {"framework": "torchtitan", "tp": 8, "recompute": "full"},
    {"micro_batch": 16, "global_batch": 256, "seq_len": 8192},  # does not fit
]


@pytest.mark.parametrize("plan", JOBS, ids=str)
def test_what_is_told_is_what_predict_gives_and_nothing_single_is_better(plan: dict[str, Any]) -> None:
    asked = SMALL | plan
    now = windtunnel.predict(MODEL, CLUSTER, asked)
    told = advise(MODEL, CLUSTER, asked)
    assert told
    for one in told:
        other = windtunnel.predict(MODEL, CLUSTER, asked | dict(one.changes))
        assert (other.step_time_ns, other.peak_memory.device_bytes) == (one.step_time_ns, one.peak_memory_bytes)
        assert other.infeasible is None
        assert one.gain == pytest.approx(1 - other.step_time_ns / now.step_time_ns)
        assert now.infeasible is not None or one.gain > 0
    best = min((one.step_time_ns for one in told), default=now.step_time_ns)
    for name, values in {"tp": (1, 2, 4, 8), "pp": (1, 2, 4), "micro_batch": (1, 2, 4, 8), "zero_stage": (0, 1, 2, 3),
                         "recompute": ("none", "full"), "virtual_stages": (1, 2, 4)}.items():  # fmt: skip
        for value in values:
            try:
                other = windtunnel.predict(MODEL, CLUSTER, {**asked, "dp": None, name: value})
            except UserError:
                continue
            slack = 1.0 if now.infeasible is not None else 1.0 + WORTH
            assert other.infeasible is not None or best <= other.step_time_ns * slack, (name, value)


def test_each_kind_is_sorted_and_short() -> None:
    told = advise(MODEL, CLUSTER, SMALL | {"tp": 8, "pp": 2})
    for kind, most in TOLD.items():
        steps = [one.step_time_ns for one in told if one.kind == kind]
        assert steps == sorted(steps)
        assert len(steps) <= most
        fields = Counter(next(iter(one.changes)) for one in told if one.kind == kind)
        assert max(fields.values(), default=0) <= TOLD_OF_A_FIELD
    assert told[0].kind == PLAN
    had = min(one.step_time_ns for one in told if one.kind != OTHERS)
    assert all(one.step_time_ns < had for one in told if one.kind == OTHERS)


def test_two_changes_where_no_single_one_fits() -> None:
    model, cluster = windtunnel.load_model("llama-3.1-8b"), windtunnel.parse_cluster("a100-40gb-sxm:8")
    plan = {"global_batch": 8, "seq_len": 32768, "tp": 1}
    base = laid_out(model, cluster, read_plan(plan))
    capacity = cluster.gpu.usable_memory_bytes
    needed = [memory_bytes(change.layout) for change in changes_of(base)]
    told = advise(model, cluster, plan)
    assert told
    assert all(one.peak_memory_bytes <= capacity for one in told)
    if min(needed) > capacity:
        assert all(len(one.changes) > 1 or "n_gpus" in one.changes for one in told)


@pytest.mark.parametrize(("n_gpus", "told"), [(1, True), (8, False)])
def test_what_goes_to_the_host_is_that_of_the_gpus_that_are_there(n_gpus: int, told: bool) -> None:
    # 8 B parameters have 96 GB of optimizer state: a host of 128 GiB takes one GPU's, and not eight times as much.
    cluster = {"gpu": "a100-40gb-sxm", "gpus": n_gpus, "gpus_per_node": 8, "host": {"memory": "128 GiB"}}
    plan = {"global_batch": 2 * n_gpus, "seq_len": 8192, "zero_stage": 0}
    found = windtunnel.advise("llama-3.1-8b", cluster, plan)
    assert any(one.changes.get("offload_optimizer") == 1.0 for one in found) == told


def test_three_changes_together_are_told_in_one_order_only() -> None:
    told = windtunnel.advise("llama-3.1-8b", "a100-40gb-sxm:2", {"global_batch": 4, "seq_len": 65536})
    every = [frozenset(one.changes.items()) for one in told]
    assert max(len(one) for one in every) == 3
    assert len(set(every)) == len(every)


def test_what_adds_nothing_to_another_change_is_not_told() -> None:
    # `--offload-activations 1 --recompute none` is `--recompute none`: as quick, and the peak lies elsewhere.
    plan = {"framework": "nanotron", "pp": 4, "micro_batch": 4, "recompute": "full", "global_batch": 256}
    told = advise(MODEL, CLUSTER, SMALL | plan)
    assert any(one.flags == "--recompute none" for one in told)
    for one, other in permutations(told, 2):
        if one.changes.items() <= other.changes.items():
            assert other.step_time_ns < one.step_time_ns or other.peak_memory_bytes < one.peak_memory_bytes


def test_a_degree_that_was_given_is_given_again() -> None:
    base = laid_out(MODEL, CLUSTER, read_plan(SMALL | {"tp": 2, "dp": 8}))
    change = change_fields(base, {"tp": 4})
    assert change is not None
    assert flags_of(change.fields) == "--tp 4 --dp 4"
    assert change_fields(base, {"tp": 3}) is None


def test_virtual_stages_bring_their_schedule() -> None:
    base = laid_out(MODEL, CLUSTER, read_plan(SMALL | {"pp": 4, "schedule": "1f1b", "global_batch": 64}))
    change = change_fields(base, {"virtual_stages": 2})
    assert change is not None
    assert flags_of(change.fields) == "--virtual-stages 2 --schedule interleaved"


@pytest.mark.parametrize(("release", "cut"), [("megatron-25.09", {2, 4, 8}), ("megatron-24.09", set())])
def test_experts_are_cut_over_other_ranks_than_the_rest_where_a_release_can(release: str, cut: set[int]) -> None:
    mixture = windtunnel.load_model("mixtral-8x7b")
    base = laid_out(mixture, CLUSTER, read_plan(SMALL | {"cp": 4, "ep": 2, "release": release}))
    found = {change.fields["etp"]: change.kind for change in changes_of(base) if "etp" in change.fields}
    assert set(found) == {2, 4, 8}
    assert {etp for etp, kind in found.items() if kind == PLAN} == cut


def test_under_disturbances_only_what_still_helps(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from windtunnel.faces.cli import main

    words = "predict llama-3.2-1b --cluster h100-sxm:16 --tp 8 --global-batch 32 --seq 2048 --slow gpu=3:1.5 --no-save"
    main([*words.split(), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["advice"]
    for one in answer["advice"]:
        plan = SMALL | {"tp": 8} | one["changes"]
        other = windtunnel.predict(MODEL, CLUSTER, plan, slow=["gpu=3:1.5"])
        assert other.step_time_ns == one["step_time_ns"] < answer["step_time_ns"]
    main([*words.split(), "--json", "--no-advice"])
    without = json.loads(capsys.readouterr().out)
    assert without["advice_tried"] == 0
    assert without["content_hash"] == answer["content_hash"]


@pytest.mark.parametrize(
    ("fields", "has"),
    [
        ({}, True),
        ({"recompute": "full"}, False),
        ({"pp": 2}, False),
        ({"pp": 2, "virtual_stages": 2}, True),
    ],
)
def test_hidden_exchange_is_advised_only_where_megatron_runs_it(fields: dict[str, Any], has: bool) -> None:
    base = laid_out(windtunnel.load_model("mixtral-8x7b"), CLUSTER, read_plan(SMALL | {"ep": 8} | fields))
    change = change_fields(base, {"overlap_ep": True})
    assert change is not None
    assert change.kind == (PLAN if has else OTHERS)
    space = Space(base.model, base.cluster, SMALL)
    saving = {"recompute": base.plan.recompute, "zero_stage": 1}
    assert switches(space, base, saving)["overlap_ep"] == ((True, False) if has else (None,))


def test_megatron_overlaps_tensor_parallel_sums_with_sequence_parallel_ranks_alone() -> None:
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.physics.model.catalogue import load_model
    from windtunnel.studies.training.plan import Plan

    plan = Plan(tp=4, global_batch=8, seq_len=2048, sequence_parallel=False, overlap_tp=False)
    change = change_fields(laid_out(load_model("llama-3-8b"), parse_cluster("h100-sxm:8"), plan), {"overlap_tp": True})
    assert change is not None
    assert change.fields == {"overlap_tp": True, "sequence_parallel": True}
