from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.interpolate import RegularGridInterpolator

from windtunnel.physics.cost.measured.interpolation import LogGrid, filled, isotonic, monotone, quantile_pair

VALUES = st.floats(-5.0, 5.0, allow_nan=False)
AXES = ((0.0, 1.0, 2.5), (0.0, 0.5, 2.0, 3.0), (1.0, 2.0))


def grid_of(values: np.ndarray) -> LogGrid:
    return LogGrid(AXES, values.astype(np.float32), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))


def pool_adjacent_violators(line: list[float]) -> list[float]:
    """The textbook algorithm, as the oracle."""
    blocks: list[tuple[float, int]] = []
    for value in line:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, i), (b, j) = blocks[-2:]
            blocks[-2:] = [((a * i + b * j) / (i + j), i + j)]
    return [mean for mean, count in blocks for _ in range(count)]


@given(st.lists(VALUES, min_size=1, max_size=12))
def test_isotonic_is_the_textbook_regression(line: list[float]) -> None:
    assert isotonic(np.array(line), 0) == pytest.approx(pool_adjacent_violators(line), abs=1e-9)


@given(arrays(np.float64, (3, 4, 2), elements=VALUES))
def test_monotone_never_falls_along_any_axis_and_leaves_monotone_arrays_alone(values: np.ndarray) -> None:
    fit = monotone(values)
    for axis in range(3):
        assert (np.diff(fit, axis=axis) >= -1e-9).all()
    assert monotone(fit) == pytest.approx(fit, abs=1e-9)


@given(arrays(np.float64, (3, 4, 2), elements=VALUES), st.lists(st.floats(-2.0, 5.0), min_size=3, max_size=3))
@settings(max_examples=200)
def test_a_monotone_grid_reads_monotone_inside_and_outside(values: np.ndarray, point: list[float]) -> None:
    grid = grid_of(monotone(values))
    here = grid.read(point).log_value
    for axis in range(3):
        for step in (0.01, 0.7, 3.0):
            further = [x + step * (i == axis) for i, x in enumerate(point)]
            assert grid.read(further).log_value >= here - 1e-5


def test_reads_nodes_exactly_and_a_linear_function_everywhere_inside() -> None:
    x, y, z = np.meshgrid(*AXES, indexing="ij")
    grid = grid_of(0.5 * x + 2.0 * y + 0.25 * z)
    assert grid.read((1.0, 0.5, 2.0)).between == 0.0
    assert grid.read((1.0, 0.5, 2.0)).log_value == pytest.approx(2.0)
    for point in ((0.3, 0.7, 1.4), (2.0, 2.9, 1.9), (1.0, 0.2, 1.5), (0.5, 0.5, 1.0)):
        assert grid.read(point).log_value == pytest.approx(0.5 * point[0] + 2.0 * point[1] + 0.25 * point[2], abs=1e-5)


def test_outside_the_grid_utilisation_is_clamped_above_and_time_below() -> None:
    grid = grid_of(monotone(np.arange(24.0).reshape(3, 4, 2)))
    edge = grid.read((2.5, 3.0, 2.0))
    beyond = grid.read((2.5 + math.log(4), 3.0, 2.0))
    assert beyond.log_value == pytest.approx(edge.log_value + math.log(4))
    assert beyond.outside == pytest.approx(math.log(4))
    assert grid.read((-3.0, 0.0, 1.0)).log_value == pytest.approx(grid.read((0.0, 0.0, 1.0)).log_value)


def test_filled_keeps_what_is_known_and_interpolates_the_rest() -> None:
    axes = [np.array(axis) for axis in AXES]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    truth = 1.0 * x + 1.0 * y + 0.0 * z
    holed = truth.copy()
    holed[1, 1, :] = np.nan
    holed[2, 3, 0] = np.nan  # a corner: beyond the last known node the line goes on with slope 1
    assert filled(holed, axes, along=(0, 1)) == pytest.approx(truth)
    with pytest.raises(ValueError, match="nothing is known"):
        filled(np.full((3, 4, 2), np.nan), axes, along=(0, 1))


@pytest.mark.parametrize("n_axes", [1, 2, 3, 4])
def test_inside_a_grid_is_multilinear_and_beyond_it_each_axis_has_its_slopes(n_axes: int) -> None:
    random = np.random.default_rng(n_axes)
    axes = (*AXES, (0.0, 3.0))[:n_axes]
    values = random.normal(size=tuple(map(len, axes)))
    above, below = (1.0, 0.5, 0.25, 2.0)[:n_axes], (0.0, 0.75, 1.5, 0.5)[:n_axes]
    grid = LogGrid(axes, values.astype(np.float32), above, below)
    oracle = RegularGridInterpolator(axes, values)
    assert grid.shortest_s == pytest.approx(math.exp(values.ravel()[0]))
    for point in random.uniform(-1.0, 4.0, (40, n_axes)):
        inside = [min(max(x, nodes[0]), nodes[-1]) for x, nodes in zip(point, axes, strict=True)]
        beyond = [x - edge for x, edge in zip(point, inside, strict=True)]
        rise = sum(step * (up if step > 0 else down) for step, up, down in zip(beyond, above, below, strict=True))
        found = grid.read(tuple(point))
        assert found.log_value == pytest.approx(float(oracle(inside)[0]) + rise, abs=1e-5)
        assert found.outside == pytest.approx(sum(map(abs, beyond)))
        shares = [
            2 * float(min(x - a, b - x)) / (b - a)
            for x, nodes in zip(inside, axes, strict=True)
            for a, b in pairwise(nodes)
            if a <= x <= b
        ]
        assert found.between == pytest.approx(max(shares))


def test_a_gap_is_the_mean_of_its_lines_and_one_that_none_crosses_waits_for_them() -> None:
    axes = [np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0])]
    gap = np.array([[0.0, 1.0, 5.0], [4.0, np.nan, 6.0], [8.0, 9.0, 7.0]])
    by_rows, by_columns = 4.0 + (6.0 - 4.0) / 3.0, (1.0 + 9.0) / 2.0
    assert filled(gap, axes, along=(0, 1))[1, 1] == pytest.approx((by_rows + by_columns) / 2.0)
    assert filled(gap, axes, along=(1,))[1, 1] == pytest.approx(by_rows)
    row = np.array([[1.0, np.nan, np.nan], [np.nan, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    # Along the second axis first 1, 1 + 1, 1 + 3; then each goes on below with the same slope of 1.
    done = filled(row, axes, along=(0, 1))
    assert done[0].tolist() == [1.0, 2.0, 4.0]
    assert done[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert done[1, 1] == pytest.approx(3.0)
    start = filled(np.array([[np.nan, 2.0, 4.0]]), [np.array([0.0]), axes[1]], along=(1,))
    assert start[0, 0] == 2.0  # before the first a smaller one is no faster


def test_a_band_leaves_four_percent_of_what_set_it_beyond_either_side() -> None:
    errors = np.linspace(-1.0, 1.0, 101)
    assert quantile_pair(errors) == (pytest.approx(-0.92), pytest.approx(0.92))
    assert quantile_pair(np.array([])) == (0.0, 0.0)
