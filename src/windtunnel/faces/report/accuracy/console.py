"""The validation report on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from windtunnel.evidence.accuracy.report import Report
from windtunnel.faces.report.accuracy.tables import Table, tables_of

WORDS = ("worst row", "mean by other definitions", "our choice", "measured best")
_GAP, _LEAST_NAME = 2, 20  # columns between columns, and of a name that wraps


def render_report(report: Report, width: int) -> RenderableType:
    """Every table that has rows, in lines of `width` columns. Errors are predicted / measured - 1."""
    asked = [f"level {report.level}" if report.level else "all levels"]
    if report.source:
        asked.append(f"source {report.source!r}")
    if report.anchor != "none":
        asked.append(
            f"anchored on the {report.anchor} run of each source, GPU, model and precision; anchors not scored"
        )
    parts: list[RenderableType] = [
        Text(f"{report.table}: {len(report.outcomes)} rows, {', '.join(asked)}"),
        Text("error = predicted / measured - 1; mean and median of its size, bias with sign", style="dim"),
        Text("guess = mean error of one FLOP rate per framework, GPU and precision, fitted on these rows", style="dim"),
    ]
    if report.unread:
        parts.append(Text(f"columns that nothing reads: {', '.join(report.unread)}", style="dim"))
    for table in tables_of(report):
        if table.detail and not report.source:
            continue
        parts += [Text(), Text(table.title, style="bold"), _rich(table) if _needed(table) <= width else _listed(table)]
    return Group(*parts)


def _needed(table: Table) -> int:
    """Columns without which numbers would be cut."""
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    names = [min(width, _LEAST_NAME) for width in widths[: table.left]]
    return sum(names) + sum(widths[table.left :]) + _GAP * (len(widths) - 1)


def _listed(table: Table) -> RenderableType:
    """A row as its name, and below it what the columns say."""
    parts: list[RenderableType] = []
    for row in table.rows:
        parts.append(Text(", ".join(row[: table.left])))
        cells = zip(table.header[table.left :], row[table.left :], strict=True)
        parts.append(Padding(Text(", ".join(f"{name} {cell}" for name, cell in cells)), (0, 0, 0, _GAP)))
    return Group(*parts)


def _rich(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for number, name in enumerate(table.header):
        words = number < table.left or name in WORDS
        # Numbers stay whole; a long name gives way first.
        shown.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=number >= table.left)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
