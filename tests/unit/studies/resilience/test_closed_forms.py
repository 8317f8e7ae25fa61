"""Formulas against published figures and against a renewal process simulated one life at a time."""

from __future__ import annotations

import math
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

from windtunnel.studies.resilience import ettr, standbys
from windtunnel.studies.resilience.checkpoints import Checkpoint
from windtunnel.studies.resilience.closed_form import Rates, _mean_rate, _slow, closed_form, rates_of
from windtunnel.studies.resilience.failures import read_failures

HOUR = 3600.0


def renewals(lam: float, u: float, w: float, d: float, segments: int = 30_000) -> float:
    random = np.random.default_rng(7)
    total = 0.0
    for _ in range(segments):
        while (life := random.exponential(1 / lam)) < d + w:
            total += life
            while (life := random.exponential(1 / lam)) < u:
                total += life
            total += u
        total += d + w
    return segments * d / total


@pytest.mark.parametrize(
    ("mttf_h", "u", "w", "d"), [(3.09, 600, 0, HOUR), (3.09, 600, 30, HOUR), (0.23, 120, 0, 120), (1.8, 300, 5, 600)]
)
def test_the_exact_form_is_the_renewal_process(mttf_h: float, u: float, w: float, d: float) -> None:
    lam = 1 / (mttf_h * HOUR)
    assert ettr.exact(lam, u, w, d) == pytest.approx(renewals(lam, u, w, d), rel=1e-2)
    assert ettr.linear(lam, u, w, d) <= ettr.exact(lam, u, w, d)


@pytest.mark.parametrize(("w", "mttf_s"), [(30, 11_124), (60, 28_440), (5, 6_480)])
def test_the_best_interval_is_near_young_and_nearer_daly(w: float, mttf_s: float) -> None:
    best = ettr.best_interval_s(1 / mttf_s, 300, w)
    young, daly = ettr.young_s(1 / mttf_s, w), ettr.daly_s(1 / mttf_s, w)
    assert abs(daly - best) < abs(young - best) < 0.05 * best
    around = [ettr.exact(1 / mttf_s, 300, w, best * factor) for factor in (0.8, 1.0, 1.25)]
    assert max(around) == around[1]


def test_no_failures_and_hopeless_failures() -> None:
    assert ettr.exact(0.0, 600, 10, 90) == 0.9
    assert ettr.exact(1.0, 600, 10, 900) == 0.0
    assert math.isinf(ettr.young_s(0.0, 10))


def test_series_of_nodes_at_the_published_rate() -> None:
    process = read_failures("rsc-1")
    assert process.mttf_s(16_384, 8) / HOUR == pytest.approx(1.8, abs=0.05)
    assert process.mttf_s(131_072, 8) / HOUR == pytest.approx(0.23, abs=0.005)
    assert read_failures("llama3").rate_per_s(16_384, 8) * 54 * 86_400 == pytest.approx(419)


