"""The flat step: lanes, pieces, and that it says what `predict` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.families import transformer
from windtunnel.studies.techniques.flat import Lane, Task, cut_tasks, lower_flat, play
from windtunnel.studies.techniques.flat.play import SHARED
from windtunnel.studies.training import predict, read_plan


def task(lane: str, work: int, *after: int, urgency: int = 0, latency: int = 0) -> Task:
    return Task("t", lane, work, after, urgency=urgency, latency_ns=latency)


def test_a_serial_lane_runs_one_by_one_the_most_urgent_first() -> None:
    tasks = [task("link", 10, urgency=1), task("link", 10, urgency=1), task("link", 5)]
    played = play(tasks, {"link": Lane()})
    assert played.start_ns == (5, 15, 0)
    assert played.makespan_ns == 25


def test_what_has_begun_is_not_taken_off() -> None:
    tasks = [task("link", 10, urgency=1), task("compute", 3), task("link", 5, 1), task("link", 10, urgency=1)]
    played = play(tasks, {})
    assert played.start_ns == (0, 0, 10, 15)


def test_a_shared_lane_gives_each_its_part() -> None:
    played = play([task("link", 10), task("link", 30)], {"link": SHARED})
    assert played.end_ns == (20, 40)


def test_servers() -> None:
    assert play([task("host", 10)] * 4, {"host": Lane(servers=2)}).makespan_ns == 20


@st.composite
def task_lists(draw):
    tasks = []
    for number in range(draw(st.integers(1, 25))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        lane = draw(st.sampled_from(["compute", "scale_up", "scale_out"]))
        work = draw(st.integers(0, 50))
        tasks.append(task(lane, work, *after, urgency=draw(st.integers(0, 1)), latency=draw(st.integers(0, work))))
    return tasks


@given(task_lists(), st.booleans())
def test_nothing_begins_before_what_it_waits_for_and_no_lane_does_more_than_it_can(tasks, shared) -> None:
    lanes = {lane: SHARED if shared else Lane() for lane in ("scale_up", "scale_out")}
    played = play(tasks, lanes)
    for number, one in enumerate(tasks):
        assert all(played.end_ns[other] <= played.start_ns[number] for other in one.after)
        assert played.end_ns[number] - played.start_ns[number] >= one.work_ns - 1
    for lane in ("compute", "scale_up", "scale_out"):
        assert played.makespan_ns >= sum(one.work_ns for one in tasks if one.lane == lane) - len(tasks)


@given(task_lists(), st.integers(2, 5))
def test_cutting_divides_work_and_repeats_latency(tasks, pieces) -> None:
    made = cut_tasks(tasks, lambda one: pieces if one.lane == "scale_out" else 1)
    for lane in ("compute", "scale_up"):
        assert sum(t.work_ns for t in made if t.lane == lane) == sum(t.work_ns for t in tasks if t.lane == lane)
    whole = [t for t in tasks if t.lane == "scale_out"]
    expected = sum(t.work_ns + (pieces - 1) * t.latency_ns for t in whole)
    assert sum(t.work_ns for t in made if t.lane == "scale_out") == expected
    assert play(made, {}).makespan_ns >= 0


def test_pieces_of_a_chain_overlap() -> None:
    chain = [task("scale_out", 80), task("compute", 80, 0), task("scale_up", 80, 1)]
    assert play(chain, {}).makespan_ns == 240
    assert play(cut_tasks(chain, lambda _: 8), {}).makespan_ns == 100


@pytest.mark.parametrize(
    ("model", "cluster", "plan"),
    [
        ("llama-3.1-8b", "h100-sxm:64", {"global_batch": 128, "seq_len": 8192, "tp": 2}),
        ("llama-3.1-8b", "h100-sxm:64", {"global_batch": 64, "seq_len": 8192, "framework": "torchtitan"}),
        ("mixtral-8x7b", "a100-80gb:64", {"global_batch": 256, "seq_len": 4096, "ep": 8}),
        ("llama-2-13b", "a100-80gb:32", {"global_batch": 64, "seq_len": 4096, "zero_stage": 0, "tp": 2}),
    ],
)  # fmt: skip
def test_the_flat_step_is_as_long_as_the_predicted_one(model, cluster, plan) -> None:
    """Without a pipeline; the host's launches and stragglers are left out, so it is a little shorter."""
    settled, machine, built = read_plan(plan), parse_cluster(cluster), load_model(model)
    predicted = predict(built, machine, settled).step_time_s
    assert 0.90 * predicted < lower_flat(built, machine, settled).seconds() < 1.03 * predicted


def test_gradients_are_reduced_in_the_plans_buckets_and_experts_of_one_rank_fill_none() -> None:
    """Eight layers of 1.05M parameters that all ranks share, experts (2.10M a layer) that each rank has alone."""
    built = transformer(
        hidden=512, layers=8, heads=8, vocab=204, ffn=2048, experts=4, topk=2, family="gpt", gated=False
    )  # fmt: skip
    machine, counts = parse_cluster("a100-80gb:4"), []
    for bucket in (None, 4_000_000, 1_000_000):
        plan = {"global_batch": 4, "seq_len": 128, "ep": 4, "zero_stage": 0, "bucket_parameters": bucket}
        step = lower_flat(built, machine, read_plan(plan))
        counts.append(sum(task.role == "reduce" for task in step.one_batch))
        assert sum(task.bytes_total for task in step.one_batch if task.role == "reduce") < 2 * 11e6
    assert counts == [1, 3, 9]  # the table of positions comes last, in one of its own
