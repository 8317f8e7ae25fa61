"""Nodes that fail and return: the queues keep their rules, work is conserved, and failures only cost."""

import csv
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError, SpecError
from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.capacity import Changes
from windtunnel.studies.fleet.clock.clock import Clock, NodeChange
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Epochs, Rigid
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.rigid.queues import NAMES, run_queue
from windtunnel.studies.fleet.policies.table import POLICIES
from windtunnel.studies.fleet.site import parse_site

SITE = parse_site("gpu:3x8")
jobs_strategy = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from([1, 2, 3, 5, 8, 12, 16, 24])),
    min_size=1,
    max_size=20,
)
changes_strategy = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2)), max_size=6, unique=True)


def run(name, jobs, changes=(), checkpoint_s=0.0, restart_s=0.0, pool=False):
    running = [
        Running(at, submit * NS, gpus, Rigid(float(lasts), restart_s)) for at, (submit, lasts, gpus) in enumerate(jobs)
    ]
    policy = POLICIES[name].make_policy(SITE, Options(pool=pool))
    clock = Clock(running, [8, 8, 8], policy, changes=changes, checkpoint_s=checkpoint_s)
    clock.run()
    return running


def losses(times, repair_s):
    """Nodes that fail at these times, and are back later; in order of time."""
    found = [NodeChange(time * NS, node, 0) for time, node in times]
    found += [NodeChange((time + repair_s) * NS, node, 8) for time, node in times]
    return sorted(found, key=lambda change: (change.time_ns, change.gpus))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", [True, False])
@settings(max_examples=25, deadline=None)
@given(jobs=jobs_strategy)
def test_queues_decide_as_compiled_where_nothing_fails(name, pool, jobs):
    submit, duration, gpus = (np.array(column, np.int64) for column in zip(*jobs, strict=True))
    start, _ = run_queue(name, submit * NS, duration * NS, gpus, nodes=3, per_node=8, pool=pool)
    assert [job.start_ns for job in run(name, jobs, pool=pool)] == start.tolist()


@pytest.mark.parametrize("name", ["fifo", "easy", "sjf-skip", "srtf", "tiresias"])
@settings(max_examples=25, deadline=None)
@given(jobs=jobs_strategy, times=changes_strategy, checkpoint_s=st.sampled_from([0.0, 3.0, 7.0, math.inf]))
def test_gpu_time_is_work_restarts_and_what_failures_undid(name, jobs, times, checkpoint_s):
    found = run(name, jobs, losses(times, 4), checkpoint_s, restart_s=2.0)
    for job, (_, lasts, gpus) in zip(found, jobs, strict=True):
        assert job.end_ns is not None
        assert job.gpu_ns == pytest.approx(lasts * gpus * NS + job.restart_gpu_ns + job.lost_gpu_ns, abs=500)
        assert 0 <= job.recovery_gpu_ns <= job.restart_gpu_ns
        assert (job.lost_gpu_ns > 0) <= (job.failures > 0)
        if checkpoint_s == 0:
            assert job.lost_units == 0


@settings(max_examples=60, deadline=None)
@given(
    lasts=st.integers(1, 60),
    times=st.sets(st.integers(1, 80), max_size=6),
    more=st.sets(st.integers(1, 80), max_size=6),
    checkpoint_s=st.sampled_from([4.0, 9.0, math.inf]),
)
def test_more_failures_never_lose_less_nor_end_sooner(lasts, times, more, checkpoint_s):
    def outcome(moments):
        job = run("fifo", [(0, lasts, 24)], losses([(at, 0) for at in moments], 0), checkpoint_s)[0]
        return job.lost_gpu_ns, job.end_ns

    few, many = outcome(times), outcome(times | more)
    assert many[0] >= few[0] - 100
    assert many[1] >= few[1] - 10


