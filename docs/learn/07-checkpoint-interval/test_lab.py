"""Grades lab 7: laws, the worked example, then windtunnel's own closed forms."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from windtunnel.studies.resilience import ettr

HOUR = 3600.0
JOBS = [
    (3.0 * HOUR, 300.0, 20.0),
    (24.0 * HOUR, 600.0, 60.0),
    (0.5 * HOUR, 200.0, 30.0),
    (1000.0, 100.0, 300.0),
    (1000.0, 800.0, 20.0),
]


# ------------------------------------------------------------------------------------------------------------- laws


def test_twice_the_gpus_fail_twice_as_often(lab: ModuleType) -> None:
    assert lab.job_mtbf_s(1, 5e8) == 5e8
    assert lab.job_mtbf_s(2048, 5e8) == pytest.approx(lab.job_mtbf_s(1024, 5e8) / 2)


@pytest.mark.parametrize("job", JOBS)
def test_ettr_is_a_share_and_falls_with_every_cost(lab: ModuleType, job: tuple[float, float, float]) -> None:
    mtbf, restart, write = job
    for form in (lab.exact_ettr, lab.linear_ettr):
        here = form(mtbf, restart, write, 600.0)
        assert 0.0 <= here < 1.0
        assert form(mtbf, restart * 1.5, write, 600.0) <= here
        assert form(mtbf, restart, write * 1.5, 600.0) <= here
        assert form(mtbf * 1.5, restart, write, 600.0) >= here


def test_without_failures_only_writing_costs(lab: ModuleType) -> None:
    for form in (lab.exact_ettr, lab.linear_ettr):
        assert form(1e12, 300.0, 20.0, 180.0) == pytest.approx(0.9, rel=1e-6)


def test_where_failures_are_rare_the_two_forms_agree(lab: ModuleType) -> None:
    args = (1e6, 60.0, 5.0, 1000.0)
    assert lab.exact_ettr(*args) == pytest.approx(lab.linear_ettr(*args), rel=1e-5)


@pytest.mark.parametrize("job", JOBS)
def test_no_interval_beats_the_best(lab: ModuleType, job: tuple[float, float, float]) -> None:
    best = lab.best_interval_s(*job)
    most = lab.exact_ettr(*job, best)
    for factor in (0.3, 0.8, 0.98, 1.02, 1.25, 3.0):
        assert lab.exact_ettr(*job, best * factor) <= most + 1e-9


def test_the_best_interval_does_not_depend_on_the_restart_but_on_writing_and_failures(lab: ModuleType) -> None:
    best = lab.best_interval_s(10_000.0, 100.0, 30.0)
    assert lab.best_interval_s(10_000.0, 900.0, 30.0) == pytest.approx(best, rel=2e-3)
    assert lab.best_interval_s(10_000.0, 100.0, 60.0) > 1.3 * best
    assert lab.best_interval_s(5_000.0, 100.0, 30.0) < 0.8 * best


@pytest.mark.parametrize("job", JOBS[:3])
def test_daly_is_nearer_to_the_best_than_young(lab: ModuleType, job: tuple[float, float, float]) -> None:
    mtbf, _, write = job
    best = lab.best_interval_s(*job)
    assert abs(lab.daly_s(mtbf, write) / best - 1) < 0.002
    assert abs(lab.daly_s(mtbf, write) - best) < abs(lab.young_s(mtbf, write) - best)


def test_daly_where_writing_takes_twice_the_time_between_failures(lab: ModuleType) -> None:
    assert lab.daly_s(1000.0, 2000.0) == lab.daly_s(1000.0, 2500.0) == 1000.0


def test_an_interval_that_is_never_finished_is_worth_nothing(lab: ModuleType) -> None:
    """A day without a failure, where one strikes every minute: e to the 1,440 is more than a float holds."""
    assert lab.exact_ettr(60.0, 10.0, 5.0, 86_400.0) == 0.0
    assert lab.best_interval_s(60.0, 10.0, 5.0) == pytest.approx(ettr.best_interval_s(1 / 60.0, 10.0, 5.0), rel=3e-3)


@pytest.mark.parametrize("job", JOBS)
def test_simulated_runs_give_the_exact_form(lab: ModuleType, job: tuple[float, float, float]) -> None:
    """Thirty runs of 500 intervals: their mean lies within five of its standard errors."""
    runs = [lab.simulated_ettr(*job, 900.0, 500, np.random.default_rng(seed)) for seed in range(30)]
    error = np.std(runs, ddof=1) / np.sqrt(len(runs))
    assert abs(np.mean(runs) - lab.exact_ettr(*job, 900.0)) < 5 * error
    assert error < 0.02 * np.mean(runs)


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    mtbf = lab.job_mtbf_s(16_384, 50_000 * HOUR)
    assert mtbf == pytest.approx(10_986, abs=0.5)
    assert lab.young_s(mtbf, 10.0) == pytest.approx(468.75, abs=0.01)
    assert lab.daly_s(mtbf, 10.0) == pytest.approx(462.1, abs=0.05)
    assert lab.exact_ettr(mtbf, 300.0, 10.0, 462.1) == pytest.approx(0.9321, abs=0.0001)
    assert lab.exact_ettr(mtbf, 300.0, 10.0, 3600.0) == pytest.approx(0.8197, abs=0.0001)


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("interval", [60.0, 600.0, 5000.0])
def test_forms_are_windtunnels(lab: ModuleType, job: tuple[float, float, float], interval: float) -> None:
    mtbf, restart, write = job
    assert lab.exact_ettr(*job, interval) == pytest.approx(ettr.exact(1 / mtbf, restart, write, interval))
    assert lab.linear_ettr(*job, interval) == pytest.approx(ettr.linear(1 / mtbf, restart, write, interval))
    assert lab.young_s(mtbf, write) == pytest.approx(ettr.young_s(1 / mtbf, write))
    assert lab.daly_s(mtbf, write) == pytest.approx(ettr.daly_s(1 / mtbf, write))
    assert lab.best_interval_s(*job) == pytest.approx(ettr.best_interval_s(1 / mtbf, restart, write), rel=3e-3)
