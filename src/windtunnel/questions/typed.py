"""Answers as frozen dataclasses: one encoder for their JSON, and what is checked of their figures as they are built."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def plain(value: object) -> Plain:
    """Plain data for JSON: dataclasses and mappings by name, sequences as lists; fields of `JSON_LEAVES_OUT` not."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value):
        out = getattr(value, "JSON_LEAVES_OUT", ())
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.name not in out}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    assert isinstance(value, Sequence), f"{type(value).__name__} has no form in JSON"
    return [plain(one) for one in value]


def plain_fields(answer: object) -> dict[str, Plain]:
    """The same of an answer, a dataclass."""
    found = plain(answer)
    assert isinstance(found, dict)
    return found


def check_figures(answer: object, *, unbounded: Sequence[str] = ()) -> None:
    """AssertionError for a figure of a dataclass that is not finite, or below zero. `unbounded` may be infinite."""
    assert is_dataclass(answer)
    for one in fields(answer):
        value = getattr(answer, one.name)
        if isinstance(value, int | float):
            finite = math.isfinite(value) or (one.name in unbounded and value == math.inf)
            assert finite and value >= 0, f"{type(answer).__name__}.{one.name} is {value}"  # noqa: PT018


def check_sum(parts: Mapping[str, float], whole: float) -> None:
    """AssertionError where parts that are to make up a whole do not, but for the last digits."""
    total = math.fsum(parts.values())
    assert math.isclose(total, whole, rel_tol=1e-9, abs_tol=1e-9), f"{dict(parts)} add up to {total}, not {whole}"
