"""Spot machines played: every request ends once, nothing changes where nothing happens, and less is computed again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotserve import MODELS, arrivals, trace
from t4_costs import SpotModel

from windtunnel.serving.spot.loop import play
from windtunnel.serving.spot.served import Machine, choices_of, latency_s
from windtunnel.serving.spot.state import Change, Policy

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
    assert latency_s(MODEL, 4, 1) < latency_s(MODEL, 2, 1) < latency_s(MODEL, 1, 1)
    assert latency_s(MODEL, 4, 8) < 8 * latency_s(MODEL, 4, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_changes_a_lone_request_takes_what_its_layout_takes(policy: Policy) -> None:
    found = play(MODEL, Machine(), policy, [200.0 * i for i in range(5)], [], 6)
    assert len({round(x, 6) for x in found.latency_s}) == 1
    assert found.recomputed_tokens == found.reconfigurations == 0
    alone = [latency_s(MODEL, tensor, 1) for tensor in (1, 2, 4, 8)]
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
    model, rate, fewest = MODELS[0]
    start, changes = trace(4, fewest)
    found = play(model, Machine(), "spotserve", arrivals(4, rate), changes, start)
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
