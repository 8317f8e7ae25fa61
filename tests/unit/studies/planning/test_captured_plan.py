"""`plan captured/`: a script's units cut into stages, by the prices that `predict` has of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from handmade import Grid, job_of

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.questions import read
from windtunnel.studies.plan import cuts
from windtunnel.studies.planning.captured import plan_captured
from windtunnel.studies.planning.captured.units import script_of
from windtunnel.studies.planning.oracle import walked_1f1b
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.pricing import op_pricer
from windtunnel.studies.programs.predict import predict_captured

DATA_PARALLEL = Grid(pp=1, dp=4, tp=1)
CLUSTER = "h100-sxm:4"


def _job(layers: int = 6) -> CapturedJob:
    return job_of(DATA_PARALLEL, layers=layers, micro_batches=4, rows=4096, width=4096)


def test_one_stage_takes_what_the_script_takes_as_it_is() -> None:
    job = _job()
    (whole,) = plan_captured(job, CLUSTER, pp=1)["plans"]
    assert whole["plan"] == {"pp": 1, "dp": 4, "layers_per_stage": [6], "micro_batches": 4, "schedule": "1f1b"}
    assert whole["step_time_s"] == pytest.approx(predict_captured(job, CLUSTER).step_time_s, rel=0.1)


def test_every_cut_holds_all_units_and_all_micro_batches() -> None:
    found = plan_captured(_job(), CLUSTER)
    assert [len(found["plans"]), found["space"]["legal"], found["gap"]] == [3, 3, 0.0]
    steps = [one["step_time_s"] for one in found["plans"]]
    assert steps == sorted(steps)
    for one in found["plans"]:
        plan = one["plan"]
        assert plan["pp"] * plan["dp"] == 4
        assert plan["dp"] * plan["micro_batches"] == 16
        assert sum(plan["layers_per_stage"]) == len(found["units"]) == 6
        assert one["p5_s"] <= one["step_time_s"] <= one["p95_s"]
        assert f"--pp {plan['pp']} --dp {plan['dp']}" in one["reproduce"]
    json.dumps(found)


def test_the_longest_stage_is_as_short_as_any_cut_makes_it() -> None:
    job = _job(layers=7)
    (found,) = plan_captured(job, CLUSTER, pp=4)["plans"]
    script = script_of(job, op_pricer(parse_cluster(CLUSTER)))
    each = [unit.forward_s + unit.backward_s for unit in script.units]
    cuts = [(0, *inner, 7) for inner in combinations(range(1, 7), 3)]
    best = min(max(sum(each[a:b]) for a, b in pairwise(cut)) for cut in cuts)
    ends = [0]
    for count in found["plan"]["layers_per_stage"]:
        ends.append(ends[-1] + count)
    assert max(sum(each[a:b]) for a, b in pairwise(ends)) == pytest.approx(best)


def test_a_walk_through_equal_stages_is_the_closed_form() -> None:
    ends = walked_1f1b(4, 8, [1.0] * 4, [2.0] * 4)
    assert ends[0] == pytest.approx((8 + 4 - 1) * 3.0)


def test_more_stages_hold_less_state() -> None:
    found = {one["plan"]["pp"]: one for one in plan_captured(_job(), CLUSTER)["plans"]}
    unsharded = [found[pp]["stages"][-1]["memory_bytes"] for pp in (2, 4)]
    assert unsharded[1] < unsharded[0]


def test_nothing_that_fits_is_an_answer() -> None:
    cluster = parse_cluster(CLUSTER)
    small = replace(cluster, gpu=replace(cluster.gpu, memory_bytes=2**31, usable_memory_bytes=2**28))
    found = plan_captured(_job(), small)
    assert (found["status"], found["plans"]) == ("infeasible", [])
    needed = [one["peak_memory_bytes"] for one in found["nearest"]]
    assert needed == sorted(needed)
    assert needed[0] > 2**28


@pytest.mark.parametrize(
    ("grid", "said"), [(Grid(2, 2, 1), "is a pipeline already"), (Grid(1, 2, 2), "cuts its layers over ranks")]
)
def test_a_script_that_is_cut_already_is_one_clear_error(grid: Grid, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_captured(job_of(grid), "h100-sxm:4")


@pytest.mark.parametrize("pp", [3, 0, -2])
def test_stages_that_do_not_divide_the_gpus_are_refused(pp: int) -> None:
    with pytest.raises(SpecError, match="does not divide 4 GPUs"):
        plan_captured(_job(), CLUSTER, pp=pp)


def test_what_reproduces_a_cut_says_all_that_was_asked() -> None:
    found = plan_captured(_job(), CLUSTER, pp=2, framework="megatron", cuda_graphs=True)["plans"][0]
    assert found["reproduce"].endswith(f"--cluster {CLUSTER} --framework megatron --cuda-graphs --pp 2 --dp 2")
    with pytest.raises(SpecError, match="leave it out"):
        cuts(read({"question": "plan", "model": "captured", "cluster": CLUSTER, "gpus": "2..4"}))
