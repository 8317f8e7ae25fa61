"""What holds for every scheduler: no GPU twice, work kept, replays alike, closed forms, compiled like uncompiled."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded_decisions import Recorded

from windtunnel.physics.engine.compiled.fleet import queue_kernels
from windtunnel.studies.fleet.clock.board import by_rank
from windtunnel.studies.fleet.clock.clock import Clock, NodeChange
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.clock.work import Rigid, Scaling
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.rigid.queues import NAMES, run_queue
from windtunnel.studies.fleet.policies.rigid.srtf import Srtf
from windtunnel.studies.fleet.policies.table import POLICIES as TRAITS
from windtunnel.studies.fleet.site import parse_site

POLICIES = ("tiresias", "gittins", "srtf", "themis")

jobs_strategy = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])),
    min_size=1,
    max_size=25,
)


def made(name):
    return TRAITS[name].make_policy(parse_site("gpu:2x8"), Options())


def arrays(jobs):
    submit, duration, gpus = (np.array(column, np.int64) for column in zip(*jobs, strict=True))
    return submit * NS, duration * NS, gpus


def used_over_time(start, duration, gpus):
    moments = defaultdict(int)
    for begin, lasts, count in zip(start.tolist(), duration.tolist(), gpus.tolist(), strict=True):
        moments[begin] += count
        moments[begin + lasts] -= count
    level = 0
    for time in sorted(moments):
        level += moments[time]
        yield time, level


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", [True, False])
@settings(max_examples=40, deadline=None)
@given(jobs=jobs_strategy)
def test_queues_never_start_early_nor_use_more_than_there_is(name, pool, jobs):
    submit, duration, gpus = arrays(jobs)
    start, _ = run_queue(name, submit, duration, gpus, nodes=2, per_node=8, pool=pool)
    assert (start >= submit).all()
    assert max(level for _, level in used_over_time(start, duration, gpus)) <= 16


def naive(name, jobs, capacity):
    """The rules of the queues in plain Python, GPUs as a count."""
    submit, duration, gpus = (list(column) for column in zip(*jobs, strict=True))
    key = (lambda j: (duration[j], submit[j], j)) if name.startswith("sjf") else (lambda j: (submit[j], j))
    start, running, queue = {}, [], []
    events = sorted(set(submit))
    while events:
        now = events.pop(0)
        running = [j for j in running if start[j] + duration[j] > now]
        queue += [j for j in range(len(jobs)) if submit[j] == now]
        free = capacity - sum(gpus[j] for j in running)
        until = spare = None
        for job in sorted(queue, key=key):
            if until is not None:
                if gpus[job] > free or (now + duration[job] > until and gpus[job] > spare):
                    continue
                if now + duration[job] > until:
                    spare -= gpus[job]
            elif gpus[job] > free:
                if name.endswith("-skip"):
                    continue
                if name != "easy":
                    break
                then = free
                for other in sorted(running, key=lambda j: (start[j] + duration[j], j)):
                    then += gpus[other]
                    if then >= gpus[job]:
                        until, spare = start[other] + duration[other], then - gpus[job]
                        break
                continue
            start[job] = now
            free -= gpus[job]
            running.append(job)
            queue.remove(job)
            events = sorted({*events, now + duration[job]})
    return [start[j] for j in range(len(jobs))]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(jobs=jobs_strategy)
def test_queues_are_their_rules(name, jobs):
    submit, duration, gpus = arrays(jobs)
    start, _ = run_queue(name, submit, duration, gpus, nodes=2, per_node=8, pool=True)
    assert (start // NS).tolist() == naive(name, jobs, 16)


@settings(max_examples=30, deadline=None)
@example(jobs=[*[(0, 1, 1)] * 4, (0, 1, 12), (0, 1, 1), (0, 1, 2), (1, 1, 2), (0, 1, 4), (0, 1, 6)])
@given(jobs=jobs_strategy)
def test_gangs_on_nodes_share_no_gpu(jobs):
    submit, duration, gpus = arrays(jobs)
    start, _ = run_queue("fifo-skip", submit, duration, gpus, nodes=2, per_node=8, pool=False)
    nodes = queue_kernels.empty_nodes(2, 8)
    begins, ends = start.tolist(), (start + duration).tolist()
    # Of those that start at one instant, who was submitted first is placed first.
    order = sorted(
        [(time, 1, submit[job], job) for job, time in enumerate(begins)]
        + [(time, 0, submit[job], job) for job, time in enumerate(ends)]
    )
    where = {}
    for _, starts, _, job in order:
        if starts:
            assert queue_kernels.fits(nodes, gpus[job], 8)
            where[job] = queue_kernels.take(nodes, gpus[job], 8)
        else:
            queue_kernels.give_back(nodes, *where.pop(job), gpus[job], 8)
        assert (nodes.free >= 0).all()
        assert nodes.free.sum() == 16 - sum(int(gpus[held]) for held in where)


@settings(max_examples=20, deadline=None)
@given(jobs=jobs_strategy)
def test_more_gpus_never_delay_the_makespan_of_fifo(jobs):
    submit, duration, gpus = arrays(jobs)
    ends = []
    for nodes in (2, 3, 5):
        start, _ = run_queue("fifo", submit, duration, gpus, nodes=nodes, per_node=8, pool=True)
        ends.append((start + duration).max())
    assert ends == sorted(ends, reverse=True)


def run_exact(name, jobs, log=None, **more):
    running = [Running(at, submit * NS, gpus, Rigid(float(lasts))) for at, (submit, lasts, gpus) in enumerate(jobs)]
    clock = Clock(running, [8, 8], Recorded(made(name), [] if log is None else log), **more)
    clock.run()
    return running


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(jobs=jobs_strategy)
def test_work_is_conserved_across_preemptions(name, jobs):
    for job, (_, lasts, gpus) in zip(run_exact(name, jobs), jobs, strict=True):
        assert job.end_ns is not None
        assert job.held_ns == pytest.approx(lasts * NS, abs=10)
        assert job.gpu_ns == pytest.approx(lasts * gpus * NS, abs=200)
        assert job.end_ns >= job.submit_ns + lasts * NS - 10


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=10, deadline=None)
@given(jobs=jobs_strategy)
def test_leases_never_overlap_and_decisions_replay(name, jobs):
    log = []
    run_exact(name, jobs, log)
    fresh = made(name)
    for step in log:
        assert fresh.decide(step.snapshot) == step.decision
        used = defaultdict(int)
        for job in step.snapshot.jobs:
            for node, count in job.placement:
                used[node] += count
        assert all(count <= 8 for count in used.values())


@pytest.mark.parametrize("name", [*NAMES, "tiresias", "srtf"])
@settings(max_examples=25, deadline=None)
@given(jobs=jobs_strategy, restart_s=st.sampled_from([0.0, 3.0]))
def test_a_policy_of_lines_decides_on_its_board_as_on_a_snapshot(name, jobs, restart_s):
    def ends(policy):
        running = [
            Running(at, submit * NS, gpus, Rigid(float(lasts), restart_s))
            for at, (submit, lasts, gpus) in enumerate(jobs)
        ]
        clock = Clock(running, [8, 8], policy)
        clock.run()
        return [(job.start_ns, job.end_ns, job.restarts) for job in running]

    policy = made(name)
    assert isinstance(policy, QueuePolicy)
    assert ends(policy) == ends(Recorded(policy, []))


class WalksAll(Srtf):
    """SRTF by its definition: all that run and wait are walked at every event."""

    def choose(self, board):
        for job in board.running.values():
            job.rank = self.rank(job)
        yield from board.whatever_fits(sorted(board.running.values(), key=by_rank))


@settings(max_examples=150, deadline=None)
@given(
    jobs=jobs_strategy,
    restart_s=st.sampled_from([0.0, 0.5, 3.0]),
    lost=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2)), max_size=3),
)
def test_srtf_moves_what_a_walk_over_all_jobs_would(jobs, restart_s, lost):
    def ends(policy):
        running = [
            Running(at, submit * NS, gpus, Rigid(float(lasts), restart_s))
            for at, (submit, lasts, gpus) in enumerate(jobs)
        ]
        changes = [
            NodeChange(time_ns, node, gpus)
            for begin, length, node in lost
            for time_ns, gpus in ((begin * NS, 0), ((begin + length) * NS, 8))
        ]
        clock = Clock(running, [8, 8, 8], policy, changes=sorted(changes, key=lambda change: change.time_ns))
        clock.run()
        return [(job.start_ns, job.end_ns, job.restarts) for job in running]

    assert ends(Srtf()) == ends(WalksAll())


def test_traits_are_those_of_the_policies():
    for traits in TRAITS.values():
        if traits.loop == "clock":
            policy = made(traits.name)
            assert isinstance(policy, QueuePolicy) == (traits.asks == "lines"), traits.name
            assert hasattr(policy, "interval_s") == (traits.asks == "rounds"), traits.name


def test_one_server_queue_waits_as_pollaczek_and_khinchine_say():
    random = np.random.default_rng(5)
    count, load = 60_000, 0.7
    submit = np.cumsum(random.exponential(1.0, count) * NS).astype(np.int64)
    duration = np.maximum((random.exponential(load, count) * NS).astype(np.int64), 1)
    start, _ = run_queue("fifo", submit, duration, np.ones(count, np.int64), nodes=1, per_node=1, pool=True)
    waits = load * load / (1 - load)
    assert ((start - submit).mean() / NS) == pytest.approx(waits, rel=0.08)


def test_many_servers_wait_as_erlang_says():
    random = np.random.default_rng(6)
    servers, count, load = 8, 80_000, 6.4
    submit = np.cumsum(random.exponential(1.0, count) * NS).astype(np.int64)
    duration = (random.exponential(load, count) * NS).astype(np.int64) + 1
    start, _ = run_queue("fifo", submit, duration, np.ones(count, np.int64), nodes=1, per_node=servers, pool=False)
    below = sum(load**k / math.factorial(k) for k in range(servers))
    top = load**servers / math.factorial(servers) * servers / (servers - load)
    expected = top / (below + top) * load / (servers - load)
    assert ((start - submit).mean() / NS) == pytest.approx(expected, rel=0.1)


def test_shortest_first_on_one_server_waits_as_phipps_says():
    """Mean wait without preemption: W0 E[1 / (1 - load of all that are shorter)^2], W0 = rate E[duration^2] / 2."""
    random = np.random.default_rng(7)
    count, load = 60_000, 0.7
    submit = np.cumsum(random.exponential(1.0, count) * NS).astype(np.int64)
    duration = np.maximum((random.exponential(load, count) * NS).astype(np.int64), 1)
    start, _ = run_queue("sjf", submit, duration, np.ones(count, np.int64), nodes=1, per_node=1, pool=True)
    x = np.linspace(0, 40, 400_001)  # duration over its mean
    shorter = load * (1 - (1 + x) * np.exp(-x))
    waits = load**2 * (np.exp(-x) / (1 - shorter) ** 2).sum() * x[1]
    assert ((start - submit).mean() / NS) == pytest.approx(waits, rel=0.05)


def test_a_lost_node_costs_what_was_done_since_the_checkpoint():
    job = Running(0, 0, 8, Rigid(100.0))
    changes = [NodeChange(45 * NS, 0, 0), NodeChange(60 * NS, 0, 8)]
    clock = Clock([job], [8], made("srtf"), changes=changes, checkpoint_s=10.0)
    clock.run()
    assert job.lost_units == pytest.approx(5.0)
    assert job.end_ns == 120 * NS  # 45 s run, 15 s down, 60 s left of the 40 s kept


def test_a_scaled_job_runs_at_the_rate_of_its_gpus():
    work = Scaling(100.0, {gpus: float(gpus) for gpus in range(1, 9)}, 8)
    job = Running(0, 0, 4, work)
    Clock([job], [8], made("optimus")).run()
    assert job.end_ns == 12.5 * NS


def test_the_same_seed_gives_the_same_bytes():
    jobs = [(at % 7, 3 + at % 11, 1 + at % 4) for at in range(40)]
    first, second = (run_exact("gittins", jobs) for _ in range(2))
    assert [(job.start_ns, job.end_ns, job.restarts) for job in first] == [
        (job.start_ns, job.end_ns, job.restarts) for job in second
    ]
