"""What all faces say alike of a view: whether it shows anything, its cells, and the parts of a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.views import (
    Bars,
    Cell,
    Changes,
    Column,
    Curve,
    Figure,
    Figures,
    Files,
    Headline,
    Heat,
    Lanes,
    Notes,
    Number,
    Part,
    Table,
    View,
)
from windtunnel.views.text import band_text, memory_column, plain, shares, text_of, texts_of, times


@dataclass(frozen=True, slots=True)
class Legend:
    """A single bar as a table: each part that is there with its label, amount and share; name, amount, share of all."""

    rows: tuple[tuple[Part, str, str, str], ...]
    total: tuple[str, str, str]
    scale: float  # the whole, or the longest part of a difference


def is_empty(view: View) -> bool:
    """Whether there is nothing in it to show."""
    match view:
        case Headline(content) | Figures(content) | Notes(_, content) | Files(_, content) | Table(_, _, content):
            return not content
        case Changes():
            return not view.changes and not view.note
        case Bars():  # several of nothing are still told apart
            return not any(part.value or len(view.bars) > 1 for bar in view.bars for part in bar.parts)
        case Curve():
            return not any(len(series.x) for series in view.series)
        case Lanes():
            return not any(lane.spans for lane in view.lanes)
        case Heat():
            return all(value is None for value in view.values)


def figure_texts(figure: Figure) -> tuple[str, str]:
    """The amount of a figure, or its word, and its band."""
    number = figure.number
    return (plain(number), "") if isinstance(number, str) else (text_of(number), band_text(number))


def amounts(values: Sequence[float], unit: str, signed: bool = False) -> list[str]:
    """Parts and their total in one unit; what is printed adds up where the unit is of times or sizes."""
    if unit == "s":
        return times([round(value * 1e9) for value in values], signed)
    if unit == "B":
        return memory_column([round(value) for value in values], signed)
    return [text_of(value, unit) for value in (*values, sum(values))]


def legend_of(view: Bars) -> Legend:
    """The first bar's parts. Shares are of `whole` or of the bar; differences and shares have none."""
    parts = [part for part in view.bars[0].parts if part.value]
    values = [part.value for part in parts]
    texts = amounts(values, view.unit, view.signed)
    whole = view.whole or sum(values) or 1.0
    of_whole, total = [text_of(value / whole, "share") for value in values], text_of(sum(values) / whole, "share")
    of_whole = of_whole if view.whole else shares(values)
    if view.signed or view.unit == "share":
        of_whole, total = [""] * len(values), ""
    labels = [plain(part.label) for part in parts]
    rows = tuple(zip(parts, labels, texts[:-1], of_whole, strict=True))
    scale = max(map(abs, values)) if view.signed else sum(values)
    return Legend(rows, (plain(view.total), texts[-1], total), scale)


def _texts(cells: Sequence[Cell], units: Sequence[str]) -> list[str]:
    """Cells that are compared, in one unit."""
    figures = [
        cell if cell is None or isinstance(cell, Number) else None if isinstance(cell, str) else Number(cell, unit)
        for cell, unit in zip(cells, units, strict=True)
    ]
    return [
        plain(cell)
        if isinstance(cell, str)
        else f"{text} ({band_text(figure)})"
        if figure is not None and band_text(figure)
        else text
        for cell, text, figure in zip(cells, texts_of(figures), figures, strict=True)
    ]


def table_cells(view: Table) -> tuple[Sequence[Column], list[list[str]]]:
    """Columns and the text of every cell, as they are shown: on its side where a few rows have many columns."""
    units = [column.unit for column in view.columns]
    if view.by_row:
        cells = [_texts(row, units) for row in view.rows]
    else:
        by_column = [_texts([row[at] for row in view.rows], [unit] * len(view.rows)) for at, unit in enumerate(units)]
        cells = [list(row) for row in zip(*by_column, strict=True)]
    if not view.is_on_side:
        return view.columns, cells
    turned = [list(row) for row in zip([column.name for column in view.columns], *cells, strict=True)]
    return [Column(name) for name in turned[0]], [row for row in turned[1:] if any(row[1:])]
