"""Blame: every rank's time is accounted for, and the rank that is slow is the one that is named."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest

from windtunnel.physics.engine import Slowdown, replay
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import transformer
from windtunnel.physics.step.disturbances.attribution import thinned
from windtunnel.physics.step.disturbances.disturbances import parse_disturbances
from windtunnel.questions.asked.parts.scenario import Scenario
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.disturbances.attribution import path_of, who_waits
from windtunnel.studies.training.disturbances.cells import cell_factors
from windtunnel.studies.training.disturbances.pace_setters import pace_setters_of
from windtunnel.studies.training.disturbances.replicas import unfold
from windtunnel.studies.training.disturbances.waiting import ReplayedStep
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.lower import lower
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.pricing import Pricer
from windtunnel.studies.training.schedules import schedule

# Large enough that kernels, not their launches, take the time: launches do not slow down.
MODEL = transformer(hidden=4096, layers=8, heads=32, vocab=4096, ffn=16384, name="wide")
MOE = transformer(
    hidden=4096, layers=8, heads=32, vocab=4096, ffn=4096, experts=8, topk=2, family="mixtral", name="wide-moe"
)
PLANS = {
    "1f1b": {"pp": 4, "tp": 2},
    "overlapped": {"pp": 4, "tp": 2, "overlap_p2p": True},
    "interleaved": {"pp": 4, "virtual_stages": 2},
    "zb-h1": {"pp": 4, "tp": 2, "schedule": "zb-h1"},
    "dualpipe-v": {"pp": 4, "tp": 2, "schedule": "dualpipe-v"},
    "no pipeline": {"tp": 4, "cp": 2},
    "two replicas": {"tp": 8, "pp": 4},
    "fsdp": {"zero_stage": 3, "shard_group": 8},
    "experts": {"ep": 4, "tp": 2, "sequence_parallel": True},
}
MANY = ("gpu=5:1.3", "gpu=4:1.1", "gpu=33:2", "link=node2.nic3:0.25", "random=5%:1.2")


@lru_cache(maxsize=32)
def lowered(name: str):
    fields = {"global_batch": 128, "seq_len": 4096} | PLANS[name]
    layout = resolve(MOE if name == "experts" else MODEL, parse_cluster("h100-sxm:64"), read_plan(fields))
    pieces, pricer = pieces_of(layout), Pricer(layout)
    table = schedule(layout.schedule, layout.plan.pp, layout.micro_batches, layout.plan.virtual_stages)
    return layout, pieces, pricer, lower(layout, pieces, table, pricer)


def replayed(name: str, *slow: str, fold: bool = True):
    layout, pieces, pricer, step = lowered(name)
    asked = parse_disturbances(Scenario(slow), layout.cluster).slow
    unfolded = unfold(step, layout, pieces, pricer, *cell_factors(layout, asked), fold=fold)
    factors = np.array(pricer.training.slowdown_factors())
    timeline = replay(unfolded.step.graph, unfolded.step.duration_ns, Slowdown(unfolded.step.interference, factors))
    return (unfolded, timeline, step, layout, asked)


def of_ranks(found):
    """Per rank: (stage, replica class's busy time, waiting time, disturbances)."""
    return [
        (one.stage, one.busy_ns, one.waiting_ns, one.disturbed_by)
        for number, count in found.class_runs
        for one in [found.rank_classes[number]] * count
    ]


@pytest.mark.parametrize("slow", [(), ("gpu=5:1.3",), ("link=node1.nic2:0.5",), MANY], ids=len)
@pytest.mark.parametrize("name", PLANS)
def test_every_rank_and_every_nanosecond_is_accounted_for(name, slow):
    parts = replayed(name, *slow)
    makespan, found = parts[1].makespan_ns, who_waits(*parts)
    assert all(one.busy_ns + one.waiting_ns == makespan for one in found.rank_classes)
    assert all(0 < one.busy_ns <= makespan for one in found.rank_classes)
    assert sum(one.ranks for one in found.rank_classes) == sum(count for _, count in found.class_runs) == 64
    ranks = of_ranks(found)
    for one in parts[4]:
        assert all(one.text in ranks[gpu][3] for gpu in one.gpus)
        assert sum(one.text in rank[3] for rank in ranks) == len(one.gpus)
    starts = np.cumsum([0, *(count for _, count in found.class_runs)])
    numbers = [number for number, _ in found.class_runs]
    assert all(one != other for one, other in pairwise(numbers))  # no run could be longer
    for number, one in enumerate(found.rank_classes):
        assert one.first_rank == starts[numbers.index(number)]
        assert one.ranks == sum(count for other, count in found.class_runs if other == number)


@pytest.mark.parametrize("name", PLANS)
def test_the_critical_path_tiles_the_step_and_waits_are_times(name):
    parts = replayed(name, *MANY)
    unfolded, timeline, step, layout, slow = parts
    path = path_of(ReplayedStep(unfolded, timeline, step, pace_setters_of(layout, slow)))
    assert path[0].start_ns == 0
    assert path[-1].end_ns == timeline.makespan_ns
    assert all(one.end_ns == other.start_ns for one, other in pairwise(path))
    assert all(one.rank != other.rank for one, other in pairwise(path))
    stages, cell = layout.plan.pp, layout.plan.tp * layout.plan.cp
    for one in path:
        assert (one.stage, one.replica) == divmod(one.rank // cell, 64 // stages // cell)
    few = thinned(path, 5)
    assert len(few) == min(5, len(path))
    assert list(few) == sorted(few, key=lambda part: part.start_ns)
    lengths = sorted(part.end_ns - part.start_ns for part in path)
    assert sorted(part.end_ns - part.start_ns for part in few) == lengths[-len(few) :]
    for one in who_waits(*parts).waiting:
        assert 0 <= one.mean_ns <= one.worst_ns <= timeline.makespan_ns
        assert (one.last_rank >= 0) == (one.worst_ns > 0)


@pytest.mark.parametrize("name", PLANS)
def test_one_very_slow_gpu_is_on_the_path_and_waits_less_than_its_peers(name):
    gpu = 5 if name == "interleaved" else 19
    parts = replayed(name, f"gpu={gpu}:3")
    found, ranks = who_waits(*parts), of_ranks(who_waits(*parts))
    on_path = sum(one.end_ns - one.start_ns for one in found.critical_path if one.rank == gpu)
    assert on_path > 0.5 * parts[1].makespan_ns
    setters = pace_setters_of(parts[3], parts[4])
    block = setters.cell * setters.tied
    peers = [rank for rank in range(gpu // block * block, gpu // block * block + block) if rank != gpu]
    assert all(ranks[peer][2] > ranks[gpu][2] for peer in peers)
    assert ranks[gpu][2] == min(rank[2] for rank in ranks)
    stage = setters.ranks.place(gpu)[0]
    last = {one.communicator: one.last_rank for one in found.waiting if one.worst_ns}
    own = [rank for name, rank in last.items() if name.endswith(f" of stage {stage}")]
    assert own
    assert set(own) == {gpu}


def test_peers_wait_for_what_the_disturbance_adds_and_for_nothing_else():
    calm, rough = replayed("no pipeline"), replayed("no pipeline", "gpu=19:1.5")
    before, after = of_ranks(who_waits(*calm)), of_ranks(who_waits(*rough))
    added = rough[1].makespan_ns - calm[1].makespan_ns
    assert after[19][1] - before[19][1] == pytest.approx(added, rel=0.01)
    for rank in (16, 18, 23):  # peers of its cell
        assert after[rank][2] - before[rank][2] == pytest.approx(added, rel=0.05)
    for rank in (0, 63):  # other replicas: they begin their reductions late, and hide less of them
        assert 0.8 * added < after[rank][2] - before[rank][2] <= added


def test_a_second_slow_gpu_of_a_cell_works_in_proportion():
    found = of_ranks(who_waits(*replayed("no pipeline", "gpu=19:1.4", "gpu=20:1.2")))
    slower, slow, peer = found[19][1], found[20][1], found[21][1]
    assert slow - peer == pytest.approx(0.5 * (slower - peer), rel=0.01)


def test_a_slow_link_is_the_one_the_others_wait_for():
    parts = replayed("1f1b", "link=node2.nic3:0.01")  # GPU 19: stage 1
    found = who_waits(*parts)
    ranks = of_ranks(found)
    assert ranks[19][2] == min(rank[2] for rank in ranks if rank[0] == 1)
    assert any(one.rank == 19 for one in found.critical_path)


def test_of_two_replicas_each_waits_for_the_other_in_the_reductions_of_its_stage():
    found = who_waits(*replayed("two replicas", "gpu=0:1.5"))
    waited = {one.communicator: one.worst_ns for one in found.waiting}
    assert all(waited[f"dp of stage {stage}"] > 0 for stage in range(4))


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "experts"])
def test_folded_and_unfolded_say_the_same(name):
    folded, naive = (who_waits(*replayed(name, *MANY, fold=fold)) for fold in (True, False))
    assert of_ranks(folded) == of_ranks(naive)
    ignored = [(one.communicator, one.mean_ns, one.worst_ns) for one in folded.waiting]
    assert ignored == [(one.communicator, one.mean_ns, one.worst_ns) for one in naive.waiting]


def test_ranks_are_told_apart_by_stage_replicas_and_own_disturbance_only():
    found = who_waits(*replayed("1f1b", "gpu=19:1.3"))
    # Four stages of two kinds of replicas, and one rank that is itself slow.
    assert len(found.rank_classes) == 4 * 2 + 1
    assert [one.ranks for one in found.rank_classes if one.disturbed_by] == [1]
    calm = who_waits(*replayed("1f1b"))
    assert calm.class_runs == ((0, 16), (1, 16), (2, 16), (3, 16))


def test_what_waits_in_the_pipeline_is_idle_time_of_the_receiver():
    parts = replayed("1f1b", "gpu=19:1.3")
    found = who_waits(*parts)
    waits = {one.communicator: one.worst_ns for one in found.waiting}
    pairs = {f"pp {a} to {b}" for a in range(4) for b in (a - 1, a + 1) if 0 <= b < 4}
    assert pairs == {name for name in waits if name.startswith("pp ")}
    most = max(one.waiting_ns for one in found.rank_classes)
    assert all(wait <= most for name, wait in waits.items() if name.startswith("pp "))
