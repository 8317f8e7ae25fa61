"""Curves through few measured times: laws of least squares and of kriging, each against the long way round."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from windtunnel.physics.cost.measured import fitting
from windtunnel.physics.cost.measured.fitting import Fit, fit, nnls, relative_nnls

SIZES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0])
TERMS = np.stack([np.ones_like(SIZES), SIZES], axis=1)
LOGS = np.log(SIZES)[:, None]
CALM = np.full(len(SIZES), 1e-3)


def bent(size: float = 0.1) -> Fit:
    """A line of two terms and a wave on it."""
    return fit(TERMS, LOGS, (2.0 + 0.5 * SIZES) * np.exp(size * np.sin(np.log(SIZES))), CALM)


@pytest.mark.parametrize("seed", range(12))
def test_the_non_negative_solution_is_that_of_scipy(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.normal(size=(8, 5)), random.normal(size=8)
    assert nnls(matrix, target) == pytest.approx(optimize.nnls(matrix, target)[0], abs=1e-9)


def test_terms_of_any_size_are_found_and_an_outlier_bends_them_little() -> None:
    seconds = 2.0 + 0.5 * SIZES
    for scale in (1e-12, 1.0, 1e12):
        found = relative_nnls(TERMS * [1.0, scale], seconds)
        assert found == pytest.approx([2.0, 0.5 / scale], rel=1e-6)
    twice = seconds * np.where(SIZES == 100.0, 2.0, 1.0)
    assert relative_nnls(TERMS, twice) == pytest.approx([2.0, 0.5], rel=0.06)
    alone = relative_nnls(TERMS, twice, np.where(SIZES == 100.0, 1e-9, 1.0))
    assert alone == pytest.approx([2.0, 0.5], rel=1e-4)  # nobody trusts that row


def test_an_outlier_weighs_by_its_error_over_a_quarter() -> None:
    """One term, four points on it and one a factor e above: the weights of the last round give the same solution."""
    seconds = np.array([1.0, 1.0, 1.0, 1.0, np.e])
    (found,) = relative_nnls(np.ones((5, 1)), seconds)
    for _ in range(40):  # where the rounds of weights lead to, nearly reached in six
        error = abs(np.log(found / seconds))
        weight = np.minimum(1.0, 0.25 / np.maximum(error, 1e-12))
        found_next = (weight / seconds).sum() / (weight / seconds**2).sum()
        assert found == pytest.approx(found_next, rel=0.01)
        found = found_next


def test_what_is_exact_is_given_back_and_the_form_goes_on_alone() -> None:
    found = fit(TERMS, LOGS, 2.0 + 0.5 * SIZES, CALM)
    for size in (1.0, 55.0, 1e4, 1e6):
        at = found.at(np.array([1.0, size]), np.array([np.log(size)]))
        assert np.exp(at.log_value) == pytest.approx(2.0 + 0.5 * size, rel=2e-3)
    far = found.at(np.array([1.0, 1e6]), np.array([np.log(1e6)]))
    assert far.outside == pytest.approx(np.log(1e6 / 1e4))
    assert found.at(np.array([1.0, 0.1]), np.array([np.log(0.1)])).outside == pytest.approx(np.log(10.0))
    assert found.at(np.array([1.0, 50.0]), np.array([np.log(50.0)])).outside == 0.0


def test_beyond_the_points_the_residual_is_that_of_the_edge() -> None:
    found = bent()
    form = lambda size: float(np.log(np.array([1.0, size]) @ found.coefficients))  # noqa: E731
    edge = found.at(np.array([1.0, 1e4]), np.array([np.log(1e4)]))
    far = found.at(np.array([1.0, 1e7]), np.array([np.log(1e7)]))
    assert far.log_value - form(1e7) == pytest.approx(edge.log_value - form(1e4), abs=1e-9)
    assert far.spread == pytest.approx(edge.spread)


def test_small_in_every_size_at_once_is_outside() -> None:
    places = np.array([[0.0, 3.0], [1.0, 2.0], [2.0, 1.0], [3.0, 0.0]])
    terms = np.ones((4, 1))
    found = fit(terms, places, np.array([1.0, 1.1, 1.0, 1.2]), np.full(4, 1e-3))
    assert found.at(terms[0], np.array([1.0, 1.0])).outside == pytest.approx(1.0)  # sums were 3
    assert found.at(terms[0], np.array([2.5, 2.0])).outside == pytest.approx(1.5)
    assert found.at(terms[0], np.array([4.0, -1.0])).outside == pytest.approx(2.0)


def test_each_point_is_predicted_from_the_others() -> None:
    """What kriging's short cut calls left out is what a fit without the point says of it."""
    found = bent()
    n = len(SIZES)
    distance = np.abs(LOGS - LOGS.T)
    amplitude = np.sqrt(np.mean(found.residuals**2)) + 1e-4
    own = (CALM / amplitude) ** 2
    scaled = np.sqrt(3.0) * distance / found.reach
    near = (1.0 + scaled) * np.exp(-scaled)
    covariance = near + np.diag(found.noise + 0.1 * own + 1e-6)
    uncertain = []
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        inverse = np.linalg.inv(covariance[np.ix_(rest, rest)])
        said = near[i, rest] @ inverse @ found.residuals[rest]
        assert found.left_out[i] == pytest.approx(found.residuals[i] - said, abs=1e-9)
        uncertain.append(covariance[i, i] - near[i, rest] @ inverse @ near[i, rest])
    assert found.spread == pytest.approx(np.sqrt(np.mean(found.left_out**2 / uncertain) + 1e-10))
    stated = found.spread * np.sqrt(uncertain)
    scatter = max(1.0, np.quantile(np.abs(found.left_out) / stated, 0.9) / 1.645)
    assert found.calibration == pytest.approx(scatter * (1 + 1 / np.sqrt(n)) * np.sqrt(n / (n - 2)))
    here = found.at(TERMS[4], LOGS[4])
    explained = near[4] @ np.linalg.inv(covariance) @ near[4]
    assert here.spread == pytest.approx(found.spread * np.sqrt(1 - explained + found.noise) * found.calibration)
    said = near[4] @ np.linalg.inv(covariance) @ found.residuals
    assert here.log_value == pytest.approx(np.log(TERMS[4] @ found.coefficients) + said)


