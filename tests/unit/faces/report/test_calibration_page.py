"""The page and the table of a calibrated device."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from windtunnel.faces.report.calibration import Calibration, CurveChart, calibration_document
from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.draw.page import page_of


def chart(measured: tuple[float, ...], curve: tuple[float, ...], spread: float = 1.1) -> CurveChart:
    shapes = [(64 << at,) for at in range(len(measured))]
    low, high = [one / spread for one in measured], [one * spread for one in measured]
    error = sum(abs(there / one - 1) for one, there in zip(measured, curve, strict=True)) / len(measured)
    return CurveChart("copy forward", "bytes", ("bytes",), shapes, measured, low, high, curve, error, "1 bytes")


def view(one: CurveChart) -> Calibration:
    return Calibration("my.yaml", "a CPU", "cpu", "2026-11-21", {}, 2, {}, [one])


def table(one: CurveChart) -> str:
    text = StringIO()
    print_document(calibration_document(view(one)), Console(file=text, width=160))
    return text.getvalue()


@pytest.mark.parametrize("points", [1, 2])
def test_a_curve_through_all_of_its_points_says_nothing_of_its_error(points: int) -> None:
    times = (1e-5, 1e-3)[:points]
    page, shown = page_of(calibration_document(view(chart(times, times)))), table(chart(times, times))
    assert "% off" not in page
    assert "off most: " not in page
    assert f"pass through all of their {points} points" in page
    assert "%" not in shown
    assert "\N{EN DASH}" in shown


def test_errors_of_other_curves_are_there() -> None:
    one = chart((1e-5, 1e-4, 1e-3), (1e-5, 1.2e-4, 1e-3))
    page = page_of(calibration_document(view(one)))
    assert "Curves of 3 measured points are 6.7\N{NO-BREAK SPACE}% off in the mean" in page
    assert "128: +20%" in table(one)


@pytest.mark.parametrize("times", [(2.6e-6,), (1.1e-4, 1.3e-4), (1e-6, 1e-2)])
@pytest.mark.parametrize("spread", [1.01, 3.0])
def test_spreads_are_within_the_frame_and_axes_have_figures(times: tuple[float, ...], spread: float) -> None:
    page = page_of(calibration_document(view(chart(times, times, spread))))
    (drawn,) = re.findall(r'class="spread s-line-0" d="(.*?)"', page)
    ends = [float(y) for pair in re.findall(r"M[\d.]+ ([\d.-]+)V([\d.-]+)", drawn) for y in pair]
    assert len(ends) == 2 * len(times)
    assert all(0.0 <= y <= 1000.0 for y in ends)
    ticks = re.search(r'class="x-ticks"[^>]*>(.*?)</div>', page)
    assert ticks is not None
    assert ticks[1].count("<span") >= 2
