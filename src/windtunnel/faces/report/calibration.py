"""A calibrated device as views: measured points against the curve that predictions use.

The curve is computed elsewhere (`cost.calibrated`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from windtunnel.real.calibrate.curves import Calibration, CurveChart
from windtunnel.units import format_time
from windtunnel.views import (
    Axis,
    Column,
    Curve,
    Document,
    Field,
    Headline,
    Notes,
    Series,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import NOTHING, plain, text_of

WORST = 3  # points named per curve
EXACTLY = 1e-6  # log of curve over measured


def calibration_document(answer: Calibration) -> Document:
    """Everything that there is to see of a calibrated device."""
    software = ", ".join(f"{plain(name)} {plain(version)}" for name, version in answer.software.items())
    threads = "" if answer.threads is None else f" · {answer.threads} threads"
    return Document(
        "calibration",
        plain(answer.device),
        list(_views(answer)),
        [_picture(curve_chart) for curve_chart in (*answer.curves, *answer.collectives)],
        f"{plain(answer.date)} · {software}{threads} · {plain(answer.file)}",
    )


def _views(answer: Calibration) -> Iterator[View]:
    shown = [*answer.curves, *answer.collectives]
    points = sum(len(curve_chart.shapes) for curve_chart in shown)
    telling = [curve_chart for curve_chart in shown if _tells(curve_chart)]
    mean = sum(curve_chart.mean_error for curve_chart in telling) / len(telling) if telling else 0.0
    worst = max(telling, key=lambda chart: chart.mean_error, default=None)
    text = f"; {plain(worst.name)} {plain(worst.dtype)} is worst, {text_of(worst.mean_error, 'share')}" if worst else ""
    if worst is None:
        yield Headline(f"Curves pass through all of their {points:,} points, which says nothing of their error.")
    else:
        verdict = f"Curves of {points:,} measured points are {text_of(mean, 'share')} off in the mean{text}."
        yield Headline(verdict, "good" if mean < 0.1 else "warn")
    fields: list[Field[CurveChart]] = [
        *(("op", "text", "name"), ("dtype", "text", "dtype"), ("points", "count", lambda chart: len(chart.shapes))),
        ("from", "text", lambda chart: text_of(min(chart.measured_s), "s")),
        ("to", "text", lambda chart: text_of(max(chart.measured_s), "s")),
        ("off by (mean)", "share", lambda chart: chart.mean_error if _tells(chart) else NOTHING),
        ("off most at", "text", lambda chart: ", ".join(_worst(chart)[:1])),
    ]
    yield table_of("Curves", shown, fields)
    those = [(f"{group} {name}", name, value) for group, own in answer.values.items() for name, value in own.items()]
    values = [(words, _value(name, value)) for words, name, value in those]
    yield Table("Values", (Column(""), Column("")), values, most=len(values))
    yield Notes("Mind", answer.notes, "warn")


def _picture(chart: CurveChart) -> Curve:
    """Measured time, with its spread, against the curve: on the diagonal the curve is right."""
    shapes = [_shape(chart, at) for at in range(len(chart.shapes))]
    names = ", ".join(chart.size_names)
    labels = [
        f"{names}: {shape}; off {curve / measured - 1:+.1%}"
        for shape, curve, measured in zip(shapes, chart.curve_s, chart.measured_s, strict=True)
    ]
    ends = [min(*chart.measured_s, *chart.curve_s), max(*chart.measured_s, *chart.curve_s)]
    series = [
        Series("right", ends, ends, dashed=True, colour="line-7"),
        Series("points", chart.curve_s, chart.measured_s, chart.low_s, chart.high_s, "points", "line-0", labels=labels),
    ]
    remark = f"; off most: {', '.join(_worst(chart))}" if _tells(chart) else ""
    axes = Axis("curve", "s", log=True), Axis("measured", "s", log=True)
    return Curve(
        f"{chart.name} {chart.dtype}", *axes, series, note=f"{len(chart.shapes):,} points: {chart.formula}{remark}"
    )


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return format_time(value)
    if name.endswith("_s_per_byte"):
        return f"{format_time(value * 1e6)} per MB"
    return text_of(value, "B") if name.endswith("_bytes") else text_of(value)


def _off(chart: CurveChart, at: int) -> float:
    """Log of curve over measured."""
    return math.log(chart.curve_s[at] / chart.measured_s[at])


def _tells(chart: CurveChart) -> bool:
    """Whether the points are more than the curve needs: it passes through very few of them whatever they are."""
    return any(abs(_off(chart, at)) > EXACTLY for at in range(len(chart.shapes)))


def _worst(chart: CurveChart) -> list[str]:
    if not _tells(chart):
        return []
    worst = sorted(range(len(chart.shapes)), key=lambda at: -abs(_off(chart, at)))[:WORST]
    return [f"{_shape(chart, at)}: {math.exp(_off(chart, at)) - 1:+.0%}" for at in worst]


def _shape(chart: CurveChart, at: int) -> str:
    return " x ".join(f"{extent:,}" for extent in chart.shapes[at])