def test_a_checkpoint_lies_in_the_epoch_in_which_it_was_written():
    class Application:
        epochs = 3

        @staticmethod
        def epoch_end(epoch):
            return 10.0 * (epoch + 1)

    class Inner:
        app = Application()

        @staticmethod
        def before(placement, epoch):
            pass

        @staticmethod
        def rate(placement, epoch):
            return 1.0

    job = Running(0, 0, 8, Epochs(Inner(), 0.0))
    clock = Clock(
        [job],
        [8],
        POLICIES["fifo"].make_policy(SITE, Options(pool=True)),
        changes=losses([(12, 0)], 0),
        checkpoint_s=8.0,
    )
    clock.run()
    assert job.end_ns == 34 * NS  # 12 s, of which 4 are lost, and the 22 that are left
    assert job.lost_units == pytest.approx(4.0)


def test_failures_come_as_often_as_they_should_and_by_seed():
    stream = Changes(mtbf_s=1000.0, repair_s=10.0).stream(SITE, 50.0, 7)
    first = [next(stream) for _ in range(6000)]
    again = Changes(mtbf_s=1000.0, repair_s=10.0).stream(SITE, 50.0, 7)
    assert first == [next(again) for _ in range(6000)]
    assert [change.time_ns for change in first] == sorted(change.time_ns for change in first)
    span_s = first[-1].time_ns / NS - 50.0
    assert sum(change.gpus == 0 for change in first) == pytest.approx(3 * span_s / 1010.0, rel=0.06)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no trace of capacity"),
        ("time_s,nodes\n0,4\n", "line 2: nodes = '4'"),
        ("time_s,nodes\n5,2\n1,3\n", "line 3: time_s goes back"),
        ("time_s,node,gpus\n5,1,2.5\n", "line 2: gpus = '2.5'"),
        ("time_s,node,gpus\nx,1,2\n", "line 2: time_s = 'x'"),
    ],
)
def test_a_bad_trace_of_capacity_is_one_message(tmp_path, text, words):
    path = tmp_path / "capacity.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=words):
        Changes(trace=path).stream(SITE, 0.0, 0)


def test_a_trace_of_nodes_takes_the_last_first(tmp_path):
    path = tmp_path / "capacity.csv"
    path.write_text("time_s,nodes\n5,1\n9,3\n")
    found = list(Changes(trace=path).stream(SITE, 1.0, 0))
    assert found == [
        NodeChange(6 * NS, 2, 0),
        NodeChange(6 * NS, 1, 0),
        NodeChange(10 * NS, 1, 8),
        NodeChange(10 * NS, 2, 8),
    ]


def test_failures_on_the_command_line(tmp_path, capsys):
    trace = tmp_path / "jobs.csv"
    rows = [{"job": f"j{at}", "submit_s": at * 600, "gpus": 1 + at % 12, "duration_s": 20_000} for at in range(30)]
    with trace.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    common = ["fleet", str(trace), "--cluster", "gpu:4x8", "--policy", "fifo,easy,srtf", "--json"]
    found = {}
    for words in (
        [],
        ["--mtbf-node", "5000d"],
        ["--mtbf-node", "1d"],
        ["--mtbf-node", "1d", "--checkpoint-every", "0"],
    ):
        assert main([*common, *words]) == 0
        found[" ".join(words)] = json.loads(capsys.readouterr().out)["policies"]
    assert found[""]["easy"]["jct_mean_s"] == found["--mtbf-node 5000d"]["easy"]["jct_mean_s"]
    hit = found["--mtbf-node 1d"]["fifo"]
    assert hit["job_failures"] > 0
    assert 0 < hit["failure_lost_gpu_hours"] <= hit["job_failures"] * 12 * 0.5  # half an hour of a job's GPUs each
    assert found["--mtbf-node 1d --checkpoint-every 0"]["fifo"]["failure_undone_gpu_hours"] == 0
    assert main([*common[:5], "lyra-elastic", "--mtbf-node", "1d"]) == 2
    assert "with nodes that fail" in capsys.readouterr().err
    assert main(["fleet", "when", common[1], "j3", *common[2:], "--mtbf-node", "1d"]) == 2
    assert "--mtbf-node" in capsys.readouterr().err


def test_no_mean_time_is_no_cluster():
    with pytest.raises(SpecError, match="mtbf-node"):
        Changes(mtbf_s=0.0).stream(SITE, 0.0, 0)


