"""Columns of text with the line of each row: CSV, JSON lines and Parquet, plain or packed with gzip.

Every mistake is one message with file, line, column, value and what to do.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import MIB, READABLE, TEXT_BYTES_MOST, path_of, read_bytes, read_text

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
LARGE_BYTES_MOST = 1024 * MIB  # of what pyarrow reads
LONGEST_S = 4e9  # of a time: 126 years, and the year 2096 of Unix time; 2**63 ns are 9.2e9 s
COLUMNS_MOST = 10_000
LARGEST = 1e15  # of any number; far beyond what is meant
MEND = "mend or drop that line"


@dataclass(frozen=True)
class Table:
    """Columns of texts, as lists or as pyarrow's strings, and the line of each row."""

    source: str
    columns: Mapping[str, list[str] | pa.ChunkedArray]
    line: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.line)

    def has(self, *columns: str) -> bool:
        """Whether these columns are there."""
        return all(column in self.columns for column in columns)

    def texts(self, column: str) -> list[str]:
        """A column as Python strings; blanks at the ends are dropped."""
        values = self.columns[column]
        return [text.strip() for text in (values if isinstance(values, list) else values.to_pylist())]

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Each row by the names of its columns, with its line."""
        names = list(self.columns)
        for line, cells in zip(self.line.tolist(), zip(*map(self.texts, names), strict=True), strict=True):
            yield line, dict(zip(names, cells, strict=True))

    def numbers(self, column: str, *, needed: bool = False, least: float | None = 0.0, seconds: bool = False) -> Floats:
        """A column as numbers, NaN where it is empty.

        Raises InputFileError for what is no number, empty where `needed`, less than `least`, or
        more `seconds` than a clock in integer nanoseconds counts with room for a run.
        """
        texts = self.texts(column)
        empty = np.array([not text for text in texts], bool)
        values = np.array([number_of(text or "0") for text in texts], np.float64)
        bad = np.flatnonzero(np.isnan(values))
        if len(bad):
            self.refuse(int(bad[0]), column, "is no number")
        bad = np.flatnonzero(np.abs(values) > LARGEST)
        if len(bad):
            self.refuse(int(bad[0]), column, "is no number that a table can hold")
        if needed and empty.any():
            self.refuse(int(np.flatnonzero(empty)[0]), column, "is missing")
        if least is not None and (values[~empty] < least).any():
            self.refuse(int(np.flatnonzero(~empty & (values < least))[0]), column, f"is less than {least:g}")
        if seconds and (values > LONGEST_S).any():
            row = int(np.flatnonzero(values > LONGEST_S)[0])
            self.refuse(row, column, f"is more than {LONGEST_S:.0e} s: is it in milliseconds?")
        values[empty] = np.nan
        return values

    def whole(self, column: str, *, needed: bool = False, least: float = 0.0) -> NDArray[np.int64]:
        """A column as whole numbers; 0 where it is empty."""
        values = np.nan_to_num(self.numbers(column, needed=needed, least=least))
        odd = np.flatnonzero(values != np.floor(values))
        if len(odd):
            self.refuse(int(odd[0]), column, "is not a whole number")
        return values.astype(np.int64)

    def refuse(self, row: int, column: str, problem: str, remedy: str = MEND) -> NoReturn:
        """Raise InputFileError about one cell."""
        place = f"line {int(self.line[row])}: {column} = {short(str(self.columns[column][row]).strip())}"
        raise InputFileError(self.source, f"{place} {problem}", remedy)

    def only(self, rows: NDArray[np.int64]) -> Table:
        """These rows."""
        columns = {
            key: [values[row] for row in rows.tolist()] if isinstance(values, list) else values.take(rows)
            for key, values in self.columns.items()
        }
        return Table(self.source, columns, self.line[rows])


def number_of(text: str) -> float:
    """A number in ASCII digits, as other programs read it; NaN for any other text."""
    try:
        return float(text) if text.isascii() and "_" not in text else np.nan
    except ValueError:
        return np.nan


def plain_number(text: str, tokens: bool = False) -> str:
    """A number without the commas of its thousands (`1,024`); of a column that counts tokens, `8k` is 8192."""
    word = text.strip().lower()
    if tokens and (thousands := re.fullmatch(r"(\d+)k", word)):
        return str(1024 * int(thousands[1]))
    return word.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", word) else text


def short(text: str) -> str:
    """A cell as messages quote it."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def table_of(source: str | Path, rows: Sequence[Mapping[str, object]], line: Iterable[int] | None = None) -> Table:
    """A table of mappings: a column for every key, empty where a row lacks it; of a list its items, blanks between."""
    names = dict.fromkeys(str(key) for row in rows for key in row)
    columns = {name: [_text(row.get(name)) for row in rows] for name in names}
    return Table(str(source), columns, np.array(range(1, len(rows) + 1) if line is None else list(line), np.int64))


