"""What holds for over-subscription: what is requested is sold once, work is kept, victims by rule, services first."""

import dataclasses

import numpy as np
import pytest
from held_leases import Kind, Lease, first_overlap
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.oversubscribe.clock import CHECKPOINT_S, MOVE_S, Machines, Task
from windtunnel.studies.fleet.oversubscribe.machines import Beside, p95_of, service_slowdown
from windtunnel.studies.fleet.oversubscribe.run import RULES
from windtunnel.studies.fleet.policies.beyond.oversubscribe import (
    Rules,
    Running,
    admits,
    candidates,
    least_loss,
    throttle,
    youngest,
)
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

MACHINES = 3
NS = 1_000_000_000
tasks_strategy = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 4000), st.sampled_from([0.125, 0.25, 0.5])), min_size=1, max_size=25
)
beside_strategy = st.builds(
    Beside,
    contention=st.sampled_from([0.0, 0.15, 0.5]),
    spread=st.sampled_from([0.0, 0.3]),
    service_use=st.sampled_from([0.2, 0.8]),
)


class Leased(Machines):
    """The machines, with a lease for each time that a task was on one."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.leases = []

    def _leave(self, task, now):
        kind, amount = (Kind.OVERSUBSCRIBED, task.mean) if task.speculative else (Kind.OWN, task.request)
        begin, end = round(task.began_s * NS), round(now * NS)
        place = ("here", f"m-{task.machine}")
        self.leases.append(Lease(place, amount, str(task.index), begin, end, "here", kind))
        super()._leave(task, now)


def ran(tasks, rules, beside, seed=0):
    made = [Task(at, float(submit), request, float(work)) for at, (submit, work, request) in enumerate(tasks)]
    machines = Leased(made, MACHINES, rules, beside, seed=seed)
    return made, machines.run(), machines.leases


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=15, deadline=None)
@given(tasks=tasks_strategy, beside=beside_strategy)
def test_every_task_ends_with_its_work_done_and_what_is_requested_is_sold_once(name, tasks, beside):
    made, _, leases = ran(tasks, RULES[name], beside)
    for task in made:
        assert task.end_s is not None
        assert task.start_s >= task.submit_s
        assert task.end_s - task.start_s >= task.work_s + task.lost_s + task.moves * MOVE_S - 1e-6
        assert task.lost_s <= task.retries * CHECKPOINT_S
    rest = [lease for lease in leases if lease.kind is Kind.OWN]
    places = {("here",): MACHINES * 1.0} | {("here", f"m-{at}"): 1.0 - beside.service_request for at in range(MACHINES)}
    assert first_overlap(rest, places) is None
    if name == "requested":
        assert rest == leases


@settings(max_examples=20, deadline=None)
@given(tasks=tasks_strategy, beside=beside_strategy)
def test_without_contention_and_spread_requested_tasks_run_as_long_as_their_work(tasks, beside):
    calm = dataclasses.replace(beside, contention=0.0, spread=0.0, service_use=0.2)
    for task in ran(tasks, RULES["requested"], calm)[0]:
        assert task.held_s == pytest.approx(task.work_s)
        assert task.end_s - task.start_s == pytest.approx(task.work_s, abs=1e-6)


@settings(max_examples=15, deadline=None)
@given(tasks=tasks_strategy, seed=st.integers(0, 5))
def test_the_same_seed_gives_the_same_run(tasks, seed):
    first, second = (ran(tasks, RULES["rose-qos"], Beside(), seed) for _ in range(2))
    assert first[0] == second[0]
    assert first[2] == second[2]


@settings(max_examples=100, deadline=None)
@given(
    used=st.lists(st.floats(0, 1.2), min_size=1, max_size=8),
    memory=st.floats(0, 1),
    need=st.floats(0, 0.5),
    home=st.integers(0, 7),
)
def test_the_filter_asks_only_machines_with_head_room_least_used_first(used, memory, need, home):
    rules = Rules()
    asked = candidates(used, [memory] * len(used), need, 0.1, rules, home)
    assert len(asked) <= rules.tries
    assert all(used[at] + need < rules.theta and memory + 0.1 < rules.memory for at in asked)
    assert [round(used[at], 2) for at in asked] == sorted(round(used[at], 2) for at in asked)
    for at in asked:
        assert admits(used[at], memory, 0.0, (need, 0.1, 0.0), rules)
        assert not admits(rules.theta, memory, 0.0, (need, 0.1, 0.0), rules)


def a_guest(task, **changes):
    guest = {"started_s": float(task), "use": 0.2, "since_checkpoint_s": 100.0, "retries": 1, "local": False}
    return Running(task, **{**guest, **changes})


def test_victims_follow_their_rule():
    rules = Rules()
    assert youngest([a_guest(1), a_guest(3), a_guest(2)]).task == 3
    assert least_loss([a_guest(1), a_guest(3)], rules).task == 1  # equals: the lower number
    assert least_loss([a_guest(1), a_guest(2, since_checkpoint_s=10.0)], rules).task == 2
    assert least_loss([a_guest(1), a_guest(2, retries=0)], rules).task == 2
    assert least_loss([a_guest(1, local=True), a_guest(2)], rules).task == 2
    assert least_loss([a_guest(1), a_guest(2, use=0.4)], rules).task == 2


@settings(max_examples=100, deadline=None)
@given(over=st.floats(-1, 1), use=st.floats(0, 1))
def test_throttling_takes_what_is_too_much_and_at_most_half(over, use):
    factor = throttle(over, use)
    assert 0.5 <= factor <= 1.0
    assert use * (1 - factor) <= max(over, 0.0) + 1e-9
    if over <= 0:
        assert factor == 1.0


def test_slow_downs_and_their_percentile():
    beside = Beside(contention=0.2)
    assert service_slowdown(np.array([0.0, 0.5, 0.9]), np.array([0.4, 0.4, 0.6]), beside).tolist() == pytest.approx(
        [1.0, 1.1, 1.18 * 1.5]
    )
    assert p95_of(np.array([2.0]), np.array([3.0])) == pytest.approx(2 * np.log(20))
    both = p95_of(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    assert np.log(20) < both < 2 * np.log(20)


def test_full_machines_are_filled_up_and_the_service_keeps_its_promise():
    jobs = 60
    blank = np.full(jobs, np.nan)
    trace = Jobs(
        source="made",
        name=[str(at) for at in range(jobs)],
        line=np.arange(jobs),
        submit_s=np.arange(jobs) * 20.0,
        gpus=np.tile([1, 2, 4], jobs // 3),
        duration_s=np.full(jobs, 3000.0),
        deadline_s=blank,
        iterations=blank,
        batch_size=blank,
        start_s=blank,
        model=[""] * jobs,
        user=[""] * jobs,
    )
    site = parse_site("v100:4x8")
    figures = {name: simulate(trace, site, name, Options()) for name in RULES}
    plain = figures["requested"].extra
    for name in ("rose", "rose-qos"):
        extra = figures[name].extra
        assert extra["machine_use"] > plain["machine_use"]
        assert extra["service_p95_ratio"] < 1.06
        assert np.mean(figures[name].end_s) < np.mean(figures["requested"].end_s)
    large = dataclasses.replace(trace, gpus=np.full(jobs, 5))
    assert "services leave" in next(iter(simulate(large, site, "rose", Options()).why.values()))
