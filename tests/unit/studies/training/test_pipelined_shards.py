"""Sharded data parallelism in a pipeline: gathered and reduced once in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.shards.pipelined_shards import fetches, gathered_chunks, summed_chunks
from windtunnel.studies.training.plan import read_plan
from windtunnel.studies.training.schedules import Kind, Schedule, schedule

MODEL = load_model("llama-3-8b")
ONE, MANY = [("gpipe", 1), ("1f1b", 1)], [("interleaved", 2), ("interleaved", 8), ("zb-v", 2), ("dualpipe-v", 2)]
SCHEDULES = [*ONE, *MANY]
PLAN = {"framework": "torchtitan", "pp": 4, "tp": 2, "seq_len": 2048, "recompute": "full"}


def answer(batch: int = 16, **changes: Any) -> Any:
    return predict(MODEL, "h100-sxm:32", PLAN | {"global_batch": batch} | changes)


def bytes_of(traffic: Mapping[str, int], name: str) -> int:
    return sum(value for key, value in traffic.items() if key.startswith(f"{name} ("))


def by_hand(chunks: list[int]) -> list[tuple[int, int]]:
    """(action before which, chunk) as the runtime's list says it: the next three stages, walked through one by one."""
    active: list[int] = []
    hand = []
    for place in range(len(chunks)):
        following: list[int] = []
        for chunk in chunks[place:]:
            if chunk not in following and len(following) < 3:
                following.append(chunk)
        fetch = [chunk for chunk in following if chunk not in active]
        active = [chunk for chunk in active if chunk in following] + fetch
        hand += [(place, chunk) for chunk in fetch]
    return hand


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_stages_are_fetched_as_a_walk_through_the_program_fetches_them(name: str, chunks: int) -> None:
    chosen = schedule(name, 4, 8, chunks)
    for rank in range(4):
        program = chosen.chunk[chosen.rank_offset[rank] : chosen.rank_offset[rank + 1]].tolist()
        found = fetches(chosen, rank)
        assert [(one.before, one.chunk) for one in found] == by_hand(program)
        assert all(program[one.used] == one.chunk and one.chunk not in program[one.before : one.used] for one in found)


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_what_an_action_needs_is_there_and_three_stages_at_most(name: str, chunks: int) -> None:
    chosen = schedule(name, 4, 8, chunks)
    for rank in range(4):
        there = gathered_chunks(chosen, rank)
        program = chosen.chunk[chosen.rank_offset[rank] : chosen.rank_offset[rank + 1]]
        assert there[np.arange(len(program)), program].all()
        assert there.sum(axis=1).max() <= 3


def backwards(chosen: Schedule, rank: int, chunk: int) -> list[int]:
    window = slice(int(chosen.rank_offset[rank]), int(chosen.rank_offset[rank + 1]))
    rows = zip(chosen.kind[window].tolist(), chosen.chunk[window].tolist(), strict=True)
    kinds = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
    return [place for place, (kind, own) in enumerate(rows) if own == chunk and kind in kinds]


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_gradients_are_there_from_a_stage_s_first_backward_to_its_last(name: str, chunks: int) -> None:
    chosen = schedule(name, 4, 8, chunks)
    for rank in range(4):
        for chunk, column in enumerate(summed_chunks(chosen, rank).T):
            own = backwards(chosen, rank, chunk)
            assert np.flatnonzero(column).tolist() == list(range(own[0], own[-1] + 1))


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 1)])
def test_bytes_do_not_depend_on_the_number_of_micro_batches(name: str, chunks: int) -> None:
    """bf16 parameters and fp32 gradients of every rank, once; Megatron's ZeRO-3 moves them in every pass."""
    changes = {"schedule": name, "virtual_stages": chunks}
    held = sum(piece.dense_parameters for piece in pieces_of(resolved(**changes))) / 4
    for batch in (16, 32):
        traffic = answer(batch, **changes).traffic_bytes
        assert bytes_of(traffic, "all_gather dp") == pytest.approx(2 * held, rel=1e-6)
        assert bytes_of(traffic, "reduce_scatter dp") == pytest.approx(4 * held, rel=1e-6)
    if name == "1f1b":
        one, two = (answer(batch, framework="megatron", zero_stage=3).traffic_bytes for batch in (16, 32))
        assert bytes_of(two, "all_gather dp") == pytest.approx(2 * bytes_of(one, "all_gather dp"), rel=1e-6)


