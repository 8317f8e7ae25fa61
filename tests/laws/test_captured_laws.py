"""Laws of captured jobs: folded equals unfolded to the nanosecond, work is conserved, disturbances never help."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pytest
from every_rank import whole_job
from handmade import Grid, Script, folded_job, job_of, names, torch_name
from hypothesis import given, settings
from hypothesis import strategies as st
from sound import assert_sound

from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.step.disturbances.disturbed_step import Replayed, replayed
from windtunnel.studies.programs.job import CapturedJob, Family, moved_families
from windtunnel.studies.programs.lowering.lower import CapturedGraph, PricedJob, priced_job
from windtunnel.studies.programs.lowering.placement import Pace
from windtunnel.studies.programs.lowering.pricing import op_pricer
from windtunnel.studies.programs.lowering.stages import class_names
from windtunnel.studies.programs.predict import predict_captured, price_captured
from windtunnel.studies.programs.program import RankProgram

SIZES = {"layers": 2, "micro_batches": 3, "rows": 256, "width": 512}


@lru_cache
def cluster_of(ranks: int, node: int) -> Cluster:
    return cluster_with(parse_cluster(f"h100-sxm:{ranks}" if ranks > 8 else "h100-sxm:8"), n_gpus=ranks,
                        gpus_per_node=node)  # fmt: skip


@lru_cache
def priced(grid: Grid, node: int, whole: bool) -> PricedJob:
    cluster = cluster_of(grid.world, node)
    job = job_of(grid, **SIZES) if whole else folded_job(grid, **SIZES)
    return priced_job(job, cluster, op_pricer(cluster), step_s=1e-4)


GRIDS = (Grid(2, 2, 2), Grid(1, 4, 2), Grid(4, 2, 1), Grid(2, 4, 1), Grid(2, 1, 4))


@st.composite
def paces(draw: st.DrawFn, ranks: int) -> Pace:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pace = Pace.even(ranks)
    for factors in (pace.compute, pace.links):
        for gpu in rng.choice(ranks, int(rng.integers(0, 3)), replace=False):
            factors[gpu] = rng.choice([1.1, 1.37, 2.0, 5.0])
    return pace


def replay_job(job: PricedJob, pace: Pace | None = None, *, fold: bool = True) -> Replayed[CapturedGraph]:
    return replayed(job.graph(pace, fold=fold))


def same_timeline(job: PricedJob, pace: Pace) -> int:
    folded, whole = replay_job(job, pace), replay_job(job, pace, fold=False)
    assert folded.timeline.makespan_ns == whole.timeline.makespan_ns
    for rank in range(job.job.world_size):
        k = int(folded.step.step.program_of[rank])
        one = slice(*folded.step.first_op[k : k + 2])
        own = slice(*whole.step.first_op[rank : rank + 2])
        np.testing.assert_array_equal(folded.timeline.start_ns[one], whole.timeline.start_ns[own])
        np.testing.assert_array_equal(folded.timeline.end_ns[one], whole.timeline.end_ns[own])
    return folded.step.step.graph.n_programs


@given(data=st.data(), grid=st.sampled_from(GRIDS), node=st.sampled_from([2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_folded_equals_unfolded_whatever_is_disturbed(data: st.DataObject, grid: Grid, node: int) -> None:
    job = priced(grid, node, False)
    same_timeline(job, data.draw(paces(grid.world)))


@pytest.mark.parametrize("grid", GRIDS)
def test_undisturbed_each_stage_is_one_program(grid: Grid) -> None:
    assert same_timeline(priced(grid, 8, False), Pace.even(grid.world)) == grid.pp


def test_captured_programs_are_called_by_stage_where_each_is_one_and_else_by_a_rank_that_runs_it() -> None:
    assert class_names(priced(Grid(4, 2, 1), 8, False)) == ("stage 0", "stage 1", "stage 2", "stage 3")
    assert class_names(priced(Grid(1, 4, 2), 8, False)) == ("every rank",)
    every = class_names(priced(Grid(2, 2, 2), 8, True))  # all captured: four programs to a stage
    assert every == tuple(f"stage {rank // 4}, ranks like {rank}" for rank in range(8))


@given(data=st.data(), grid=st.sampled_from(GRIDS))
@settings(max_examples=20, deadline=None)
def test_a_job_of_representatives_is_the_job_of_all_ranks(data: st.DataObject, grid: Grid) -> None:
    pace = data.draw(paces(grid.world))
    few, all_ranks = replay_job(priced(grid, 4, False), pace), replay_job(priced(grid, 4, True), pace)
    assert few.timeline.makespan_ns == all_ranks.timeline.makespan_ns
    assert few.step.step.graph.n_programs <= all_ranks.step.step.graph.n_programs == grid.world


@given(data=st.data(), grid=st.sampled_from(GRIDS))
@settings(max_examples=30, deadline=None)
def test_a_slower_rank_never_shortens_the_kernels_and_one_mended_never_lengthens_them(
    data: st.DataObject, grid: Grid
) -> None:
    pace = data.draw(paces(grid.world))
    job = priced(grid, 4, False)
    assert replay_job(job, pace).step.step.duration_ns.sum() >= 0
    calm, slow = job.graph(fold=False), job.graph(pace, fold=False)
    assert (slow.step.duration_ns >= calm.step.duration_ns).all()


def ring(rank: int, world: int, *, tags: int = 1) -> RankProgram:
    """Context parallelism: every rank sends to the next and receives from the one before, and computes meanwhile."""
    script, members = Script(rank, world), tuple(range(world))
    for turn in range(3):
        tag = turn % tags
        sent = script.call("send", "cp", members, 1 << 20, peer=(rank + 1) % world, tag=tag)
        received = script.call("recv", "cp", members, 1 << 20, peer=(rank - 1) % world, tag=tag)
        script.mm(512, 512, 512)
        script.wait(sent, received)
    script.wait(script.call("all_reduce", "cp", members, 1 << 16))
    return script.program()


def ring_job(world: int, captured: bool) -> CapturedJob:
    if not captured:
        return whole_job([ring(rank, world) for rank in range(world)])
    return CapturedJob(
        world, {0: ring(0, world)}, np.zeros(world, np.int32), (Family("cp", (tuple(range(world)),), ("cp",)),)
    )


@given(data=st.data(), world=st.sampled_from([2, 4, 8]), node=st.sampled_from([2, 8]))
@settings(max_examples=30, deadline=None)
def test_rings_fold_onto_themselves(data: st.DataObject, world: int, node: int) -> None:
    cluster = cluster_of(world, min(node, world))
    job = priced_job(ring_job(world, True), cluster, op_pricer(cluster))
    pace = data.draw(paces(world))
    programs = same_timeline(job, pace)
    everyone = priced_job(ring_job(world, False), cluster, op_pricer(cluster))
    assert replay_job(everyone, pace).timeline.makespan_ns == replay_job(job, pace).timeline.makespan_ns
    if (pace.compute == 1).all() and (pace.links == 1).all() and world <= node:
        assert programs == 1


@pytest.mark.parametrize("grid", GRIDS)
def test_every_answer_is_sound(grid: Grid) -> None:
    for slow in ([], ["gpu=1:1.4", "random=20%:1.1"], ["link=node0.nic1:0.25"]):
        assert_sound(predict_captured(folded_job(grid, **SIZES), cluster_of(grid.world, 4), slow=slow))


def flops_and_traffic(job: CapturedJob, rank: int | None = None) -> dict[str, float]:
    """What one rank does in a step: "flops", "flops recomputed", and bytes by "KIND FAMILY" as collectives count them.

    `rank`: whose program; None = the mean over all ranks.
    """
    runs = job.runs if rank is None else job.runs[rank : rank + 1]
    captured, counts = np.unique(runs, return_counts=True)
    total: dict[str, float] = {"flops": 0.0, "flops recomputed": 0.0}
    for one, count in zip(captured.tolist(), counts.tolist(), strict=True):
        for key, value in _of_program(job, one).items():
            total[key] = total.get(key, 0.0) + value * count / len(runs)
    return total


def _of_program(job: CapturedJob, rank: int) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for op in job.programs[rank].ops:
        call = op.communication
        if call is not None:
            key, value = f"{call.kind} {job.families[job.family_of(call)].name}", float(call.bytes)
        else:
            key, value = "flops", float(op.flops)
            if op.recompute:
                found["flops recomputed"] = found.get("flops recomputed", 0.0) + value
        found[key] = found.get(key, 0.0) + value
    return found


@pytest.mark.parametrize("grid", GRIDS)
def test_flops_and_bytes_are_those_of_the_programs_however_many_were_captured(grid: Grid) -> None:
    whole, few = job_of(grid, **SIZES), folded_job(grid, **SIZES)
    assert flops_and_traffic(whole) == flops_and_traffic(few)
    by_rank = [flops_and_traffic(few, rank) for rank in range(grid.world)]
    mean = sum(one["flops"] for one in by_rank) / grid.world
    assert flops_and_traffic(few)["flops"] == pytest.approx(mean)
    job = price_captured(few, cluster_of(grid.world, 8))
    graph = job.graph(fold=False).step.graph
    assert graph.flops.sum() == pytest.approx(mean * grid.world)


@pytest.mark.parametrize("grid", GRIDS)
def test_groups_moved_by_the_grid_are_the_real_groups(grid: Grid) -> None:
    job = folded_job(grid, **SIZES)
    shape = np.arange(grid.world).reshape(grid.pp, grid.dp, grid.tp)

    def members_for(rank: int, members: tuple[int, ...]) -> tuple[int, ...]:
        at = np.argwhere(shape == rank)[0]
        places = np.array([np.argwhere(shape == member)[0] for member in members])
        varies = (places != places[0]).any(axis=0)
        return tuple(int(shape[tuple(np.where(varies, place, at))]) for place in places)

    found = moved_families(job.programs, job.runs, members_for, lambda members: "")
    used = {op.communication.group for p in job.programs.values() for op in p.ops if op.communication}
    kinds = {names(grid)[name] for name in used}
    real = {frozenset(family.groups) for family in job.families if family.name in kinds}
    assert {frozenset(family.groups) for family in found} == real
    assert torch_name("world", tuple(range(grid.world))) in used


def test_the_longest_of_uneven_members_sets_a_collectives_end() -> None:
    def program(rank: int) -> RankProgram:
        script = Script(rank, 2)
        script.wait(script.call("all_to_all", "ep", (0, 1), (1 + 9 * rank) << 20))
        return script.program()

    cluster = cluster_of(2, 2)
    job = priced_job(whole_job([program(0), program(1)]), cluster, op_pricer(cluster))
    now = replay_job(job)
    ends = now.timeline.end_ns[now.step.step.graph.rendezvous >= 0]
    alone = op_pricer(cluster).communication("all_to_all", 10 << 20, job.places.groups[0][0]).seconds
    starts = now.timeline.start_ns[now.step.step.graph.rendezvous >= 0]
    assert (ends - starts).tolist() == pytest.approx([alone * 1e9] * 2, abs=1)
