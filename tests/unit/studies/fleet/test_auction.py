"""Themis' auction: bids against enumeration, payments, leases and work that is kept."""

import csv
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_decisions import Recorded

from windtunnel.faces.cli.app import main
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Divisible
from windtunnel.studies.fleet.policies.rigid.auction import Auction, Bid, partial_allocation, proportional
from windtunnel.studies.fleet.policies.rigid.queues import run_queue

bids_strategy = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(1, 50_000), st.integers(0, 2), st.integers(1, 4)),
    min_size=1,
    max_size=4,
).map(lambda rows: [Bid(float(age), float(left), kept, kept + more) for age, left, kept, more in rows])
jobs_strategy = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 4000), st.sampled_from([1, 2, 3, 8, 16])), min_size=1, max_size=15
)


def log_worth(bids, given_gpus, without=-1):
    """The logarithm of the product of V, up to what does not hang on who gets what."""
    return -sum(
        math.log(bid.age_s + bid.left / (bid.least + gpus))
        for at, (bid, gpus) in enumerate(zip(bids, given_gpus, strict=True))
        if at != without
    )


def best(bids, gpus, without=-1):
    """Every division in which nobody is left with nothing."""
    ranges = [
        range(1) if at == without else range(int(bid.least == 0), bid.most - bid.least + 1)
        for at, bid in enumerate(bids)
    ]
    return max(log_worth(bids, each, without) for each in itertools.product(*ranges) if sum(each) <= gpus)


@settings(max_examples=60, deadline=None)
@given(bids=bids_strategy, more=st.integers(0, 8))
def test_the_division_and_the_payments_are_those_of_enumeration(bids, more):
    gpus = len(bids) + more
    won, _ = proportional(bids, [0] * len(bids), gpus)
    assert log_worth(bids, won) == pytest.approx(best(bids, gpus), abs=1e-9)
    paid = partial_allocation(bids, gpus)
    for at in range(len(bids)):
        share = math.exp(log_worth(bids, won, at) - best(bids, gpus, at))
        assert 0 < share <= 1 + 1e-9
        assert paid[at] == max(math.floor(share * won[at] + 1e-6), min(won[at], 1))


def test_alone_a_bid_pays_nothing_and_beside_its_equal_it_does():
    bid = Bid(100.0, 9000.0, 0, 8)
    assert partial_allocation([bid], 8) == [8]
    assert partial_allocation([bid, bid], 8) == [2, 2]  # 4 won; c = (100 + 9000 / 8) / (100 + 9000 / 4) = .52


def run(jobs, **more):
    made = [Running(at, submit * NS, gpus, Divisible(float(s), gpus)) for at, (submit, s, gpus) in enumerate(jobs)]
    log = []
    Clock(made, [8, 8], Recorded(Auction(**more), log)).run()
    return made, log


@settings(max_examples=25, deadline=None)
@given(jobs=jobs_strategy)
def test_work_is_kept_gpus_are_held_once_and_decisions_replay(jobs):
    made, log = run(jobs)
    for job, (_, lasts, gpus) in zip(made, jobs, strict=True):
        assert job.end_ns is not None
        assert job.gpu_ns == pytest.approx(lasts * gpus * NS, rel=1e-6, abs=1e4)
    for step in log:
        assert Auction().decide(step.snapshot) == step.decision
        used = defaultdict(int)
        for job in step.snapshot.jobs:
            for node, count in job.placement:
                used[node] += count
        assert all(count <= 8 for count in used.values())
        held, wanted = sum(step.decision.gpus.values()), sum(job.gpus for job in step.snapshot.jobs)
        assert held == min(wanted, 16)  # nothing idles that a job could use


def test_a_lease_ends_and_a_job_that_is_behind_gets_gpus():
    first, second = run([(0, 10_000, 16), (10, 10_000, 16)])[0]
    assert second.start_ns == 1200 * NS  # not before the first lease ends
    assert max(first.end_ns, second.end_ns) == pytest.approx(20_000 * NS, abs=1e4)
    submit, duration, gpus = (np.array(each) for each in ([0, 10 * NS], [10_000 * NS] * 2, [16, 16]))
    start, _ = run_queue("fifo", submit, duration, gpus, nodes=2, per_node=8, pool=True)
    assert second.end_ns - second.submit_ns <= start[1] + duration[1] - submit[1]


def test_on_the_command_line_traced_jobs_are_divisible(tmp_path):
    path, out = tmp_path / "jobs.csv", tmp_path / "out.csv"
    path.write_text("job,submit_s,gpus,duration_s\na,0,8,4000\nb,5,8,4000\nc,9,4,100\n")
    words = ["fleet", str(path), "--cluster", "gpu:1x8", "--policy", "themis-auction", "--jobs-out", str(out)]
    assert main(words) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["gpu_seconds"]) for row in rows] == pytest.approx([32_000, 32_000, 400])
