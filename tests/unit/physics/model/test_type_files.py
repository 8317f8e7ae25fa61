"""What is wrong in a type's file is one error that names it: whoever adds a model reads it first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.physics.model.reading import grammar, type_files

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
