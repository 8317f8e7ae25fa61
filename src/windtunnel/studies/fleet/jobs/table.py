"""Files of columns: CSV, Parquet, JSON-like rows, read as texts with the line of each row, and numbers made of them.

Every mistake is one message with file, line, column, value and what to do.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError, SpecError, UserError

Floats = NDArray[np.float64]
LONGEST_S = 4e9  # of a time: 126 years, and the year 2096 of Unix time; 2**63 ns are 9.2e9 s
LARGEST = 1e15  # of any number in a trace; far beyond what is meant


@dataclass(frozen=True)
class Table:
    """Columns of texts (pyarrow string arrays) and the line of each row."""

    source: str
    columns: Mapping[str, Any]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.line)

    def has(self, column: str) -> bool:
        """Whether there is such a column."""
        return column in self.columns

    def texts(self, column: str) -> list[str]:
        """A column as Python strings; blanks at the ends are dropped."""
        import pyarrow.compute as pc

        values: list[str] = pc.utf8_trim_whitespace(self.columns[column]).to_pylist()
        return values

    def numbers(self, column: str, *, needed: bool = False, least: float | None = 0.0, seconds: bool = False) -> Floats:
        """A column as numbers, NaN where it is empty.

        Raises InputFileError for what is no number, empty where `needed`, less than `least`, or
        more `seconds` than a clock in integer nanoseconds counts with room for a run.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = pc.utf8_trim_whitespace(self.columns[column])
        empty = pc.equal(texts, "").to_numpy(zero_copy_only=False)
        filled = pc.if_else(pc.equal(texts, ""), "0", texts)
        try:
            values: Floats = filled.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
        except pa.ArrowInvalid:
            row = next(at for at, text in enumerate(filled.to_pylist()) if not _is_number(text))
            self._refuse(row, column, "is no number")
        bad = np.flatnonzero(~np.isfinite(values) | (np.abs(values) > LARGEST))
        if len(bad):
            self._refuse(int(bad[0]), column, "is no number that a trace can hold")
        if needed and empty.any():
            self._refuse(int(np.flatnonzero(empty)[0]), column, "is missing")
        if least is not None and (values[~empty] < least).any():
            self._refuse(int(np.flatnonzero(~empty & (values < least))[0]), column, f"is less than {least:g}")
        if seconds and (values > LONGEST_S).any():
            row = int(np.flatnonzero(values > LONGEST_S)[0])
            self._refuse(row, column, f"is more than {LONGEST_S:.0e} s: is it in milliseconds?")
        values[empty] = np.nan
        return values

    def whole(self, column: str, *, needed: bool = False) -> NDArray[np.int64]:
        """A column as whole numbers; 0 where it is empty."""
        values = np.nan_to_num(self.numbers(column, needed=needed))
        odd = np.flatnonzero(values != np.floor(values))
        if len(odd):
            self._refuse(int(odd[0]), column, "is not a whole number")
        return values.astype(np.int64)

    def _refuse(self, row: int, column: str, problem: str) -> None:
        text = str(self.columns[column][row])
        shown = repr(text if len(text) <= 40 else text[:37] + "...")
        raise InputFileError(
            self.source, f"line {int(self.line[row])}: {column} = {shown} {problem}", "mend or drop that line"
        )

    def only(self, rows: NDArray[np.int64]) -> Table:
        """These rows."""
        return Table(self.source, {key: values.take(rows) for key, values in self.columns.items()}, self.line[rows])


def _is_number(text: str) -> bool:
    """As pyarrow reads numbers: Python's float() takes digits of any script and underscores, too."""
    import pyarrow as pa

    try:
        pa.scalar(text, pa.string()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def read_table(path: Path, delimiter: str = ",") -> Table:
    """A CSV or Parquet file. Raises InputFileError."""
    if not path.is_file():
        raise InputFileError(path, "is not a file", "give the path of a trace")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path)
    return _read_csv(path, delimiter)


def _read_parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        data = pq.read_table(path)
        columns = {name: pc.fill_null(data[name].combine_chunks().cast(pa.string()), "") for name in data.column_names}
    except (pa.ArrowException, OSError) as error:
        raise InputFileError(path, f"cannot be read as Parquet ({_first_line(error)})", "write it again") from None
    return Table(str(path), columns, np.arange(1, data.num_rows + 1))


def _read_csv(path: Path, delimiter: str) -> Table:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(path, f"is not text in UTF-8 ({_first_line(error)})", "save it as CSV in UTF-8") from None
    names = [name.strip() for name in header]
    if not any(names):
        raise InputFileError(path, "is empty", "give a CSV with a line of column names")
    broken = next((name for name in names if len(name.splitlines()) > 1), None)
    if broken is not None:
        raise InputFileError(path, f"line 1: the name {broken[:40]!r} runs over several lines", "close its quote")
    again = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if again is not None:
        raise InputFileError(path, f"has two columns {again!r}", "name each column once")
    try:
        data = pa_csv.read_csv(
            path,
            read_options=pa_csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return Table(str(path), {name: pa.array([], pa.string()) for name in names}, np.arange(0))
        raise InputFileError(path, _row_problem(path, delimiter, len(names), error), "mend that line") from None
    columns = {name: data[name].combine_chunks() for name in names}
    return Table(str(path), columns, _lines(path, data.num_rows))


def _lines(path: Path, rows: int) -> NDArray[np.int64]:
    """The line of each row: pyarrow passes over empty ones."""
    with path.open("rb") as file:
        text = file.read()
    if b"\n\n" not in text and b"\n\r\n" not in text:
        return np.arange(2, rows + 2)
    numbers = [at for at, line in enumerate(text.split(b"\n"), 1) if line.strip(b"\r")]
    return np.array(numbers[1 : rows + 1], np.int64)


def _row_problem(path: Path, delimiter: str, width: int, error: Exception) -> str:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            for row in reader:
                if row and len(row) != width:
                    return f"line {reader.line_num}: has {len(row)} fields, and the first line names {width}"
        except csv.Error as problem:
            return f"line {reader.line_num}: {problem}"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def small_columns(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """A table of measurements: the needed columns as texts. Raises InputFileError for a missing column."""
    table = read_table(path)
    missing = next((name for name in needed if not table.has(name)), None)
    if missing is not None:
        raise InputFileError(path, f"has no column {missing}", f"give one with {', '.join(needed)}")
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
            known = ", ".join(table.columns)
            raise SpecError("--where", part, f"give column=value with a column of {table.source}: {known}")
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
