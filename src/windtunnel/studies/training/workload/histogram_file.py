"""Histograms as CSV files: a header of known columns, whole numbers that say what is counted, and a count at the end.

Read strictly: what is unclear is refused with file and line, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.table import number_of, read_table

MOST = 1e15  # of anything: sums stay exact enough
Row = tuple[int, tuple[int, ...], float]  # line, keys, count


def read_histogram(path: Path, forms: Sequence[tuple[str, ...]], see: str) -> tuple[tuple[str, ...], list[Row]]:
    """Columns of the file, one of `forms`, and its rows. Raises InputFileError or SpecError, `see` the remedy."""
    table = read_table(path, see)
    header = tuple(table.columns)
    if header not in forms:
        text = " or ".join(",".join(form) for form in forms)
        raise SpecError("header", ",".join(header), f"the first line must be {text}", f"{path}:1")
    seen: dict[tuple[int, ...], int] = {}
    rows = [_row(header, list(row.values()), f"{path}:{line}", line, seen) for line, row in table.rows()]
    if not rows:
        raise InputFileError(path, "holds no rows under its header", see)
    return header, rows


def _row(header: tuple[str, ...], cells: list[str], where: str, line: int, entry: dict[tuple[int, ...], int]) -> Row:
    keys = tuple(_whole(name, cell, where) for name, cell in zip(header[:-1], cells[:-1], strict=True))
    if keys in entry:
        same = ",".join(header[:-1])
        raise SpecError(same, ",".join(map(str, keys)), f"is given twice, first in line {entry[keys]}", where)
    entry[keys] = line
    return line, keys, _count(header[-1], cells[-1], where)


def _whole(name: str, text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise SpecError(name, text, "give a whole number from 0 on", where)
    return int(text)


def _count(name: str, text: str, where: str) -> float:
    value = number_of(text)
    if not 0.0 <= value <= MOST:
        raise SpecError(name, text, f"give a number from 0 to {MOST:.0e}", where)
    return value
