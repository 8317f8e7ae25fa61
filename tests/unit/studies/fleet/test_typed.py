"""Gavel and Sia: their programs against closed forms, a published example and enumeration; their runs against laws."""

import csv
import itertools
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_decisions import Recorded

from windtunnel.errors import SpecError, UserError
from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Epochs
from windtunnel.studies.fleet.kinds.work import Typed
from windtunnel.studies.fleet.measured.application import Application, Validation
from windtunnel.studies.fleet.measured.chosen import ChosenBatch, measured_of
from windtunnel.studies.fleet.policies.elastic.gavel import Gavel
from windtunnel.studies.fleet.policies.elastic.sia import Sia
from windtunnel.studies.fleet.site import parse_site

pytest.importorskip("highspy")
from windtunnel.studies.fleet.kinds.programs import choices, shares

KINDS = ("v100", "v100", "k80")


def test_the_solver_prints_nothing_before_an_answer_in_json():
    """HiGHS prints its name once a process."""
    line = f"import numpy as np; from {shares.__module__} import shares; shares(np.ones((1, 1)), [1], [1])"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_equal_gpus_are_shared_equally():
    assert shares(np.full((4, 1), 7.0), [1] * 4, [2])[:, 0] == pytest.approx([0.5] * 4, abs=1e-6)
    assert shares(np.array([[3.0], [5.0]]), [1, 1], [8])[:, 0] == pytest.approx([1, 1], abs=1e-6)
    # a gang of 2 is owed as much GPU time as a job of 1: half the share of time
    assert shares(np.full((2, 1), 7.0), [2, 1], [2])[:, 0] == pytest.approx([0.5, 1.0], abs=1e-6)


def test_the_example_of_gavels_paper():
    """OSDI 2020, section 4.1: three jobs, one V100 and one K80; about 8 to 10 % above a third of each."""
    speed = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
    found = shares(speed, [1, 1, 1], [1, 1])
    assert found == pytest.approx(np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]]), abs=0.012)
    gain = (found * speed).sum(axis=1) / (speed.sum(axis=1) / 3)
    assert gain == pytest.approx([gain[0]] * 3, rel=1e-5)
    assert gain[0] > 1.08


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50), st.sampled_from([1, 2, 4])), min_size=1, max_size=6))
def test_shares_fit_and_envy_nobody_less_than_a_fair_share(jobs):
    speed, gpus, capacity = np.array([job[:2] for job in jobs]), [job[2] for job in jobs], [4, 4]
    found = shares(speed, gpus, capacity)
    assert (found.sum(axis=1) <= 1 + 1e-6).all()
    assert ((np.array(gpus)[:, None] * found).sum(axis=0) <= np.array(capacity) + 1e-6).all()
    fair = np.array([[min(1 / 2, capacity[m] / (gpu * len(jobs))) for m in range(2)] for gpu in gpus])
    norm = speed.mean(axis=1)
    least = (np.array(gpus) * (fair * speed).sum(axis=1) / norm).min()
    assert (np.array(gpus) * (found * speed).sum(axis=1) / norm).min() >= least * (1 - 1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.1, 1.5), st.integers(0, 1), st.sampled_from([1, 2, 4])), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_choices_are_the_best_of_all(columns):
    costs = [[round(cost, 2) for cost, _, _ in each] for each in columns]
    uses = [[(kind, gpus) for _, kind, gpus in each] for each in columns]
    capacity = [4, 3]

    def total(picked):
        used = [0, 0]
        cost = 0.0
        for at, pick in enumerate(picked):
            if pick is None:
                cost += 1.1
                continue
            cost += costs[at][pick]
            used[uses[at][pick][0]] += uses[at][pick][1]
        return cost if used[0] <= capacity[0] and used[1] <= capacity[1] else float("inf")

    best = min(total(picked) for picked in itertools.product(*([None, *range(len(each))] for each in costs)))
    assert total(choices(costs, uses, capacity, 1.1)) == pytest.approx(best, abs=1e-9)


def test_rounds_give_each_job_its_share_of_time():
    """Three equal jobs on one GPU, and time to see: a third of it each, to within a round."""
    rates = {"v100": {1: 1.0}}
    jobs = [Running(at, 0, 1, Typed(1e9, rates, ("v100",), 1)) for at in range(3)]
    clock = Clock(jobs, [1], Gavel(("v100",), 1))
    clock.run(30 * 360 * NS)
    held = [job.held_ns / NS for job in jobs]
    assert sum(held) == pytest.approx(30 * 360)
    assert max(held) - min(held) <= 360


def test_two_jobs_with_unlike_taste_get_what_they_are_good_at():
    fast, slow = {"v100": {4: 8.0}, "k80": {4: 1.0}}, {"v100": {4: 1.1}, "k80": {4: 1.0}}
    for policy in (Gavel(("v100", "k80"), 4), Sia(("v100", "k80"), 4)):
        jobs = [Running(0, 0, 4, Typed(800.0, slow, ("v100", "k80"), 4))]
        jobs.append(Running(1, 0, 4, Typed(4000.0, fast, ("v100", "k80"), 4)))
        log = []
        Clock(jobs, [4, 4], Recorded(policy, log)).run()
        placement = log[0].decision.placement
        assert (placement[0][0][0], placement[1][0][0]) == (1, 0)


def test_sia_alone_takes_the_fastest_and_shares_when_another_comes():
    rates = {"v100": {1: 1.0, 2: 1.9, 4: 3.0, 8: 4.0}, "k80": {1: 0.2, 2: 0.39, 4: 0.7}}
    log = []
    jobs = [Running(at, at * 60 * NS, 1, Typed(700.0, rates, KINDS, 4, 30.0)) for at in range(3)]
    Clock(jobs, [4, 4, 4], Recorded(Sia(KINDS, 4), log)).run()
    assert log[0].decision.gpus == {0: 8}
    assert all(job.end_ns is not None for job in jobs)
    assert len(log[2].decision.gpus) == 3
    for step in log:
        assert Sia(KINDS, 4).decide(step.snapshot) == step.decision


