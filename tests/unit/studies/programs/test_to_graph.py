"""Captured programs as a graph and as a result: streams, waits, matching, memory, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from every_rank import families_of, whole_job
from handmade import Grid, Script, folded_job, job_of, spec

from windtunnel.errors import InputFileError, LayoutError, SpecError, UserError
from windtunnel.faces.report.prediction.document import to_document
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.step.disturbances.disturbed_step import replayed
from windtunnel.physics.step.result import Result
from windtunnel.studies.programs.job import CapturedJob, Family
from windtunnel.studies.programs.lowering.lower import priced_job
from windtunnel.studies.programs.lowering.pricing import op_pricer
from windtunnel.studies.programs.memory import memory_of_program
from windtunnel.studies.programs.predict import load, predict_captured
from windtunnel.studies.programs.program import Answer, MemoryEvent, Op, RankProgram, TensorSpec

MIB = 1 << 20
GRID = Grid(2, 2, 2)


@lru_cache
def cluster(ranks: int = 8, node: int = 8) -> Cluster:
    return cluster_with(parse_cluster("h100-sxm:8"), n_gpus=ranks, gpus_per_node=node)


def times(write: Callable[[Script], object], ranks: int = 2, **more: float) -> dict[str, tuple[int, int]]:
    """Start and end of every op of rank 0 by label, launches apart; each label once."""
    scripts = [Script(rank, ranks) for rank in range(ranks)]
    for script in scripts:
        write(script)
    pricer = op_pricer(cluster(ranks))
    job = priced_job(whole_job([script.program() for script in scripts]), cluster(ranks), pricer, **more)
    now = replayed(job.graph())
    graph, found = now.step.step.graph, {}
    for op in range(int(now.step.first_op[1])):
        stream = graph.stream_names[int(graph.stream[op])]
        name = f"host {graph.labels[graph.label[op]]}" if stream == "host" else graph.labels[graph.label[op]]
        assert name not in found
        found[name] = (int(now.timeline.start_ns[op]), int(now.timeline.end_ns[op]))
    return found


def test_a_collective_on_a_side_stream_runs_beside_compute_until_it_is_waited_for() -> None:
    def write(script: Script) -> None:
        script.module = "a"
        script.mm(4096, 4096, 4096)
        script.module = "b"
        gathered = script.call("all_gather", "dp", (0, 1), 64 << 20, stream=7)
        script.mm(4096, 4096, 4096)
        script.wait(gathered)
        script.module = "c"
        script.mm(4096, 4096, 4096)

    found = times(write)
    name = next(name for name in found if name.startswith("all_gather"))
    assert found[name][0] < found["mm b"][1]  # overlaps
    assert found["mm b"][0] < found[name][1]
    assert found["mm c"][0] >= max(found[name][1], found["mm b"][1])


def test_a_collective_starts_after_what_its_stream_was_given_before() -> None:
    def write(script: Script) -> None:
        script.module = "a"
        script.mm(8192, 8192, 8192)
        script.call("all_reduce", "dp", (0, 1), 1 << 20, is_async=False)
        script.module = "b"
        script.mm(64, 64, 64)

    found = times(write)
    name = next(name for name in found if name.startswith("all_reduce"))
    assert found[name][0] >= found["mm a"][1]
    assert found["mm b"][0] >= found[name][1]


def test_reading_a_tensor_stops_the_host_until_the_device_is_there() -> None:
    def write(script: Script, reads: bool) -> None:
        script.module = "a"
        done = script.mm(8192, 8192, 8192)
        if reads:
            script.sync(done)
        script.module = "b"
        script.mm(64, 64, 64)

    with_read = times(lambda script: write(script, True))
    without = times(lambda script: write(script, False))
    assert with_read["host mm b"][0] >= with_read["mm a"][1]
    assert without["host mm b"][0] < without["mm a"][1]


def test_control_messages_hold_the_host_not_the_device() -> None:
    def write(script: Script) -> None:
        script.module = "a"
        script.mm(8192, 8192, 8192)
        script.call("broadcast", "world", (0, 1), 64, peer=0, is_async=False, is_control=True)
        script.module = "b"
        script.mm(64, 64, 64)

    found = times(write)
    name = next(name for name in found if name.startswith("broadcast"))
    assert found[name][0] < found["mm a"][1]
    assert found["host mm b"][0] >= found[name][1]


def test_many_small_kernels_are_bound_by_their_launches() -> None:
    def write(script: Script) -> None:
        for number in range(100):
            script.module = f"m{number}"
            script.move("add", 10)

    found = times(write, ranks=1)
    pricer = op_pricer(cluster(1))
    assert found["add m99"][1] >= 100 * pricer.launch_s * 1e9
    assert times(write, ranks=1, step_s=0.01)["add m99"][1] == found["add m99"][1] + 10_000_000


def test_streams_follow_events_only() -> None:
    def write(script: Script) -> None:
        script.module = "a"
        first = script.mm(8192, 8192, 8192)
        script.module = "side"
        script.mm(8192, 8192, 8192, stream=3)
        script.module = "after"
        script.mm(64, 64, 64, (first,), stream=3)

    found = times(write, ranks=1)
    assert found["mm side"][0] < found["mm a"][1]
    assert found["mm after"][0] >= max(found["mm a"][1], found["mm side"][1])


def test_what_is_not_launched_passes_on_what_it_waited_for() -> None:
    def write(script: Script) -> None:
        script.module = "a"
        first = script.mm(8192, 8192, 8192)
        view = script.add(Op("aten.view", "compute", after=(first,)))
        script.module = "b"
        script.mm(64, 64, 64, (view,), stream=3)

    found = times(write, ranks=1)
    assert found["mm b"][0] >= found["mm a"][1]


def disagreeing(change: Callable[[list[Op]], list[Op]]) -> CapturedJob:
    job = job_of(Grid(1, 2, 1), layers=1, micro_batches=1)
    programs = dict(job.programs)
    programs[1] = replace(programs[1], ops=tuple(change(list(programs[1].ops))))
    return replace(job, programs=programs)


def test_members_that_disagree_are_named() -> None:
    def other_kind(ops: list[Op]) -> list[Op]:
        at = next(n for n, op in enumerate(ops) if op.communication and op.communication.kind == "reduce_scatter")
        call = ops[at].communication
        assert call is not None
        ops[at] = replace(ops[at], communication=replace(call, kind="all_reduce"))
        return ops

    with pytest.raises(UserError, match="collective 1 of group 'dp': rank 0 calls reduce_scatter, rank 1 calls all_re"):
        predict_captured(disagreeing(other_kind), cluster(2))

    def one_less(ops: list[Op]) -> list[Op]:
        at = next(n for n, op in enumerate(ops) if op.communication and op.communication.kind == "reduce_scatter")
        ops[at] = Op("aten.add", "compute", (spec(8),), (spec(8),))
        return ops

    with pytest.raises(UserError, match="rank 0 calls reduce_scatter, rank 1 calls nothing"):
        predict_captured(disagreeing(one_less), cluster(2))


def test_messages_nobody_takes_are_named() -> None:
    def program(rank: int) -> RankProgram:
        script = Script(rank, 2)
        if rank == 0:
            script.call("send", "pp", (0, 1), 1024, peer=1)
        else:
            script.move("add", 10)
        return script.program()

    with pytest.raises(UserError, match="rank 0 sends 1 messages to rank 1, which receives 0"):
        predict_captured(whole_job([program(0), program(1)]), cluster(2))


def test_another_number_of_gpus_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"captured for 8 ranks, and .* has 4 GPUs"):
        predict_captured(folded_job(GRID), cluster(4, 4))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["uplink=leaf0:0.5"], "not laid on single uplinks"),
        (["ecmp=3"], "not hashed"),
        (["stage=2:1.2"], "stages are numbered 0 to 1"),
        (["gpu=8:1.2"], "numbered 0 to 7"),
    ],
)
def test_disturbances_without_a_place_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        predict_captured(folded_job(GRID), cluster(8, 4), slow=words)


def test_a_stage_needs_a_pipeline() -> None:
    with pytest.raises(SpecError, match="sends no messages"):
        predict_captured(folded_job(Grid(1, 4, 2)), cluster(), slow=["stage=0:1.2"])


def test_too_many_samples_are_refused() -> None:
    with pytest.raises(UserError, match="ask for at most"):
        predict_captured(folded_job(GRID), cluster(), slow=["noise=2%"], samples=1_000_000)


@pytest.mark.parametrize("words", [["link=node0.nic1:0.25"], ["lost=node1.nic0"]])
def test_slow_links_cost_only_what_crosses_nodes(words: list[str]) -> None:
    heavy = {"layers": 2, "micro_batches": 2, "rows": 4096, "width": 8192}
    apart = predict_captured(folded_job(GRID, **heavy), cluster(8, 2), slow=words)
    assert apart.disturbed is not None
    assert apart.disturbed.blame[0].alone_ns > 0


def test_slow_links_of_one_domain_cost_nothing() -> None:
    found = predict_captured(folded_job(GRID), cluster(), slow=["link=node0.nic1:0.25"])
    assert found.disturbed is not None
    assert found.disturbed.blame[0].alone_ns == 0


def test_thermal_and_random_and_stage_slow_the_step() -> None:
    heavy = {"layers": 2, "micro_batches": 2, "rows": 8192, "width": 8192}
    for words in (["thermal=3:1.5:300s"], ["random=25%:1.5"], ["stage=1:1.3"]):
        found = predict_captured(folded_job(GRID, **heavy), cluster(), slow=words)
        assert found.disturbed is not None
        blame = found.disturbed.blame[0]
        assert blame.alone_ns == blame.without_ns > 0


def test_samples_are_the_same_however_many_and_spread_by_chance() -> None:
    heavy = {"layers": 1, "micro_batches": 2, "rows": 8192, "width": 8192}
    job = folded_job(GRID, **heavy)
    found = predict_captured(job, cluster(), slow=["noise=10%"], samples=20)
    again = predict_captured(job, cluster(), slow=["noise=10%"], samples=20)
    assert found.to_json() == again.to_json()
    assert found.disturbed is not None
    assert found.disturbed.samples is not None
    assert found.disturbed.samples.p5_ns < found.disturbed.samples.p95_ns
    # Everybody waits for the slowest, so that noise makes the median longer than the calm step.
    assert found.disturbed.samples.p50_ns > found.disturbed.undisturbed_step_time_ns
    warming = predict_captured(job, cluster(), slow=["thermal=0:1.5:1ms"], samples=16)
    assert warming.disturbed is not None
    assert warming.disturbed.samples is not None
    assert warming.disturbed.samples.p5_ns < warming.disturbed.samples.p95_ns


def test_a_result_is_whole_and_comes_back_from_json() -> None:
    job = folded_job(GRID)
    found = predict_captured(job, "h100-sxm:8", slow=["gpu=3:1.3"])
    assert Result.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert found.reproduce == "windtunnel predict captured@0123456789ab --cluster h100-sxm:8 --slow gpu=3:1.3"
    assert found.spec["captured"]["content_hash"] == "0123456789ab"
    assert found.spec["captured"]["captured_ranks"] == [0, 4]
    assert found.excerpt
    assert {one.stage for one in found.excerpt} == {0, 1}
    for stage in (0, 1):
        assert max(one.end_ns for one in found.excerpt if one.stage == stage) == found.step_time_ns
    assert found.mfu == found.hfu > 0
    disturbed = found.disturbed
    assert disturbed is not None
    assert sum(count for _, count in disturbed.class_runs) == 8
    assert sum(disturbed.replica_classes) == 8
    assert [one.disturbed_by for one in disturbed.rank_classes if one.first_rank == 3] == [("gpu=3:1.3",)]
    assert {one.last_rank for one in disturbed.waiting if one.mean_ns} == {3}


def test_what_was_answered_and_noted_is_told() -> None:
    job = folded_job(GRID)
    programs = {
        rank: replace(one, answers=(Answer(3, "aten._local_scalar_dense float32 []", "1.0", "train.py:7"),),
                      notes=("DDP's buckets are estimated",))
        for rank, one in job.programs.items()
    }  # fmt: skip
    found = predict_captured(replace(job, programs=programs), cluster())
    assert "train.py:7 reads aten._local_scalar_dense float32 [] and was told 1.0" in found.warnings
    assert found.warnings.count("DDP's buckets are estimated") == 1


def test_recomputation_counts_as_executed_only() -> None:
    script = Script(0, 1)
    script.mm(512, 512, 512)
    script.mm(512, 512, 512, again=True)
    found = predict_captured(whole_job([script.program()]), cluster(1))
    assert found.hfu == pytest.approx(2 * found.mfu)


def test_tokens_are_read_off_the_look_ups() -> None:
    script = Script(0, 1)
    table, index = spec(1000, 64), TensorSpec((4, 128), "int64")
    for _ in range(3):
        script.add(Op("aten.embedding", "compute", (table, index), (spec(4, 128, 64),), phase="forward"))
    script.add(Op("aten.embedding", "compute", (spec(128, 64), TensorSpec((128,), "int64")), (spec(128, 64),),
                  phase="forward"))  # fmt: skip
    assert predict_captured(whole_job([script.program()]), cluster(1)).tokens_per_step == 3 * 512
    given = replace(whole_job([script.program()]), facts={"tokens_per_step": 77})
    assert predict_captured(given, cluster(1)).tokens_per_step == 77


def storing(*events: tuple[int, int, int, str], resident: tuple[tuple[int, int, str], ...] = ()) -> RankProgram:
    script = Script(0, 1)
    for name in ("a", "b", "c"):
        script.module = name
        script.mm(64, 64, 64)
    script.memory = [MemoryEvent(*event) for event in events]
    script.resident = [MemoryEvent(-1, *event) for event in resident]
    return script.program()


def test_the_peak_is_told_by_category_and_op() -> None:
    program = storing(
        (0, 1, 4 * MIB, "activation"), (1, 2, 8 * MIB, "gradient"), (1, 1, -4 * MIB, "activation"),
        (2, 3, 2 * MIB, "temporary"), (2, 2, -8 * MIB, "gradient"), (2, 3, -2 * MIB, "temporary"),
        resident=((0, 16 * MIB, "parameter"),),
    )  # fmt: skip
    memory = memory_of_program(program)
    assert memory.peak_allocated_bytes == 28 * MIB
    assert memory.op_at_peak == 1
    assert memory.where(program) == "aten.mm of b in the forward phase"
    assert memory.categories["parameters"] == 16 * MIB
    assert (memory.categories["activations"], memory.categories["gradients"]) == (4 * MIB, 8 * MIB)
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes


def test_small_storages_are_rounded_on_a_gpu_and_exact_on_a_cpu() -> None:
    program = storing((0, 1, 100, "activation"), (1, 1, -100, "activation"))
    assert memory_of_program(program).peak_allocated_bytes == 512
    assert memory_of_program(program).categories["workspace"] == 412
    assert memory_of_program(program, exact=True).peak_allocated_bytes == 100


def test_gradients_that_are_made_anew_take_the_place_of_the_last_ones() -> None:
    # The step frees what it finds, and leaves its own: the second step must find that again.
    program = storing(
        (0, 0, -8 * MIB, "gradient"), (1, 1, 8 * MIB, "gradient"), resident=((0, 8 * MIB, "gradient"),)
    )  # fmt: skip
    memory = memory_of_program(program)
    assert memory.peak_allocated_bytes == 8 * MIB
    assert len(memory.allocated_bytes) == 2  # of the second step


def test_storages_that_shrink_and_grow_again_and_foreign_frees() -> None:
    program = storing(
        (0, 0, -4 * MIB, "parameter"), (1, 0, 4 * MIB, "parameter"), (1, 99, -MIB, "other"),
        (2, 0, 4 * MIB, "parameter"),
        resident=((0, 4 * MIB, "parameter"),),
    )  # fmt: skip
    assert memory_of_program(program, exact=True).peak_allocated_bytes == 4 * MIB


def test_running_out_of_memory_names_the_op() -> None:
    script = Script(0, 1)
    for name in ("a", "b"):
        script.module = name
        script.mm(64, 64, 64)
    script.memory = [MemoryEvent(0, 1, 50 << 30, "activation"), MemoryEvent(1, 2, 60 << 30, "activation")]
    found = predict_captured(whole_job([script.program()]), cluster(1))
    assert found.status == "infeasible"
    assert found.infeasible is not None
    assert found.infeasible.reason == "out of memory in aten.mm of b in the forward phase"
    assert found.infeasible.needed_bytes > 110 << 30


def test_families_keep_loops_together_and_copies_apart() -> None:
    created = [("0", range(8))]
    created += [(f"tp{n}", (2 * n, 2 * n + 1)) for n in range(4)]
    created += [(f"dp{n}", (n, n + 2)) for n in (0, 1, 4, 5)]
    created += [(f"again{n}", (2 * n, 2 * n + 1)) for n in range(4)]
    families = families_of(created)
    assert [len(one.groups) for one in families] == [1, 4, 4, 4]
    assert families[1].groups == families[3].groups
    with pytest.raises(SpecError, match="must name a program for all 2 ranks"):
        CapturedJob(2, {}, np.zeros(0, np.int32), ())
    with pytest.raises(SpecError, match="two groups"):
        CapturedJob(2, {0: Script(0, 2).program()}, np.zeros(2, np.int32), (Family("x", ((0, 1), (1,))),))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError):
        load(tmp_path / "nothing")


def in_turns(facts: dict[str, object]) -> CapturedJob:
    """100 MiB and 40 MiB in turns: where segments do not expand, the smaller one leaves a hole in the larger's."""
    sizes = ((1, 100 * MIB), (1, -100 * MIB), (2, 40 * MIB), (3, 100 * MIB), (2, -40 * MIB), (3, -100 * MIB))
    program = storing(*((op, storage, held, "activation") for op, (storage, held) in enumerate(sizes)))
    return whole_job([replace(program, facts=facts)])


