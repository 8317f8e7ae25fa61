"""Rows of a sweep at the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns

if TYPE_CHECKING:
    from rich.console import Console


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One line each; the columns are those of the first."""
    if not rows:
        console.print("no row is ok")
        return
    table = columns(rows[0], ())
    for row in rows:
        table.add_row(*(f"{value:.5g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
