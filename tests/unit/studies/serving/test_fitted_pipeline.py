"""Prompts in a pipeline of fitted times: stage after stage, each at its own pace, as many at once as stages."""

from __future__ import annotations

import pytest
from fitted_times import FittedTimes
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.studies.serving.step_time.times import TICKS_PER_S

STAGES = 3


def _pipeline() -> tuple[FittedTimes, list[int]]:
    """100 ms a token over all stages, nothing else; and the clock that it reads."""
    now = [0]
    line = (0.0, 100.0 * STAGES, 0.0)
    return FittedTimes(line, line, line, 95, pp=STAGES, stage_ms=0.0, clock=lambda: now[0]), now


def _send(times: FittedTimes, now: list[int], tokens: int, at_s: float) -> tuple[float, float]:
    """(when the next may start, when this one is done), seconds."""
    now[0] = round(at_s * TICKS_PER_S)
    length = times.mixed(0, 0, [(tokens, 0)], 1)
    return at_s + length / TICKS_PER_S, times.done_ticks / TICKS_PER_S


def test_a_prompt_alone_passes_all_stages_and_the_next_starts_after_one() -> None:
    times, now = _pipeline()
    assert _send(times, now, 10, 5.0) == pytest.approx((6.0, 8.0))


def test_a_short_prompt_waits_behind_a_long_one_on_every_stage() -> None:
    times, now = _pipeline()
    after, done = _send(times, now, 20, 0.0)
    assert (after, done) == pytest.approx((2.0, 6.0))
    assert _send(times, now, 1, after) == pytest.approx((2.1, 6.1))


@given(st.lists(st.integers(1, 50), min_size=STAGES + 1, max_size=20))
def test_no_more_prompts_than_stages_are_on_their_way(sizes: list[int]) -> None:
    times, now = _pipeline()
    at, ends = 0.0, []
    for tokens in sizes:
        assert sum(end > at + 1e-6 for end in ends) < STAGES
        at, done = _send(times, now, tokens, at)
        assert not ends or done > ends[-1]
        ends.append(done)
    assert ends[-1] >= sum(sizes) * 0.1 + (STAGES - 1) * sizes[-1] * 0.1 - 1e-6
