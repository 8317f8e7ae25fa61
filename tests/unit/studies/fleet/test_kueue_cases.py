"""Kueue's own table tests, tabulated in `kueue_cases.yaml`: the same decisions, and what differs is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windtunnel.files.document import read_document
from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import Placement
from windtunnel.studies.fleet.clock.queue_policy import carry_out
from windtunnel.studies.fleet.clock.running import NS, Moment, Running
from windtunnel.studies.fleet.clock.work import Rigid
from windtunnel.studies.fleet.jobs.trace import Cohort, Quota
from windtunnel.studies.fleet.policies.kueue.books import Books, Node
from windtunnel.studies.fleet.policies.kueue.policy import Kueue
from windtunnel.studies.fleet.policies.kueue.preemption import FINAL, INITIAL

LATER_S = 10**6
MOST = 2**63 - 1
SOMEWHERE: Placement = ((0, 0),)
Case = Mapping[str, Any]


class Endless(Board):
    """GPUs do not run out: only quotas decide."""

    def gang(self, gpus: int, per_node: int) -> Placement:
        return SOMEWHERE


def policy_of(case: Case) -> Kueue:
    quotas = {name: Quota(name, **words) for name, words in case["queues"].items()}
    cohorts = tuple(Cohort(name, **words) for name, words in case.get("cohorts", {}).items())
    return Kueue(0, quotas, case.get("fair", False), cohorts, tuple(case.get("strategies", (FINAL, INITIAL))))


def shared(node: Node) -> int:
    endless, share = node.share
    return MOST if endless else math.ceil(share)


def of_books(case: Case, policy: Kueue) -> bool:
    """Whether what is available, the shares or the fit of a request are as the case says."""
    books = Books(policy.quotas.values(), policy.cohorts)
    for queue, amount in case["used"].items():
        books.queues[queue].add(amount)
    nodes = {**books.cohorts, **books.queues}
    if "shares" in case:
        return {name: shared(nodes[name]) for name in case["shares"]} == case["shares"]
    if "available" in case:
        available = {name: max(nodes[name].available, 0) for name in case["available"]}
        return available == case["available"] and all(nodes[name].most == most for name, most in case["most"].items())
    queue, amount = case["asks"]
    node = nodes[queue]
    fits = "Fit" if amount <= node.available else "NoFit" if amount > node.most else "Preempt"
    return fits == case["fits"]


def of_cycle(case: Case, policy: Kueue) -> bool:
    """Whether the same jobs are admitted and stopped in one cycle; who waits for others to stop is no start there."""
    names, moment = [], Moment(2 * LATER_S * NS)
    board = Endless([1], moment, policy.line)

    def job(name: str, queue: str, amount: int, priority: int, at_s: float) -> Running:
        names.append(name)
        made = Running(len(names) - 1, round((LATER_S + at_s) * NS), amount, Rigid(1e9), queue=queue)
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
    starts, stops, made_room = [], [], False
    for one, placement in policy.choose(board):
        carry_out(board, one, placement)
        if placement is None:
            stops.append(names[one.index])
            made_room = True
            continue
        if not made_room:
            starts.append(names[one.index])
        one.placement, one.counts, made_room = placement, (one.gpus,), False
    return sorted(stops) == case["stops"] and sorted(starts) == case.get("starts", sorted(starts))


def test_kueues_own_cases_are_decided_alike() -> None:
    cases = read_document(Path(__file__).with_name("kueue_cases.yaml"))
    assert isinstance(cases, list)
    alike = {True: 0, False: 0}
    for case in cases:
        same = (of_books if "used" in case else of_cycle)(case, policy_of(case))
        assert same != ("unlike" in case), (case["test"], case["case"])
        alike[same] += 1
    assert alike[True] >= 150, alike
