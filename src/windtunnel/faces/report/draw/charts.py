"""Geometry of the page's pictures.

Plots stretch to the room that there is: paths lie in a square of 1000 x 1000 that is scaled without its lines, and
ticks are text beside it, so that letters keep their size on a phone. Timelines and heat maps are drawn by the page's
script from columns of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.views import Axis, Bars, Column, Curve, Heat, Lanes, Limit, Series
from windtunnel.views.text import plain, round_step, scale_of, text_of, texts_of

SIDE = 1000.0
TICKS = 5
# Round times, on a log axis: powers of ten of a unit, and between them where those are few.
TIMES = (*(10.0**n for n in range(-9, 2)), 60.0, 600.0, 3600.0, 36000.0, 86400.0, 864000.0, 8640000.0)
BETWEEN = (
    *(unit * n for unit in (60.0, 3600.0) for n in (1, 2, 5, 10, 20)),
    *(86400.0 * n * 10.0**power for power in range(3) for n in (1, 2, 5)),
)
COLOURS = 8  # line-0 to line-7
TABLE_MOST = 400  # points behind a picture
Data = Mapping[str, object]  # JSON for the script


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis in percent, and what stands there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Path:
    """A line of a plot."""

    kind: str  # line, band, points, spread, columns
    d: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture of a curve."""

    name: str
    paths: tuple[Path, ...]
    data: Data


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve ready to be written: its pictures share axes and ticks."""

    plots: tuple[Plot, ...]
    x: tuple[Tick, ...]
    y: tuple[Tick, ...]
    keys: tuple[tuple[str, str, bool], ...]  # colour, name, dashed
    limits: tuple[tuple[Limit, float], ...]  # and the place in percent
    columns: tuple[Column, ...]  # of the table behind it
    rows: tuple[tuple[str, str, str], ...]
    single: bool


class Scale:
    """From values to a share of an axis."""

    def __init__(self, axis: Axis, values: Iterable[float], *, from_zero: bool, apart: bool = False) -> None:
        finite = [value for value in values if math.isfinite(value) and not (axis.log and value <= 0)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        low = axis.low if axis.low is not None else 0.0 if from_zero and not axis.log and low >= 0.0 else low
        if axis.high is not None:
            high = axis.high
        elif from_zero and not axis.log:
            high += 0.05 * (high - low)
        if axis.log and high / max(low, 1e-300) < 2.0:
            low, high = low / 1.5, high * 1.5
        if apart and axis.low is None and axis.high is None and not axis.log:  # no point on the edge
            low, high = low - 0.03 * (high - low), high + 0.03 * (high - low)
        if high <= low:
            low, high = (low, low + 1.0) if low == 0.0 else (low - abs(low) * 0.05, high + abs(high) * 0.05)
        self.log, self.low, self.high = axis.log, low, high

    def at(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            value = max(value, self.low)
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, unit: str) -> tuple[Tick, ...]:
        """Round values with their text, some TICKS of them."""
        return tuple(Tick(round(100.0 * self.at(value), 3), text) for value, text in self._marked(unit))

    def _marked(self, unit: str) -> list[tuple[float, str]]:
        if self.log:
            times = (TIMES, BETWEEN) if unit == "s" and self.high > 120.0 else (TIMES,) if unit == "s" else ()
            round_times = ([value for value in those if self.low <= value <= self.high] for those in times)
            values = next((those for those in round_times if len(those) >= 3), None) or _decades(self.low, self.high)
            if unit == "B":  # bytes are said in powers of two
                ends = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
                values = [2.0**power for power in range(ends[0], ends[1] + 1)] or values
            return [(value, tick_text(value, unit)) for value in values[:: -(-len(values) // 7) or 1]]
        size, name = scale_of((self.low, self.high), unit) if unit in ("s", "B") else (1.0, "")
        step = round_step((self.high - self.low) / size / TICKS)
        step = max(step, 1.0) if unit == "count" else step
        first, last = math.ceil(self.low / size / step - 1e-9), math.floor(self.high / size / step + 1e-9)
        decimals = max(0, -math.floor(math.log10(step)))
        marked = []
        for number in range(first, last + 1):
            value = number * step
            text = f"{value:,.{decimals}f} {name}" if name else tick_text(value, unit)
            marked.append((value * size, text))
        return marked


def tick_text(value: float, unit: str) -> str:
    """A round value as short as it can be said."""
    if unit == "share":
        return f"{100 * value:g} %"
    if unit == "s" and value in (*TIMES, *BETWEEN) and value >= 60.0:
        size, name = next(pair for pair in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")) if value >= pair[0])
        return f"{value / size:g} {name}"
    if unit in ("s", "B", "B/s", "FLOP/s"):
        number, _, name = text_of(value, unit).partition(" ")
        return f"{float(number):g} {name}"
    if unit == "$":
        return f"${value:,g}"
    if unit == "x":
        return f"{value:g} x"
    return f"{value:,.10g}" if abs(value) < 1e6 else text_of(value, "count")


def _decades(low: float, high: float) -> list[float]:
    inside: list[float] = []
    for steps in ((1.0,), (1.0, 2.0, 5.0), tuple(map(float, range(1, 10)))):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [value for value in ticks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) >= 3:
            break
    return inside


def chart_of(view: Curve) -> Chart:
    """The pictures of a curve."""
    series = [line for line in view.series if len(line.x)]
    ys = [value for line in series for value in (*line.y, *line.low, *line.high)]
    xs, apart = [value for line in series for value in line.x], all(line.form == "points" for line in series)
    x = Scale(view.x, xs, from_zero=False, apart=apart)
    y = Scale(view.y, [*ys, *(limit.value for limit in view.limits)], from_zero=True)
    names = list(dict.fromkeys(line.name for line in series))
    colours = {name: f"line-{at % COLOURS}" for at, name in enumerate(names)}
    panels: dict[str, list[Series]] = {}
    for line in series:
        panels.setdefault(line.panel, []).append(line)
    plots = tuple(
        Plot(
            plain(name),
            tuple(path for line in those for path in _paths(line, line.colour or colours[line.name], x, y)),
            _plot_data(those, view, x, y),
        )
        for name, those in panels.items()
    )
    keys = {(line.colour or colours[line.name], plain(line.name), line.dashed): None for line in series}
    few = sum(len(line.x) for line in series) <= TABLE_MOST
    rows = [
        (plain(f"{line.panel} {line.name}".strip()), text_of(a, view.x.unit), text_of(b, view.y.unit))
        for line in (series if few else ())
        for a, b in zip(line.x, line.y, strict=True)
    ]
    limits = tuple((limit, round(100.0 * y.at(limit.value), 3)) for limit in view.limits)
    columns = Column(""), Column(view.x.name, view.x.unit), Column(view.y.name, view.y.unit)
    ticks = x.ticks(view.x.unit), y.ticks(view.y.unit)
    return Chart(plots, *ticks, tuple(keys), limits, columns, tuple(rows), len(plots) == 1)


def _paths(series: Series, colour: str, x: Scale, y: Scale) -> list[Path]:
    def place(a: float, b: float) -> tuple[str, str]:
        return f"{SIDE * x.at(a):.1f}", f"{SIDE * (1.0 - min(max(y.at(b), -0.05), 1.05)):.1f}"

    paths: list[Path] = []
    if series.low and series.high and series.form == "points":
        ends = [(place(a, low), place(a, high)) for a, low, high in zip(series.x, series.low, series.high, strict=True)]
        paths.append(Path("spread", "".join(f"M{a} {b}V{c}" for (a, b), (_, c) in ends), colour))
    elif series.low and series.high:
        there = [" ".join(place(a, b)) for a, b in zip(series.x, series.high, strict=True)]
        back = [" ".join(place(a, b)) for a, b in zip(series.x, series.low, strict=True)]
        paths.append(Path("band", f"M{'L'.join([*there, *reversed(back)])}Z", colour))
    points = [place(a, b) for a, b in zip(series.x, series.y, strict=True)]
    dots = "".join(f"M{a} {b}h0" for a, b in points)
    if series.form == "points":
        return [*paths, Path("points", dots, colour)]
    if series.form == "columns":
        floor = place(series.x[0], max(y.low, 1.0 if y.low >= 1.0 else y.low))[1]
        return [*paths, Path("columns", "".join(f"M{a} {floor}V{b}" for a, b in points), colour)]
    if series.form == "steps":
        d = f"M{points[0][0]} {points[0][1]}" + "".join(f"H{a}V{b}" for a, b in points[1:])
        return [*paths, Path("line", d, colour, series.dashed)]
    paths.append(Path("line", "M" + "L".join(f"{a} {b}" for a, b in points), colour, series.dashed))
    return [*paths, Path("points", dots, colour)] if len(points) <= 24 and not series.dashed else paths


def _plot_data(those: Sequence[Series], view: Curve, x: Scale, y: Scale) -> Data:
    """What the script needs to say what is under the pointer."""
    return {
        "x": {"low": x.low, "high": x.high, "log": x.log, "unit": view.x.unit, "name": plain(view.x.name)},
        "y": {"low": y.low, "high": y.high, "log": y.log, "unit": view.y.unit, "name": plain(view.y.name)},
        "series": [
            {
                "name": plain(series.name),
                "form": series.form,
                "x": [_short(value) for value in series.x],
                "y": [_short(value) for value in series.y],
                "labels": [plain(text) for text in series.labels],
            }
            for series in those
        ],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def bars_of(view: Bars) -> Data:
    """Several bars on one scale: its end, its ticks where bars have parts, what colours mean, and lengths as text."""
    lengths = [bar.length for bar in view.bars]
    scale = 1.02 * (max([*lengths, *(bar.limit or 0.0 for bar in view.bars)]) or 1.0)
    several = any(len(bar.parts) > 1 for bar in view.bars)
    keys = {(part.colour, plain(part.label)): None for bar in view.bars for part in bar.parts} if several else {}
    axis = Scale(Axis("", view.unit, low=0.0, high=scale), (), from_zero=True)
    ticks = axis.ticks(view.unit) if several else ()
    return {"scale": scale, "ticks": ticks, "colours": list(keys), "texts": texts_of(lengths, view.unit)}


def lanes_data(view: Lanes) -> Data:
    """Spans as columns, by lane in order of time, in ns from the first."""
    spans = [
        (at, span)
        for at, lane in enumerate(view.lanes)
        for span in sorted(lane.spans, key=lambda each: (each.begin_s, -each.end_s, each.label))
    ]
    first = min((span.begin_s for _, span in spans), default=0.0)
    last = max((span.end_s for _, span in spans), default=0.0)
    families = list(dict.fromkeys((span.family, span.colour) for span in (span for _, span in spans)))
    order = sorted(families, key=lambda family: (_slot(family[1]), family[0]))
    labels = sorted({span.label for _, span in spans})
    place, label_at = {family: at for at, family in enumerate(order)}, {label: at for at, label in enumerate(labels)}
    return {
        "first": round(first * 1e9),
        "span": round((last - first) * 1e9),
        "categories": [{"label": plain(name), "slot": colour} for name, colour in order],
        "labels": [plain(label) for label in labels],
        "lanes": [
            {
                "group": plain(lane.group or lane.name),
                "name": plain(lane.name if lane.group else ""),
                "count": len(lane.spans),
            }
            for lane in view.lanes
        ],
        "start": [round((span.begin_s - first) * 1e9) for _, span in spans],
        "length": [round((span.end_s - span.begin_s) * 1e9) for _, span in spans],
        "category": [place[span.family, span.colour] for _, span in spans],
        "label": [label_at[span.label] for _, span in spans],
        "marked": [at for at, (_, span) in enumerate(spans) if span.marked],
    }


_SLOTS = ("compute", "memory", "optimizer", "comm", "bubble", "waiting", "host", "other", "line")


def _slot(colour: str) -> int:
    family = colour.rpartition("-")[0]
    return _SLOTS.index(family) if family in _SLOTS else len(_SLOTS)


def heat_data(view: Heat) -> Data:
    """Values as runs of the few that there are: ranks that are alike are one number, however many."""
    values = [None if value is None else _short(value) for value in view.values]
    distinct = sorted({value for value in values if value is not None})
    place = {value: at for at, value in enumerate(distinct)}
    runs: list[int] = []
    for value in values:
        at = -1 if value is None else place[value]
        if runs and runs[-2] == at:
            runs[-1] += 1
        else:
            runs += [at, 1]
    low = view.low if view.low is not None else distinct[0] if distinct else 0.0
    high = view.high if view.high is not None else distinct[-1] if distinct else 1.0
    texts = sorted({text for _, text in view.texts})
    text_at = {text: at for at, text in enumerate(texts)}
    return {
        "columns": view.columns.count,
        "rows": view.rows.count,
        "column": view.columns.name,
        "row": view.rows.name,
        "column_labels": [plain(text) for text in view.columns.labels],
        "row_labels": [plain(text) for text in view.rows.labels],
        "values": distinct,
        "runs": runs,
        "number": plain(view.measure),
        "unit": view.unit,
        "low": low,
        "high": high if high > low else low + 1.0,
        "texts": [plain(text) for text in texts],
        "marked": [number for at, text in view.texts for number in (at, text_at[text])],
        "scale": [text_of(low, view.unit), text_of(high, view.unit)],
    }
