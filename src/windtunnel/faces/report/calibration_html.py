"""A calibrated device as a page and as a table: measured points against the curve that predictions use.

Gets arrays and draws them; the curve is computed elsewhere (`cost.calibrated`). One file, offline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.faces.report.draw.page import page_template
from windtunnel.output_file import write_atomically
from windtunnel.units import format_many, format_time
from windtunnel.views.text import plain, significant

if TYPE_CHECKING:
    from rich.console import Console

_W, _H = 460.0, 240.0
_WORST = 3  # points named per curve
_EXACTLY = 1e-6  # log of curve over measured


@dataclass(frozen=True, slots=True)
class CurveChart:
    """One op, phase and dtype as arrays of one length, sorted as the file has them."""

    name: str  # "gemm forward"
    dtype: str
    size_names: tuple[str, ...]
    shapes: Sequence[tuple[int, ...]]
    measured_s: Sequence[float]
    low_s: Sequence[float]
    high_s: Sequence[float]
    curve_s: Sequence[float]  # at each point, made from all other points
    mean_error: float
    formula: str


@dataclass(frozen=True, slots=True)
class CalibrationView:
    """Everything the page shows."""

    file: str
    device: str
    kind: str
    date: str
    software: Mapping[str, str]
    threads: int | None
    values: Mapping[str, Mapping[str, float]]  # host, memory, overlap
    curves: Sequence[CurveChart]
    collectives: Sequence[CurveChart] = ()
    notes: Sequence[str] = field(default=())


def write_calibration(view: CalibrationView, path: Path | str) -> None:
    """Write the page at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), render_calibration_html(view).encode())


def render_calibration_html(view: CalibrationView) -> str:
    """The whole page. The same view gives the same text."""
    shown = [*view.curves, *view.collectives]
    facts = [
        ("", plain(view.date)),
        *(("threads", str(view.threads)) for _ in range(view.threads is not None)),
        *((plain(name), plain(version)) for name, version in view.software.items()),
        ("points", f"{sum(len(one.shapes) for one in shown):,}"),
        ("curves", f"{len(shown):,}"),
    ]
    groups = [("Operations", view.curves), ("Collectives", view.collectives)]
    return page_template("calibration.html.j2").render(
        title=plain(view.device),
        file=plain(view.file),
        facts=facts,
        values=[(plain(group), plain(name), _value(name, value)) for group, name, value in _values(view)],
        groups=[(name, [_chart(one) for one in curves]) for name, curves in groups if curves],
        notes=[plain(note) for note in view.notes],
        width=f"{_W:g}",
        height=f"{_H:g}",
    )


def print_calibration(view: CalibrationView, console: Console) -> None:
    """A table: one line per curve, then values and notes."""
    from rich.text import Text

    from windtunnel.faces.report.draw.printing import columns

    console.print(Text(f"{plain(view.device)}, {plain(view.date)}", style="bold"))
    console.print(Text(", ".join(f"{plain(name)} {plain(version)}" for name, version in view.software.items())))
    names = ("op", "dtype", "points", "from", "to", "off by (mean)", "off most at")
    table = columns(names, ("op", "dtype", "off most at"), dim=True)
    for one in (*view.curves, *view.collectives):
        worst = max(range(len(one.shapes)), key=lambda at: _off(one, at), default=None)
        table.add_row(
            plain(one.name),
            plain(one.dtype),
            str(len(one.shapes)),
            format_time(min(one.measured_s)),
            format_time(max(one.measured_s)),
            _error(one),
            "" if worst is None or not _tells(one) else _named(one, worst),
        )
    console.print(table)
    for group, name, value in _values(view):
        console.print(Text(f"{plain(group)} {plain(name)}: {_value(name, value)}"))
    for note in view.notes:
        console.print(Text(f"note: {plain(note)}"), soft_wrap=True)


def _values(view: CalibrationView) -> list[tuple[str, str, float]]:
    return [(group, name, value) for group, values in view.values.items() for name, value in values.items()]


def _value(name: str, value: float) -> str:
    if name.endswith("_s"):
        return format_time(value)
    if name.endswith("_s_per_byte"):
        return f"{format_time(value * 1e6)} per MB"
    return f"{value / 2**20:,.1f} MiB" if name.endswith("_bytes") else significant(value)


def _signed_off(one: CurveChart, at: int) -> float:
    """Log of curve over measured."""
    return math.log(one.curve_s[at] / one.measured_s[at])


def _off(one: CurveChart, at: int) -> float:
    return abs(_signed_off(one, at))


def _tells(one: CurveChart) -> bool:
    """Whether the points are more than the curve needs: it passes through very few of them whatever they are."""
    return any(_off(one, at) > _EXACTLY for at in range(len(one.shapes)))


def _error(one: CurveChart) -> str:
    return f"{one.mean_error:.1%}" if _tells(one) else "\N{EN DASH}"


def _named(one: CurveChart, at: int) -> str:
    return f"{_shape(one, at)}: {math.exp(_signed_off(one, at)) - 1:+.0%}"


def _shape(one: CurveChart, at: int) -> str:
    return " x ".join(f"{extent:,}" for extent in one.shapes[at])


def _chart(one: CurveChart) -> dict[str, Any]:
    """Curve against measured time, both logarithmic: on the diagonal the curve is right."""
    times = [*one.measured_s, *one.curve_s, *one.low_s, *one.high_s]
    low, high = math.log10(min(times)), math.log10(max(times))
    margin = max((high - low) * 0.06, 0.25 - (high - low) / 2)  # half a decade at least: room for two figures
    low, high = low - margin, high + margin

    def x(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * _W

    def y(seconds: float) -> float:
        return _H - (math.log10(seconds) - low) / (high - low) * _H

    points = [
        (
            (x(measured), y(curve), x(one.low_s[at]), x(one.high_s[at])),
            f"{', '.join(one.size_names)}: {_shape(one, at)}\nmeasured {format_time(measured)}, "
            f"curve {format_time(curve)} ({curve / measured - 1:+.1%})",
        )
        for at, (measured, curve) in enumerate(zip(one.measured_s, one.curve_s, strict=True))
    ]
    worst = sorted(range(len(one.shapes)), key=lambda at: -_off(one, at))[:_WORST]
    return {
        "name": plain(one.name),
        "dtype": plain(one.dtype),
        "error": f"{_error(one)} off" if _tells(one) else "",
        "count": format_many(len(one.shapes), "point"),
        "formula": plain(one.formula),
        "points": points,
        "ticks": [(x(seconds), y(seconds), format_time(seconds, 1)) for seconds in _ticks(low, high)],
        "worst": [_named(one, at) for at in worst] if _tells(one) else [],
    }


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two logarithms; 1, 2 and 5 times these where there are less than two."""
    for steps in ((1.0,), (1.0, 2.0, 5.0), tuple(map(float, range(1, 10)))):
        decades = range(math.floor(low), math.ceil(high))
        found = [step * 10.0**decade for decade in decades for step in steps]
        inside = [seconds for seconds in found if low <= math.log10(seconds) <= high]
        if len(inside) >= 2:
            return inside
    return inside
