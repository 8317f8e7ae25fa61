"""Laws of the resilience study: two engines agree, time is conserved, and worse is never better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from failures_one_by_one import run_one
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windtunnel.studies.resilience import Checkpoint, SurviveQuestion, published, survive, with_times
from windtunnel.studies.resilience.failures import FailureTrace, draw, read_failures
from windtunnel.studies.resilience.failures.process import Bursts, Cause, FailureProcess, Lemons, SlowHosts
from windtunnel.studies.resilience.policies import POLICIES, Job, policy_named
from windtunnel.studies.resilience.run import Episode, SaveTimes, run_many

HOUR = 3600.0
SECOND = 1_000_000_000
SAVED = Checkpoint(4_000_000_000_000, 1024, 16, 64e9, 50e9, 250e9, overhead_s=0.02)


def job(gpus: int = 1024, replicas: int = 16, **times: float) -> Job:
    return Job(gpus, 8, replicas, 8, 10.0, with_times(published(), times), lambda left: left / replicas)


def asked(**changes: object) -> SurviveQuestion:
    whole = SurviveQuestion(
        1024, 8, 16, 8, 10.0, published(), lambda left: left / 16, read_failures("production"), SAVED, 20.0, seeds=12
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def harsh(factor: float = 1.0) -> FailureProcess:
    """Failures that meet each other: racks, bursts, lemons, slow hosts, several times an hour."""
    causes = (
        Cause("gpu", "gpu", "gpu", 4e-7 * factor),
        Cause("rack", "rack", "node", 2e-8 * factor, hosts=32),
        Cause("hang", "unknown", "node", 1e-7 * factor, symptom="hang"),
        Cause("corrupt", "gpu", "gpu", 5e-9 * factor, symptom="silent"),
        Cause("software", "software", "job", 3e-5 * factor, hosts=0),
        Cause("people", "manual", "job", 1e-5 * factor, hosts=0, symptom="manual"),
        Cause("planned", "planned", "job", 1e-5 * factor, symptom="planned"),
    )
    return FailureProcess("harsh", "", causes, Lemons(0.02, 0.5), Bursts(0.1, 120.0), SlowHosts(1e-6, 0.2, 10.0, 7200))


def lengths(episodes: Sequence[Episode]) -> Counter[tuple[str, str]]:
    """Nanoseconds of stops by part and cause."""
    found: Counter[tuple[str, str]] = Counter()
    for each in episodes:
        if each.part not in ("productive", "checkpoint stall"):
            found[each.part, each.cause] += each.end_ns - each.begin_ns
    return found


@settings(max_examples=20, deadline=None)
@example(seed=1, name="standby", interval_s=300.0, stall_s=0.03, persist_s=40.0, standbys=1)
@example(seed=1, name="byterobust", interval_s=300.0, stall_s=0.03, persist_s=40.0, standbys=4)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(POLICIES)),
    interval_s=st.floats(5.0, 4000.0),
    stall_s=st.sampled_from([0.0, 0.03, 17.0]),
    persist_s=st.sampled_from([0.0, 40.0, 900.0]),
    standbys=st.integers(0, 4),
)
def test_the_event_loop_and_the_arrays_say_the_same(
    seed: int, name: str, interval_s: float, stall_s: float, persist_s: float, standbys: int
) -> None:
    trace = draw(harsh(), 1024, 8, 30 * HOUR, 3, seed)
    saving = SaveTimes(round(interval_s * SECOND), round(stall_s * SECOND), round(persist_s * SECOND))
    policy = policy_named(name, job())
    many = run_many(trace, policy, saving, 10.0, standbys)
    for at in range(3):
        one, episodes = run_one(trace, at, policy, saving, 10.0, standbys)
        assert np.allclose(one, many.seconds[at], rtol=0, atol=1e-5)
        assert sum(each.end_ns - each.begin_ns for each in episodes) == trace.horizon_ns
        if not at:
            assert lengths(many.stops) == lengths(episodes)
    assert np.allclose(many.seconds.sum(axis=1), 30 * HOUR)
    assert (many.seconds > -1e-6).all()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_without_failures_a_run_is_work_and_checkpoints(name: str) -> None:
    trace = draw(read_failures("none"), 1024, 8, 50 * HOUR, 2)
    outcome = run_many(trace, policy_named(name, job()), SaveTimes(95 * SECOND, 5 * SECOND, 0), 10.0, 2)
    assert outcome.ettr == pytest.approx(0.95)
    assert not outcome.interruptions.any()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_longer_restart_never_helps(name: str) -> None:
    trace = draw(harsh(0.2), 1024, 8, 200 * HOUR, 10)
    saving = SaveTimes(300 * SECOND, SECOND, 5 * SECOND)
    shares = [
        run_many(trace, policy_named(name, job(groups=t, delta_groups=t, load=t, leave=t)), saving, 10.0, 2).ettr.mean()
        for t in (5.0, 60.0, 300.0)
    ]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("name", ["restart", "standby", "shrink", "parcae"])
def test_more_failures_never_help(name: str) -> None:
    saving = SaveTimes(300 * SECOND, SECOND, 5 * SECOND)
    shares = []
    for factor in (0.05, 0.2, 0.8):
        trace = draw(harsh(factor), 1024, 8, 200 * HOUR, 10)
        shares.append(run_many(trace, policy_named(name, job()), saving, 10.0, 2).ettr.mean())
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("name", ["standby", "byterobust"])
def test_more_standbys_never_lose_progress(name: str) -> None:
    trace = draw(harsh(0.3), 1024, 8, 200 * HOUR, 10)
    saving = SaveTimes(300 * SECOND, SECOND, 5 * SECOND)
    shares = [run_many(trace, policy_named(name, job()), saving, 10.0, k).ettr.mean() for k in (0, 1, 2, 5, 40)]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0]


@pytest.mark.parametrize("kept", [0, 3])
def test_the_curve_over_scales_goes_through_the_job_itself(kept: int) -> None:
    for entry in survive(asked(policies=tuple(POLICIES), standbys=kept, seeds=1)).entries:
        assert dict(entry.scale_curve)[1024] == pytest.approx(entry.ettr_exact, rel=1e-12), entry.policy
        assert [gpus for gpus, _ in entry.scale_curve] == [1024 * 2**power for power in range(8)]


def test_the_interval_has_an_optimum_and_both_sides_are_worse() -> None:
    question = asked(policies=("restart",), seeds=60, checkpoint=replace(SAVED, storage_bytes_per_s=1e13))
    best = survive(question).entries[0]
    for factor in (0.05, 20.0):
        other = survive(replace(question, seeds=1, interval_s=best.checkpoint_interval_s * factor))
        assert other.entries[0].ettr_exact < best.ettr_exact
    assert survive(replace(question, interval_s=best.checkpoint_interval_s * 40)).entries[0].ettr < best.ettr


def test_simulation_and_closed_form_agree() -> None:
    process = FailureProcess("plain", "", (Cause("gpu", "gpu", "gpu", 1e-7),))
    answer = survive(asked(process=process, policies=("restart", "standby", "parcae"), days=100.0, seeds=40))
    for entry in answer.entries:
        spread = (entry.ettr_p95 - entry.ettr_p5) / 3.3 / 40**0.5
        assert entry.ettr == pytest.approx(entry.ettr_exact, abs=4 * spread + 2e-3)


@pytest.mark.parametrize("name", ["standby", "byterobust", "shrink"])
def test_sending_a_slow_host_away_is_a_planned_change_and_pauses_the_job(name: str) -> None:
    process = FailureProcess("slow", "", (), slow=SlowHosts(1e-7, 0.1, 60.0, 7200.0))
    times = with_times(published(), {"delta_groups": "200s", "standby_wake": "200s", "peer_state": "100s"})
    entry = survive(asked(process=process, times=times, policies=(name,), days=100.0, seeds=40)).entries[0]
    assert entry.waterfall["groups"] == pytest.approx(2 * entry.waterfall["load"])
    assert entry.waterfall["load"] > 100.0
    assert entry.ettr == pytest.approx(entry.ettr_exact, abs=2e-3)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    a, b, c = (survive(asked(seed=seed, seeds=4)).to_dict() for seed in (1, 1, 2))
    assert repr(a) == repr(b)
    assert repr(a) != repr(c)


def test_waterfalls_sum_to_the_wall_time() -> None:
    answer = survive(asked(policies=tuple(POLICIES)))
    for entry in answer.entries:
        assert sum(entry.waterfall.values()) == pytest.approx(answer.wall_s, rel=1e-12)


def test_policies_meet_the_same_failures() -> None:
    answer = survive(asked(policies=("standby", "shrink", "parcae")))
    counts = {tuple(entry.interruptions_by_cause.items()) for entry in answer.entries}
    assert len(counts) == 1
    lemons_come_back = survive(asked(policies=("restart",))).entries[0]
    assert lemons_come_back.interruptions > answer.entries[0].interruptions


def test_nothing_is_lost_twice_under_the_worst() -> None:
    """A failure a second: nothing is ever productive for long, and nothing is negative."""
    trace: FailureTrace = draw(harsh(50.0), 1024, 8, 2 * HOUR, 3)
    for name in POLICIES:
        outcome = run_many(trace, policy_named(name, job()), SaveTimes(60 * SECOND, SECOND, SECOND), 10.0, 1)
        assert (outcome.seconds >= -1e-9).all()
        assert outcome.ettr.max() < 0.5
