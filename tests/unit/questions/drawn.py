"""Questions of a verb, drawn from the types of their fields."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from hypothesis import reject
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.questions import question_class, read_part
from windtunnel.questions.about import kind_of, word_of
from windtunnel.questions.fields import Field, fields_of

WORDS = st.text("abcdefghij0123456789.:=/-, '\"{}é", min_size=1, max_size=12).filter(str.strip)
SMALL = 10_000


def questions(verb: str) -> st.SearchStrategy[Any]:
    """Legal questions of a verb, many fields left at their defaults."""
    kind = question_class(verb)

    def legal(data: dict[str, Any]) -> Any:
        try:
            return read_part(kind, data)
        except SpecError:  # what each field allows, and all together do not
            reject()

    return parts(kind).map(legal)


def parts(part: type) -> st.SearchStrategy[dict[str, Any]]:
    """Plain data of a part."""
    needed = {field.path: values(field) for field in fields_of(part) if field.required}
    others = {field.path: values(field) for field in fields_of(part) if not field.required}
    if word_of(part) == "base" and "base" in others:
        needed["base"] = others.pop("base")
    for name in getattr(part, "positional", ()):  # a word that begins with a dash is a flag
        for some in (needed, others):
            if name in some:
                some[name] = some[name].filter(lambda value: not str(value).startswith("-"))
    return st.fixed_dictionaries(needed, optional=others)


def values(field: Field) -> st.SearchStrategy[Any]:
    """Plain values of a field."""
    if field.members:
        return st.sampled_from(field.members).flatmap(
            lambda member: parts(member).map(lambda data: {"kind": kind_of(member), **data})
        )
    if field.parts:
        return parts(field.type)
    if field.name == "calibration":
        return st.dictionaries(WORDS, st.one_of(WORDS, st.integers(), st.booleans()), max_size=2)
    return plain_values(field.type, field)


def plain_values(kind: Any, field: Field) -> st.SearchStrategy[Any]:
    """Values of a type within a field's limits."""
    least = 0 if field.about.least is None else field.about.least
    most = SMALL if field.about.most is None else min(field.about.most, SMALL)
    if field.choices:
        return st.sampled_from(field.choices)
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(max(1, int(least)) if field.about.unit else int(least), int(most))
    if kind is float:
        return st.floats(float(least), float(most))
    if kind is str:
        return WORDS
    if get_origin(kind) is tuple:
        return st.lists(plain_values(get_args(kind)[0], field), min_size=1, max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(st.sampled_from(("bf16", "fp8")), plain_values(get_args(kind)[1], field), min_size=1)
    return st.one_of([plain_values(one, field) for one in get_args(kind)])
