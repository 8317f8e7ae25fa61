"""Links that gangs share on the clock: who goes where by CASSINI's score, and how long steps get."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import Outcome
from windtunnel.studies.fleet.sharing.links import Links
from windtunnel.studies.fleet.sharing.score import Pattern, fit_of, slowdowns
from windtunnel.studies.fleet.study import fleet

CELL = 1 / 72
SITE = "gpu: h100-sxm\ngpus: 64\ngpus_per_node: 8\nlink: 50Gb/s\n"
HEAD = "job,submit_s,gpus,duration_s,period_s,busy_s\n"


def run(tmp_path: Path, rows: str, policy: str = "fifo", site: str = SITE, *, compatible: bool = False) -> Outcome:
    (tmp_path / "jobs.csv").write_text(HEAD + rows)
    (tmp_path / "site.yaml").write_text(site)
    options = Options(compatible=compatible)
    return fleet(tmp_path / "jobs.csv", str(tmp_path / "site.yaml"), policy, options=options).outcomes[0]


@given(st.integers(0, 10**6), st.sampled_from([2, 3]))
@settings(max_examples=40, deadline=None)
def test_the_score_is_that_of_the_best_of_all_rotations(seed: int, count: int) -> None:
    """On cells of a twelfth of the shortest period; it is 1 exactly where some rotation never asks for too much."""
    draw = np.random.default_rng(seed)
    periods = [12, *draw.choice([12, 24], count - 1).tolist()]
    busy = [int(draw.integers(1, period)) for period in periods]
    rates = [float(draw.choice([0.5, 0.75, 1.0])) for _ in periods]
    waves = [
        np.tile(np.where(np.arange(period) < on, rate, 0.0), 24 // period)
        for period, on, rate in zip(periods, busy, rates, strict=True)
    ]
    most = [
        np.maximum(sum(np.roll(wave, by) for wave, by in zip(waves, (0, *shifts), strict=True)) - 1.0, 0.0)
        for shifts in product(*(range(period) for period in periods[1:]))
    ]
    jobs = [
        Pattern("", period * 6 * CELL, on * 6 * CELL, rate)
        for period, on, rate in zip(periods, busy, rates, strict=True)
    ]
    score = fit_of(jobs, 1.0).score
    assert score == pytest.approx(1 - min(excess.mean() for excess in most))
    assert (score > 1 - 1e-9) == any(not excess.any() for excess in most)


def test_duty_up_to_a_half_is_fully_compatible() -> None:
    for busy, fits in ((0.3, True), (0.5, True), (0.55, False)):
        pair = (Pattern("", 1.0, busy, 1.0), Pattern("", 1.0, busy, 1.0))
        fit = fit_of(pair, 1.0)
        assert (fit.score == pytest.approx(1.0)) == fits
        if fits and fit.shifts_s:
            assert slowdowns(pair, 1.0, fit.shifts_s) == pytest.approx([1.0, 1.0], abs=1e-3)


def test_gangs_on_one_link_slow_each_other_while_both_run(tmp_path: Path) -> None:
    """Each of two gangs of 12 GPUs has 4 on the same node: alone a step takes 255 ms, together 369."""
    alone = run(tmp_path, "a,0,12,1000,0.255,0.114\n")
    assert alone.end_s.tolist() == [1000]
    rows = "a,0,12,1000,0.255,0.114\nb,0,12,1000,0.255,0.114\n"
    for policy in ("fifo", "easy", "sjf"):
        assert run(tmp_path, rows, policy).end_s == pytest.approx([1000 * 369 / 255] * 2, rel=0.01)
    assert run(tmp_path, rows, compatible=True).end_s == pytest.approx([1000, 1000], rel=0.001)
    later = run(tmp_path, "a,0,12,1000,0.255,0.114\nb,500,12,1000,0.255,0.114\n")
    slower = slowdowns([Pattern("", 0.255, 0.114, 1.0)] * 2, 1.0, [0.0, 0.0])[0]
    first = 500 + 500 * slower
    assert later.end_s == pytest.approx([first, first + 1000 - 500], rel=0.001)
    inside = run(tmp_path, "a,0,4,1000,0.255,0.114\nb,0,4,1000,0.255,0.114\n")
    assert inside.end_s.tolist() == [1000, 1000]  # on one node: nothing is sent


def test_a_gang_goes_where_its_traffic_fits(tmp_path: Path) -> None:
    """b does not fit beside a, and c does: it takes the free half of a's second node, in turns with a."""
    rows = "a,0,12,2000,0.255,0.114\nb,0,12,2000,0.255,0.2\nc,1,12,2000,0.255,0.114\n"
    plain, compatible = run(tmp_path, rows), run(tmp_path, rows, compatible=True)
    assert plain.jct_s.mean() == pytest.approx(1.30 * 2000, rel=0.01)  # as docs/fleet-sharing.md says
    assert compatible.jct_s == pytest.approx([2000] * 3, rel=0.001)
    assert (plain.start_s == compatible.start_s).all()
    racks = SITE + "topology: {rack: 2}\n"
    assert run(tmp_path, rows, site=racks).jct_s.max() <= plain.jct_s.max()