def test_memory_is_as_the_script_set_its_allocator_unless_one_says_otherwise() -> None:
    reserved = {
        text: predict_captured(in_turns({}), cluster(1), allocator=text).memory[0].peak_reserved_bytes
        for text in ("", "expandable_segments:True")
    }
    assert reserved[""] > reserved["expandable_segments:True"]
    captured = in_turns({"allocator": "expandable_segments:True"})
    as_captured = predict_captured(captured, cluster(1))
    assert as_captured.memory[0].peak_reserved_bytes == reserved["expandable_segments:True"]
    assert "allocator: expandable segments" in as_captured.defaults
    assert predict_captured(captured, cluster(1), allocator="").memory[0].peak_reserved_bytes == reserved[""]
    assert predict_captured(in_turns({}), cluster(1)).memory[0].peak_reserved_bytes == reserved[""]


def test_the_command_that_gives_a_result_again_names_what_was_asked_for() -> None:
    job = in_turns({"allocator": "expandable_segments:True"})
    assert "--allocator" not in predict_captured(job, cluster(1)).reproduce
    asked = predict_captured(job, cluster(1), framework="megatron", allocator="max_split_size_mb:64")
    assert "--framework megatron --allocator max_split_size_mb:64" in asked.reproduce
    with pytest.raises(SpecError, match="PYTORCH_ALLOC_CONF"):
        predict_captured(job, cluster(1), allocator="nonsense")


def test_flops_of_a_rank_are_those_of_its_ops_with_and_without_what_is_recomputed() -> None:
    job = folded_job(GRID)
    again = {
        rank: replace(program, ops=tuple(replace(op, recompute=op.phase == "forward") for op in program.ops))
        for rank, program in job.programs.items()
    }
    for one in (job, replace(job, programs=again)):
        found = predict_captured(one, cluster())
        ops = [op for rank in one.runs.tolist() for op in one.programs[rank].ops]
        assert found.executed_flops_per_rank == pytest.approx(sum(op.flops for op in ops) / one.world_size)
        model = sum(op.flops for op in ops if not op.recompute) / one.world_size
        assert found.flops_per_rank == pytest.approx(model)
        document = to_document(found)
        assert document["flops_per_rank"] == found.flops_per_rank > 0
        assert document["executed_flops_per_rank"] == found.executed_flops_per_rank
