"""Spot machines played: every request ends once, nothing changes where nothing happens, and less is computed again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotserve import MODELS, STAYING, STAYING_S, TRACES, changes, p99_and_mean
from t4_costs import SpotModel

from windtunnel.studies.serving.spot.dispatch import Queue
from windtunnel.studies.serving.spot.loop import play
from windtunnel.studies.serving.spot.models import Machine, choices_of, latency_s
from windtunnel.studies.serving.spot.state import Batch, Change, Policy, Replica, ServerRules, SpotOutcome

MODEL = SpotModel(name="GPT-20B", parameters=20e9, layers=44, hidden=6144)
POLICIES: tuple[Policy, ...] = ("spotserve", "reroute", "restart")
SENT = [20.0 * i for i in range(20)]


def test_layouts_fit_and_more_tensor_ranks_are_faster_inside_a_machine() -> None:
    found = list(choices_of(MODEL, 24))
    assert found
    for one in found:
        data, pipeline, tensor = one.layout
        assert data * pipeline * tensor <= 24
        assert MODEL.weight_bytes / (pipeline * tensor) < MODEL.gpu.memory_bytes
    assert latency_s(MODEL, 1, 4, 1) < latency_s(MODEL, 1, 2, 1) < latency_s(MODEL, 1, 1, 1)
    assert latency_s(MODEL, 1, 4, 8) < 8 * latency_s(MODEL, 1, 4, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_changes_a_lone_request_takes_what_its_layout_takes(policy: Policy) -> None:
    found = play(MODEL, Machine(), policy, [200.0 * i for i in range(5)], [], 6)
    assert len({round(x, 6) for x in found.latency_s}) == 1
    assert found.recomputed_tokens == found.reconfigurations == 0
    alone = [latency_s(MODEL, 1, tensor, 1) for tensor in (1, 2, 4, 8)]
    assert any(found.latency_s[0] == pytest.approx(one) for one in alone)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 400.0), st.booleans()), max_size=8), st.sampled_from(POLICIES))
def test_every_request_ends_once_and_the_same_question_has_the_same_answer(
    moves: list[tuple[float, bool]], policy: Policy
) -> None:
    here, known, changes = [0, 1, 2, 3, 4], 5, []
    for at, comes in sorted(moves):
        if comes:
            changes.append(Change(at, known, True))
            here.append(known)
            known += 1
        elif len(here) > 3:
            changes.append(Change(at, here.pop(0), False))
    one = play(MODEL, Machine(), policy, SENT, changes, 5)
    assert all(math.isfinite(x) and x > 0.0 for x in one.latency_s)
    assert one == play(MODEL, Machine(), policy, SENT, changes, 5)


def test_a_notice_costs_spotserve_a_pause_and_the_others_their_work() -> None:
    sent = [3.0 * i for i in range(60)]
    changes = [Change(60.0, 0, False)]
    found = {policy: play(MODEL, Machine(), policy, sent, changes, 6) for policy in POLICIES}
    assert 0.0 < found["spotserve"].paused_s < found["restart"].paused_s
    assert found["spotserve"].recomputed_tokens < found["restart"].recomputed_tokens
    worst = {policy: max(one.latency_s) for policy, one in found.items()}
    assert worst["spotserve"] < worst["restart"]


def test_where_all_machines_go_requests_wait_for_the_next() -> None:
    changes = [*(Change(10.0, m, False) for m in range(3)), *(Change(500.0, m, True) for m in (3, 4, 5))]
    for policy in POLICIES:
        found = play(MODEL, Machine(), policy, [0.0, 30.0, 100.0], changes, 3)
        assert all(map(math.isfinite, found.latency_s)), policy
        assert found.latency_s[2] > 400.0


def test_batches_that_find_no_replica_after_the_pause_begin_again() -> None:
    """On this trace more machines go during a pause than were known of when it began."""
    rng = np.random.default_rng([4, 4])
    here, known, moves = list(range(8)), 8, []
    at = float(rng.exponential(75.0))
    while at < 1200.0:
        comes = len(here) <= 4 or (len(here) < 12 and rng.random() < 0.5)
        gone = known if comes else here.pop(int(rng.integers(len(here))))
        moves.append(Change(at, gone, comes))
        here, known = ([*here, known], known + 1) if comes else (here, known)
        at += float(rng.exponential(75.0))
    gaps = np.random.default_rng([4, 9]).gamma(1 / 36, 24.0, 1800)
    sent = [float(t) for t in np.cumsum(gaps) * (1200.0 / gaps.sum())]
    small = SpotModel(name="OPT-6.7B", parameters=6.7e9, layers=32, hidden=4096)
    found = play(small, Machine(), "spotserve", sent, moves, 8)
    assert all(map(math.isfinite, found.latency_s))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_machine_that_goes_before_it_is_launched_serves_nothing(policy: Policy) -> None:
    changes = [Change(10.0, 3, True), Change(12.0, 3, False, 42.0)]
    alone = play(MODEL, Machine(), policy, SENT, [], 3)
    assert play(MODEL, Machine(), policy, SENT, changes, 3) == alone


def test_a_machine_goes_when_it_is_said_to() -> None:
    """A notice shorter than the grace period, because the trace begins with it: all must load again from 5 s on."""
    soon = [*(Change(0.0, m, False, 5.0) for m in range(3)), *(Change(200.0, m, True) for m in (3, 4, 5))]
    later = [*(Change(0.0, m, False) for m in range(3)), *soon[3:]]
    first = {"soon": soon, "later": later}
    took = {name: play(MODEL, Machine(), "reroute", [0.0], changes, 3).latency_s[0] for name, changes in first.items()}
    assert took["soon"] > 200.0 > took["later"]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_machines_do_after_the_last_answer_counts_for_nothing(policy: Policy) -> None:
    usual = play(MODEL, Machine(), policy, SENT, [], 5)
    last = SENT[-1] + max(usual.latency_s)
    assert play(MODEL, Machine(), policy, SENT, [Change(last + 100.0, 0, False)], 5) == usual


def _busy(size: int, *ahead: int) -> Replica:
    return Replica(frozenset(), batch=Batch(list(range(size))), ahead=list(ahead))


def test_a_free_replica_takes_the_oldest_that_fit() -> None:
    queue, replicas = Queue(ServerRules()), {0: Replica(frozenset()), 1: Replica(frozenset(), open=False)}
    queue.put(7, 3, 5, 9, 8)
    assert list(queue.hand_out(replicas, 4)) == [(0, [3, 5, 7, 8])]
    assert len(queue) == 1


def test_batches_of_powers_of_two() -> None:
    queue = Queue(ServerRules(powers_of_two=True))
    queue.put(1, 2, 3)
    assert list(queue.hand_out({0: Replica(frozenset())}, 8)) == [(0, [1, 2])]


def test_ahead_of_its_end_the_replica_with_the_fewest_gets_requests_until_it_has_so_many_batches() -> None:
    queue, replicas = Queue(ServerRules(ahead=1)), {0: _busy(3), 1: _busy(2)}
    queue.put(10, 11, 12, 13, 14)
    assert list(queue.hand_out(replicas, 4)) == []
    assert (replicas[0].ahead, replicas[1].ahead) == ([14], [10, 11, 12, 13])
    replicas[0].batch = None
    assert list(queue.hand_out(replicas, 4)) == [(0, [14])]
    queue.put(15)
    queue.take_back(replicas[1])
    replicas[1].batch = None
    assert list(queue.hand_out({1: replicas[1]}, 4)) == [(1, [10, 11, 12, 13])]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_given_ahead_is_not_lost_with_its_replica(policy: Policy) -> None:
    sent = [2.0 * i for i in range(60)]
    moves = [Change(40.0, 0, False), Change(90.0, 9, True)]
    found: list[SpotOutcome] = []
    for ahead in (0, 2):
        found.append(play(MODEL, Machine(), policy, sent, moves, 6, rules=ServerRules(None, True, ahead)))
        assert all(math.isfinite(x) and x > 0.0 for x in found[-1].latency_s)
    assert found[0] != found[1]


def test_measured_latencies_of_spotserve() -> None:
    """GPT-20B of the artifact: machines that stay, and P99 of every policy where machines go."""
    model = next(one for one in MODELS if one.name == "GPT-20B")
    off = []
    for machines, (p99_s, mean_s) in STAYING.items():
        ours = p99_and_mean(model, "spotserve", machines, [], STAYING_S)
        off += [abs(ours[0] / p99_s - 1.0), abs(ours[1] / mean_s - 1.0)]
    assert sum(off) / len(off) < 0.07
    machines, _, end_s = TRACES["B_S"]
    p99 = {policy: p99_and_mean(model, policy, machines, changes("B_S"), end_s)[0] for policy in POLICIES}
    assert p99["spotserve"] < p99["restart"] < p99["reroute"]
    assert p99["reroute"] / p99["spotserve"] == pytest.approx(99.115 / 37.083, rel=0.25)
