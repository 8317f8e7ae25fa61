"""What a question is made of: fields and parts by their dotted paths, and which member of a union some keys mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, OneOf, kind_of, phrase_of

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a question or of a part of it."""

    path: str  # dotted
    type: Any  # without None and what stands beside it
    optional: bool
    about: About
    default: object  # MISSING where there is none
    members: tuple[type, ...] = ()  # of a union of parts

    @property
    def name(self) -> str:
        """The last word of its path."""
        return self.path.rpartition(".")[2]

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be; empty where it is no choice."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def parts(self) -> tuple[type, ...]:
        """The dataclasses that it may hold."""
        return self.members or ((self.type,) if is_dataclass(self.type) else ())


def fields_of(part: type, prefix: str = "") -> tuple[Field, ...]:
    """The fields of a question or a part, in order; `prefix` goes before their paths."""
    return _fields_of(part, prefix)


@cache
def _fields_of(part: type, prefix: str) -> tuple[Field, ...]:
    hints = get_type_hints(part, include_extras=True)
    return tuple(_field(field, hints[field.name], prefix) for field in fields(part))


def _field(field: Any, annotation: Any, prefix: str) -> Field:
    beside = getattr(annotation, "__metadata__", ())
    about = next((item for item in beside if isinstance(item, About)), About(""))
    bare = annotation.__origin__ if beside else annotation
    kinds = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
    others = tuple(kind for kind in kinds if kind is not NoneType)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    members = others if any(isinstance(item, OneOf) for item in beside) else ()
    kind = others[0] if len(others) == 1 else Union[others]  # noqa: UP007  # of a tuple of types
    return Field(prefix + field.name, kind, NoneType in kinds, about, default, members)


def walk(part: type, prefix: str = "") -> Iterator[Field]:
    """The fields of a question or a part and of all parts in it."""
    for field in fields_of(part, prefix):
        yield field
        for inner in field.parts:
            yield from walk(inner, field.path + ".")


def key_names(part: type) -> dict[str, str]:
    """Each name that a key of a part may have, and the field that it means."""
    return {name: field.path for field in fields_of(part) for name in (field.path, *field.about.names)}


def pick(
    members: tuple[type, ...], mapping: Mapping[str, object], path: str = "", question: type | None = None
) -> type:
    """The member that these keys mean.

    Raises SpecError for a key that has no meaning beside another one, and says whose it is; `path` goes before it.
    """
    prefix = path + "." if path else ""
    if "kind" in mapping:
        for member in members:
            if kind_of(member) == mapping["kind"]:
                return member
        kinds = ", ".join(map(kind_of, members))
        raise SpecError(f"{prefix}kind", mapping["kind"], f"use one of {kinds}")
    keys = set(mapping)
    keys_of = {member: set(key_names(member)) for member in members}
    needed = {
        member: {f.name for f in fields(member) if f.default is MISSING and f.default_factory is MISSING}
        for member in members
    }
    able = [member for member in members if keys <= keys_of[member]]
    complete = [member for member in able if needed[member] <= {key_names(member)[key] for key in keys}]
    if complete:
        return min(complete, key=lambda member: len(keys_of[member]))
    if able:
        return able[0]  # what it lacks is said when it is read
    likely = max(members, key=lambda member: (len(needed[member] & keys), len(keys_of[member] & keys)))
    odd = next(key for key in mapping if key not in keys_of[likely])
    homes = [member for member in members if odd in keys_of[member]]
    if not homes:
        everything = sorted({field for member in members for field in keys_of[member]})
        raise SpecError(prefix + odd, mapping[odd], _unknown_key(odd, everything, question))
    beside = next(key for key in mapping if key in keys_of[likely] and key not in keys_of[homes[0]])
    owner = phrase_of(homes[0])
    remedy = f"has no meaning beside {beside}: it belongs to {owner}; leave one of them out"
    raise SpecError(prefix + odd, mapping[odd], remedy)


def _elsewhere(key: str, question: type | None) -> list[str]:
    """The path of a field of that name in all of a question."""
    fields = () if question is None else walk(question)
    return [field.path for field in fields if key in (field.name, *field.about.names)][:1]


def _unknown_key(key: str, names: list[str], question: type | None) -> str:
    near = get_close_matches(key, names, n=1, cutoff=0.5) or _elsewhere(key, question)
    return f"is not known; did you mean {near[0]}?" if near else f"is not known; known are {', '.join(names)}"


def unknown(part: type, key: str, prefix: str, question: type | None = None) -> str:
    """The remedy for a key that a part does not have: the nearest that it, or its question, has, or all that it has."""
    names = key_names(part)
    near = get_close_matches(key.lower(), names, n=1, cutoff=0.6)
    if not near:  # of another part, where it is the only one of its name
        near = [field.path for field in walk(part) if key in (field.name, *field.about.names)][:1]
    if not near and (near := _elsewhere(key, question)):
        prefix = ""
    if near:
        return f"is not known; did you mean {prefix}{near[0]}?"
    other = {field: [key for key in names if key != field and names[key] == field] for field in names.values()}
    phrases = (f"{field} ({', '.join(keys)})" if keys else field for field, keys in other.items())
    return f"is not known; known are {', '.join(phrases)}"
