"""Documents are plain data: each form of the same says the same, and what is no data is one error with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.files import document
from windtunnel.files.document import (
    form_of,
    read_document,
    read_documents,
    read_form,
    read_mapping,
    to_yaml,
    value_of,
)

KEYS = st.text("abcdé_-.0159~ ", min_size=1)
NUMBERS = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False, width=32)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))
DEEP_JSON = "[" * 100 + "]" * 100
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@given(DATA)
def test_a_document_says_the_same_in_yaml_and_json(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("d")
    assert read_document(written(folder, "x.json", json.dumps(data))) == data
    assert read_document(written(folder, "x.yaml", to_yaml(data))) == data


def test_aliases_and_merges_are_written_out_and_keys_and_dates_are_text(tmp_path: Path) -> None:
    text = "a: &one {x: 1, 0.10: no}\nb: {<<: *one, x: 2}\nno: 2026-01-02\n1: 2026-13-45\n"
    found = {"a": {"x": 1, "0.10": False}, "b": {"x": 2, "0.10": False}, "no": "2026-01-02", "1": "2026-13-45"}
    assert read_document(written(tmp_path, "x.yaml", text)) == found
    parts = written(tmp_path, "y.yaml", "a: 1\n---\n---\n[2]\n")
    assert read_documents(parts) == [{"a": 1}, [2]]
    assert read_document(written(tmp_path, "x.toml", "[a]\nb = [1, 2]\n")) == {"a": {"b": [1, 2]}}


def test_a_form_keeps_its_scalars_as_text(tmp_path: Path) -> None:
    text = "a: 1e9\nb: 12:30\nc: no\nd:\ne: ~\nf: ''\ng: [0.10, 2026-01-02]\nh: {}\ni: []\n"
    found = {"a": "1e9", "b": "12:30", "c": "no", "d": None, "e": None, "f": "", "g": ["0.10", "2026-01-02"]}
    assert read_form(written(tmp_path, "x.yaml", text)) == {**found, "h": {}, "i": []}
    assert form_of(text, "x", own=True) == {**found, "h": {}, "i": []}


def test_a_value_of_the_command_line_is_yaml_or_itself() -> None:
    assert [value_of(text) for text in ("4", "[1, 2]", "full", "2026-13-45", "{", "a: b: c", "", "!x y")] == [
        *(4, [1, 2], "full", "2026-13-45", "{", "a: b: c", None, "!x y")
    ]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.yaml", BOMB, "aliases written out"),
        ("x.yaml", "---\n".join("[" + "x, " * 30_000 + "x]\n" for _ in range(4)), "100,000 values"),
        ("x.yaml", "a: &a [*a]\n", "line 1: an alias refers to what it is part of"),
        ("x.yaml", "a: 1\na: 2\n", "line 2: 'a' is given twice"),
        ("x.yaml", "a: 1\n? [b]\n: 2\n", "line 2: a key must be a plain word"),
        ("x.yaml", "a:\n  - !!python/object/apply:os.system [ls]\n", "line 2: the tag .* has no meaning"),
        ("x.yaml", "a: !!binary aGk=\n", "line 1: the tag .* has no meaning"),
        ("x.yaml", "a: !!set {b, c}\n", "line 1: the tag .* has no meaning"),
        ("x.yaml", "a: .nan\n", "line 1: .nan is no number"),
        ("x.yaml", "a: -.INF\n", "line 1: -.INF is no number"),
        ("x.yaml", "a: 1.0e+999\n", "line 1: 1.0e.999 is no number"),
        ("x.yaml", f"a: {'9' * 5000}\n", "line 1: a number of 5,000 digits"),
        ("x.yaml", DEEP_JSON, "nested deeper than 64"),
        ("x.yaml", "[" * 5000, "nested deeper than 64"),
        ("x.yaml", "[" * 200_000, "nested deeper than 64"),
        ("x.yaml", "- " * 200_000 + "x", "nested deeper than 64"),
        ("x.yaml", "a: b: c\n", "line 1: "),
        ("x.yaml", "a: \0\n", "is not YAML"),
        ("x.yaml", "a: \0" + " " * 200_000, "is not YAML|line 1"),
        ("x.json", DEEP_JSON, "nested deeper than 64"),
        ("x.json", "[" * 200_000, "is not JSON"),
        ("x.json", '{"a": NaN}', "NaN is no number"),
        ("x.json", '{"a": {"b": 1e999}}', "a.b = inf is no number"),
        ("x.json", '{"a": 1, "a": 2}', "'a' is given twice"),
        ("x.json", '{"a": ' + "9" * 400 + "}", "a is a number of 1329 bits"),
        ("x.json", '{"a": ' + "9" * 5000 + "}", "is not JSON"),
        ("x.json", '{"a": ', "is not JSON .*line 1"),
        ("x.json", "[" + "[]," * 150_000 + "[]]", "100,000 values"),
        ("x.toml", "a = nan", "a = nan is no number"),
        ("x.toml", "a = 2026-01-02", "a = 2026-01-02 is a date"),
        ("x.toml", "a = ", "is not TOML"),
        ("x.toml", "a = 1\na = 2", "is not TOML"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_data_is_one_error_with_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, problem: str
) -> None:
    monkeypatch.setattr(document, "VALUES_MOST", 100_000)
    path = written(tmp_path, name, text)
    with pytest.raises(InputFileError, match=problem) as raised:
        read_documents(path, "mend it")
    assert str(raised.value).startswith(f"{path}: ")
    assert len(str(raised.value).splitlines()) == 1
    if name == "x.yaml" and "is no number" not in problem and "tag" not in problem and "digits" not in problem:
        with pytest.raises(InputFileError):
            read_form(path)


def test_what_is_no_mapping_is_refused_where_one_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="holds no mapping; give lines"):
        read_mapping(written(tmp_path, "x.yaml", "- a\n"), "give lines")
    with pytest.raises(InputFileError, match="holds no `key: value` lines"):
        read_form(written(tmp_path, "x.yaml", ""))
