"""Kueue's flavors: its own table cases, and laws of quotas, nodes and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from test_kueue_cases import LATER_S, SOMEWHERE, Endless

from windtunnel.files.document import read_document
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.clock.queue_policy import carry_out
from windtunnel.studies.fleet.clock.running import NS, Moment, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.flavors import why_not
from windtunnel.studies.fleet.jobs.trace import Cohort, Flavor, Quota
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books
from windtunnel.studies.fleet.policies.kueue.flavors import (
    FIT,
    NO_CANDIDATES,
    NO_FIT,
    PREEMPT,
    RECLAIM,
    Assignment,
    Place,
    by_flavor,
)
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.kueue.state import State

FOUND = {"NoCandidates": NO_CANDIDATES, "Preempt": PREEMPT, "Reclaim": RECLAIM}
MODES = {"noFit": NO_FIT, "noPreemptionCandidates": NO_CANDIDATES, "preempt": PREEMPT, "reclaim": RECLAIM, "fit": FIT}
Case = Mapping[str, Any]


@dataclass(frozen=True)
class Told(Kueue):
    """Kueue to which a case says what a search for victims finds: on each flavor, (what, level)."""

    candidates: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def by_stopping(self, job: Running, state: State) -> tuple[int, int]:
        found, level = self.candidates.get(job.queue.partition(MARK)[2], ("Preempt", 0))
        return FOUND[found], level


def _with_flavors(words: Mapping[str, Any]) -> dict[str, Any]:
    """Words of a queue or cohort as fields; a flavor that is missing has no ResourceFlavor."""
    flavors = {
        each["name"]: Flavor(**{key: value for key, value in each.items() if key not in ("name", "missing")})
        for each in words["flavors"]
        if not each.get("missing")
    }
    return {**words, "flavors": flavors}


def assigned(case: Case) -> list[object]:
    """Flavor, mode and last flavor tried."""
    quotas = [Quota(name, **{"nominal": 0, **_with_flavors(words)}) for name, words in case["queues"].items()]
    cohorts = [Cohort(name, **_with_flavors(words)) for name, words in case.get("cohorts", {}).items()]
    of_flavors, apart = by_flavor(quotas, cohorts)
    policy = Told(0, of_flavors, case.get("fair", False), apart, candidates=case.get("candidates", {}))
    state = State(Books(of_flavors.values(), apart))
    for queue, flavor, amount in case["used"]:
        state.books.queues[f"{queue}{MARK}{flavor}"].add(amount)
    queue, amount = case["asks"]
    flavors = of_flavors[queue].flavors
    fits = [name for name, flavor in flavors.items() if not why_not(flavor, [case.get("pod", {})])]
    job = Running(0, 0, amount, Rigid(1.0), queue=queue, owner=Owner(flavors=",".join(fits) or "none"))
    choice = policy.assign(job, state) if flavors else None
    if choice is None:
        return [None, "NoFit", None]
    mode = "Fit" if choice.mode == FIT else "Preempt"
    return [choice.queue.partition(MARK)[2], mode, choice.last if case["assigned"][2] is not None else None]


def of_cycle(case: Case) -> tuple[dict[str, str], list[str]]:
    """Flavors of jobs that start in one decision, and who is stopped; who starts in a victim's place is no start."""
    quotas = [Quota(name, **{"nominal": 0, **_with_flavors(words)}) for name, words in case["queues"].items()]
    cohorts = [Cohort(name, **_with_flavors(words)) for name, words in case.get("cohorts", {}).items()]
    of_flavors, apart = by_flavor(quotas, cohorts)
    policy, names, moment = Kueue(0, of_flavors, case.get("fair", False), apart), [], Moment(2 * LATER_S * NS)
    board = Endless([1], moment, policy.line)

    def job(name: str, queue: str, amount: int, priority: int, at_s: float, flavor: str = "") -> Running:
        names.append(name)
        fits = [each for each, its in of_flavors[queue].flavors.items() if not why_not(its, [{}])]
        owner = Owner(flavors=flavor or ",".join(fits) or "none")
        made = Running(len(names) - 1, round((LATER_S + at_s) * NS), amount, Rigid(1e9), queue=queue, owner=owner)
        made.moment, made.priority, made.placed_ns = moment, float(priority), made.submit_ns
        made.rank = policy.rank(made)
        return made

    for row in case["running"]:
        one = job(*row)
        one.placement, one.counts = SOMEWHERE, (one.gpus,)
        board.take(one, one.placement)
    heads: dict[str, Running] = {}
    for row in case["waiting"]:
        one = job(*row)
        if one.queue not in heads or one.rank < heads[one.queue].rank:
            heads[one.queue] = one
    for one in heads.values():
        board.wait(one)
    starts, stops, made_room = {}, [], False
    for one, placement in policy.choose(board):
        flavor = one.queue.partition(MARK)[2]
        carry_out(board, one, placement)
        if placement is None:
            stops.append(names[one.index])
        elif not made_room:
            starts[names[one.index]] = flavor
        one.placement, one.counts, made_room = placement or (), (one.gpus,), placement is None
    return starts, sorted(stops)


def preferred(case: Case) -> bool:
    """Whether the first of two ways to get a flavor is taken rather than the second."""
    quota = Quota("cq", 0, borrow_last=case["borrow_last"])
    first, second = (Assignment("cq", MODES[mode], level) for mode, level in (case["a"], case["b"]))
    return first.better(second, quota)


