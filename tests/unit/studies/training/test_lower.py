"""A step as a graph: programs, streams, dependencies, and what overlaps what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from valid_graph import validate

from windtunnel.physics.engine import Slowdown, Timeline, replay
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.passes import forget_passes
from windtunnel.studies.training.lowering.step import FRAMES, STREAMS, LoweredStep
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import NAMES, Kind, schedule

MODEL = load_model("llama-3-8b").with_changes(layers=8)


@dataclass(frozen=True)
class Lowered:
    """A step, replayed."""

    step: LoweredStep
    timeline: Timeline

    def ops(self, label: str, rank: int | None = None) -> list[int]:
        graph = self.step.graph
        mine = np.flatnonzero(np.array(graph.labels)[graph.label] == label)
        return [int(op) for op in mine if rank is None or graph.program[op] == rank]


def lowered(model: Any = MODEL, cluster: str = "h100-sxm:16", **plan: Any) -> Lowered:
    layout = resolve(model, parse_cluster(cluster), read_plan({"global_batch": 32, "seq_len": 2048, **plan}))
    pricer = Pricer(layout)
    chosen = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    step = lower(layout, pieces_of(layout), chosen, pricer)
    validate(step.graph)
    slowdown = Slowdown(step.interference, np.array(pricer.training.slowdown_factors()))
    return Lowered(step, replay(step.graph, step.duration_ns, slowdown))


@pytest.mark.parametrize(
    "plan",
    [
        {"pp": 4},
        {"pp": 4, "overlap_p2p": False, "schedule": "dualpipe-v"},
        {"pp": 2, "tp": 2, "framework": "nanotron"},
        {"pp": 2, "tp": 2, "zero_stage": 3, "framework": "torchtitan"},
        {"pp": 2, "cp": 2, "overlap_grad_reduce": False, "overlap_param_gather": False},
        {"framework": "pytorch"},
    ],
)
def test_a_step_of_another_length_is_as_it_is_alone(plan: dict[str, Any]) -> None:
    forget_passes()
    first = lowered(**plan).step
    again = lowered(**plan, seq_len=4096).step
    assert len(FRAMES) == (plan.get("framework") != "pytorch")  # one for both
    forget_passes()
    alone = lowered(**plan, seq_len=4096).step
    assert not np.array_equal(first.duration_ns, again.duration_ns)
    for name in ("duration_ns", "nic_share", "interference", "action_first", "action_last", "sender", "receiver"):
        assert np.array_equal(getattr(again, name), getattr(alone, name)), name
    for name in ("kind", "stream", "dep_ptr", "dep_idx", "rendezvous", "label", "category", "bytes", "multiplicity"):
        assert np.array_equal(getattr(again.graph, name), getattr(alone.graph, name)), name
    assert (again.graph.labels, again.graph.categories) == (alone.graph.labels, alone.graph.categories)
    assert (again.traffic_bytes, again.optimizer) == (alone.traffic_bytes, alone.optimizer)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_every_schedule_lowers_to_a_graph_that_ends(name: str, overlap: bool, framework: str) -> None:
    chunks = 2 if name == "interleaved" else 1
    found = lowered(pp=4, schedule=name, virtual_stages=chunks, overlap_p2p=overlap, framework=framework)
    step, timeline = found.step, found.timeline
    assert (timeline.end_ns >= timeline.start_ns).all()
    assert step.graph.n_programs == 4
    assert step.graph.n_streams == 4 * len(STREAMS)
    table = step.schedule
    assert len(step.action_first) == len(table.rank)
    # Each action starts after what it needs has ended, on its own rank or on another.
    pointer, needs = table.depends()
    consumer = np.repeat(np.arange(len(table.rank)), np.diff(pointer))
    assert (timeline.start_ns[step.action_first[consumer]] >= timeline.end_ns[step.action_last[needs]]).all()
    assert (step.graph.program[step.action_first] == table.rank).all()


def test_pieces_that_are_alike_share_their_passes() -> None:
    step = lowered(pp=4).step
    assert sorted(step.segment_names) == ["backward"] * 3 + ["forward"] * 3  # first, middle, last
    assert step.segment_of[1, Kind.FORWARD] == step.segment_of[2, Kind.FORWARD]
    assert (step.segment_of[:, Kind.BACKWARD_INPUT] == -1).all()
    assert len(lowered(pp=4, schedule="zb-h1").step.segments) == 3 * 3  # forward and the halves of backward


def test_a_receiver_waits_for_the_transfer() -> None:
    found = lowered(pp=2, overlap_p2p=True)
    arrivals = found.ops("receive")
    assert len(arrivals) == 2 * 4  # 4 micro-batches, there and back
    assert not found.ops("send")
    streams = {STREAMS[found.step.graph.stream[op] % len(STREAMS)] for op in arrivals}
    assert streams == {"pp forward", "pp backward"}
    blocking = lowered(pp=2, overlap_p2p=False)
    assert len(blocking.ops("send")) == 8
    assert not blocking.ops("receive")
    assert blocking.timeline.makespan_ns >= found.timeline.makespan_ns


@pytest.mark.parametrize("framework", ["megatron", "nanotron"])
def test_gradients_are_reduced_behind_the_last_backward(framework: str) -> None:
    overlapped = lowered(pp=2, framework=framework, zero_stage=1, overlap_grad_reduce=True)
    serial = lowered(pp=2, framework=framework, zero_stage=1, overlap_grad_reduce=False)
    for rank in range(2):
        ends = serial.timeline.end_ns[serial.step.action_last[serial.step.schedule.rank_offset[rank + 1] - 1]]
        assert all(serial.timeline.start_ns[op] >= ends for op in serial.ops("reduce gradients", rank))
    assert overlapped.timeline.makespan_ns <= serial.timeline.makespan_ns


def test_parameters_are_gathered_before_the_first_forward() -> None:
    found = lowered(pp=2, zero_stage=1)
    for rank in range(2):
        gathers = found.ops("gather parameters", rank)
        assert gathers
        first = found.step.action_first[found.step.schedule.rank_offset[rank]]
        assert found.timeline.end_ns[gathers[0]] <= found.timeline.start_ns[first]
    assert not lowered(pp=2, zero_stage=0).ops("gather parameters")
    assert not lowered(pp=2, zero_stage=3).ops("gather parameters"), "gathered inside the passes"


def test_the_optimizer_comes_last_and_together() -> None:
    """The gradient norm is over all ranks, so every rank's optimizer starts when the slowest has reduced."""
    found = lowered(pp=4)
    updates = found.ops("optimizer")
    assert len(updates) == 4
    assert len({int(found.timeline.start_ns[op]) for op in found.ops("gradient norm")}) == 1
    passes = found.timeline.end_ns[found.step.action_last].max()
    assert all(found.timeline.start_ns[op] >= passes for op in updates)


