"""Formulas against published figures and against a renewal process simulated one life at a time."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from windtunnel.studies.resilience import ettr, standbys
from windtunnel.studies.resilience.checkpoints import Checkpoint
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