def test_reach_and_noise_are_the_likeliest_of_those_tried() -> None:
    found = bent()
    distance = np.abs(LOGS - LOGS.T)
    own = (CALM / (np.sqrt(np.mean(found.residuals**2)) + 1e-4)) ** 2

    def likelihood(reach: float, noise: float) -> float:
        """The log density of each point given the others, the common variance at its best."""
        scaled = np.sqrt(3.0) * distance / reach
        covariance = (1.0 + scaled) * np.exp(-scaled) + np.diag(noise + 0.1 * own + 1e-6)
        precision = np.diag(np.linalg.inv(covariance))
        left_out = np.linalg.inv(covariance) @ found.residuals / precision
        variance = np.mean(left_out**2 * precision) + 1e-10
        return float(-0.5 * np.log(variance / precision).sum())

    tried = {(r, n): likelihood(r, n) for r in (0.35, 0.7, 1.4, 2.8, 5.6) for n in (0.003, 0.03, 0.1, 0.3, 1.0)}
    assert (found.reach, found.noise) == max(tried, key=tried.__getitem__)


def test_few_points_and_noisy_points_say_less() -> None:
    calm, noisy = bent(), fit(TERMS, LOGS, np.exp(calm_logs()), np.full(len(SIZES), 0.5))
    assert noisy.at(TERMS[4], LOGS[4]).spread > calm.at(TERMS[4], LOGS[4]).spread
    wild = np.where(SIZES == 100.0, 0.5, 1e-3)
    seconds = (2.0 + 0.5 * SIZES) * np.where(SIZES == 100.0, 1.2, 1.0)
    assert fit(TERMS, LOGS, seconds, wild).coefficients == pytest.approx([2.0, 0.5], rel=2e-3)
    three = fit(TERMS[:3], LOGS[:3], (2.0 + 0.5 * SIZES)[:3], CALM[:3])
    assert three.calibration == pytest.approx((1 + 1 / np.sqrt(3)) * np.sqrt(3))


def calm_logs() -> np.ndarray:
    """Logs of the times of `bent`."""
    return np.log(2.0 + 0.5 * SIZES) + 0.1 * np.sin(np.log(SIZES))


def test_many_points_are_fitted_by_all_of_them() -> None:
    """Reach and noise are chosen by every third of 129 points; the residual is read through each."""
    sizes = np.geomspace(1.0, 1e6, 2 * fitting._MOST + 1)
    terms, logs = np.stack([np.ones_like(sizes), sizes], axis=1), np.log(sizes)[:, None]
    seconds = (1.0 + sizes) * np.exp(0.2 * np.sin(2.0 * np.log(sizes)))
    found = fit(terms, logs, seconds, np.full(len(sizes), 1e-4))
    said = [found.at(term, log).log_value for term, log in zip(terms, logs, strict=True)]
    assert said == pytest.approx(np.log(seconds), abs=0.02)