def test_checkpoints_closer_than_a_nanosecond_lose_nothing():
    (job,) = run("fifo", [(0, 10, 8)], losses([(4, 0)], 1), checkpoint_s=1e-12)
    assert job.lost_units == 0


def test_what_a_run_cannot_do_with_failures_is_refused(tmp_path, capsys):
    """Not left out in silence: figures without failures would pass for figures with them."""
    jobs, pods = tmp_path / "jobs.csv", tmp_path / "pods.csv"
    jobs.write_text("job,submit_s,gpus,duration_s\na,0,1,5\n")
    pods.write_text("node,cpu_milli,memory_mib,gpus,gpu_model\nn,1000,1000,1,t4\n")
    live = ["fleet", "live", str(jobs), "--cluster", "t4:1x1"]
    packed = ["fleet", "pack", str(jobs), "--cluster", str(pods)]
    plain = ["fleet", str(jobs), "--cluster", "t4:1x1"]
    for words in (
        *([*start, "--mtbf-node", "6h"] for start in (live, packed)),
        *([*start, "--capacity", "c.csv"] for start in (live, packed)),
        [*live, "--seeds", "3"],
        [*plain, "--executor", "processes"],
        [*plain, "--repair", "2h"],
        [*plain, "--capacity", "c.csv", "--repair", "2h"],
        [*plain, "--checkpoint-every", "banana"],
        [*plain, "--mtbf-node", "2"],
        [*plain, "--mtbf-node", "6h", "--repair", "soon"],
        [*live, "--repair", "2h"],
        [*packed, "--checkpoint-every", "5min"],
    ):
        assert main(words) == 2
        message = capsys.readouterr().err
        assert words[-2] in message or "add --mtbf-node" in message


def test_where_no_job_ends_what_was_down_is_told(tmp_path, capsys):
    """A node that is lost before its job's first checkpoint, each time: 8 of 16 GPUs are down for good from 1 h on."""
    jobs, lost = tmp_path / "jobs.csv", tmp_path / "lost.csv"
    jobs.write_text("job,submit_s,gpus,duration_s\na,0,16,90000\n")
    lost.write_text("time_s,node,gpus\n3600,1,0\n7200,1,0\n")
    words = ["fleet", str(jobs), "--cluster", "gpu:2x8", "--policy", "fifo", "--capacity", str(lost), "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["unfinished_jobs"] == 1
    assert document["down_gpu_hours"] == 8.0
    assert document["capacity_gpu_hours"] == 24.0


def test_unlike_nodes_and_repairs_follow_their_laws() -> None:
    """Faults of a node: mean m, variance m + m^2 / shape; repairs: lognormal (as 400 servers had in 348 days)."""
    day = 86_400.0
    site = parse_site("gpu:2000x8")
    law = Changes(mtbf_s=239 * day, repair_s=20.4 * 3600, repair_spread=1.936, frailty=0.93)
    begun, faults, repairs = {}, np.zeros(2000), []
    for change in law.stream(site, 0.0, 3):
        if change.time_ns > 348 * day * NS:
            break
        if change.gpus:
            repairs.append((change.time_ns - begun[change.node]) / NS)
        else:
            begun[change.node] = change.time_ns
            faults[change.node] += 1
    mean = faults.mean()
    assert mean == pytest.approx(348 / 239, rel=0.1)  # a node that is away does not fail
    assert faults.var() == pytest.approx(mean + mean**2 / 0.93, rel=0.15)
    assert np.median(repairs) == pytest.approx(20.4 * 3600, rel=0.1)
    assert np.std(np.log(repairs)) == pytest.approx(1.936, rel=0.05)


def test_a_table_of_faults_takes_nodes_away_while_any_lasts(tmp_path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text("node,start_day,end_day\n0,1,3\n0,2,4\n1,2,\n")
    day = 86_400 * NS
    found = [(change.time_ns, change.node, change.gpus) for change in Changes(trace=path).stream(SITE, 0.0, 0)]
    assert found == [(day, 0, 0), (2 * day, 1, 0), (4 * day, 0, SITE.per_node)]
    path.write_text("node,start_s,end_s\n0,5,3\n")
    with pytest.raises(InputFileError, match="before the start"):
        Changes(trace=path).stream(SITE, 0.0, 0)
