"""Laws of a plain PyTorch step: tapes balance, time follows the measured times, memory grows with the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calibrated_cpu import calibrated_cpu, config
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import Kind

PLAN: dict[str, Any] = {
    "framework": "pytorch",
    "precision": "fp32",
    "global_batch": 4,
    "micro_batch": 2,
    "seq_len": 128,
}
CLUSTER = parse_cluster(calibrated_cpu())

MODELS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["llama", "nemotron", "mixtral"]),
        "layers": st.integers(1, 3),
        "heads": st.sampled_from([2, 4]),
        "kv": st.sampled_from([1, 2]),
        "h": st.sampled_from([128, 256]),
        "f": st.sampled_from([256, 688]),
        "v": st.sampled_from([500, 4000]),
        "experts": st.sampled_from([2, 4]),
        "top": st.sampled_from([1, 2]),
    }
)
PLANS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(["fp32", "bf16"]),
        "recompute": st.sampled_from(["none", "full", "full:1"]),
        "micro_batch": st.sampled_from([1, 2, 4]),
        "compile": st.booleans(),
    }
)


def peak(model: dict[str, Any], plan: dict[str, Any]) -> int:
    return predict(config(**model), CLUSTER, PLAN | plan).memory[0].peak_allocated_bytes


@given(model=MODELS, plan=PLANS, cluster=st.sampled_from([CLUSTER, parse_cluster("h100-sxm:1")]))
@settings(max_examples=40, deadline=None)
def test_what_is_allocated_is_freed(model: dict[str, Any], plan: dict[str, Any], cluster: Any) -> None:
    layout = resolve(load_model(config(**model)), cluster, read_plan(PLAN | plan))
    for piece in pieces_of(layout):
        passes = piece.passes
        events = np.concatenate((passes.forward, passes.backward))
        held = np.zeros(len(passes.stream), np.int64)
        for slot, size in events.tolist():
            assert (held[slot] == 0) == (size > 0)  # nothing is made twice, nothing freed that is not there
            held[slot] += size
            assert held[slot] >= 0
        assert not held.any()
        first, later = (passes.load(Kind.BACKWARD, later=which) for which in (False, True))
        assert first.learned <= first.learns
        assert later.most <= first.most
        width = 4 if plan["precision"] == "fp32" else 2
        assert first.learns == width * layout.model.parameters


@given(model=MODELS, plan=PLANS)
@settings(max_examples=15, deadline=None)
def test_memory_grows_with_the_work(model: dict[str, Any], plan: dict[str, Any]) -> None:
    least = peak(model, plan)
    assert peak(model | {"layers": model["layers"] + 1}, plan) > least
    assert peak(model, plan | {"global_batch": 8, "micro_batch": plan["micro_batch"] * 2}) >= least
    assert peak(model, plan | {"seq_len": 256}) >= least
    assert peak(model | {"v": 2 * model["v"]}, plan) > least


@given(model=MODELS, plan=PLANS)
@settings(max_examples=15, deadline=None)
def test_recomputation_saves_memory_and_costs_time(model: dict[str, Any], plan: dict[str, Any]) -> None:
    model = model | {"layers": 4}
    kept, again = (
        predict(config(**model), CLUSTER, PLAN | plan | {"recompute": text}) for text in ("none", "full")
    )  # fmt: skip
    assert again.memory[0].peak_allocated_bytes <= kept.memory[0].peak_allocated_bytes
    assert again.step_time_ns > kept.step_time_ns
    assert again.hfu > kept.hfu
    assert again.model_tflops_per_gpu < kept.model_tflops_per_gpu


@given(model=MODELS, plan=PLANS)
@settings(max_examples=10, deadline=None)
def test_the_step_is_as_much_slower_as_all_measured_times(model: dict[str, Any], plan: dict[str, Any]) -> None:
    fast, slow = (
        predict(config(**model), calibrated_cpu(pace=pace), PLAN | plan | {"compile": False}) for pace in (1.0, 3.0)
    )
    assert slow.step_time_ns == pytest.approx(3.0 * fast.step_time_ns, rel=1e-3)
    assert slow.memory[0].categories == fast.memory[0].categories


@given(model=MODELS, micro_batches=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_time_is_linear_in_micro_batches(model: dict[str, Any], micro_batches: int) -> None:
    """The first writes the gradients, every other adds to them."""
    times = [
        predict(config(**model), CLUSTER, PLAN | {"global_batch": 2 * count}).step_time_ns
        for count in (micro_batches, micro_batches + 1, micro_batches + 2)
    ]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], abs=10)


def test_one_rank_waits_for_nobody() -> None:
    result = predict(config(), CLUSTER, PLAN)
    assert "waiting for the slowest rank" not in result.breakdown_ns
    assert not any(name.startswith("exposed") for name in result.breakdown_ns)
    assert sum(result.breakdown_ns.values()) == result.step_time_ns


def test_ranks_that_only_share_data_hold_the_same_and_reduce() -> None:
    one = predict(config(), CLUSTER, PLAN)
    two = predict(config(), calibrated_cpu(gpus=2), PLAN | {"global_batch": 8})
    assert any(name.startswith("exposed dp") for name in two.breakdown_ns)
    assert two.memory[0].categories["parameters"] == one.memory[0].categories["parameters"]
    assert two.step_time_ns > one.step_time_ns


@given(model=MODELS, plan=PLANS)
@settings(max_examples=15, deadline=None)
def test_new_pages_cost_what_a_byte_of_them_costs(model: dict[str, Any], plan: dict[str, Any]) -> None:
    none, one, two = (
        predict(config(**model), calibrated_cpu(new_page_s_per_byte=cost), PLAN | plan) for cost in (0.0, 1e-9, 2e-9)
    )
    extra = one.step_time_ns - none.step_time_ns
    assert two.step_time_ns - none.step_time_ns == pytest.approx(2 * extra, abs=20)
    # Nothing is handed out anew that was not allocated, and no byte more than a few times a step.
    assert 0 <= extra <= 40 * one.memory[0].peak_allocated_bytes
    assert sum(one.breakdown_ns.values()) == one.step_time_ns


@given(held=st.lists(st.floats(0.0, 16 * 2**30), min_size=2, max_size=2), dearer=st.floats(1.0, 8.0))
def test_pages_of_a_larger_process_cost_what_was_measured_in_one(held: list[float], dearer: float) -> None:
    usual, wide = 1e-9, dearer * 1e-9
    device = parse_cluster(calibrated_cpu(new_page_s_per_byte=usual, new_page_4gib_s_per_byte=wide))
    layout = resolve(load_model(config()), device, read_plan(PLAN))
    pricer = Pricer(layout)
    small, large = (pricer.new_pages(1e6, size).seconds for size in sorted(held))
    assert usual <= small * 1e-6 * (1 + 1e-9)
    assert small <= large * (1 + 1e-9)
    assert pricer.new_pages(1e6, 0.0).seconds == pytest.approx(usual * 1e6)
    assert (
        pricer.new_pages(1e6, 4 * 2**30).seconds
        == pricer.new_pages(1e6, 64 * 2**30).seconds
        == pytest.approx(wide * 1e6)
    )
    update = pricer.new_pages(1e6, 64 * 2**30, update=True).seconds
    assert update == pytest.approx(wide * 1e6)  # what it costs more in a large process, on top of the update's own


def test_pages_that_were_found_cheaper_by_chance_do_not_give_time_back() -> None:
    updates = {f"new_page_update_{dtype}_s_per_byte": 2e-10 for dtype in ("fp32", "bf16")}
    device = parse_cluster(calibrated_cpu(new_page_s_per_byte=5e-10, new_page_2gib_s_per_byte=1e-10, **updates))
    pricer = Pricer(resolve(load_model(config()), device, read_plan(PLAN)))
    assert pricer.new_pages(1e6, 2 * 2**30, update=True).seconds == 0.0


def test_large_tensors_are_on_new_pages_in_every_step() -> None:
    """Logits above 32 MiB: written, and read back as log-softmax, on pages that come and go."""
    wide = config(v=50_000)
    plan = PLAN | {"global_batch": 2, "seq_len": 256}
    none, some = (predict(wide, calibrated_cpu(new_page_s_per_byte=cost), plan) for cost in (0.0, 1e-9))
    logits = 2 * 256 * 50_000 * 4
    assert some.step_time_ns - none.step_time_ns >= 4 * logits


@given(model=MODELS)
@settings(max_examples=10, deadline=None)
def test_what_runs_beside_an_op_is_counted_by_ops(model: dict[str, Any]) -> None:
    """Twice the cost of a node of autograd, twice the extra time; compiled code has none of it."""
    host = [0.0, 1e-6, 2e-6]
    times = [predict(config(**model), calibrated_cpu(grad_node_s=cost), PLAN).step_time_ns for cost in host]
    assert times[1] > times[0]
    assert times[2] - times[0] == pytest.approx(2 * (times[1] - times[0]), rel=1e-3)


def test_a_result_names_its_calibration_and_does_not_carry_it() -> None:
    calibration: Any = predict(config(), CLUSTER, PLAN).spec["cluster"]["calibration"]  # type: ignore[index]
    assert CLUSTER.calibration is not None
    assert calibration["digest"] == CLUSTER.calibration.digest
    assert calibration["points"] > 100
