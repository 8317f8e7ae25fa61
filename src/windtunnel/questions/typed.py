"""Answers as frozen dataclasses: one encoder for their JSON, and what is checked of their figures as they are built.

Also what public functions check of their arguments, which no question has read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from os import PathLike
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from windtunnel.errors import SpecError

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def plain(value: object) -> Plain:
    """Plain data for JSON: dataclasses and mappings by name, sequences as lists; fields of `JSON_LEAVES_OUT` not."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value):
        out = getattr(value, "JSON_LEAVES_OUT", ())
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name not in out}
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    assert isinstance(value, Sequence), f"{type(value).__name__} has no form in JSON"
    return [plain(entry) for entry in value]


def plain_fields(answer: object) -> dict[str, Plain]:
    """The same of an answer, a dataclass."""
    mapping = plain(answer)
    assert isinstance(mapping, dict)
    return mapping


def check_figures(answer: object, *, unbounded: Sequence[str] = ()) -> None:
    """AssertionError for a figure of a dataclass that is not finite, or below zero. `unbounded` may be infinite."""
    assert is_dataclass(answer)
    for field in fields(answer):
        value = getattr(answer, field.name)
        if isinstance(value, int | float):
            finite = math.isfinite(value) or (field.name in unbounded and value == math.inf)
            assert finite and value >= 0, f"{type(answer).__name__}.{field.name} is {value}"  # noqa: PT018


def check_sum(parts: Mapping[str, float], whole: float) -> None:
    """AssertionError where parts that are to make up a whole do not, but for the last digits."""
    total = math.fsum(parts.values())
    assert math.isclose(total, whole, rel_tol=1e-9, abs_tol=1e-9), f"{dict(parts)} add up to {total}, not {whole}"


def check(arguments: Mapping[str, object], **kinds: object) -> None:
    """Each argument that is named is of its type; NumPy's numbers are numbers, a truth is none. Raises SpecError."""
    for name, kind in kinds.items():
        if not _is(arguments[name], kind):
            raise SpecError(name, arguments[name], f"give {_words(kind)}")


def texts(field: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Texts from a text or several. Raises SpecError."""
    check({field: value}, **{field: str | Sequence[str]})
    return (value,) if isinstance(value, str) else tuple(value)


def _is(value: object, kind: object) -> bool:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_is(value, member) for member in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin in (Sequence, tuple):
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return several and all(_is(element, inside[0]) for element in value)  # type: ignore[attr-defined]
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")
    plain = origin or kind
    return isinstance(plain, type) and isinstance(value, plain)


def _words(kind: object) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_words(member) for member in get_args(kind) if member is not type(None))
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) in (Sequence, tuple):
        return f"a list of {_words(get_args(kind)[0]).removeprefix('a ')}s"
    return _WORDS.get(get_origin(kind) or kind) or f"a {getattr(kind, '__name__', kind)}"


_WORDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    PathLike: "a path",
    Mapping: "a mapping",
}
