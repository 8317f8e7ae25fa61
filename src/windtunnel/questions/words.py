"""A question as the words of a command line, and flags as a question.

Each field of a question is a flag, but for parts: of one the fields are flags (`About.inside`), of another, that a word
names, the word alone. What has no flag is said with `--set PATH=VALUE`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from typing import Any, get_args, get_origin

from windtunnel import units
from windtunnel.errors import SpecError
from windtunnel.files.document import value_of
from windtunnel.questions.about import kind_of, word_of
from windtunnel.questions.changing import as_given, changed, nested, set_paths
from windtunnel.questions.fields import Field, fields_of, pick, walk
from windtunnel.questions.reading import plain, read
from windtunnel.questions.registry import Asked, Question, question_class

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_-]*")
SET_EXAMPLE = "cluster.nic=800Gb/s or model.layers=64"


def flag_fields(question: type) -> Mapping[str, tuple[Field, ...]]:
    """The fields that each flag may mean, by the flag without dashes: several where members of a union share one."""
    return _flag_fields(question)


@cache
def _flag_fields(question: type) -> Mapping[str, tuple[Field, ...]]:
    flags: dict[str, tuple[Field, ...]] = {}

    def add(part: type, prefix: str) -> None:
        for field in fields_of(part, prefix):
            if field.about.inside:
                for inner in field.parts:
                    add(inner, field.path + ".")
            else:
                name = field.about.flag or field.name.replace("_", "-")
                flags[name] = (*flags.get(name, ()), field)

    add(question, "")
    return flags


def positional_of(question: Question | type[Question]) -> tuple[str, ...]:
    """The fields of a question that are given without a flag, in order."""
    return question.positional


def several_places(question: type[Question]) -> str:
    """The field that takes all words from its place on: the last one, where that is a list; empty where none is."""
    last = question.positional[-1:]
    field = next((field for field in fields_of(question) if field.path in last), None)
    return "" if field is None or get_origin(field.type) is not tuple else field.path


def parts_from_files(question: type) -> tuple[Field, ...]:
    """Parts whose fields are flags and that a file may give as well: those with a text of their own."""
    return tuple(field for field in fields_of(question) if field.about.inside and field.about.text)


def from_flags(
    verb: str,
    flags: Mapping[str, object],
    sets: Sequence[str] = (),
    below: Mapping[str, Mapping[str, object]] | None = None,
    where: str = "",
) -> Question:
    """The question that flags ask: by their names without dashes, as texts, switches and lists of texts.

    `sets`: what `--set` says, which wins; `below`: data of parts, over which flags win, from the file `where`. Raises
    SpecError that names the flag, or the file.
    """
    kind = question_class(verb)
    fields = flag_fields(kind)
    stated: dict[str, object] = dict(below or {})
    flag_of: dict[str, str] = {}
    for name, value in flags.items():
        field = fields[name][0]
        flag_of |= dict.fromkeys((meaning.path for meaning in fields[name]), _flag(kind, name, field))
        stated[field.path] = _value(field, value)
    data = nested(stated)
    try:
        paths = set_paths(data, kind, settings(sets))
    except SpecError as error:
        raise SpecError(error.field, error.value, error.remedy, "--set") from None
    try:
        question: Question = read({"question": verb, **data})
        return question
    except SpecError as error:
        setting = as_given(error.field, paths)
        if setting == error.field and isinstance(error.value, Mapping):  # one value of a mapping was set
            setting = next((path for whole, path in paths.items() if whole.startswith(f"{setting}.")), setting)
        if setting != error.field or setting in paths.values():
            value = settings(sets).get(setting, error.value)
            raise SpecError(setting, value, error.remedy, "--set") from None
        part, _, name = error.field.partition(".")
        if error.value is not None and error.field not in flag_of and name in (below or {}).get(part, ()):
            raise SpecError(name, error.value, error.remedy, where) from None
        raise _of_flag(error, kind, flag_of) from None


def with_settings(question: Asked, texts: Sequence[str]) -> Asked:
    """The question with what `--set` says. Raises SpecError."""
    changes = settings(texts)
    try:
        return changed(question, changes)
    except SpecError as error:
        raise SpecError(error.field, error.value, error.remedy, error.where or "--set") from None


def settings(texts: Sequence[str]) -> dict[str, object]:
    """What `--set PATH=VALUE` says, by path; of one that is given twice the last holds. Raises SpecError."""
    changes: dict[str, object] = {}
    for text in texts:
        path, value = read_setting(text)
        changes.pop(path, None)
        changes[path] = value
    return changes


def read_setting(text: str) -> tuple[str, object]:
    """The path and the value of `PATH=VALUE`. Raises SpecError."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise SpecError("--set", text, f"write PATH=VALUE, such as {SET_EXAMPLE}")
    return path.strip(), value_of(value)


