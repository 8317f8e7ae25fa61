"""A curve through few measured times: a physical form with non-negative terms, and what it leaves, interpolated.

    log t(x) = log(sum_i c_i f_i(x)) + r(x)         c_i >= 0, least squares of the relative error

The terms f_i (FLOPs, bytes, rows, 1 ...) each grow with the sizes, so the form does, and it holds beyond the points. r
is the residual: kriging (a Gaussian process, Matern 3/2 covariance) over the logs of the sizes, which returns
to zero away from the points and states how sure it is. Its reach and noise are those that best predict each point from
the others (leave one out), and the band is what those predictions really scatter by.

Beyond the points the residual is that of the nearest place inside their bounding box: the form alone extrapolates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_REACHES = (0.35, 0.7, 1.4, 2.8, 5.6)  # in log units of the features: log 2 = 0.69
_NOISES = (0.003, 0.03, 0.1, 0.3, 1.0)  # variance of a point's own error over that of the residual
_OUTLIER = 0.25  # relative error from which a point loses weight in the form
_NOISY = 0.05  # relative standard deviation of a point from which it loses weight in the form
_LEAST = 1e-12  # seconds
_MOST = 64  # points by which reach and noise are chosen: matrices that size cost microseconds on one thread
_FEW = 1.0  # how much wider a band is that was set by few points, over the root of their number
_Z = 1.645  # standard deviations from the median to the 5th or 95th percentile


class Estimate(NamedTuple):
    """What a fit says at one place, in logs."""

    log_value: float
    spread: float  # standard deviation
    outside: float  # distance from the points' bounding box, in any feature and in their sum


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted form with its residual; `features` are the logs by which points are near or far."""

    coefficients: Array
    features: Array  # points x features
    residuals: Array  # log(measured / form) at the points
    left_out: Array  # log(measured / predicted) of each point, predicted from the others
    reach: float
    spread: float  # standard deviation of the residual away from any point
    noise: float  # variance of a single point over that
    calibration: float  # what the stated spread is multiplied by, so that 90 % of `left_out` lie in the band
    _weights: Array  # K^-1 residuals
    _inverse: Array  # K^-1

    def at(self, terms: Array, features: Array) -> Estimate:
        """The fit where the form's terms and the features are these."""
        low, high = self.features.min(axis=0), self.features.max(axis=0)
        inside = np.minimum(np.maximum(features, low), high)
        sums = self.features.sum(axis=1)
        outside = max(
            float(np.abs(features - inside).sum()),
            float(sums.min() - features.sum()),  # small in every size at once, where each alone was seen
            float(features.sum() - sums.max()),
        )
        near = _covariance(np.linalg.norm(self.features - inside, axis=1), self.reach)
        explained = float(near @ self._inverse @ near)
        spread = self.spread * float(np.sqrt(max(0.0, 1.0 - explained) + self.noise)) * self.calibration
        form = max(float(terms @ self.coefficients), _LEAST)
        return Estimate(float(np.log(form) + near @ self._weights), spread, outside)


def fit(terms: Array, features: Array, seconds: Array, spread: Array) -> Fit:
    """The fit of `seconds` (one per row); `spread` is the standard deviation of the log of each measurement."""
    coefficients = relative_nnls(terms, seconds, 1.0 / (1.0 + (spread / _NOISY) ** 2))
    residuals = np.log(seconds) - np.log(np.maximum(terms @ coefficients, _LEAST))
    distance = np.linalg.norm(features[:, None, :] - features[None, :, :], axis=2)
    amplitude = float(np.sqrt(np.mean(residuals**2))) + 1e-4
    own = (spread / amplitude) ** 2  # a point that scattered by itself says less of its neighbours
    some = slice(None, None, -(-len(seconds) // _MOST))  # enough to choose by, and quick where points are many
    choices = [(reach, noise) for reach in _REACHES for noise in _NOISES]
    fits = [_kriged(distance[some, some], residuals[some], own[some], *choice) for choice in choices]
    reach, noise = choices[int(np.argmax([likelihood for likelihood, *_ in fits]))]
    _, inverse, weights, left_out, amplitude = _kriged(distance, residuals, own, reach, noise)
    stated = amplitude / np.sqrt(np.diag(inverse))
    used = int((coefficients > 0).sum())
    calibration = float(np.quantile(np.abs(left_out) / stated, 0.9)) / _Z if len(left_out) >= 8 else 1.0
    few = (1.0 + _FEW / np.sqrt(len(seconds))) * np.sqrt(len(seconds) / max(1.0, len(seconds) - used))
    calibration = max(calibration, 1.0) * float(few)
    return Fit(coefficients, features, residuals, left_out, reach, amplitude, noise, calibration, weights, inverse)


def _kriged(
    distance: Array, residuals: Array, own: Array, reach: float, noise: float
) -> tuple[float, Array, Array, Array, float]:
    """Log likelihood of every point given the others; K^-1; K^-1 residuals; errors left out; standard deviation."""
    inverse = np.linalg.inv(_covariance(distance, reach) + np.diag(noise + 0.1 * own + 1e-6))
    weights, precision = inverse @ residuals, np.diag(inverse)
    left_out = weights / precision
    variance = float(np.mean(left_out**2 * precision)) + 1e-10
    likelihood = 0.5 * float(np.log(precision).sum()) - 0.5 * len(residuals) * np.log(variance)
    return float(likelihood), np.asarray(inverse), weights, left_out, float(np.sqrt(variance))


def relative_nnls(terms: Array, seconds: Array, trust: Array | None = None) -> Array:
    """Non-negative c that make `terms @ c` close to `seconds` in relative error, outliers counting less.

    `trust` is the weight of each row before that.
    """
    scaled = terms / seconds[:, None]
    size = np.maximum(np.abs(scaled).max(axis=0), 1e-300)
    scaled = scaled / size
    first = np.ones(len(seconds)) if trust is None else trust
    weight = first
    solution = np.zeros(terms.shape[1])
    for _ in range(6):
        root = np.sqrt(weight)
        solution = nnls(scaled * root[:, None], root)
        error = np.abs(np.log(np.maximum(scaled @ solution, 1e-6)))
        weight = first * np.minimum(1.0, _OUTLIER / np.maximum(error, 1e-12))
    return np.asarray(solution / size)


def nnls(matrix: Array, target: Array) -> Array:
    """The non-negative least-squares solution (Lawson and Hanson 1974, chapter 23)."""
    gram, aim = matrix.T @ matrix, matrix.T @ target
    n = len(aim)
    solution, free = np.zeros(n), np.zeros(n, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(aim).max()))
    for _ in range(10 * n):
        slope = aim - gram @ solution
        slope[free] = -np.inf
        entering = int(np.argmax(slope))
        if slope[entering] <= tolerance:
            break
        free[entering] = True
        while True:
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            falling = free & (trial <= 0.0)
            if not falling.any():
                break
            steps = solution[falling] / np.maximum(solution[falling] - trial[falling], 1e-300)
            solution = solution + float(steps.min()) * (trial - solution)
            free &= solution > 1e-14
            if not free.any():
                trial = np.zeros(n)
                break
        solution = trial
    return solution


def _covariance(distance: Array, reach: float) -> Array:
    """Matern 3/2: smooth enough to follow a trend, not so smooth that a step between two caches rings."""
    scaled = np.sqrt(3.0) * distance / reach
    return np.asarray((1.0 + scaled) * np.exp(-scaled))
