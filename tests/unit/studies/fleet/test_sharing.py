"""`fleet share`: CASSINI's score by hand and by brute force, shifts that keep jobs apart, placement, mistakes."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windtunnel.faces.cli import main
from windtunnel.physics.engine.events import EventQueue
from windtunnel.studies.fleet.sharing import score
from windtunnel.studies.fleet.sharing.score import Pattern, fit_of, slowdowns

MS = 1e-3


def test_two_equal_jobs_are_shifted_apart() -> None:
    pair = [Pattern("a", 255 * MS, 114 * MS, 1.0), Pattern("b", 255 * MS, 114 * MS, 1.0)]
    found = fit_of(pair, 1.0)
    assert found.score == pytest.approx(1.0)
    assert found.shifts_s is not None
    assert 114 * MS <= abs(found.shifts_s[1] - found.shifts_s[0]) <= 141 * MS
    assert slowdowns(pair, 1.0, found.shifts_s) == pytest.approx([1.0, 1.0])
    # Together both send at half the rate, step after step: 114 ms more.
    assert slowdowns(pair, 1.0, [0.0, 0.0]) == pytest.approx([369 / 255] * 2, rel=0.01)


def test_unlike_periods_meet_on_their_common_circle() -> None:
    """40 and 60 ms meet every 120: 10 and 10 ms fit in between, 30 and 40 cannot: 180 ms are asked of 120."""
    assert fit_of([Pattern("a", 40 * MS, 10 * MS, 1.0), Pattern("b", 60 * MS, 10 * MS, 1.0)], 1.0).score == 1.0
    full = fit_of([Pattern("a", 40 * MS, 30 * MS, 1.0), Pattern("b", 60 * MS, 40 * MS, 1.0)], 1.0)
    assert full.score <= 1 - (90 + 80 - 120) / 120 + 1e-9


def test_more_than_twice_the_link_is_below_zero_and_drifting_jobs_have_no_shift() -> None:
    always = [Pattern(str(at), 100 * MS, 100 * MS, 1.0) for at in range(4)]
    assert fit_of(always, 1.0).score == pytest.approx(-2.0)
    drifting = [Pattern("a", 100 * MS, 50 * MS, 1.0), Pattern("b", 101.3717 * MS, 50.68585 * MS, 1.0)]
    drifting.append(Pattern("c", 103.9131 * MS, 51.95655 * MS, 1.0))
    found = fit_of(drifting, 1.0)
    assert found.shifts_s is None
    # Of three that send half of the time: two at once 3/8, all three 1/8.
    assert found.score == pytest.approx(1 - (3 / 8 * 1 + 1 / 8 * 2))


@pytest.mark.parametrize("seed", range(4))
def test_two_jobs_get_the_best_of_all_shifts(seed: int) -> None:
    draw = np.random.default_rng(seed)
    cell = 1.0 / 72
    busy = draw.integers(5, 70, 2)
    rates = draw.uniform(0.3, 1.0, 2)
    periods = (72, int(draw.choice([72, 108, 144])))
    jobs = [
        Pattern(str(at), one * cell, float(busy[at]) * cell, float(rates[at])) for at, one in enumerate(periods)
    ]  # fmt: skip
    circle = np.lcm(*periods)
    waves = [np.tile(np.where(np.arange(n) < busy[at], rates[at], 0.0), circle // n) for at, n in enumerate(periods)]
    least = min(np.maximum(waves[0] + np.roll(waves[1], by) - 1.0, 0.0).mean() for by in range(periods[1]))
    assert fit_of(jobs, 1.0).score == pytest.approx(1 - least)


def test_steps_alone_are_not_longer_and_the_link_bounds_them() -> None:
    assert slowdowns([Pattern("a", 0.1, 0.04, 0.5)], 1.0, [0.0]) == pytest.approx([1.0])
    many = [Pattern(str(at), 0.1, 0.06, 1.0) for at in range(3)]
    for shifts in itertools.product((0.0, 0.03), repeat=3):
        assert np.mean(slowdowns(many, 1.0, shifts)) >= 1.8 * 0.98  # .18 s of sending in each step of all three


@pytest.mark.parametrize(
    ("first", "second"), [((0.5, 1.0), (1 / 3, 1.0)), ((0.2, 0.6), (0.7, 0.8)), ((0.9, 1.0), (0.1, 1.0))]
)
@pytest.mark.parametrize("ratio", [20.0, 70.0])
def test_how_short_the_other_steps_are_does_not_tell_once_many_pass_in_one(
    first: tuple[float, float], second: tuple[float, float], ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps played as they are, played nearer, and wider apart by any ratio get longer by the same."""
    (duty, rate), (other, other_rate) = first, second
    far = [Pattern("a", 1.0, duty, rate), Pattern("b", ratio * 1.003, other * ratio * 1.003, other_rate)]
    plain = slowdowns(far, 1.0, [0.0, 0.0])
    monkeypatch.setattr(score, "APART", 20.0)
    assert slowdowns(far, 1.0, [0.0, 0.0]) == pytest.approx(plain, rel=0.03)
    wider = [far[0], replace(far[1], period_s=1e6, busy_s=other * 1e6)]
    assert slowdowns(wider, 1.0, [0.0, 0.0]) == pytest.approx(plain, rel=0.03)