def test_a_spread_gang_runs_at_the_rate_that_was_measured_spread():
    work = Typed(1.0, {"v100": {2: 10.0, 4: 20.0}, "v100_unconsolidated": {2: 4.0}}, KINDS, 4)
    assert work.rate(((0, 2),), 0) == 10.0
    assert work.rate(((0, 1), (1, 1)), 0) == 4.0
    assert work.rate(((0, 2), (1, 2)), 0) == 20.0  # not measured spread: as packed
    assert work.rate(((2, 4),), 0) == 0.0


def test_on_the_command_line(tmp_path, capsys):
    tables = tmp_path / "tables"
    tables.mkdir()
    lines = ["gpu_type,model,batch_size,gpus,steps_per_s"]
    lines += [f"{kind},net,64,{gpus},{speed * gpus}" for kind, speed in (("v100", 4), ("k80", 1)) for gpus in (1, 2, 4)]
    (tables / "gavel_throughput.csv").write_text("\n".join(lines) + "\n")
    trace, out = tmp_path / "jobs.csv", tmp_path / "out.csv"
    rows = ["job,submit_s,gpus,model,batch_size,iterations"] + [f"j{at},{at * 60},{2},net,64,1500" for at in range(8)]
    trace.write_text("\n".join(rows) + "\n")
    common = ["fleet", str(trace), "--tables", str(tables), "--cluster", "v100:1x4+k80:1x4"]
    assert main([*common, "--policy", "gavel,sia", "--json", "--jobs-out", str(out)]) == 0
    figures = json.loads(capsys.readouterr().out)["policies"]
    assert figures["gavel"]["completed_jobs"] == figures["sia"]["completed_jobs"] == 8
    assert len(list(csv.DictReader(out.open()))) == 16
    assert main([*common, "--policy", "fifo"]) == 2
    assert "one kind of GPU" in capsys.readouterr().err
    trace.write_text("\n".join([*rows, "x,1,2,other,64,1"]) + "\n")
    assert main([*common, "--policy", "sia"]) == 2
    assert "line 10: other at batch 64" in capsys.readouterr().err


def test_kinds_come_on_nodes_of_one_size():
    site = parse_site("v100:2x4+k80:1x4")
    assert (site.gpus, site.node_kinds) == (12, KINDS)
    for text in ("v100:2x4+k80:1x8", "v100:1x4+v100:1x4"):
        with pytest.raises(SpecError):
            parse_site(text)


def test_a_job_that_fits_on_no_kind_is_left_out_and_named(tmp_path, capsys):
    """It would wait for ever: 3 GPUs are no shape of Sia's, and there are not 8 of the kind that it was measured on."""
    (tmp_path / "gavel_throughput.csv").write_text(
        "gpu_type,model,batch_size,gpus,steps_per_s\nk80,wide,1,3,1\nk80,large,1,8,1\nk80,net,1,4,1\n"
    )
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,gpus,model,batch_size,iterations\na,0,3,wide,1,9\nb,0,8,large,1,9\nc,0,4,net,1,9\n")
    common = ["fleet", str(trace), "--tables", str(tmp_path), "--cluster", "v100:4x4+k80:1x4", "--json"]
    for policy, out in (("sia", {"a", "b"}), ("gavel", {"b"})):
        assert main([*common, "--policy", policy]) == 0
        document = json.loads(capsys.readouterr().out)
        assert set(document["left_out"]) == out
        assert document["impossible_jobs"] == len(out)
        assert document["completed_jobs"] == 3 - len(out)


def test_sia_goes_by_goodput_where_jobs_learn_it():
    """One kind, applications that learn: wider rounds only by twice what was ever tried, until wider gains nothing."""
    counts = np.array([400.0, 800.0])
    runs = {batch: Validation(counts, counts, np.ones(2), np.zeros(2)) for batch in (8, 64)}
    steps = {(n,): np.array([[1, 0.2, 0.0], [64, 6.5, 0.0]]) for n in range(1, 5)}  # 0.1 s and 0.1 s a sample
    app = Application("app", steps, np.zeros((0, 3)), np.zeros((0, 2)), runs, 2, 1, 64)
    job = Running(0, 0, 1, Epochs(ChosenBatch(app, measured_of([app]), 0), 0.0, "t4", 4))
    log = []
    Clock([job], [4], Recorded(Sia(("t4",), 4), log)).run()
    widths = [sum(step.decision.gpus.values()) for step in log]
    assert widths[:3] == [1, 2, 4]
    assert job.end_ns is not None
    alone_s = 800 / (1 / 0.3)  # on 4 GPUs, 2 samples each
    assert job.end_ns / NS == pytest.approx(alone_s + 120 - 60 * (1 / 0.9 + 1 / 0.5) * 0.3, rel=0.1)


def test_another_user_of_the_solver_in_the_process_changes_nothing() -> None:
    """HiGHS keeps one pool of threads a process; a program that cannot be solved is an error, never no share."""
    import highspy

    made: Any = highspy.Highs
    other = made()
    other.setOptionValue("output_flag", False)
    other.addBinary(obj=-1.0)
    other.minimize()
    assert choices([[-1.0]], [[(0, 2)]], [4], 1.0) == [0]
    assert shares(np.array([[1.0]]), [2], [4]).tolist() == [[1.0]]
    with pytest.raises(UserError, match="kInfeasible"):
        choices([[-1.0]], [[(0, 2)]], [-4], 1.0)
