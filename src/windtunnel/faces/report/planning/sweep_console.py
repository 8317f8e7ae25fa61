"""Rows of a sweep at the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from windtunnel.faces.report.draw.printing import columns

if TYPE_CHECKING:
    from rich.console import Console


def print_rows(rows: Sequence[Mapping[str, object]], console: Console) -> None:
    """One line each; the columns are those of the first."""
    if not rows:
        console.print("no row is ok")
        return
    table = columns(rows[0], ())
    for row in rows:
        table.add_row(*(_said(value) for value in row.values()))
    console.print(table)


def _said(value: object) -> str:
    """Five digits of a number; large ones whole, with commas, so that a column can be compared."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.5g}"
    return str(value)
