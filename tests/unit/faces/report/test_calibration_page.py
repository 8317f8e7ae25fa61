"""The page and the table of a calibrated device."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from windtunnel.faces.report.calibration_html import (
    CalibrationView,
    CurveChart,
    print_calibration,
    render_calibration_html,
)


def chart(measured: tuple[float, ...], curve: tuple[float, ...], spread: float = 1.1) -> CurveChart:
    shapes = [(64 << at,) for at in range(len(measured))]
    low, high = [one / spread for one in measured], [one * spread for one in measured]
    error = sum(abs(there / one - 1) for one, there in zip(measured, curve, strict=True)) / len(measured)
    return CurveChart("copy forward", "bytes", ("bytes",), shapes, measured, low, high, curve, error, "1 bytes")


def view(one: CurveChart) -> CalibrationView:
    return CalibrationView("my.yaml", "a CPU", "cpu", "2026-11-21", {}, 2, {}, [one])


def table(one: CurveChart) -> str:
    text = StringIO()
    print_calibration(view(one), Console(file=text, width=160))
    return text.getvalue()


@pytest.mark.parametrize("points", [1, 2])
def test_a_curve_through_all_of_its_points_says_nothing_of_its_error(points: int) -> None:
    times = (1e-5, 1e-3)[:points]
    page, shown = render_calibration_html(view(chart(times, times))), table(chart(times, times))
    assert "% off" not in page
    assert "Furthest off" not in page
    assert f"{points} point{'s' * (points > 1)}</p>" in page
    assert "%" not in shown
    assert "\N{EN DASH}" in shown


def test_errors_of_other_curves_are_there() -> None:
    one = chart((1e-5, 1e-4, 1e-3), (1e-5, 1.2e-4, 1e-3))
    assert "<b>6.7% off</b>, 3 points" in render_calibration_html(view(one))
    assert "128: +20%" in table(one)


@pytest.mark.parametrize("times", [(2.6e-6,), (1.1e-4, 1.3e-4), (1e-6, 1e-2)])
@pytest.mark.parametrize("spread", [1.01, 3.0])
def test_spreads_are_within_the_frame_and_axes_have_figures(times: tuple[float, ...], spread: float) -> None:
    page = render_calibration_html(view(chart(times, times, spread)))
    ends = [float(x) for pair in re.findall(r'class="spread" x1="(.*?)" x2="(.*?)"', page) for x in pair]
    assert len(ends) == 2 * len(times)
    assert all(0.0 <= x <= 460.0 for x in ends)
    assert page.count('text-anchor="end"') >= 2