@pytest.mark.parametrize("q", [1.18e-3, 1.21e-3, 1.24e-3])
def test_standbys_of_byterobust(q: float) -> None:
    assert [standbys.standbys_needed(machines, q) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


def test_the_cheapest_number_of_standbys_is_no_more_than_waiting_is_worth() -> None:
    free = standbys.standby_costs(2048, 7.5e-8, 15_840, wait_s=0.0, most=8)
    dear = standbys.standby_costs(2048, 7.5e-8, 15_840, wait_s=1e5, most=8)
    assert standbys.cheapest_standbys(free) == 0
    assert standbys.cheapest_standbys(dear) > 2


def test_chances_of_a_binomial_and_many_machines_in_one_pass() -> None:
    """A machine that is replaced in months: thousands of standbys, each chance from the one before."""
    exact = [sum(math.comb(10, i) * 0.3**i * 0.7 ** (10 - i) for i in range(k + 1)) for k in range(12)]
    assert list(islice(standbys.at_most(10, 0.3), 12)) == pytest.approx(exact)
    assert [list(islice(standbys.at_most(2, q), 4)) for q in (0.0, 1.0)] == [[1.0] * 4, [0.0, 0.0, 1.0, 1.0]]
    assert standbys.standbys_needed(1_000_000, 0.5) == pytest.approx(500_000 + 2.326 * 500, abs=2)


def test_a_checkpoint_in_two_stages() -> None:
    saved = Checkpoint(8_000_000_000, 4, 2, 1e9, 2e9, 4e9)
    assert (saved.stall_s, saved.persist_s) == (2.0, 2.0)
    assert saved.load_s() == 3.0


def test_closed_forms_by_hand() -> None:
    lam, u, w, d = 1e-3, 50.0, 10.0, 200.0
    assert ettr.exact(lam, u, w, d) == pytest.approx(d * lam / (math.exp(lam * u) * (math.exp(lam * (d + w)) - 1)))
    assert ettr.linear(lam, u, w, d) == pytest.approx((1 - lam * (u + d / 2)) / (1 + w / d))
    assert ettr.linear(1.0, u, w, d) == 0.0
    assert ettr.young_s(lam, w) == pytest.approx(math.sqrt(2 * w / lam))
    share = w / (2 / lam)
    assert ettr.daly_s(lam, w) == pytest.approx(math.sqrt(2 * w / lam) * (1 + math.sqrt(share) / 3 + share / 9) - w)
    assert ettr.daly_s(lam, 2000.0) == pytest.approx(1 / lam)
    assert math.isinf(ettr.daly_s(0.0, w))
    best = ettr.best_interval_s(lam, u, w)
    assert max(range(50, 400), key=lambda one: ettr.exact(lam, u, w, one)) == pytest.approx(best, rel=5e-3)
    assert ettr.best_interval_s(lam, u, w, least_s=300.0) == pytest.approx(300.0, rel=2e-3)


def test_parts_that_are_away_slow_the_job_by_their_mean_number() -> None:
    assert _mean_rate(lambda units: 1 - 0.1 * units, 0.0) == 1.0
    assert _mean_rate(lambda units: 1 - 0.1 * units, 2.5) == pytest.approx(1 - 0.25)
    assert _mean_rate(lambda units: float(units == 0), 1.5) == pytest.approx(math.exp(-1.5))
    assert _mean_rate(lambda units: 1 - 1e-4 * units, 1000.0) == pytest.approx(0.9)


def test_a_slow_host_is_slow_until_it_is_found() -> None:
    patient, quick = SimpleNamespace(slow_found_s=None), SimpleNamespace(slow_found_s=30.0)
    assert _slow(patient, 10.0, 10.0) == (10.0, 0.0)
    assert _slow(quick, 100.0, 100.0) == (30.0, 1.0)
    assert _slow(quick, 40.0, 100.0) == (30.0, 1.0)
    # Log-uniform on 10 to 1,000: the mean is (1,000 - 10) / ln 100; cut at 30, ln(1000/30) / ln 100 of them are found.
    span = math.log(100)
    assert _slow(patient, 10.0, 1000.0) == pytest.approx((990 / span, 0.0))
    share = math.log(1000 / 30) / span
    assert _slow(quick, 10.0, 1000.0) == pytest.approx((20 / span + 30 * share, share))


def test_standbys_cost_what_idles_and_what_waits() -> None:
    machines, rate, replenish, wait = 100, 1e-6, 1e4, 500.0
    q = standbys.unavailable(rate, replenish)
    assert q == pytest.approx(1 - math.exp(-1e-2))
    costs = standbys.standby_costs(machines, rate, replenish, wait, 2)
    none, one = (1 - q) ** 100, 100 * q * (1 - q) ** 99
    lost = machines * machines * rate * wait
    assert costs[0] == (0, pytest.approx(lost))
    assert costs[1] == (1, pytest.approx(1 + lost * (1 - none)))
    assert costs[2] == (2, pytest.approx(2 + lost * (1 - none - one)))
    assert standbys.cheapest_standbys(((0, 2.0), (1, 1.0), (2, 1.0))) == 1


def test_what_a_policy_makes_of_each_cause_by_hand() -> None:
    """Four causes: one reads a checkpoint, one keeps the step, one takes a machine out, one is planned (no lemon)."""
    job = SimpleNamespace(gpus=64, hosts=8, step_s=20.0)

    def cause(rate: float, symptom: str, hosts: int) -> SimpleNamespace:
        return SimpleNamespace(of_job=lambda gpus, nodes: rate * nodes, symptom=symptom, hosts=hosts)

    causes = [cause(1e-6, "hang", 1), cause(2e-6, "explicit", 0), cause(3e-6, "silent", 2), cause(4e-6, "planned", 1)]
    reactions = {
        "hang": SimpleNamespace(phases=(100.0, 50.0), keeps_step=False, away_s=0.0),
        "explicit": SimpleNamespace(phases=(30.0,), keeps_step=True, away_s=0.0),
        "silent": SimpleNamespace(phases=(10.0, 5.0), keeps_step=True, away_s=4e4),
        "planned": SimpleNamespace(phases=(60.0,), keeps_step=False, away_s=0.0),
    }
    slow = SimpleNamespace(rate_per_node_s=1e-7, shortest_s=100.0, longest_s=100.0, slower=0.25)
    process = SimpleNamespace(
        causes=causes, slow=slow, bursts=SimpleNamespace(share=0.5), lemons=SimpleNamespace(share_of_failures=0.2)
    )
    policy = SimpleNamespace(
        evicts=True, away="from the job", react=lambda one, spare: reactions[one.symptom], rejoin=(7.0, 3.0),
        units=lambda one: one.hosts, rate=lambda units: 1 - units / 8, slow_found_s=40.0, swap=(6.0, 2.0),
    )  # fmt: skip
    found = rates_of(process, policy, job, spare=True)  # type: ignore[arg-type]
    hang, silent, planned = 8 * 1.5 * 0.8 * 1e-6, 8 * 1.5 * 0.8 * 3e-6, 8 * 1.5 * 4e-6
    assert found.reading_per_s == pytest.approx(hang + planned)
    assert found.reading_down_s == pytest.approx((hang * 150 + planned * 60) / (hang + planned))
    paused = 8 * 1.5 * 2e-6 * (30 + 10) + silent * (15 + 10 + 10) + 1e-7 * 8 * 1.0 * 8
    assert found.paused_s == pytest.approx(paused)
    away = silent * 2 * 4e4
    chances = [math.exp(-away) * away**n / math.factorial(n) for n in range(40)]
    mean = sum(chance * (1 - n / 8) for n, chance in enumerate(chances))
    slowed = 1 - (1 - math.exp(-1e-7 * 8 * 40)) * 0.25 / 1.25
    assert found.speed == pytest.approx(mean * slowed, rel=1e-6)
    assert closed_form(found, 5.0, 900.0, ettr.exact) == pytest.approx(
        ettr.exact(found.reading_per_s, found.reading_down_s, 5.0, 900.0) * found.speed / (1 + paused)
    )
    kept = SimpleNamespace(**{**vars(policy), "evicts": False, "away": "replaced", "slow_found_s": None})
    plain = rates_of(process, kept, job, spare=True)  # type: ignore[arg-type]
    assert plain.reading_per_s == pytest.approx(8 * 1.5 * 5e-6)  # lemons stay
    assert plain.paused_s == pytest.approx(8 * 1.5 * (2e-6 * 40 + 3e-6 * 25))  # none is away, none is sent away
    assert plain.speed == pytest.approx(1 - (1 - math.exp(-1e-7 * 8 * 100)) * 0.25 / 1.25)
    calm = SimpleNamespace(**{**vars(process), "causes": []})
    assert rates_of(calm, kept, job, spare=True) == Rates(0.0, 0.0, 0.0, plain.speed)  # type: ignore[arg-type]