def resolved(**changes: Any) -> Any:
    return resolve(MODEL, parse_cluster("h100-sxm:32"), read_plan(PLAN | {"global_batch": 16} | changes))


def test_many_chunks_are_gathered_again() -> None:
    two, eight = (answer(virtual_stages=chunks).traffic_bytes for chunks in (2, 8))
    assert bytes_of(eight, "all_gather dp") > 1.5 * bytes_of(two, "all_gather dp")
    assert bytes_of(eight, "reduce_scatter dp") == pytest.approx(bytes_of(two, "reduce_scatter dp"), rel=1e-6)


def test_parameters_and_gradients_stay_whole_on_every_rank() -> None:
    """Beside the fp32 shard: a bf16 copy and an fp32 gradient of all that a rank holds.

    Of the embedding the whole gradient, until it is reduced: DTensor makes no part of one.
    """
    held = [piece.dense_parameters for piece in pieces_of(resolved())]
    replicas = 4
    for stage, memory in enumerate(answer().memory):
        assert memory.categories["parameters"] == pytest.approx(held[stage] * (2 + 4 / replicas), rel=1e-3)
        others = MODEL.vocab_size * MODEL.hidden_size / 2 if stage == 0 else 0
        assert memory.categories["gradients"] == pytest.approx((held[stage] + others) * 4, rel=1e-3)


def test_without_a_pipeline_every_pass_gathers_and_reduces() -> None:
    one, two = (answer(batch, pp=1).traffic_bytes for batch in (16, 32))
    for name in ("all_gather dp", "reduce_scatter dp"):
        assert bytes_of(two, name) == pytest.approx(2 * bytes_of(one, name), rel=1e-6)


def test_a_step_waits_for_its_gathers_and_reductions() -> None:
    alone = predict(MODEL, "h100-sxm:8", PLAN | {"global_batch": 4})  # one replica: nobody to share with
    shared = answer(16)
    assert shared.step_time_ns > alone.step_time_ns
    assert any(name.startswith("exposed dp") for name in shared.breakdown_ns)
    assert not any(name.startswith("exposed dp") for name in alone.breakdown_ns)


def test_gradients_sharded_beside_a_megatron_pipeline_are_whole_for_as_long_as_a_chunk_makes_them() -> None:
    """And its parameters are gathered once, however many chunks there are. Llama 3's trainer is of that kind."""
    plan = {"framework": "megatron", "zero_stage": 2, "gradient_dtype": "fp32", "virtual_stages": 8}
    pieces = pieces_of(resolved(**plan))
    held, chunk = sum(piece.dense_parameters for piece in pieces) / 4, pieces[1].dense_parameters
    in_a_row, in_turns = answer(16, **plan), answer(32, **plan)  # micro-batches: as many as stages, and twice as many
    for found in (in_a_row, in_turns):
        assert bytes_of(found.traffic_bytes, "all_gather dp") == pytest.approx(2 * held, rel=1e-6)
        assert bytes_of(found.traffic_bytes, "reduce_scatter dp") == pytest.approx(4 * held, rel=1e-6)
    assert 4 * chunk <= in_a_row.memory[1].categories["gradients"] + 1 <= 2 * 4 * chunk
    assert in_turns.memory[1].categories["gradients"] == pytest.approx(8 * 4 * chunk, rel=1e-6)
    assert answer(16, **plan, overlap_grad_reduce=False).step_time_ns > in_a_row.step_time_ns
