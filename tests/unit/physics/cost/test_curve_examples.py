"""What is read between and beyond measured points, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.physics.cost.communication.collectives import BETWEEN_BAND, between_band, on_curve
from windtunnel.physics.cost.communication.measured_curve import MeasuredCurve, measured_curve
from windtunnel.physics.cost.communication.nccl_tables import Curve as Table
from windtunnel.physics.cost.inference.surface import (
    FAR_BATCH,
    STRETCH,
    Curve,
    Surface,
    at_least,
    curve,
    fastest,
    surface,
)
from windtunnel.physics.cost.measured import compaction
from windtunnel.physics.hardware.calibration import Points

TABLE = Table((1024, 4096), (1.0, 4.0))


def test_a_table_of_collectives_is_straight_in_logs_flat_below_and_a_line_above() -> None:
    assert on_curve(TABLE, 0.5, 1024) == (1.0, True)
    assert on_curve(TABLE, 0.5, 4096) == (4.0, True)
    assert on_curve(TABLE, 0.5, 2048) == (pytest.approx(2.0), False)
    assert on_curve(TABLE, 0.5, 16) == (1.0, False)
    assert on_curve(TABLE, 0.5, 4196) == (4.0 + 0.5 * 100, False)


def test_a_band_widens_between_two_sizes_and_not_beyond_them() -> None:
    assert between_band(TABLE, 2048) == pytest.approx(BETWEEN_BAND * math.log(2))
    assert between_band(TABLE, 3072) == pytest.approx(BETWEEN_BAND * math.log(4096 / 3072))
    assert between_band(TABLE, 1024) == between_band(TABLE, 16) == between_band(TABLE, 9999) == 0.0


def test_a_measured_collective_is_straight_in_bytes_and_goes_on_by_its_line() -> None:
    one = MeasuredCurve((100.0, 300.0), (1.0, 3.0), (-0.1, -0.3), (0.2, 0.1), 0.05, 0.0, 0.01)
    assert one.at(100.0) == (1.0, 0.0, (pytest.approx(math.exp(-0.1)), pytest.approx(math.exp(0.2))))
    seconds, distance, (low, high) = one.at(150.0)
    assert (seconds, distance) == (pytest.approx(1.5), 0.0)
    assert low == pytest.approx(math.exp(-math.hypot(0.3, 0.05)))
    assert high == pytest.approx(math.exp(math.hypot(0.2, 0.05)))
    seconds, distance, (low, _) = one.at(600.0)
    assert (seconds, distance) == (pytest.approx(6.0), pytest.approx(math.log(2)))
    assert low == pytest.approx(math.exp(-math.hypot(0.3, 0.05 + 0.1 * math.log(2))))
    assert one.at(50.0)[0] == pytest.approx(0.5)
    assert one.at(1.0)[0] == pytest.approx(0.5)  # no less than half of the shortest


def test_a_curve_of_points_takes_medians_and_never_falls() -> None:
    shapes = np.array([[100], [200], [200], [200], [400]])
    seconds = np.array([1.0, 2.0, 2.0, 9.0, 4.0])
    found = measured_curve(Points(shapes, seconds, seconds * 0.9, seconds * 1.2))
    assert found.bytes_total == (100.0, 200.0, 400.0)
    assert found.seconds == pytest.approx((1.0, 2.0, 4.0))
    assert found.low == pytest.approx([math.log(0.9) * 1.645 / 1.282] * 3)
    assert found.high == pytest.approx([math.log(1.2) * 1.645 / 1.282] * 3)
    assert found.between == 0.02  # on the line through their neighbours, and no surer than that
    assert (found.alpha_s, found.beta_s_per_byte) == pytest.approx((0.0, 0.01), abs=1e-6)
    bent = np.array([1.0, 3.0, 4.0])
    off = measured_curve(Points(np.array([[100], [200], [400]]), bent, bent, bent))
    assert off.between == pytest.approx(abs(math.log(3.0 / 2.0)))
    two = measured_curve(Points(np.array([[1], [2]]), bent[:2], bent[:2], bent[:2]))
    assert two.between == 0.05
    fell = measured_curve(Points(np.array([[1], [2]]), np.array([4.0, 1.0]), bent[:2], bent[:2]))
    assert fell.seconds == pytest.approx((2.0, 2.0))  # both at their mean, in logs


def test_a_line_of_sizes() -> None:
    line = Curve((1.0, 2.0, 4.0, 8.0), (1.0, 3.0, 4.0, 8.0))
    assert [line.at(size) for size in (0.5, 1.0, 1.5, 2.0, 3.0, 8.0)] == [1.0, 1.0, 2.0, 3.0, 3.5, 8.0]
    assert STRETCH == 0.25  # so beyond 8 it goes on as from 2 to 8
    assert line.at(10.0) == pytest.approx(8.0 + (8.0 - 3.0) / 6 * 2)
    assert Curve((2.0,), (3.0,)).at(4.0) == 6.0
    assert Curve((2.0,), (3.0,)).at(1.0) == 3.0


def test_a_surface_between_two_batches() -> None:
    table = Surface((1.0, 3.0), (Curve((1.0, 2.0), (1.0, 2.0)), Curve((1.0, 2.0), (3.0, 6.0))))
    assert table.at(1.0, 1.0) == table.at(0.5, 1.0) == 1.0
    assert table.at(2.0, 1.5) == pytest.approx((1.5 + 4.5) / 2)
    assert table.at(4.0, 1.0) == pytest.approx(4.0)  # the same line goes on
    falling = Surface((1.0, 2.0), (Curve((1.0,), (5.0,)), Curve((1.0,), (4.0,))))
    assert falling.at(1.5, 1.0) == 5.0
    alone = Surface((2.0,), (Curve((1.0,), (3.0,)),))
    assert (alone.at(1.0, 1.0), alone.at(6.0, 1.0)) == (3.0, 9.0)


def test_no_reading_is_faster_than_its_bytes() -> None:
    table = Surface((1.0, 2.0), (Curve((1.0, 2.0), (1.0, 1.0)), Curve((1.0, 2.0), (1.0, 1.0))))
    floored = at_least(table, 0.25)
    assert floored.at(1.0, 2.0) == 1.0
    assert floored.batches == (1.0, 2.0, FAR_BATCH)
    assert floored.at(2.0, 1000.0) == pytest.approx(0.25 * 2 * 1000, rel=0.01)


def test_points_make_a_curve_of_the_fastest() -> None:
    line = curve(np.array([1.0, 1.0, 2.0]), np.array([3.0, 2.0, 4.0]))
    assert (line.nodes, line.seconds) == ((1.0, 2.0), pytest.approx((2.0, 4.0)))
    both = fastest([Curve((1.0, 3.0), (1.0, 3.0)), Curve((1.0, 2.0), (2.0, 1.0))])
    assert both.nodes == (1.0, 2.0, 3.0)
    assert both.seconds[:2] == (1.0, 1.0)
    whole = surface(np.array([1.0, 1.0, 2.0, 2.0]), np.array([1.0, 2.0, 1.0, 3.0]), np.array([2.0, 4.0, 1.0, 5.0]))
    assert whole.batches == (1.0, 2.0)
    assert whole.curves[1].seconds == pytest.approx((2.0, 5.0))  # a larger batch takes no less


def test_nodes_of_attentions_table_are_half_octaves_of_query_rows() -> None:
    nodes = compaction.TOKEN_HEADS
    assert (nodes[0], nodes[-1]) == (256.0, 2.0**24)
    assert nodes[1:] / nodes[:-1] == pytest.approx(math.sqrt(2.0))
