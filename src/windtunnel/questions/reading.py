"""A question as plain data and back: strict, one mistake in one line; its hash, and its JSON schema."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError, remedy_of
from windtunnel.questions.about import kind_of, phrase_of, word_of
from windtunnel.questions.fields import Field, Part, fields_of, key_names, pick, unknown, walk
from windtunnel.questions.registry import QUESTIONS, Question, question_class

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


def plain(question: Question) -> dict[str, Any]:
    """The question as JSON data. What holds its default is left out, so that a field added later changes no hash."""
    return {"question": f"{question.verb}/{QUESTIONS[question.verb].version}", **plain_part(question)}


def plain_part(part: object) -> dict[str, Any]:
    """The fields of a part that do not hold their defaults, as JSON data; the `kind` of a member of a union always."""
    values = ((field, getattr(part, field.path)) for field in fields_of(type(part)))
    part_data = {field.path: _plain_value(value, field) for field, value in values if _is_stated(field, value)}
    return part_data


def _is_stated(field: Field, value: object) -> bool:
    return field.required or type(value) is not type(field.default) or value != field.default


def _plain_value(value: object, field: Field | None = None) -> object:
    if is_dataclass(value):
        inner = plain_part(value)
        if field is not None and field.members:
            return {"kind": kind_of(value), **inner}
        word = word_of(value)
        return inner[word] if word is not None and set(inner) == {word} else inner
    if isinstance(value, Mapping):
        return {str(key): _plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(inner) for inner in value]
    return value


def canonical(question: Question) -> str:
    """The plain form as one line of JSON that is the same for the same question, however it was built."""
    return json.dumps(plain(read(plain(question))), sort_keys=True, separators=(",", ":"))


def digest(question: Question) -> str:
    """12 hexadecimal digits that name the question."""
    return hashlib.sha256(canonical(question).encode()).hexdigest()[:12]


def _adapter(kind: type[Part]) -> TypeAdapter[Part]:
    plain_kind: type = kind
    adapter: TypeAdapter[Part] = _adapters(plain_kind)
    return adapter


@cache
def _adapters(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read(data: Mapping[str, object], where: str | None = None, verb: str | None = None) -> Any:
    """A question from plain data; `where` goes before errors, `verb` is asked where the data name none.

    Raises SpecError: the first mistake, in one line.
    """
    if not isinstance(data, Mapping):
        raise SpecError("question", data, "give a mapping of its fields", where)
    name, _, version = str(data.get("question", verb or "")).partition("/")
    kind, latest = question_class(name), QUESTIONS[name].version
    if version and version != str(latest):
        newer = version.isascii() and version.isdigit() and int(version) > latest
        remedy = "it was written by a newer windtunnel: take that one" if newer else f"write {name}/{latest}"
        raise SpecError("question", data["question"], remedy, where)
    return read_part(kind, {key: value for key, value in data.items() if key != "question"}, where)


def read_part(kind: type[Part], data: object, where: str | None = None, field: str = "") -> Part:
    """A question's part from plain data, as `read` does; `field`: what errors call the whole of it."""
    from pydantic import ValidationError

    try:
        plain_data = _spelled_out(kind, data, field, None if field else kind)
        text = json.dumps(plain_data, allow_nan=False)
        part = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise _spec_error(error, kind, where) from None
    except SpecError as error:
        raise SpecError(error.field, error.value, error.remedy, where) from None
    except (TypeError, ValueError):
        path, value = _unwritable(plain_data)
        raise SpecError(path, value, "give a number, text, a list or a mapping", where) from None
    return part


