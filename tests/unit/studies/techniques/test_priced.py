"""Techniques priced: laws of each, the contract of `predict --technique`, and mistakes as one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest

from windtunnel.errors import LayoutError, SpecError, UnknownNameError
from windtunnel.faces.cli import main
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.prediction.views import prediction_document
from windtunnel.faces.report.techniques import gain_lines
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.step.result import Result
from windtunnel.studies.techniques import gains, predict_with
from windtunnel.studies.techniques.flat import lower_flat
from windtunnel.studies.techniques.megascale.features import MegaScalePlan, with_feature
from windtunnel.studies.techniques.offload.window import LayerTimes, by_formula, timeline
from windtunnel.studies.techniques.parameters import LocalPlan, OffloadPlan, SparsePlan
from windtunnel.studies.techniques.prioritised_all_to_all.price import choose_packing
from windtunnel.studies.techniques.registry import TECHNIQUES, list_techniques, parse_technique
from windtunnel.studies.training import read_plan

DENSE = {"global_batch": 64, "micro_batch": 4, "seq_len": 1024, "zero_stage": 0, "overlap_grad_reduce": False}
MIXTURE = {"global_batch": 64, "micro_batch": 1, "seq_len": 4096, "ep": 8, "tp": 2}


def gain(model: str, cluster: str, plan: dict, *techniques: str, **others) -> Result:
    return predict_with(load_model(model), parse_cluster(cluster), read_plan(plan), techniques, **others)


@cache
def dense(*techniques: str) -> Result:
    return gain("gpt2-xl", "a100-80gb:16", DENSE, *techniques)


@cache
def mixture(*techniques: str, **others) -> Result:
    """A quarter of Mixtral's layers: techniques repeat by layer."""
    model = load_model("mixtral-8x7b")
    quarter = replace(model, layers=model.layers[:8])
    return predict_with(quarter, parse_cluster("a100-80gb:64"), read_plan(MIXTURE), techniques, **others)


def test_every_answer_sums_up() -> None:
    for result in (dense("sparse_gradients:ratio=0.01"), dense("local_sgd"), mixture("lina"), mixture("centauri")):
        assert sum(result.breakdown_ns.values()) == result.step_time_ns
        assert all(sum(stage.breakdown_ns.values()) == result.step_time_ns for stage in result.stages)
        told = result.technique
        assert told.gain == pytest.approx(told.step_time_without_s / told.step_time_with_s)
        assert result.step_time_s == pytest.approx(told.step_time_with_s)
        assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result
        for limit in result.limits:  # what limits the step with the technique, not the one without
            assert limit.share == result.breakdown_ns[limit.what] / result.step_time_ns
            assert limit.step_time_s_without < result.step_time_s


def test_partitioning_never_makes_a_step_longer() -> None:
    for result in (dense("centauri"), mixture("centauri"), dense("centauri:overlap=false")):
        assert result.technique.gain >= 1.0 - 1e-9


def test_priority_takes_the_slowdown_away() -> None:
    details = mixture("lina:packing=1").technique.details
    assert details["slowdown_backward_without"] > 1.3
    assert details["slowdown_backward_with"] == pytest.approx(1.0, abs=0.01)
    assert details["pipelining_with"] > details["pipelining_without"]


def test_router_load_is_priced() -> None:
    even, uneven = mixture("lina:packing=1"), mixture("lina:packing=1", router_load="zipf:0.6")
    assert uneven.technique.step_time_without_s > even.technique.step_time_without_s


def test_fewer_chunks_take_less_time_and_ratio_one_changes_nothing() -> None:
    times = [dense(f"sparse_gradients:ratio={ratio}").technique.step_time_with_s for ratio in (0.01, 0.1, 0.5)]
    assert times == sorted(times)
    assert dense("sparse_gradients:ratio=1").technique.gain == 1.0


def test_why_fewer_bytes_may_save_no_time_is_told() -> None:
    hidden = gain("gpt2-xl", "a100-80gb:16", {**DENSE, "overlap_grad_reduce": True}, "sparse_gradients:ratio=0.01")
    assert hidden.technique.gain < 1.0
    assert any("exchange alone" in note for note in hidden.technique.notes)
    exposed = dense("sparse_gradients:ratio=0.01").technique
    assert exposed.gain > 1.0
    assert not any("exchange alone" in note for note in exposed.notes)


def test_a_step_that_fits_with_the_technique_alone_is_told() -> None:
    plan = {"global_batch": 4, "seq_len": 1024}
    result = gain("llama-3-8b", "a100-80gb:1", plan, "offload")
    assert result.status == "ok"
    assert any(note.startswith("the step without does not fit: 128 GiB of") for note in result.technique.notes)
    assert not any("does not fit:" in note for note in dense("local_sgd").technique.notes)