def words(question: Question) -> list[str]:
    """What asks the question again: flags where there are, and `--set` for what is changed of named parts."""
    kind, data = type(question), plain(question)
    del data["question"]
    flags = {field.path: name for name, fields in flag_fields(kind).items() for field in fields}
    field_of = {field.path: field for field in walk(kind)}
    order = positional_of(kind)
    places: dict[str, list[str]] = {path: [] for path in order}
    part_words, sets, others = [], [], []
    for path, value in _flat(data, flags, field_of):
        if path not in flags:
            sets += ["--set", f"{_short(kind, path)}={_value_text(field_of.get(path), value)}"]
        elif path in order:
            places[path] = [str(word) for word in value] if isinstance(value, list) else [str(value)]
        elif field_of[path].parts:
            part_words += _flag_words(flags[path], field_of[path], value)
        else:
            others += _flag_words(flags[path], field_of[path], value)
    for path, kind_name in _ambiguous_unions(kind, data):
        sets += ["--set", f"{path}.kind={kind_name}"]
    last = places.pop(several_places(kind), [])  # behind flags, as a script's words are
    ahead = ["--"] if any(word.startswith("-") for word in last) else []
    return [*(word for place in places.values() for word in place), *part_words, *sets, *others, *ahead, *last]


def command(question: Question) -> str:
    """`words` as a line for a shell, with the program and the verb."""
    return f"windtunnel {question.verb} {shlex.join(words(question))}"


def _flag(kind: type, name: str, field: Field) -> str:
    return field.path if field.path in positional_of(kind) else f"--{name}"


def _of_flag(error: SpecError, kind: type, flag_of: Mapping[str, str]) -> SpecError:
    """An error that names flags, given or to be given, in place of paths."""
    own = {field.path: _flag(kind, name, field) for name, fields in flag_fields(kind).items() for field in fields}
    flags = {**own, **flag_of}
    path = next((path for path in flags if f"{error.field}.".startswith(f"{path}.")), "")
    if error.value is None and path and path not in flag_of:
        files = [
            parts_from_file.path for parts_from_file in parts_from_files(kind) if path.startswith(parts_from_file.path)
        ]
        field = next(field for field in walk(kind) if field.path == path)
        value = "N" if _is_number(field.type) else f"({field.about.text.rstrip('.')})"
        word = flags[path] if flags[path] != path else f"{path.upper()} without a flag"
        remedy = f"add {word} {value}{f', or put it in the {files[0]} file' if files else ''}"
        return SpecError(path.rpartition(".")[2], None, remedy, error.where)
    remedy = error.remedy
    for field in walk(kind):
        if field.path in flags:
            remedy = remedy.replace(f"beside {field.name}:", f"beside {flags[field.path]}:")
    return SpecError(flags[path] + error.field[len(path) :] if path else error.field, error.value, remedy, error.where)


def _value(field: Field, value: object) -> object:
    """A flag's value as plain data. What is no number stays text, which the reader refuses."""
    kind = get_origin(field.type) or field.type
    if isinstance(value, str):
        if kind is tuple and get_args(field.type)[0] is int:
            return [_number(part.strip()) for part in value.split(",")]
        return value if field.about.unit or not _is_number(field.type) else _number(value)
    if kind is dict and isinstance(value, Sequence):
        return dict(read_setting(text) for text in value)
    return list(value) if isinstance(value, tuple) else value


