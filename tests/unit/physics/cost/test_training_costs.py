from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import yaml
from scripts import script

from windtunnel.physics.cost import training
from windtunnel.physics.cost.training import MATH, SCALE_OUT, SCALE_UP, TRAFFIC, Software, software, training_costs
from windtunnel.studies.training.plan import Framework

GENERATIONS = ("ampere", "hopper", "blackwell", "other")
ROOT = Path(__file__).parents[4]
FILE = ROOT / "src/windtunnel/physics/cost/calibration/training.yaml"


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    return script("fit.py")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_constant_leaves_what_is_physically_plausible(generation: str) -> None:
    costs = training_costs(generation)
    sustained = costs.sustained
    assert all(0.4 <= share <= 0.95 for share in sustained.gemm.values())
    factors = (sustained.attention, sustained.attention_triton, sustained.attention_flash2, sustained.memory)
    assert all(0.9 <= factor <= 3.0 for factor in factors)
    assert sustained.attention_triton >= sustained.attention_flash2 >= 1.0  # each generation of kernels is faster
    assert sustained.p2p >= 1.0
    assert min(sustained.dispatch, sustained.dispatch_across) >= 1.0  # never faster than the wire
    assert 0.0 < costs.graph_launch_s < min(costs.launch_s.values())
    assert all(
        costs.launch_s[name] * costs.backward_launch[name] <= call < 1e-3
        for name, call in costs.collective_launch_s.items()
    )  # a launch and more, without the modules around it
    assert all(0.3 <= share <= 1.0 for share in costs.backward_launch.values())
    assert 0.0 <= costs.jitter < 0.05
    assert all(0.0 < sigma <= 1.0 for sigma in costs.uncertainty.values())


def test_low_precision_reaches_a_smaller_share_of_its_own_peak_but_more_flops() -> None:
    gemm = training_costs("blackwell").sustained.gemm
    assert gemm["nvfp4"] * 4 > gemm["mxfp8"] * 2 > gemm["bf16"]  # dense peaks are 4 : 2 : 1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_framework_has_its_host_costs(generation: str) -> None:
    costs = training_costs(generation)
    assert set(costs.launch_s) == set(costs.step_per_doubling_s) == set(get_args(Framework))


def test_unknown_generation_gets_the_default_constants() -> None:
    assert training_costs("ada") == training_costs("other")
    assert not training_costs("ada").measured
    assert training_costs("hopper").measured


def test_collectives_on_compute_units_slow_what_runs_beside_them() -> None:
    assert training_costs("cdna3").compute_by_scale_up == training_costs("cdna4").compute_by_scale_up > 0.5
    assert training_costs("cdna3").compute_by_scale_up > 5 * training_costs("hopper").compute_by_scale_up


def test_slowest_of_more_ranks_is_slower_but_ever_less_so() -> None:
    excess = [training_costs("hopper").straggling(2**n) for n in range(15)]
    assert excess[0] == 0.0
    steps = [after - before for before, after in pairwise(excess)]
    assert all(step > 0 for step in steps)
    assert all(later < earlier for earlier, later in pairwise(steps))
    assert excess[10] == pytest.approx(training_costs("hopper").jitter * math.sqrt(2 * math.log(1024)))


def test_slowdown_is_between_compute_and_communication_only() -> None:
    factors = training_costs("hopper").slowdown_factors()
    compute, comm = (MATH, TRAFFIC), (SCALE_UP, SCALE_OUT)
    assert all(len(row) == len(factors) for row in factors)
    for a, row in enumerate(factors):
        for b, factor in enumerate(row):
            crossing = (a in compute and b in comm) or (a in comm and b in compute)
            assert factor >= 0.0
            assert crossing or factor == 0.0
    assert factors[MATH][SCALE_UP] > 0.0


def test_release_that_is_not_stated_or_not_known_or_newer_than_all_is_the_current_one() -> None:
    assert software(None) == software("unheard-of") == software("nemo-99.12") == software("bridge-26.02") == Software()


def test_release_that_was_not_fitted_is_taken_as_the_next_one_that_was() -> None:
    habits = {"overlap_p2p", "overlap_gradients", "deduplicates", "fused_mla", "fp8_gather", "weighs_in_experts"}
    old = Software(**dict.fromkeys(habits, False), gradient_dtype="fp32", loss="eager")
    assert software("megatron-21.04") == software("megatron-22.05") == old
    assert software("mlperf-v2.1") == software("mlperf-v4.0") != software("mlperf-v4.1")
    assert software("nemo-24.04") == software("nemo-24.08") != software("nemo-24.11") == software("nemo-25.02")
    older = ("megatron-24.12", "nemo-25.04", "mlperf-v5.0")  # before Megatron-Core 0.13
    assert not any(software(one).weighs_in_experts for one in older)
    assert all(software(one).weighs_in_experts for one in ("megatron-25.06", "nemo-25.05", "megatron-26.01"))


def test_fit_moves_only_constants_that_exist_and_stand_within_their_bounds(fit: ModuleType) -> None:
    paths = [constant.path for constant in fit.CONSTANTS]
    assert len(set(paths)) == len(paths)
    for constant in fit.CONSTANTS:
        assert constant.low <= fit.get(constant.path) <= constant.high, constant.path
        prior = constant.prior if isinstance(constant.prior, float) else fit.get(constant.prior)
        assert constant.low <= prior <= constant.high, constant.path


def test_fit_writes_numbers_and_leaves_the_rest_of_the_file_alone(fit: ModuleType) -> None:
    text = FILE.read_text(encoding="utf-8")
    assert fit.rewritten(text, {}) == text
    changes = {
        "generations.hopper.gemm.bf16": 0.5,
        "experts.chained_passes": 4.0,
        "host.launch_s.fsdp": 3e-6,
        "jitter": 0.001,
    }
    after = fit.rewritten(text, changes)
    expected = yaml.safe_load(text)
    expected["generations"]["hopper"]["gemm"]["bf16"] = 0.5
    expected["experts"]["chained_passes"] = 4.0
    expected["host"]["launch_s"]["fsdp"] = 3e-6
    expected["jitter"] = 0.001
    assert yaml.safe_load(after) == expected
    assert [line.partition("#")[2] for line in after.splitlines()] == [
        line.partition("#")[2] for line in text.splitlines()
    ]


def test_file_is_what_is_loaded() -> None:
    assert training.training_document() == yaml.safe_load(FILE.read_text(encoding="utf-8"))
