"""Slurm's backfill: planned by limits, run by the truth; nobody who comes later delays anybody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.fleet.clock import Clock
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.slurm.nodes import Space
from windtunnel.studies.fleet.policies.slurm.policy import Slurm
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.running import NS, Running
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.work import Rigid

JOBS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=14)
EACH_SECOND = Slurm(0, backfill_interval_s=1.0, resolution_s=1.0, batch_s=0.0)


def starts(jobs: list[tuple[int, int, int]], extra: int = 0) -> list[int | None]:
    """Jobs of (submission, duration, GPUs) on 8 GPUs; limits are durations and so much more."""
    running = [
        Running(at, submit * NS, gpus, Rigid(float(lasts)), limit_s=float(lasts + extra))
        for at, (submit, lasts, gpus) in enumerate(jobs)
    ]
    Clock(running, [8], EACH_SECOND).run()
    return [job.start_ns for job in running]


@given(JOBS)
@settings(max_examples=40)
def test_with_true_limits_the_last_job_delays_nobody(jobs: list[tuple[int, int, int]]) -> None:
    jobs = sorted(jobs)
    assert starts(jobs)[:-1] == starts(jobs[:-1])


@given(JOBS, st.integers(0, 30))
@settings(max_examples=40)
def test_every_job_runs_and_no_gpu_is_given_twice(jobs: list[tuple[int, int, int]], extra: int) -> None:
    began = starts(sorted(jobs), extra)
    assert None not in began
    spans = [(begin, begin + lasts * NS, gpus) for begin, (_, lasts, gpus) in zip(began, sorted(jobs), strict=True)]
    for now, _, _ in spans:
        assert sum(gpus for begin, end, gpus in spans if begin <= now < end) <= 8


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 15)), max_size=6), st.integers(1, 9))
def test_nodes_that_no_reservation_holds_are_those_of_trying_every_second(
    taken: list[tuple[int, int, int]], lasts: int
) -> None:
    space, free = Space(0, 15), [15] * 60
    for begin, length, nodes in taken:
        space.reserve(begin, begin + length, nodes)
        for second in range(begin, begin + length):
            free[second] &= ~nodes
    for begin in range(20):
        among = space.among(15, begin, begin + lasts)[0]
        tried = 15
        for each in free[
            begin : begin + lasts + 1
        ]:  # Slurm takes a reservation that begins at the end for one meanwhile
            tried &= each
        assert among == tried
        assert space.overlaps(6, begin, begin + lasts) == any(6 & ~each for each in free[begin : begin + lasts])


def test_limits_decide_who_is_backfilled(tmp_path: Path) -> None:
    """8 GPUs: c takes 5 s, but asked for 100; so it waits for the gap before b; d asked for 10 and goes."""
    (tmp_path / "jobs.csv").write_text(
        "job,submit_s,gpus,duration_s,limit_s\na,0,4,20,20\nb,1,8,10,30\nc,2,4,5,100\nd,3,4,5,10\n"
    )
    jobs = read_jobs(tmp_path / "jobs.csv")

    def run(jobs):
        outcome = simulate(jobs, parse_site("gpu:1x8"), "slurm", Options(decider=replace(EACH_SECOND, per_node=8)))
        return outcome.start_s.tolist()

    assert run(jobs) == [0, 20, 30, 3]
    blind = replace(jobs, columns={key: value for key, value in jobs.columns.items() if key != "limit_s"})
    assert run(blind) == [0, 20, 2, 7]  # without limits what a job takes is known


def test_priority_of_the_log_comes_before_submission(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit_s,gpus,duration_s,priority\na,0,8,10,1\nb,1,8,10,1\nc,2,8,10,5\n")
    outcome = simulate(read_jobs(tmp_path / "jobs.csv"), parse_site("gpu:1x8"), "slurm", Options())
    assert np.argsort(outcome.start_s).tolist() == [0, 2, 1]