def _is_number(kind: object) -> bool:
    return any(_is_number(argument) for argument in get_args(kind)) if get_args(kind) else kind in (int, float)


def _number(text: str) -> int | float | str:
    for kind in (int, float) if text.isascii() else ():
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if isfinite(number) else text
    return text


def _flat(
    data: Mapping[str, Any], flags: Mapping[str, str], entry: Mapping[str, Field], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    """Every value of plain data by its path; of a part that a word names the word, then what is changed."""
    for key, value in data.items():
        path = prefix + key
        field = entry.get(path)
        part = field is not None and bool(field.parts)
        if key == "kind" and prefix:
            continue
        if not part:
            spelled = isinstance(value, dict) and path not in flags and value and all(map(_PLAIN_KEY.fullmatch, value))
            yield from ((f"{path}.{name}", inner) for name, inner in value.items()) if spelled else ((path, value),)
            continue
        if not isinstance(value, dict):
            yield path, value
            continue
        inside = dict(value)
        if path in flags and field is not None and is_dataclass(field.type):
            word = word_of(field.type)
            if word in inside:
                yield path, inside.pop(word)
        yield from _flat(inside, flags, entry, path + ".")


def _ambiguous_unions(part: type, data: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Paths of the unions whose member cannot be told from its keys, and the kind of that member."""
    for field in fields_of(part):
        inner = data.get(field.path)
        if not isinstance(inner, Mapping) or not field.parts:
            continue
        member, path = field.parts[0], prefix + field.path
        if field.members:
            member = pick(field.members, inner)
            if pick(field.members, {key: entry for key, entry in inner.items() if key != "kind"}) is not member:
                yield path, kind_of(member)
        yield from _ambiguous_unions(member, inner, path + ".")


def _flag_words(name: str, field: Field, value: Any) -> list[str]:
    kind = get_origin(field.type) or field.type
    if kind is dict:
        return [word for key, entry in value.items() for word in (f"--{name}", f"{key}={_yaml(entry)}")]
    if isinstance(value, list) and get_args(field.type)[0] is not int:
        return [word for entry in value for word in _flag_words(name, field, entry)]
    text = ",".join(map(str, value)) if isinstance(value, list) else _text(value)
    if field.about.unit == "time" and isinstance(value, int | float):
        text = units.exact_text(float(value), "time")
        if field.about.bare_most is not None and value > field.about.bare_most and text[-1:].isdigit():
            text += "s"
    elif field.about.unit == "tokens" and isinstance(value, int):
        text = units.exact_text(value, "tokens")
    # A value with a leading dash would be read as the next flag.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r}" if isinstance(value, float) else str(value)


def _value_text(field: Field | None, value: Any) -> str:
    """A value of `--set`, with its unit where that is exact."""
    if field is not None and field.parts and not isinstance(value, Mapping):
        field = next(inner for inner in fields_of(field.parts[0]) if inner.path == word_of(field.parts[0]))
    if field is not None and field.about.unit and not isinstance(value, Mapping):
        return units.exact_text(value, field.about.unit)
    return _yaml(value)


def _short(kind: type, path: str) -> str:
    """A path by the short names of its fields: `cluster.nic` for `cluster.scale_out`."""
    names, part = [], kind
    rest = path.split(".")
    while rest:
        field = next((field for field in fields_of(part) if field.path == rest[0]), None)
        if field is None:
            break
        names.append(field.about.names[0] if field.about.names else field.path)
        rest.pop(0)
        if not field.parts:
            break
        holders = [
            member for member in field.parts if rest and any(inner.path == rest[0] for inner in fields_of(member))
        ]
        part = [*holders, *field.parts][0]
    return ".".join([*names, *rest])


def _yaml(value: object) -> str:
    """One value as YAML reads it back: JSON, but for floats without a dot, which YAML 1.1 takes for text."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_yaml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)
