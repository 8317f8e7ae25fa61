"""What may be asked of failures, at each limit and beyond it; and figures of an entry that are made of others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from windtunnel.errors import SpecError
from windtunnel.studies.resilience import Checkpoint, SurviveQuestion, ettr, published, survive, with_times
from windtunnel.studies.resilience.closed_form import Rates, closed_form, rates_of
from windtunnel.studies.resilience.failures import read_failures
from windtunnel.studies.resilience.failures.process import Cause, FailureProcess
from windtunnel.studies.resilience.policies import Job, policy_named
from windtunnel.studies.resilience.study import DAY_S, SCALES, _scale_curve, best_interval

SAVED = Checkpoint(4_000_000_000_000, 1024, 16, 64e9, 50e9, 250e9, overhead_s=0.02)  # written in 16 s
TEN_YEARS = 3650.0


def asked(**changes: object) -> SurviveQuestion:
    whole = SurviveQuestion(
        1024, 8, 16, 8, 10.0, published(), lambda left: left / 16, read_failures("production"), SAVED, 6.0,
        policies=("restart",), seeds=3,
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def often(per_s: float) -> FailureProcess:
    """So many failures of the job a second."""
    return FailureProcess("often", "", (Cause("software", "software", "job", per_s, hosts=0),))


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("days", (1e-3, TEN_YEARS), (0.0, TEN_YEARS + 1)),
        ("step_s", (1e-6, TEN_YEARS * DAY_S), (0.0, TEN_YEARS * DAY_S * 1.01)),
        ("seeds", (1, 100_000), (0, 100_001)),
        ("seed", (0,), (-1,)),
        ("usd_per_gpu_hour", (0.0, 1e9), (-0.01, math.inf)),
        ("standbys", (0, 1024), (-1, 1025)),
        ("interval_s", (16.0, TEN_YEARS * DAY_S), (15.9, TEN_YEARS * DAY_S * 1.01)),
        ("times", (with_times(published(), {"load": TEN_YEARS * DAY_S}), with_times(published(), {"load": 0.0})),
         (with_times(published(), {"load": TEN_YEARS * DAY_S * 1.01}),)),
        ("checkpoint", (replace(SAVED, overhead_s=0.0),), (replace(SAVED, overhead_s=-1.0),)),
    ],
)  # fmt: skip
def test_each_field_goes_to_its_limit_and_not_beyond(field: str, allowed: tuple, refused: tuple) -> None:
    calm = {"process": read_failures("none")}
    for value in allowed:
        asked(**calm, **{field: value})
    for value in refused:
        with pytest.raises(SpecError):
            asked(**calm, **{field: value})


def test_no_more_events_than_can_be_held() -> None:
    """30,000 a run and fifty million of all runs; .99 failures a second are 29,700 in so many seconds."""
    days = 30_000 / DAY_S
    assert asked(process=often(0.99), days=days, seeds=1)
    assert asked(process=often(0.99), days=days, seeds=1_683)
    for process, seeds in ((often(1.01), 1), (often(0.99), 1_684)):
        with pytest.raises(SpecError, match="fewer seeds"):
            asked(process=process, days=days, seeds=seeds)


def test_the_best_interval_is_no_shorter_than_a_step_or_than_writing() -> None:
    rates = Rates(1e-3, 100.0, 0.0, 1.0)
    free = ettr.best_interval_s(1e-3, 100.0, SAVED.stall_s, 16.0, DAY_S)
    assert best_interval(rates, SAVED, 1.0) == free
    assert best_interval(rates, SAVED, 50 * free) == pytest.approx(50 * free, rel=2e-3)
    assert best_interval(replace(rates, reading_per_s=0.0), SAVED, 1.0) == DAY_S
    assert best_interval(replace(rates, reading_per_s=0.0), SAVED, 3 * DAY_S) == 3 * DAY_S


def test_money_and_tokens_follow_from_time() -> None:
    found = survive(asked(policies=("standby",), standbys=3, tokens_per_s=7e6, usd_per_gpu_hour=2.5)).entries[0]
    assert found.gpu_hours == pytest.approx((1024 + 3 * 8) * 6 * 24)
    assert found.gpu_hours_wasted == pytest.approx(found.gpu_hours - found.ettr * 1024 * 6 * 24)
    assert found.cost_usd == pytest.approx(2.5 * found.gpu_hours)
    assert found.tokens_per_s == pytest.approx(7e6 * found.ettr)
    assert found.standbys == 3
    assert len(found.standby_curve) >= 4
    assert sum(found.waterfall.values()) == pytest.approx(6 * DAY_S)
    assert sum(found.interruptions_by_cause.values()) == pytest.approx(found.interruptions + found.planned)
    alone = survive(asked()).entries[0]
    assert (alone.standbys, alone.standbys_cheapest, alone.cost_usd, alone.tokens_per_s) == (0, 0, None, None)
    assert alone.interval_curve[0][0] == pytest.approx(16.0)  # not shorter than writing takes
    assert alone.interval_curve[-1][0] == pytest.approx(20 * alone.checkpoint_interval_s)
    wide = survive(asked(interval_s=400.0)).entries[0]
    interval, *shares = wide.interval_curve[len(wide.interval_curve) // 2]
    assert interval == pytest.approx(400.0)
    assert shares == pytest.approx([wide.ettr_exact, wide.ettr_linear])


def test_a_policy_is_named_once_and_standbys_are_of_one_that_keeps_them() -> None:
    for policies, words in (((), "at least one"), (("restart", "restart"), "each policy once")):
        with pytest.raises(SpecError, match=words):
            survive(asked(policies=policies))
    with pytest.raises(SpecError, match="no policy of these keeps any"):
        survive(asked(standbys=1))


def test_of_scales_each_has_its_replicas_and_its_interval() -> None:
    """Where replicas are added the job goes as fast as its share; with fewer, as the measured rate of as many says."""
    base = asked(gpus=4096, replicas=16, rate=lambda left: (left / 16) ** 0.5, policies=("shrink",))
    curve = dict(_scale_curve(base, "shrink", spare=False))
    assert tuple(curve) == SCALES
    for gpus, replicas, rate in ((8192, 32, lambda left: left / 32), (1024, 4, lambda left: (4 * left / 16) ** 0.5)):
        job = Job(gpus, 8, replicas, 8, 10.0, base.times, rate)
        rates = rates_of(base.process, policy_named("shrink", job), job, spare=False)
        interval = best_interval(rates, SAVED, 10.0)
        assert curve[gpus] == pytest.approx(closed_form(rates, SAVED.stall_s, interval, ettr.exact), rel=1e-6)