def test_coarse_chunks_break_even_where_the_formula_says() -> None:
    """The exchange alone, choosing included: below the ratio it is shorter, above it longer."""
    from windtunnel.studies.techniques.flat import lower_flat
    from windtunnel.studies.techniques.sparse_gradients.price import break_even_ratio, sparse

    step = lower_flat(load_model("gpt2-xl"), parse_cluster("a100-80gb:16"), read_plan(DENSE))
    ratio = break_even_ratio(step, SparsePlan())
    assert 0.1 < ratio < 1.0
    whole = sum(task.work_ns for task in step.one_batch if task.role == "reduce")
    for factor, longer in ((0.9, False), (1.1, True)):
        made = sparse(step.one_batch, step.pricer, SparsePlan(ratio=ratio * factor))
        assert (sum(t.work_ns for t in made if t.role in ("reduce", "choose")) > whole) == longer
    single = break_even_ratio(step, SparsePlan(chunk=1))
    assert single < 2.0 / 16  # N ranks: an all-gather of indices and values pays below about 2 / (N (1 + 4 / w))


def test_of_a_reduction_by_group_chunks_are_chosen_once() -> None:
    """Inside nodes, across them and back inside: the same chunks."""
    from windtunnel.studies.techniques.collective_partitioning.price import by_group
    from windtunnel.studies.techniques.flat import lower_flat
    from windtunnel.studies.techniques.sparse_gradients.price import sparse

    step = lower_flat(load_model("gpt2-xl"), parse_cluster("a100-80gb:16"), read_plan(DENSE))
    parted = by_group(step.one_batch, step.pricer)
    reduces = sum(task.role == "reduce" for task in step.one_batch)
    assert sum(task.role == "reduce" for task in parted) == 3 * reduces
    others = [replace(task, role="gather") for task in step.one_batch]
    assert len(by_group(others, step.pricer)) == len(others)  # what is no reduction stays whole, however long it takes
    made = sparse(parted, step.pricer, SparsePlan(ratio=0.05))
    assert sum(task.role == "choose" for task in made) == sum(task.name == "chunk norms" for task in made) == reduces
    packed = [task for task in made if task.name.endswith("chosen chunks")]
    assert sum(task.bytes_total for task in packed) == pytest.approx(
        0.05 * sum(task.bytes_total for task in parted if task.role == "reduce")
    )


def test_rarer_averages_take_less_time() -> None:
    times = [dense(f"local_sgd:local_steps={steps}").technique.step_time_with_s for steps in (1, 4, 64)]
    assert times == sorted(times, reverse=True)
    assert dense("local_sgd:local_steps=1000000").technique.gain > 1.0


@pytest.mark.parametrize("update", [0.01, 0.1])
def test_window_timeline_is_the_formula_where_copies_hide(update: float) -> None:
    times = LayerTimes(0.04, 0.08, 0.01, 0.01, update, 0.001)
    for window in (2, 5, 10, 20):
        found = timeline(times, 20, window).step_s
        assert found == pytest.approx(by_formula(times, 20, window), rel=0.06)


def test_larger_windows_are_never_slower_and_all_resident_has_no_copies() -> None:
    times = LayerTimes(0.04, 0.08, 0.02, 0.02, 0.1, 0.001)
    steps = [timeline(times, 16, window).step_s for window in range(2, 17)]
    assert all(b <= a + 1e-9 for a, b in pairwise(steps))
    assert steps[-1] == pytest.approx(16 * (0.04 + 0.08 + 0.001))


def test_offload_fits_where_the_whole_does_not() -> None:
    plan = {"global_batch": 4, "micro_batch": 4, "seq_len": 1024, "precision": "fp32", "recompute": "full"}
    result = gain("llama-2-7b", "a100-40gb:1", plan, "offload:host_memory=512 GiB")
    assert result.status == "ok"
    assert result.technique.gain < 1.0
    whole = gain("llama-2-7b", "a100-40gb:1", plan, "offload:window=32")
    assert whole.status == "infeasible"


SMALL = {"global_batch": 64, "seq_len": 1024, "tp": 2, "zero_stage": 0}


