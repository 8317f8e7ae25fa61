"""Rows of a sweep at the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One line each; the columns are those of the first."""
    from rich.table import Table

    if not rows:
        console.print("no row is ok")
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.5g}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
