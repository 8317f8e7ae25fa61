"""A question with dotted paths replaced: what-if, sweeps, advice, `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_origin

from windtunnel.errors import SpecError
from windtunnel.questions.about import kind_of, word_of
from windtunnel.questions.fields import Field, fields_of, key_names, pick, unknown
from windtunnel.questions.reading import plain, read
from windtunnel.questions.registry import Asked


def changed(question: Asked, changes: Mapping[str, object]) -> Asked:
    """The question with dotted paths replaced, read again: `{"plan.tp": 4, "cluster.nic": "800Gb/s"}`.

    None takes a path back to its default; a `+` behind a path adds to a list. A field of a part whose fields are flags
    may stand without the part (`tp`). A key of another member of a union turns the union to that member. Raises
    SpecError that names the path as it is given.
    """
    data = plain(question)
    paths = set_paths(data, type(question), changes)
    try:
        changed_question: Asked = read(data)
    except SpecError as error:
        raise SpecError(as_given(error.field, paths), error.value, error.remedy) from None
    return changed_question


def set_paths(data: dict[str, Any], kind: type, changes: Mapping[str, object]) -> dict[str, str]:
    """Sets dotted paths in a question's plain data. Of each by its fields' own names how it is given."""
    return {".".join(_set(data, kind, path, value)): path for path, value in changes.items()}


def nested(inputs: Mapping[str, object]) -> dict[str, object]:
    """`{"plan.tp": 4}` as `{"plan": {"tp": 4}}`. Raises SpecError where a name is both a value and a mapping."""
    tree: dict[str, object] = {}
    for name, value in deepcopy(dict(inputs)).items():  # what is written into here may be shared
        *outer, last = name.split(".")
        inside = tree
        for part in outer:
            below = inside.setdefault(part, {})
            if not isinstance(below, dict):
                raise SpecError(name, value, f"{part} is already given as a whole")
            inside = below
        inside[last] = value
    return tree


def as_given(path: str, paths: Mapping[str, str]) -> str:
    """A path, as `paths` has it or one that it lies in."""
    return next((setting for whole, setting in paths.items() if f"{path}.".startswith(f"{whole}.")), path)


def _set(data: dict[str, Any], part: type, path: str, value: object) -> list[str]:
    """Sets a path in plain data; the path by the fields' own names."""
    adds = path.endswith("+")
    head, *rest = path.removesuffix("+").split(".")
    names = key_names(part)
    if head not in names:
        homes = [field.path for field in fields_of(part) if field.about.inside and _holds(field, head)]
        if len(homes) != 1:
            raise SpecError(path, value, unknown(part, head, ""))
        head, rest = homes[0], [head, *rest]
    outer, inside = part, data
    walked: list[str] = []
    while True:
        field = next((field for field in fields_of(outer) if field.path == key_names(outer).get(head)), None)
        if field is None:
            raise SpecError(path, value, unknown(outer, head, ".".join(walked) + "." if walked else ""))
        walked.append(field.path)
        if not rest:
            break
        if field.parts:
            if field.members and rest == ["kind"]:
                member = pick(field.members, {"kind": value}, ".".join(walked))
                _inside(inside, field, member)
                return [*walked, "kind"]
            member = _member(inside, field, rest[0])
            inside, outer = _inside(inside, field, member), member
        elif get_origin(field.type) is dict:
            mapping = dict(inside.get(field.path) or {})
            mapping[".".join(rest)] = value
            inside[field.path] = mapping
            return [*walked, *rest]
        else:
            raise SpecError(path, value, f"{'.'.join(walked)} holds no {rest[0]}")
        head, *rest = rest
    if adds:
        if get_origin(field.type) is not tuple:
            raise SpecError(path, value, f"{'.'.join(walked)} is no list: leave out the +")
        value = [*inside.get(field.path, []), *(value if isinstance(value, list | tuple) else [value])]
    if value is None:
        inside.pop(field.path, None)
    else:
        inside[field.path] = value
    return walked


def _holds(field: Field, name: str) -> bool:
    return any(name in key_names(member) for member in field.parts)


def _inside(data: dict[str, object], field: Field, member: type) -> dict[str, object]:
    """The plain data of a part, which is put there where there is none, with the fields that `member` knows."""
    inner = data.get(field.path)
    if inner is None:
        inner = {}
    elif not isinstance(inner, dict):
        inner = {str(word_of(field.type)): inner}
    if field.members:
        inner = {name: value for name, value in inner.items() if name in key_names(member)}
        inner["kind"] = kind_of(member)
    data[field.path] = inner
    return inner


def _member(data: Mapping[str, Any], field: Field, key: str) -> type:
    """The part that is there, or the member of its union that knows `key`."""
    if not field.members:
        part: type = field.parts[0]
        return part
    inner = data.get(field.path)
    homes: list[type] = [member for member in field.members if key in key_names(member)]
    now = pick(field.members, inner) if inner else field.default.__class__
    return now if now in homes or not homes else homes[0]
