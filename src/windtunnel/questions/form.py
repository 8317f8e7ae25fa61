"""A question as the fields of a form, and a form's texts as a question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from windtunnel.errors import SpecError
from windtunnel.questions.about import kind_of, phrase_of, word_of
from windtunnel.questions.changing import nested
from windtunnel.questions.fields import Field, fields_of
from windtunnel.questions.reading import plain, read
from windtunnel.questions.registry import Question, question_class
from windtunnel.units import exact_text

ON, OFF = "on", "off"
Kind = Literal["number", "switch", "choice", "text", "lines", "data"]  # data: JSON, a list or a mapping


@dataclass(frozen=True, slots=True)
class Input:
    """One field of a form; `name` is the dotted path that it sets."""

    name: str
    help: str
    group: str
    kind: Kind
    value: str  # empty: its default
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    required: bool = False
    when: tuple[str, ...] = ()  # the members of a union that it belongs to; empty: of none
    default: str = ""
    rare: bool = False
    phrases: tuple[str, ...] = ()  # what each of its choices is called; empty: as it is

    @property
    def label(self) -> str:
        """What it is called: the last word of its path, or of the part that it names or chooses."""
        outer, _, last = self.name.rpartition(".")
        word = outer.rpartition(".")[2] if last in ("base", "kind") else last
        return ("kind of " * (last == "kind") + word).replace("_", " ")

    @property
    def chooser(self) -> str:
        """The field that says whether it is asked for; empty where it always is."""
        return f"{self.name.rpartition('.')[0]}.kind" if self.when else ""


def inputs(verb: str, question: Question | None = None) -> Iterator[Input]:
    """The fields of a verb's form, filled with what a question states."""
    data = {} if question is None else plain(question)
    yield from _inputs(question_class(verb), data, "", ())


def inputs_of(part: type) -> Iterator[Input]:
    """The fields of a part's form, empty."""
    yield from _inputs(part, {}, "", ())


def _inputs(part: type, data: Mapping[str, Any], prefix: str, when: tuple[str, ...]) -> Iterator[Input]:
    for field in fields_of(part, prefix):
        value = data.get(field.name)
        about = field.about
        if field.members:
            stated = value["kind"] if value else ""
            kinds = tuple(map(kind_of, field.members))
            own: dict[str, Input] = {}  # a field that several members have stands once
            for member in field.members:
                inside = value if value and kind_of(member) == stated else {}
                for entry in _inputs(member, inside, field.path + ".", (kind_of(member),)):
                    other = own.get(entry.name)
                    if other is not None:
                        entry = replace(entry, value=entry.value or other.value, when=other.when + entry.when)
                    own[entry.name] = entry
            first = kinds[0] if field.required else kind_of(field.default) if field.default is not None else ""
            group = about.group or next((entry.group for entry in own.values()), "")
            name = f"{field.path}.kind"
            phrases = tuple(phrase_of(member).partition(" (--")[0] for member in field.members)
            yield Input(
                *(name, about.text, group, "choice", stated, kinds),
                when=when,
                default=first,
                rare=about.rare,
                phrases=phrases,
            )
            yield from own.values()
        elif field.parts:
            inside = value if isinstance(value, Mapping) else {} if value is None else {word_of(field.type): value}
            for entry in _inputs(field.type, inside, field.path + ".", when):
                if about.inside:
                    yield entry
                elif entry.name == f"{field.path}.{word_of(field.type)}":
                    yield replace(entry, help=about.text or entry.help, group=about.group)
                else:  # numbers of what the word names
                    yield replace(entry, group=f"Numbers of the {field.name}".replace("_", " "), rare=True)
        else:
            yield Input(
                name=field.path,
                help=about.text,
                group=about.group,
                kind=_kind(field),
                value=_text(field, value),
                choices=field.choices,
                least=about.least,
                most=about.most,
                required=field.required,
                when=when,
                default="" if field.required else _text(field, field.default),
                rare=about.rare,
            )


def _kind(field: Field) -> Kind:
    if field.choices:
        return "choice"
    if field.type is bool:
        return "switch"
    if field.type is str or field.about.unit:
        return "text" if get_origin(field.type) is None else "data"
    if field.type in (int, float):
        return "number"
    return "lines" if get_origin(field.type) is tuple and get_args(field.type)[0] is str else "data"


def _text(field: Field, value: Any) -> str:
    if value is None or value in ((), []):
        return ""
    if isinstance(value, bool):
        return ON if value else OFF
    if field.about.unit in ("time", "tokens") and isinstance(value, int | float):
        return exact_text(float(value), field.about.unit)
    if _kind(field) == "lines" and all(line and line.strip() == line and line.isprintable() for line in value):
        return "\n".join(value) if not value[0].startswith("[") else json.dumps(value)
    return json.dumps(value) if _kind(field) in ("data", "number", "lines") else str(value)


def of_form(verb: str, texts: Mapping[str, str]) -> Question:
    """The question that a form's texts ask; an empty text is the default. Raises SpecError by the name in the form."""
    fields = {field.name: field for field in inputs(verb)}
    stated: dict[str, object] = {}
    for name, text in texts.items():
        if name not in fields:
            raise SpecError(name, text, "is no field of this form")
        field = fields[name]
        if not text or (field.when and texts.get(f"{_union_of(fields, field)}.kind") not in field.when):
            continue
        stated[name] = value_of(field, text)
    question: Question = read({"question": verb, **nested(stated)})
    return question


def _union_of(entry: Mapping[str, Input], field: Input) -> str:
    """The path of the union that a field belongs to a member of."""
    path = field.name
    while path := path.rpartition(".")[0]:
        if f"{path}.kind" in entry:
            return path
    return ""


def value_of(field: Input, text: str) -> object:
    """A text of a form as plain data; what is no value of the field's kind stays text, which the reader refuses."""
    if field.kind == "switch":
        return {ON: True, OFF: False}.get(text, text)
    if field.kind == "lines" and not text.startswith("["):
        return [line.strip() for line in text.splitlines() if line.strip()]
    if field.kind == "number":
        text = text.replace(",", "").replace("_", "")
    if field.kind == "data" and set(text) <= set("0123456789, "):
        text = f"[{text}]"
    if field.kind in ("number", "data", "lines"):
        try:
            return json.loads(text)
        except ValueError:
            return text  # the reader says what is wanted
    return text
