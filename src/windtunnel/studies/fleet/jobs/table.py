"""Of a table of jobs: the rows that are asked for, and that they are of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.files.table import Table, read_table


def small_columns(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """A table of measurements: the needed columns as texts. Raises InputFileError for a missing column."""
    table = read_table(path, needs=needed)
    return {name: table.texts(name) for name in needed}


def matching(table: Table, where: str) -> Table:
    """Rows for which each `column=value` of `where` (comma-separated) holds, as texts or as numbers.

    Raises SpecError for a column that is not there, or where nothing is left.
    """
    if not where:
        return table
    keep = np.ones(len(table), bool)
    for part in where.split(","):
        column, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not table.has(column):
            names = ", ".join(table.columns)
            raise SpecError("--where", part, f"give column=value with a column of {table.source}: {names}")
        texts = table.texts(column)
        wanted = _number(value)
        keep &= np.array([text == value or (wanted is not None and _number(text) == wanted) for text in texts], bool)
    rows = np.flatnonzero(keep)
    if not len(rows):
        raise SpecError("--where", where, f"no line of {table.source} matches; ask for values that occur in it")
    return table.only(rows)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_one_selection(table: Table, selectors: Sequence[str]) -> None:
    """Raise UserError where a column that tells traces apart holds several values."""
    for name in selectors:
        if not table.has(name):
            continue
        values = list(dict.fromkeys(table.texts(name)))
        if len(values) > 1:
            shown = ", ".join(values[:6]) + (", ..." if len(values) > 6 else "")
            raise UserError(
                f"{table.source} holds several traces ({name}: {shown}); choose one, such as --where {name}={values[0]}"
            )