def _text(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def read_table(path: str | Path, remedy: str = READABLE, *, needs: Sequence[str] = (), delimiter: str = ",") -> Table:
    """A table by its suffix: .parquet, .jsonl or .json (an object a line), .tsv, else CSV. Raises InputFileError."""
    path = path_of(path, remedy)
    suffix = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        table = _parquet(path, remedy)
    elif suffix in (".jsonl", ".json"):
        table = _json_lines(path, remedy)
    elif _size(path) > TEXT_BYTES_MOST:
        table = _large_csv(path, delimiter, remedy)
    else:
        table = _csv(read_text(path, remedy), path, "\t" if suffix == ".tsv" else delimiter, remedy)
    missing = next((name for name in needs if not table.has(name)), None)
    if missing is not None:
        raise InputFileError(path, f"has no column {missing}", f"give one with {', '.join(needs)}")
    return table


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0  # whoever opens it says what is wrong


def _csv(text: str, path: Path, delimiter: str, remedy: str) -> Table:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    lines, rows = [], []
    try:
        names = _names(path, next(reader, []), remedy)
        for cells in reader:
            if len(cells) != len(names):
                if not any(cell.strip() for cell in cells):
                    continue
                problem = f"line {reader.line_num}: has {len(cells)} fields, and the first line names {len(names)}"
                raise InputFileError(path, problem, "mend that line")
            lines.append(reader.line_num)
            rows.append(cells)
    except csv.Error as error:
        raise InputFileError(path, f"line {reader.line_num}: {error}", "mend that line") from None
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in names)
    return Table(str(path), dict(zip(names, columns, strict=True)), np.array(lines, np.int64))


def _names(path: Path, header: Sequence[str], remedy: str) -> list[str]:
    if len(header) > COLUMNS_MOST:
        raise InputFileError(path, f"line 1: names {len(header):,} columns", f"give at most {COLUMNS_MOST:,}")
    names = [name.strip() for name in header]
    if not any(names):
        raise InputFileError(path, "is empty", remedy)
    broken = next((name for name in names if len(name.splitlines()) > 1), None)
    if broken is not None:
        raise InputFileError(path, f"line 1: the name {broken[:40]!r} runs over several lines", "close its quote")
    if len(set(names)) < len(names):
        again = next(name for at, name in enumerate(names) if name in names[:at])
        raise InputFileError(path, f"has two columns {again!r}", "name each column once")
    return names


def _large_csv(path: Path, delimiter: str, remedy: str) -> Table:
    """As `_csv`, with pyarrow, in a tenth of the memory; lines are counted as if none were empty."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    raw = read_bytes(path, remedy, LARGE_BYTES_MOST)
    head = raw[:MIB].decode("utf-8-sig", "replace").partition("\n")[0]
    names = _names(path, next(csv.reader([head], delimiter=delimiter), []), remedy)
    try:
        data = pa_csv.read_csv(
            pa.BufferReader(raw),
            read_options=pa_csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise InputFileError(path, f"cannot be read as CSV ({_first_line(error)})", remedy) from None
    return Table(str(path), {name: data[name].combine_chunks() for name in names}, np.arange(2, data.num_rows + 2))


def _json_lines(path: Path, remedy: str) -> Table:
    rows, lines = [], []
    for number, line in enumerate(read_text(path, remedy).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputFileError(path, f"line {number}: is no JSON ({error})", remedy) from None
        if not isinstance(row, dict):
            raise InputFileError(path, f"line {number}: is no JSON object", "give one object a line")
        rows.append(row)
        lines.append(number)
    return table_of(path, rows, lines)


def _parquet(path: Path, remedy: str) -> Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    raw = read_bytes(path, remedy, LARGE_BYTES_MOST)
    try:
        data = pq.ParquetFile(pa.BufferReader(raw)).read()
        columns = {name: pc.fill_null(data[name].combine_chunks().cast(pa.string()), "") for name in data.column_names}
    except (pa.ArrowException, OSError) as error:
        raise InputFileError(path, f"cannot be read as Parquet ({_first_line(error)})", remedy) from None
    return Table(str(path), columns, np.arange(1, data.num_rows + 1))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
