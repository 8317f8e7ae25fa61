"""What stands beside a field of a question: one help text, its limits, its unit. All doors are made from these.

    tp: Annotated[int, About("Tensor-parallel degree.", "Layout", least=1)] = 1

Nothing of pydantic is imported here: it asks `About` and `OneOf` for their rules when something is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_args

from windtunnel import units
from windtunnel.errors import SpecError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


STRICT: Mapping[str, str] = {"extra": "forbid"}  # `__pydantic_config__` of every part
Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def part(declared: type[Made]) -> type[Made]:
    """A question, or a part of one: a frozen dataclass by keywords, of which a key that is not known is a mistake."""
    declared.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return dataclass(frozen=True, slots=True, kw_only=True)(declared)


@dataclass(frozen=True, slots=True)
class About:
    """Help, group, limits and other names of one field."""

    text: str
    group: str = ""
    least: float | None = None
    most: float | None = None
    names: tuple[str, ...] = ()  # other names that mean the same: of its key, and with dashes of its flag
    unit: str = ""  # a key of UNITS: a text with that unit is a number
    flag: str = ""  # its flag without dashes, where that is not the field's name
    inside: bool = False  # the part's own fields are flags
    rare: bool = False  # listed by `--help-all` only
    bare_most: float | None = None  # of a time: the most seconds that a text without a unit can mean
    meant: Callable[[str], str] | None = None  # of a choice: advice on a word that is none of them, or nothing

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        inner = handler(source)
        if self.unit:
            inner = core_schema.no_info_before_validator_function(self.in_base_unit, inner)
        if self.least is None and self.most is None:
            return inner
        return core_schema.no_info_after_validator_function(self.within_limits, inner)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        for number in described.get("anyOf", [described]):
            if number.get("type") in ("integer", "number"):
                limits = {"minimum": self.least, "maximum": self.most}
                number |= {name: limit for name, limit in limits.items() if limit is not None}
        if self.unit:
            kinds = described.pop("anyOf", None) or [{name: described.pop(name) for name in _NUMBER & set(described)}]
            text = {"type": "string", "description": f"with its unit, such as {UNITS[self.unit].example}"}
            base = {"description": UNITS[self.unit].base} if UNITS[self.unit].base else {}
            kinds = [kind | base if kind.get("type") in ("integer", "number") else kind for kind in kinds]
            described = {**described, "anyOf": [text, *kinds]}
        return {**described, "description": self.text} if self.text else described

    def in_base_unit(self, value: object) -> object:
        """A text with a unit as its number; of a mapping each value. Raises ValueError with the remedy."""
        if isinstance(value, Mapping):
            return {key: self.in_base_unit(inner) for key, inner in value.items()}
        if not isinstance(value, str):  # of a document, whose numbers are in base units
            return value
        try:
            number = UNITS[self.unit].parse(value)
        except SpecError as error:
            raise ValueError(error.remedy) from None
        text = value.strip()
        if self.bare_most is not None and number > self.bare_most and not text[-1:].isalpha():
            raise ValueError(f"without a unit it is seconds: give {text}ms, or {text}s where that is meant")
        return number

    def within_limits(self, value: object) -> object:
        """The value. Raises ValueError with the remedy where it is below `least` or above `most`."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.least is not None and not value >= self.least:
                raise ValueError(f"give {self.least} or more")
            if self.most is not None and not value <= self.most:
                raise ValueError(f"give {self.most} or less")
        return value


_NUMBER = {"type", "minimum", "maximum", "exclusiveMinimum", "additionalProperties"}


@dataclass(frozen=True, slots=True)
class Unit:
    """How a text becomes a number, an example of one, and what a bare number counts."""

    parse: Callable[[object], float]
    example: str
    base: str


UNITS: Mapping[str, Unit] = {
    "bandwidth": Unit(units.parse_bandwidth, "800Gb/s", "bytes per second"),
    "bytes": Unit(units.parse_bytes, "80GiB", "bytes"),
    "count": Unit(units.parse_count, "8,192", ""),
    "flops": Unit(units.parse_flops, "989TFLOP/s", "FLOP per second"),
    "share": Unit(units.parse_share, "2%", "of 1"),
    "time": Unit(units.parse_time, "50ms", "seconds"),
    "tokens": Unit(units.parse_tokens, "15T", "tokens"),
}


@dataclass(frozen=True, slots=True)
class OneOf:
    """Marks a union of parts: `kind` says which of them is meant, or else the keys that are given do (`pick`).

    A member has `kind` and `phrase`, what errors call it.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        # `read` writes `{kind: part}`: a validator ahead of a part would turn JSON, whose lists are tuples, to Python.
        members = {
            member.kind: core_schema.typed_dict_field(handler(member), required=False) for member in get_args(source)
        }
        inner = core_schema.typed_dict_schema(members, extra_behavior="forbid")
        return core_schema.no_info_after_validator_function(lambda value: next(iter(value.values())), inner)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        members = {kind: handler(member["schema"]) for kind, member in schema["schema"]["fields"].items()}
        for kind, described in members.items():
            part = handler.resolve_ref_schema(described)
            part["properties"] = {"kind": {"const": kind}, **part["properties"]}
        return {"oneOf": list(members.values())}


def kind_of(part: Any) -> str:
    """What names a member of a union, given the member or a part of its type."""
    return str(part.kind)


def word_of(part: object) -> str | None:
    """The field of a part that a word alone stands for; None where no word does."""
    word: str | None = getattr(part, "word", None)
    return word


def phrase_of(member: type) -> str:
    """What errors call a member of a union."""
    return str(getattr(member, "phrase", kind_of(member)))