@pytest.mark.parametrize("ratio", [99.0, 400.0, 1e6])
def test_unlike_periods_by_hand(ratio: float) -> None:
    """Short steps take 1.5 beside one that sends, and leave it 2/3 of the link: its third of a step takes a half."""
    pair = [Pattern("a", 1.0, 0.5, 1.0), Pattern("b", ratio, ratio / 3, 1.0)]
    assert slowdowns(pair, 1.0, [0.0, 0.0]) == pytest.approx([7 / 6, 7 / 6], rel=0.01)


@pytest.mark.parametrize("periods", [(1e-3, 30.0), (1e-12, 1e9), (1.0, 2.0, 3e5), (1.0, 90.0, 8100.0, 7e5)])
def test_the_cost_of_playing_is_bounded(periods: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """By jobs, steps and APART, not by periods; equal and near periods stay as they are."""
    events: list[int] = []

    class Counting(EventQueue[int]):
        def pop(self) -> tuple[int, int, int]:
            events.append(1)
            return super().pop()

    monkeypatch.setattr(score, "EventQueue", Counting)
    monkeypatch.setattr(score, "APART", 10.0)
    jobs = [Pattern(str(at), period, 0.4 * period, 1.0) for at, period in enumerate(periods)]
    slower = slowdowns(jobs, 1.0, [0.0] * len(jobs))
    assert len(events) <= 2 * len(jobs) ** 2 * score.STEPS * score.APART
    assert all(1.0 <= value <= len(jobs) for value in slower)
    played = [scale * period for scale, period in zip(score._nearer(periods), periods, strict=True)]
    assert max(played) == 1.0
    assert min(played) >= 0.0999
    if periods[:2] == (1.0, 2.0):
        assert played[1] / played[0] == pytest.approx(2.0)


def _file(folder: Path, text: str) -> str:
    path = folder / "traffic.yaml"
    path.write_text(text)
    return str(path)


def test_the_command_places_what_fits_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """a and c can take turns, and so can b and d; by load alone a would share with d, at 48 of 40 ms."""
    jobs = "".join(
        f"  - {{job: {name}, period: {period}ms, busy: {busy}ms}}\n"
        for name, period, busy in (("a", 40, 20), ("b", 60, 29), ("c", 40, 19), ("d", 60, 28))
    )
    path = _file(tmp_path, f"link: 50Gb/s\njobs:\n{jobs}")
    assert main(["fleet", "share", path, "--links", "2", "--json"]) == 0
    placements = json.loads(capsys.readouterr().out)["placements"]
    assert {tuple(link["jobs"]) for link in placements["by fit"]["links"]} == {("a", "c"), ("b", "d")}
    assert placements["by fit"]["score"] == pytest.approx(1.0)
    assert placements["by fit"]["score"] >= placements["by load"]["score"]
    assert placements["by fit"]["slower"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: []", "no `link`"),
        ("link: 1Gb/s\njobs: [3]", "number 1"),
        ("link: 1Gb/s\njobs: [{period: 1s, busy: 2s}]", "within the period"),
        ("link: 1Gb/s\njobs: [{period: 0s, busy: 1s}]", "more than 0"),
        ("link: 1Gb/s\njobs: [{period: 1s, busy: .5s, rate: 2Gb/s}]", "within the link"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str) -> None:
    assert main(["fleet", "share", _file(tmp_path, text)]) == 2
    assert says in capsys.readouterr().err