def _spelled_out(part: type, data: object, path: str, question: type | None) -> dict[str, object]:
    """Plain data with the words of parts spelled out, their fields by their own names and the members of unions named.

    `question`: of which all this is, where it is one. Raises SpecError for a key that is not known.
    """
    prefix = path + "." if path else ""
    if not isinstance(data, Mapping):
        word = word_of(part)
        if word is None or isinstance(data, list | tuple | None):
            raise SpecError(path or part.__name__.lower(), data, "give a mapping of `key: value` lines")
        return {word: data}
    names, field_of = key_names(part), {field.path: field for field in fields_of(part)}
    plain_data: dict[str, object] = {}
    for key, value in data.items():
        if key not in names:
            raise SpecError(f"{prefix}{key}", value, unknown(part, str(key), prefix, question))
        field = field_of[names[key]]
        if field.path in plain_data:
            raise SpecError(f"{prefix}{key}", value, f"is given as {field.path} as well: leave one of them out")
        if value == {} and field.optional:
            value = None  # a part of which nothing is said
        if value == "" and field.type is str and (field.required or field.default != ""):
            raise SpecError(prefix + field.path, value, "it is needed" if field.required else "leave it out, or say it")
        if field.parts and value is not None:
            member = field.parts[0]
            if field.members:
                if not isinstance(value, Mapping):
                    raise SpecError(prefix + field.path, value, "give a mapping of `key: value` lines")
                member = pick(field.members, value, prefix + field.path, question)
                value = {inner: entry for inner, entry in value.items() if inner != "kind"}
            value = _spelled_out(member, value, prefix + field.path, question)
            if field.optional and not field.members and all(entry is None for entry in value.values()):
                value = None  # nor here, at any depth
            value = {kind_of(member): value} if field.members else value
        plain_data[field.path] = value
    return plain_data


def _spec_error(error: ValidationError, kind: type, where: str | None) -> SpecError:
    first = error.errors(include_url=False)[0]
    path = _path(kind, first["loc"])
    cause = (first.get("ctx") or {}).get("error")
    if first["type"] == "missing":
        field = next((field for field in walk(kind) if field.path == path), None)
        members = " or ".join(phrase_of(member) for member in field.members) if field is not None else ""
        if members or field is None:
            return SpecError(path, None, f"give {members}" if members else "it is needed", where)
        flag = field.about.flag or field.name.replace("_", "-")
        remedy = f"{field.name}: in it" if where else f"--{flag}, or {field.name}: in a file"
        return SpecError(path, None, f"it is needed: add {remedy}", where)
    remedy = str(cause) if isinstance(cause, ValueError) else remedy_of(first)
    if first["type"] == "literal_error":
        about = next((field.about for field in walk(kind) if field.path == path), None)
        advice = about.meant(str(first["input"])) if about is not None and about.meant is not None else ""
        remedy += f" ({advice})" if advice else ""
    return SpecError(path, first["input"], remedy, where)


def _path(part: type, place: tuple[int | str, ...]) -> str:
    """The dotted path of pydantic's `loc`, in which its own words for members of unions stand."""
    path: list[str] = []
    outer: type | None = part
    rest = list(place)
    while rest and outer is not None:
        field = next(field for field in fields_of(outer) if field.path == rest[0])
        path.append(str(rest.pop(0)))
        outer = next(
            (member for member in field.parts if not field.members or (rest and kind_of(member) == rest[0])), None
        )
        if field.members and rest:
            rest.pop(0)
    return ".".join([*path, *(str(word) for word in rest if isinstance(word, int) or word.isidentifier())])


def _unwritable(value: object, path: str = "") -> tuple[str, object]:
    """Where the first value is that JSON does not know, and the value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, inner in inside:
        try:
            json.dumps(inner, allow_nan=False)
        except (TypeError, ValueError):
            return _unwritable(inner, f"{path}.{key}" if path else str(key))
    return path, value


def schema(verb: str) -> dict[str, Any]:
    """JSON schema of a verb's question, as `read` takes it."""
    document = _adapter(question_class(verb)).json_schema()
    for part in (part for field in walk(question_class(verb)) for part in field.parts if word_of(part)):
        inner = document["$defs"][part.__name__]
        if "anyOf" not in inner:
            document["$defs"][part.__name__] = {"anyOf": [{"type": ["string", "number"]}, inner]}
    document["properties"] = {"question": {"const": f"{verb}/{QUESTIONS[verb].version}"}, **document["properties"]}
    return document