def test_a_loop_of_jobs_and_links_comes_last() -> None:
    patterns = {job: Pattern("", 1.0, 0.2, 1.0) for job in range(3)}
    links = Links(1.0, 1, patterns, compatible=True)
    links.move(0, ((0, 8), (1, 4)))
    assert links.worth(1, ((1, 4), (2, 8))) == (True, 1.0)
    assert links.worth(1, ((0, 4), (1, 4))) == (False, 1.0)  # both links between the same two jobs
    links.move(1, ((1, 4), (2, 4)))
    assert links.worth(2, ((0, 1), (2, 4)))[0] is False
    assert links.worth(2, ((3, 8), (4, 4))) == (True, 1.0)
    assert links.move(1, ()) == {0, 1}
    assert links.stretch(0) == 1.0


def test_without_links_or_traffic_nothing_changes(tmp_path: Path) -> None:
    rows = "a,0,12,100,,\nb,0,12,100,,\nc,5,64,10,,\n"
    quiet = run(tmp_path, rows)
    assert quiet.end_s.tolist() == run(tmp_path, rows, site=SITE.replace("link: 50Gb/s\n", "")).end_s.tolist()
    with pytest.raises(UserError, match="link"):
        run(tmp_path, rows, compatible=True)
    with pytest.raises(UserError, match="by counts"):
        run(tmp_path, "a,0,12,100,1,0.5\n", "tiresias", compatible=True)
    for link in ("0Gb/s", "-5Gb/s", "fast"):
        with pytest.raises(UserError, match="link"):
            run(tmp_path, rows, site=SITE.replace("50Gb/s", link))
    with pytest.raises(UserError, match="busy time within the period"):
        run(tmp_path, "a,0,12,100,1,2\n")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("inf,0.1", "line 2: period_s = 'inf'"),
        ("x,1", "line 2: period_s = 'x'"),
        ("nan,1", "line 2: period_s = 'nan'"),
        ("3,-1", "line 2: busy_s = '-1'"),
        (",1", "line 2: busy_s = '1' comes without period_s"),
        ("3,", "line 2: period_s = '3' comes without busy_s"),
    ],
)
def test_traffic_that_is_half_told_is_refused(tmp_path: Path, cells: str, says: str) -> None:
    for site in (SITE, SITE.replace("link: 50Gb/s\n", "")):
        with pytest.raises(UserError, match=says):
            run(tmp_path, f"a,0,12,100,{cells}\nb,0,12,50,3,1\n", site=site)
    (tmp_path / "rate.csv").write_text("job,submit_s,gpus,duration_s,rate_gbps\na,0,12,100,5\n")
    with pytest.raises(UserError, match="rate_gbps = '5' comes without period_s"):
        fleet(tmp_path / "rate.csv", "h100-sxm:8x8")