def test_what_a_window_takes_sums_up_and_is_less_than_the_whole() -> None:
    whole = gain("llama-3-8b", "h100-sxm:64", SMALL)
    for window in (1, 5, 31):
        held = gain("llama-3-8b", "h100-sxm:64", SMALL, f"offload:window={window}").peak_memory
        assert all(part >= 0 for part in held.categories.values())
        assert sum(held.categories.values()) == held.peak_allocated_bytes <= held.peak_reserved_bytes
        for name in ("parameters", "gradients", "optimizer"):
            assert held.categories[name] < whole.peak_memory.categories[name]
        assert held.categories["activations"] == whole.peak_memory.categories["activations"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ("offload:host_memory=1GB", "host_memory"),
        ("offload:host_memory=1GB,window=5", "host_memory"),
        ("offload:device_memory=1GB", "device_memory"),
        ("offload:device_memory=20GB,window=3", "device_memory"),
    ],
)
def test_a_window_that_neither_side_can_hold_is_one_message(asked: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        gain("llama-3-8b", "h100-sxm:64", SMALL, asked)
    assert refused.value.field == field


def test_a_window_takes_what_the_host_cannot() -> None:
    """As many layers stay as the host has no room for; a drive takes them."""
    within = "offload:device_memory=75GB,host_memory=30GB"
    assert gain("llama-3-8b", "h100-sxm:64", SMALL, within).technique.parameters["window"] >= 15
    assert gain("llama-3-8b", "h100-sxm:64", SMALL, "offload:window=3,host_memory=1GB,nvme=true").status == "ok"


def test_packing_beside_partitioning_is_tried_and_holds_its_memory() -> None:
    one = mixture("centauri", "lina:packing=2")
    assert one.technique.parameters["prioritised_all_to_all"]["packing"] == 2
    apart = mixture("lina:packing=1").peak_memory.categories["parameters"]
    assert one.peak_memory.categories["parameters"] > 1.3 * apart
    assert mixture("lina:packing=2").peak_memory == one.peak_memory


def test_order_does_not_matter_and_illegal_pairs_are_one_message() -> None:
    one = dense("centauri", "sparse_gradients:ratio=0.05")
    other = dense("sparse_gradients:ratio=0.05", "centauri")
    assert one.technique == other.technique
    assert set(one.technique.parameters) == {"collective_partitioning", "sparse_gradients"}
    for technique in TECHNIQUES:
        for excluded in technique.excludes:
            with pytest.raises(SpecError, match="do not go together"):
                dense(technique.name, excluded)
    with pytest.raises(SpecError, match="given twice"):
        dense("lina", "prioritised_all_to_all")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("linna", UnknownNameError),
        ("lina:foo=1", UnknownNameError),
        ("lina:packing=x", SpecError),
        ("lina:packing", SpecError),
        ("lina:packing=2,packing=2", SpecError),
        ("sparse_gradients:rule=best", SpecError),
        ("sparse_gradients:ratio=2", SpecError),
        ("centauri:pieces=3", SpecError),
        ("megascale:features=all+x", UnknownNameError),
        ("lina", LayoutError),  # no experts
        ("offload:window=1000", SpecError),
        ("megascale:window=16", SpecError),  # of a feature that is not asked for
        ("megascale:batch_factor=2,features=tp_overlap", SpecError),
        ("local_sgd:round_rate=3", SpecError),  # an exponential decay to negative learning rates
    ],
)
def test_mistakes_are_one_message(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        dense(text)


def test_micro_operations_beyond_number_are_one_message() -> None:
    with pytest.raises(SpecError, match="pieces of gather parameters"):
        mixture("lina:packing=1,micro_op=1kB")


@pytest.mark.parametrize(
    "plan",
    [
        partial(SparsePlan, rule="top-k"),
        partial(SparsePlan, ratio=0.0),
        partial(LocalPlan, rounds="cosine"),
        partial(LocalPlan, steps="inverse", step_rate=-1.0),
        partial(OffloadPlan, optimizer="Fused"),
    ],
)
def test_a_plan_made_in_python_has_the_same_limits(plan: Callable[[], object]) -> None:
    with pytest.raises(SpecError):
        plan()


def test_console_and_page_say_what_a_technique_brings() -> None:
    result = gain("llama-3-8b", "h100-sxm:64", SMALL, "offload:window=5")
    lines = gain_lines(result.technique)
    assert "allocated" in "".join(lines)
    assert "GiB" in "".join(lines)
    page = page_of(prediction_document(result))
    assert any("before its tasks are rewritten" in note for note in result.technique.notes)
    assert "Technique: offload" in page


def test_names_aliases_and_values_are_read() -> None:
    one, parameters = parse_technique("STRONGHOLD: window = 15 , nvme=on")
    assert (one.name, parameters.window, parameters.nvme) == ("offload", 15, True)
    assert parse_technique("offload:window=auto")[1].window is None
    assert {entry["name"] for entry in list_techniques()} == {one.name for one in TECHNIQUES}


def test_all_techniques_at_once_say_what_they_bring_or_why_not() -> None:
    found = gains("gpt2-xl", "a100-80gb:16", DENSE)
    assert set(found) == {one.name for one in TECHNIQUES}
    assert "experts" in found["prioritised_all_to_all"]
    assert found["collective_partitioning"].gain >= 1.0


def test_megascale_features_are_each_told() -> None:
    plan = {"global_batch": 256, "seq_len": 2048, "tp": 8, "pp": 8, "virtual_stages": 6}
    told = gain("gpt3-175b", "a100-80gb:256", plan, "megascale:features=tp_overlap+parallel_block").technique
    assert list(told.details) == ["parallel_block", "tp_overlap"]
    assert all(ratio > 1.0 for ratio in told.details.values())
    assert told.gain == pytest.approx(told.details["parallel_block"] * told.details["tp_overlap"])


def test_packing_rule() -> None:
    for ratio, expected in ((0.9, 1), (1.1, 4), (4.0, 16)):
        rule = choose_packing(lambda p: 1.0, lambda p, r=ratio: r * (1 - p / 16) * 16 / 15, 16)
        assert rule == expected


def test_the_command_line(capsys) -> None:
    words = ["predict", "mixtral-8x7b", "--cluster", "a100-80gb:64", "--ep", "8", "--tp", "2", "--global-batch", "32",
             "--seq", "4096", "--no-advice", "--technique", "lina:packing=1", "--no-save"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["technique"]
    assert found["gain"] == pytest.approx(found["step_time_without_s"] / found["step_time_with_s"])
    assert found["parameters"]["micro_op"] == 30_000_000
    assert "--technique lina:packing=1" in document["reproduce"]
    assert main(words) == 0
    assert "Technique" in capsys.readouterr().out
    assert main(["techniques", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["techniques"]) == len(TECHNIQUES)
    assert main(["techniques"]) == 0
    assert "stronghold" in capsys.readouterr().out
    assert main([*words[:-2], "offload", "--technique", "lina"]) == 2
    assert "do not go together" in capsys.readouterr().err


def test_the_update_waits_for_every_reduction() -> None:
    plan = {"tp": 8, "global_batch": 64, "seq_len": 1024, "zero_stage": 0, "overlap_grad_reduce": False}
    step = lower_flat(load_model("llama-3-8b"), parse_cluster("h100-sxm:64"), read_plan(plan))
    (update,) = (task for task in step.one_batch if task.role == "update")
    reductions = {number for number, task in enumerate(step.one_batch) if task.role == "reduce"}
    assert len(reductions) > 1
    assert reductions <= set(update.after)


def test_packing_drops_nothing_of_the_technique_before_it() -> None:
    packed, both = mixture("lina:packing=2"), mixture("centauri", "lina:packing=2")
    assert both.step_time_ns < packed.step_time_ns  # partitioned, too


def test_what_a_technique_costs_has_its_name() -> None:
    longer = dense("sparse_gradients:ratio=0.99,chunk=1")
    assert longer.technique.gain < 1
    assert longer.breakdown_ns["added by sparse_gradients"] > 0


@pytest.mark.parametrize("part", ["host_threads=0", "updaters=0", "device_memory=0"])
def test_offload_with_nothing_is_refused(part: str) -> None:
    with pytest.raises(SpecError, match=part.partition("=")[0]):
        dense(f"offload:{part}")


def test_a_sliding_window_widens_none() -> None:
    model, _ = with_feature(
        load_model("gemma-3-4b"), read_plan(DENSE), "sliding_window", MegaScalePlan("sliding_window", window=900)
    )
    narrow = [layer.attention.window for layer in load_model("gemma-3-4b").layers]
    assert [layer.attention.window for layer in model.layers] == [min(one or 900, 900) for one in narrow]


def test_replicas_of_shards_are_reduced_after_the_shards_though_nothing_overlaps() -> None:
    """Of a hybrid sharding the all-reduce across replicas takes what the reduce-scatter has made."""
    plan = {"global_batch": 64, "seq_len": 1024, "zero_stage": 1, "shard_group": 8, "overlap_grad_reduce": False}
    tasks = lower_flat(load_model("gpt2-xl"), parse_cluster("a100-80gb:16"), read_plan(plan)).one_batch
    replicas = [task for task in tasks if task.name == "reduce replicas"]
    assert replicas
    for task in replicas:
        assert [tasks[one].name for one in task.after] == ["reduce gradients"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: SparsePlan(ratio="a"), "ratio = 'a': give a number"),
        (lambda: SparsePlan(chunk=2.5), "chunk = 2.5: give a whole number"),
        (lambda: SparsePlan(ratio=float("nan")), "ratio = nan: give a number above 0"),
        (lambda: MegaScalePlan(features=3), "features = 3: give text"),
    ],
)
def test_a_value_of_another_kind_is_one_message(made: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        made()


def test_numbers_may_be_whole_where_they_need_not_be() -> None:
    assert SparsePlan(ratio=1).ratio == 1
