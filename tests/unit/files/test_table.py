"""Tables: every form of the same says the same, and every cell that cannot be is named by file, line and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.files import table as tables
from windtunnel.files.table import read_table, table_of
from windtunnel.files.write import csv_text

CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=5)
ROWS = st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5)
NAMES = ("a", "b", "c")


@given(ROWS)
def test_every_form_of_a_table_says_the_same(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("t")
    text = csv_text(NAMES, rows).encode()
    (folder / "t.csv").write_bytes(text)
    (folder / "t.csv.gz").write_bytes(gzip.compress(text))
    lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows]
    (folder / "t.jsonl").write_text("\n".join(lines))
    columns = list(map(list, zip(*rows, strict=True)))
    pq.write_table(pa.table(dict(zip(NAMES, columns, strict=True))), folder / "t.parquet")
    for name in ("t.csv", "t.csv.gz", "t.jsonl", "t.parquet"):
        table = read_table(folder / name)
        assert len(table) == len(rows)
        assert [[row[key] for key in NAMES] for _, row in table.rows()] == rows, name
        last = table.only(np.array([len(rows) - 1]))
        assert [list(row.values()) for _, row in last.rows()] == rows[-1:]


def test_large_tables_say_what_small_ones_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,x\n2,"y,z"\n,w\n')
    small = read_table(path)
    monkeypatch.setattr(tables, "TEXT_BYTES_MOST", 1)
    large = read_table(path)
    assert list(large.rows()) == list(small.rows())
    assert np.array_equal(large.numbers("a"), small.numbers("a"), equal_nan=True)
    path.write_text("a,b\n1\n")
    with pytest.raises(InputFileError, match="cannot be read as CSV"):
        read_table(path)


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfa, b\r\n\r\n1,2\r\n"x\ny",3\n,\n5,6')
    table = read_table(path)
    assert list(table.rows()) == [
        (3, {"a": "1", "b": "2"}),
        (5, {"a": "x\ny", "b": "3"}),
        (6, {"a": "", "b": ""}),
        (7, {"a": "5", "b": "6"}),
    ]
    with pytest.raises(InputFileError, match=r"t\.csv: line 5: a = 'x\\ny' is no number; mend or drop that line"):
        table.numbers("a")


@pytest.mark.parametrize(
    ("cell", "asked", "problem"),
    [
        ("x", {}, "is no number"),
        ("1_000", {}, "is no number"),
        ("\u0663", {}, "is no number"),
        ("nan", {}, "is no number"),
        ("inf", {}, "is no number that a table can hold"),
        ("1e16", {}, "is no number that a table can hold"),
        ("-1", {}, "is less than 0"),
        ("", {"needed": True}, "is missing"),
        ("5e9", {"seconds": True}, "is it in milliseconds"),
    ],
)
def test_a_cell_that_cannot_be_is_named(cell: str, asked: dict[str, bool], problem: str) -> None:
    table = table_of("t.csv", [{"a": "1"}, {"a": cell}], [2, 7])
    with pytest.raises(InputFileError, match=rf"t\.csv: line 7: a = .* {problem}"):
        table.numbers("a", **asked)


def test_whole_numbers_are_whole() -> None:
    table = table_of("t", [{"a": 3, "b": [1, 2]}, {"a": None}])
    assert table.whole("a").tolist() == [3, 0]
    assert table.texts("b") == ["1 2", ""]
    with pytest.raises(InputFileError, match="is not a whole number"):
        table_of("t", [{"a": 1.5}]).whole("a")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b" , \n1,2\n", "is empty"),
        ("t.csv", b"a,a\n1,2\n", "two columns 'a'"),
        ("t.csv", b'a,"b\nc"\n1,2\n', "runs over several lines"),
        ("t.csv", b"a,b\n1,2\n3\n", "line 3: has 1 fields, and the first line names 2"),
        ("t.csv", b"a,b\n1,2,3\n", "line 2: has 3 fields"),
        ("t.csv", b'a\n"1\n', "line 2: "),
        ("t.csv", b"a\n" + b"x" * 200_000, "line 2: field larger"),
        ("t.csv", b"a\n\xff\n", "not text in UTF-8"),
        ("t.csv", b"b\n1\n", "has no column a; give one with a"),
        ("t.jsonl", b'{"a": 1}\n[1]\n', "line 2: is no JSON object"),
        ("t.jsonl", b'{"a": 1}\n\n{"a\n', "line 3: is no JSON"),
        ("t.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("t.csv.gz", gzip.compress(bytes(65 << 20), mtime=0), "unpacks to more than 64 MiB"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_table_is_one_error(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputFileError, match=problem) as raised:
        read_table(tmp_path / name, "mend it", needs=("a",))
    assert len(str(raised.value).splitlines()) == 1