def test_kueues_own_cases_of_flavors_are_decided_alike() -> None:
    cases = read_document(Path(__file__).with_name("kueue_flavor_cases.yaml"))
    assert isinstance(cases, list)
    alike = {True: 0, False: 0}
    for case in cases:
        if "assigned" in case:
            same = assigned(case) == case["assigned"]
        elif "preferred" in case:
            same = preferred(case) == case["preferred"]
        else:
            same = of_cycle(case) == (case["starts"], case["stops"])
        assert same != ("unlike" in case), (case["test"], case["case"])
        alike[same] += 1
    assert alike == {True: 87, False: 2}


# Laws

LIMIT = st.none() | st.integers(0, 8)
SPECS: tuple[tuple[str, dict[str, object]], ...] = (("x", {}), ("y", {}), ("z", {}))
SHARED_QUOTAS = st.tuples(
    *(
        st.builds(
            Quota,
            st.just(name),
            st.just(16),
            st.just(cohort),
            strict=st.booleans(),
            within=st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
            reclaim=st.sampled_from(["Never", "LowerPriority", "Any"]),
            borrow_within=st.sampled_from(["Never", "LowerPriority"]),
            flavors=st.fixed_dictionaries(
                {flavor: st.builds(Flavor, st.integers(4, 8), LIMIT, LIMIT, st.just(spec)) for flavor, spec in SPECS}
            ),
            borrow_next=st.booleans(),
            preempt_next=st.booleans(),
            borrow_last=st.booleans(),
        )
        for name, cohort in (("a", "c"), ("b", "c"), ("d", ""))
    )
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(1, 20),
        st.integers(1, 4),
        st.sampled_from(["a", "b", "d"]),
        st.integers(0, 2),
        st.sampled_from(["", "x", "y", "x,z"]),
    ),
    min_size=1,
    max_size=14,
)
# Nodes 0 and 1 are x, 2 and 3 y, and z is on 1 and 2.
PLACES = {"x": Place({0: 8, 1: 8}, 8), "y": Place({2: 8, 3: 4}, 8), "z": Place({1: 8, 2: 8}, 8)}
NODES = [8, 8, 8, 4]


class Watched(Kueue):
    """Holds what it leaves running against the quotas of each flavor and the flavors' nodes."""

    def choose(self, board):
        yield from super().choose(board)
        books = board.memory.books
        used: dict[str, int] = {}
        for job in board.running.values():
            name = job.queue.partition(MARK)[2]
            assert name in self.usable(job.queue.partition(MARK)[0], job.gpus, job.owner)
            assert {node for node, _ in job.placement} <= set(PLACES[name].sizes)
            used[job.queue] = used.get(job.queue, 0) + job.held_gpus
        for name, node in books.queues.items():
            assert node.used == used.get(name, 0)
            if node.parent is None or node.borrowing is not None:
                assert node.used <= node.quota + (node.borrowing or 0)
        for node in books.roots:
            assert node.used <= node.quota


def jobs_of(rows) -> list[Running]:
    return [
        Running(at, submit * NS, wide, Rigid(float(lasts)), None, None, float(priority), queue, Owner(flavors=flavors))
        for at, (submit, lasts, wide, queue, priority, flavors) in enumerate(sorted(rows))
    ]


def policy_on(kind, quotas, *, fair: bool, qps: float, places=PLACES) -> Kueue:
    of_flavors, cohorts = by_flavor(quotas, ())
    return kind(8, of_flavors, fair, cohorts, qps=qps, burst=2, places=places)


def ends(jobs: list[Running]) -> list[tuple[int | None, ...]]:
    return [(job.start_ns, job.end_ns, job.restarts, job.gpu_ns) for job in jobs]


class Naive:
    """The same policy, asked of all jobs each time."""

    def __init__(self, policy: Kueue) -> None:
        self.decide = policy.decide


@given(ROWS, SHARED_QUOTAS, st.booleans(), st.sampled_from([0.0, 2.0, 50.0]))
@settings(max_examples=60)
def test_quotas_hold_for_each_flavor_on_its_nodes_and_naive_is_fast(rows, quotas, fair, qps) -> None:
    jobs = jobs_of(rows)
    policy = policy_on(Watched, quotas, fair=fair, qps=qps)
    Clock(jobs, NODES, policy).run()
    never = {at for at, _ in policy.never((job.queue, job.gpus, job.owner, None) for job in jobs_of(rows))}
    assert [job.end_ns is not None for job in jobs] == [at not in never for at in range(len(jobs))]
    if qps:  # an answer to a snapshot has no delays
        return
    again = jobs_of(rows)
    Clock(again, NODES, Naive(policy_on(Kueue, quotas, fair=fair, qps=qps))).run()
    assert ends(again) == ends(jobs)


@given(ROWS, SHARED_QUOTAS, st.booleans(), st.sampled_from([0.0, 2.0, 50.0]))
@settings(max_examples=40)
def test_one_flavor_is_none(rows, quotas, fair, qps) -> None:
    told = {name: replace(flavor, spec={"nodeLabels": {"gpu": name}}) for name, flavor in quotas[0].flavors.items()}
    one = [replace(quota, flavors={"x": replace(told["x"], nominal=quota.nominal)}) for quota in quotas]
    limits = {name: getattr(told["x"], name) for name in ("borrowing_limit", "lending_limit")}
    none = [replace(quota, flavors={}, **limits) for quota in quotas]
    jobs, plain = jobs_of([(*row[:5], "") for row in rows]), jobs_of([(*row[:5], "") for row in rows])
    Clock(jobs, NODES, policy_on(Kueue, one, fair=fair, qps=qps, places={})).run()
    Clock(plain, NODES, policy_on(Kueue, none, fair=fair, qps=qps, places={})).run()
    assert ends(jobs) == ends(plain)