def test_a_tied_embedding_is_summed_over_the_first_and_the_last_stage() -> None:
    tied = MODEL.with_changes(tied_embeddings=True)
    found = lowered(tied, pp=4)
    assert [int(found.step.graph.program[op]) for op in found.ops("tied embedding")] == [0, 3]
    assert not lowered(MODEL, pp=4).ops("tied embedding")
    assert not lowered(tied, pp=1).ops("tied embedding")


def test_buckets_cut_the_first_forward_and_the_last_backward_only() -> None:
    step = lowered(pp=2, zero_stage=1).step
    parts = step.action_last - step.action_first + 1
    whole = np.array([step.segments[step.segment_of[v, k]].duration_ns for v, k in
                      zip(step.schedule.stage_of, step.schedule.kind, strict=True)])  # fmt: skip
    cut = np.array([step.duration_ns[a : b + 1].sum() for a, b in
                    zip(step.action_first, step.action_last, strict=True)])  # fmt: skip
    assert (whole == cut).all(), "cutting neither adds nor loses a nanosecond"
    assert np.count_nonzero(parts > 1) == 2 * 2


def test_ranks_are_one_program_each_however_many_gpus_there_are() -> None:
    few, many = lowered(pp=4).step.graph, lowered(cluster="h100-sxm:4096", pp=4, global_batch=8192).step.graph
    assert few.n_programs == many.n_programs == 4
    assert many.multiplicity.tolist() == [1024] * 4


def test_gradients_of_norms_are_summed_once_behind_the_last_backward() -> None:
    """Of Megatron, in one collective, where sequence parallelism splits them."""
    found = lowered(pp=2, tp=2)
    for rank in range(2):
        (op,) = found.ops("sum norms", rank)
        last = found.step.action_last[found.step.schedule.rank_offset[rank + 1] - 1]
        assert found.timeline.start_ns[op] >= found.timeline.end_ns[last]
        assert found.timeline.end_ns[op] <= min(
            found.timeline.start_ns[one] for one in found.ops("gradient norm", rank)
        )
    assert not lowered(pp=2, tp=2, sequence_parallel=False).ops("sum norms")
