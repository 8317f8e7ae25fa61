"""The lines of `sacct -P` and of `squeue -o '%i|%P|...'`: fields apart by `|`, and no quotes round what has one.

So a `|` in a job's name makes a field too many. Where a table has one column of free text, what is too much is of it.
A table that another program wrote with commas and quotes is read as CSV.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import read_text
from windtunnel.files.table import LARGE_BYTES_MOST, read_table

Row = dict[str, str]
FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "WorkDir", "SubmitLine", "NAME", "COMMAND", "WORK_DIR")
DELIMITERS = ("|", ",", "\t", ";")


def delimiter_of(first: str) -> str | None:
    """What parts the columns, where the first line of a file is one of sacct's or squeue's; None for any other."""
    for mark in DELIMITERS:
        names = [name.strip().strip('"') for name in first.split(mark)]
        if len(names) > 1 and ("JobID" in names or "JOBID" in names):
            return mark
    return "|" if "|" in first and "," not in first else None


def table_rows(path: Path, delimiter: str, remedy: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The columns, and the line and cells of each row. Raises InputFileError."""
    if delimiter != "|":
        try:
            table = read_table(path, delimiter=delimiter)
        except InputFileError as error:
            raise InputFileError(path, f"{error.problem} (fields of sacct hold commas)", remedy) from None
        return list(table.columns), table.rows()
    lines = read_text(path, remedy, LARGE_BYTES_MOST).split("\n")
    names = [name.strip() for name in lines[0].split("|")]
    again = next((name for at, name in enumerate(names) if name and name in names[:at]), None)
    if again is not None:
        raise InputFileError(path, f"has two columns {again!r}", "name each column once")
    return names, _rows(path, lines, names, remedy)


def _rows(path: Path, lines: Sequence[str], names: Sequence[str], remedy: str) -> Iterator[tuple[int, Row]]:
    free = [at for at, name in enumerate(names) if name in FREE]
    for number, line in enumerate(lines[1:], 2):
        cells = [cell.strip() for cell in line.split("|")]
        more = len(cells) - len(names)
        if not any(cells):
            continue
        if more > 0 and len(free) == 1:
            at = free[0]
            cells[at : at + more + 1] = ["|".join(cells[at : at + more + 1])]
        elif more:
            problem = f"line {number}: has {len(cells)} fields, and the first line names {len(names)}"
            raise InputFileError(path, problem, f"mend that line, or {remedy}")
        yield number, dict(zip(names, cells, strict=True))
