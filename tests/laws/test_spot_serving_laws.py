"""Spot machines: nothing comes from a machine that is gone, nothing to move is no pause, more notice never hurts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from t4_costs import T4, SpotModel

from windtunnel.studies.serving.spot.loop import play
from windtunnel.studies.serving.spot.models import Machine
from windtunnel.studies.serving.spot.state import Change, Policy, SpotOutcome

POLICIES: tuple[Policy, ...] = ("spotserve", "reroute", "restart")
WHOLE = SpotModel(
    name="40 GB on one GPU", parameters=10e9, layers=40, hidden=5120, gpu=T4(memory_bytes=72e9), tensors=(1,)
)
ONE = Machine(gpus=1, network_bytes_per_s=5e9)
LOAD_S, LAUNCH_S, MOVE_S = 40.0, ONE.launch_s, 8.0


def _goes(machine: int, notice_s: float, at: float = 320.0) -> Change:
    return Change(at - notice_s, machine, False, at)


def _lone(policy: Policy, changes: list[Change], machines: int, sent: list[float]) -> SpotOutcome:
    return play(WHOLE, ONE, policy, sent, changes, machines)


@pytest.mark.parametrize("notice_s", [0.0, 5.0])
def test_what_only_a_lost_machine_had_comes_from_storage(notice_s: float) -> None:
    """One serves, one is spare without weights: in five seconds 40 GB do not cross the network either."""
    sent = [0.0, 600.0]
    found = {policy: _lone(policy, [_goes(0, notice_s)], 2, sent) for policy in POLICIES}
    assert found["spotserve"].moved_bytes == 0.0
    assert found["spotserve"].paused_s == found["restart"].paused_s == pytest.approx(LOAD_S)


def test_a_notice_long_enough_saves_the_load() -> None:
    found = _lone("spotserve", [_goes(0, 30.0)], 2, [0.0, 600.0])
    pass_s = WHOLE.token_s(1, 1, 1)
    assert found.moved_bytes == pytest.approx(WHOLE.weight_bytes)
    assert MOVE_S - pass_s <= found.paused_s <= MOVE_S
    assert found.recomputed_tokens == 0


@pytest.mark.parametrize("notice_s", [0.0, 10.0, 30.0])
def test_nothing_to_move_is_no_pause(notice_s: float) -> None:
    """Two replicas, one goes: the other has everything."""
    found = _lone("spotserve", [_goes(1, notice_s)], 2, [0.0, 0.0, 600.0])
    assert (found.paused_s, found.moved_bytes, found.recomputed_tokens) == (0.0, 0.0, 0)


def test_a_spare_that_goes_disturbs_no_migration() -> None:
    """The lone request's machine goes at 320 s; of two spares one goes in the middle of the move to the other."""
    sent = [300.0]
    alone = _lone("spotserve", [_goes(0, 30.0)], 2, sent)
    beside = _lone("spotserve", [_goes(1, 30.0, 315.0), _goes(0, 30.0)], 3, sent)
    assert alone.recomputed_tokens == beside.recomputed_tokens == 0
    assert beside.latency_s == alone.latency_s


def test_a_machine_that_is_ready_within_the_notice_takes_over() -> None:
    """Launched 30 s after it comes: ten seconds before the loss, time enough for eight of migration."""
    changes = [_goes(0, 30.0), Change(280.0, 1, True)]
    found = {policy: _lone(policy, changes, 1, [0.0, 600.0]) for policy in POLICIES}
    assert found["spotserve"].paused_s <= MOVE_S
    assert found["restart"].paused_s == pytest.approx(LOAD_S)


def test_a_new_machine_launches_once() -> None:
    """Lost at 320 s; another comes at 400 s, launched at 430 s: 40 GB at 1 GB/s later it answers."""
    lone = WHOLE.prompt_s(1, 1, 1) + WHOLE.output * WHOLE.token_s(1, 1, 1)
    for policy in POLICIES:
        found = _lone(policy, [_goes(0, 0.0), Change(400.0, 1, True)], 1, [0.0, 350.0])
        assert found.latency_s[1] == pytest.approx(400.0 + LAUNCH_S + LOAD_S - 350.0 + lone), policy
    two = [_goes(0, 0.0), Change(200.0, 2, True)]
    rerouted = play(WHOLE, ONE, "reroute", [0.0, 1.0, 325.0, 325.0], two, 1)
    assert rerouted.replicas_loaded == 1
    assert max(rerouted.latency_s) < 40.0 + LOAD_S + 2 * lone


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 2), st.floats(0.0, 20.0), st.floats(0.0, 20.0), st.floats(298.0, 330.0))
def test_more_notice_never_hurts(machines: int, less: float, more: float, sent: float) -> None:
    """The machine with the lone request goes, before that ends; one that ends within the notice may be cut for a move.

    A cache that can be carried lengthens the pause by its own bytes.
    """
    found = [_lone("spotserve", [_goes(0, notice_s)], machines + 1, [sent]) for notice_s in (less, less + more)]
    assert found[1].recomputed_tokens <= found[0].recomputed_tokens
    cache_s = (WHOLE.prompt + WHOLE.output) * WHOLE.kv_token_bytes / ONE.network_bytes_per_s
    assert found[1].paused_s <= found[0].paused_s + cache_s
    assert found[1].latency_s[0] <= found[0].latency_s[0] + cache_s + WHOLE.token_s(1, 1, 1)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1.0, 300.0), st.booleans(), st.floats(0.0, 60.0)), max_size=8),
    st.sampled_from(POLICIES),
)
def test_whatever_comes_and_goes_every_request_ends_once_and_pauses_do_not_overlap(
    moves: list[tuple[float, bool, float]], policy: Policy
) -> None:
    here, known, changes = [0, 1, 2], 3, []
    for at, comes, notice_s in sorted(moves):
        if comes:
            changes.append(Change(at, known, True))
            here.append(known)
            known += 1
        elif len(here) > 1:
            changes.append(Change(max(0.0, at - notice_s), here.pop(0), False, at))
    found = play(WHOLE, ONE, policy, [10.0 * i for i in range(30)], changes, 3)
    assert all(math.isfinite(x) and x > 0.0 for x in found.latency_s)
    assert found.moved_bytes <= found.reconfigurations * 12 * WHOLE.weight_bytes
    end = max(10.0 * i + took for i, took in enumerate(found.latency_s))
    assert 0.0 <= found.paused_s <= max(end, 400.0) + LAUNCH_S + LOAD_S
