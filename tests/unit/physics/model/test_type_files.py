"""What is wrong in a type's file is one error that names it: whoever adds a model reads it first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.physics.model.reading import grammar, type_files
from windtunnel.physics.model.reading.config_fields import Fields

OLMOE = (type_files.FOLDER / "olmoe.yaml").read_text(encoding="utf-8")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a type in a folder that holds what others extend."""
    for path in type_files.FOLDER.glob("_*.yaml"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(type_files, "FOLDER", tmp_path)
    type_files.rules_of.cache_clear()
    yield tmp_path / "mine.yaml"
    type_files.rules_of.cache_clear()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("musts: {a: b}", "types/mine.yaml: musts = {'a': 'b'}: did you mean must?"),
        (
            "blocks: {experts: {routr_bias: true}}",
            "types/mine.yaml: blocks: routr_bias = True: did you mean router_bias?",
        ),
        ("mixers: {attention: {qk_norm: all}}", "types/mine.yaml: mixers: qk_norm = 'all': one of none, per_head"),
        ("extends: _nothing", "extends = '_nothing': there is no types/_nothing.yaml"),
        ("mixers: [", "mine.yaml: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(written: Path, text: str, message: str) -> None:
    written.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        type_files.rules_of("mine")
    assert message in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_an_expression_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match=r"heads \+"):
        grammar._parsed("heads +")


def test_a_file_that_is_right_is_read(written: Path) -> None:
    written.write_text(OLMOE, encoding="utf-8")
    assert type_files.rules_of("mine")["blocks"]


CONFIG = {"a": 12, "b": 5, "c": 0, "list": [3, 4, 5, 6], "word": "M*E", "inner": {"x": 7, "no": None}, "yes": True}
RULES = {"defaults": {"d": "a // 2", "e": 3, "flag": False}, "aliases": {"f": "b"}}


def said(text: object, i: int = -1) -> object:
    """What an expression is of that config."""
    return grammar._Reading(Fields(CONFIG), RULES, "mine").value(text, i)


@pytest.mark.parametrize(
    "text",
    [
        *("a + b * 3", "a - b - 1", "a // b", "a % b", "a / b", "(a + b) * -a", "not a", "not c"),
        *("a < b", "a <= 12", "a > 12", "a >= 12", "a == 12", "a != 12", "b in list", "b not in list"),
        *("a and b", "c and b", "a or b", "c or b", "c or c", "a and b and c", "c or b or a", "a if c else b"),
        *("a if b else c", "list[2]", "list[:2]", "list[:b - 4]", "[a, b + 1]", "min(a, b)", "max(a, b)", "sum(list)"),
        *("len(word)", "int(a / b)", "bool(c)", "word", "yes", "1 if yes else 2", "list[i]", "i + 1"),
    ],
)
def test_an_expression_is_what_python_makes_of_it(text: str) -> None:
    """Python's own evaluator is the oracle; a file of somebody is never handed to it."""
    found, expected = said(text, 1), eval(text, {}, {**CONFIG, "i": 1})
    assert found == expected
    assert type(found) is type(expected)


def test_fields_have_defaults_other_names_and_parts() -> None:
    assert said("d") == 6
    assert said("e") == 3
    assert said("flag") is False
    assert said("f") == 5
    assert said("inner.x") == 7
    assert said("inner.nothing") is said("inner.no") is None
    assert said("given('b')") is True
    assert said("given('d')") is False
    assert said("has('d')") is False
    assert (said(17), said(None), said([1])) == (17, None, [1])
    assert said("count(word, 'M')") == 1
    assert (said("named('4,5', i)", 4), said("named('4,5', i)", 3)) == (True, False)
    assert (said("of_layer(list, i)", 2), said("of_layer(b, i)", 2)) == (5, 5)
    assert said("removeprefix(word, 'M')") == "*E"
    assert said("repeated([1, 2], 2)") == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "text", ["a + yes", "word * 2", "a // c", "list[9]", "a + 10 ** 3", "open('x')", "a * 10000000000000000"]
)
def test_what_cannot_be_worked_out_is_refused_with_the_fields_that_it_asks_for(text: str) -> None:
    with pytest.raises(UserError, match="cannot be worked out"):
        said(text)


def test_a_field_that_is_not_there_or_of_another_kind_is_named() -> None:
    with pytest.raises(UserError, match=r"(?s)nowhere.*needs this field"):
        said("nowhere + 1")
    wrong = grammar._Reading(Fields({"e": True, "flag": 1}), RULES, "mine")
    with pytest.raises(UserError, match="give a number"):
        wrong.value("e")
    with pytest.raises(UserError, match="give true or false"):
        wrong.value("flag")
