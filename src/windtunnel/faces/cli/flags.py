"""Verbs as functions that cyclopts takes, made from their questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter as Argument
from inspect import Signature, signature
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from cyclopts import App, Group, Parameter

from windtunnel.questions.fields import Field, fields_of
from windtunnel.questions.old import renamed
from windtunnel.questions.registry import QUESTIONS, question_class
from windtunnel.questions.words import (
    SET_EXAMPLE,
    flag_fields,
    from_flags,
    parts_from_files,
    positional_of,
    several_places,
)

SET = f"Change one number, e.g. {SET_EXAMPLE}."
ARGUMENTS = Group.create_default_arguments()  # places, which have a flag as well
OUTPUT = Group("Output", sort_key=100)
GROUPS = {  # of verbs that are several: the line of help of them all
    "runs": "List saved runs, newest first; search, tag and delete them.",
    "calibrate": "Measure the device at hand, so that predictions rest on what it really does.",
}
TITLES = {  # of the help of verbs that are several
    "serve": "What a deployment of a model does to its users.",
    "fleet": "Many jobs, one cluster: what each policy makes of a trace.",
}
ON, OFF = ("on", "true", "yes"), ("off", "false", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where an answer goes: no part of a question."""

    report: Annotated[Path | None, Parameter(help="Write a report here: HTML, or Markdown by its suffix.")] = None
    trace: Annotated[Path | None, Parameter(help="Write a timeline for Perfetto here (gzipped Chrome JSON).")] = None
    rows: Annotated[Path | None, Parameter(help="Write the answer's table of rows here, by its suffix.")] = None
    full: Annotated[bool, Parameter(negative="", help="Print all of the answer, not its first screen alone.")] = False
    json: Annotated[bool, Parameter(negative="", help="Print the answer as JSON.")] = False
    out: Annotated[Path, Parameter(help="Where run folders go (runs).")] = Path("runs")
    save: Annotated[bool, Parameter(negative="--no-save", help="Save a run folder.")] = True


@dataclass(frozen=True, slots=True)
class Below:
    """What a file says, over which flags win: the data of parts by their names, and what was not understood in it."""

    parts: Mapping[str, Mapping[str, object]]
    notes: tuple[str, ...] = ()
    path: str = ""
    instead: Mapping[str, object] = field(default_factory=dict)  # flags that the file is, as what they mean


@dataclass(frozen=True, slots=True)
class FlagValues:
    """Flags, files of parts and settings as they stand on the command line."""

    flags: Mapping[str, object]
    files: Mapping[str, str]
    sets: tuple[str, ...]


Reader = Callable[[FlagValues], Below]


def help_of(verb: str) -> str:
    """Its line of help."""
    return GROUPS[verb] if verb in GROUPS else QUESTIONS[verb].text


class Command(NamedTuple):
    """A verb, what answers and prints it, which fields of Outputs it writes, and what reads files below its flags."""

    verb: str
    show: Callable[..., object]
    outputs: Sequence[str] = ("json",)
    reader: Reader | None = None


def app_of(name: str, commands: Sequence[Command], *, everything: bool = False) -> App | Callable[..., object]:
    """What cyclopts is given for a word: its verb, or an application of the verbs that begin with it."""
    if [row.verb for row in commands] == [name]:
        return command(*commands[0], everything=everything)
    made = {row.verb: command(*row, everything=everything) for row in commands}
    below = (made[name].__doc__ or "").removeprefix(help_of(name)) if name in made else ""  # its example
    app = App(
        name=name,
        help=(TITLES.get(name) or help_of(name)) + below,
        default_parameter=Parameter(show_default=False),
        help_format="plaintext",
        result_action="return_value",
    )
    for verb, function in made.items():
        (app.default if verb == name else app.command)(function)
    return app


def command(
    verb: str,
    show: Callable[..., object],
    outputs: Sequence[str] = ("json",),
    reader: Reader | None = None,
    *,
    everything: bool = False,
) -> Callable[..., object]:
    """What cyclopts is given for a verb: it reads the question and calls `show(question, outputs, **own)`.

    `outputs`: those fields of Outputs that it writes. `show` may have keywords of its own, which are flags; a `notes`
    among them is what the reader of files, which `reader` is, did not understand. `everything`: rare flags are listed.
    """
    kind = question_class(verb)
    positional, several = positional_of(kind), several_places(kind)
    own = {
        name: parameter
        for name, parameter in signature(show).parameters.items()
        if parameter.kind is Argument.KEYWORD_ONLY
    }
    takes_notes = own.pop("notes", None) is not None
    hints = get_type_hints(show, include_extras=True)
    groups: dict[str, Group] = {}
    arguments: list[Argument] = []
    names: dict[str, str] = {}  # Python's name of a parameter, and the flag
    place = Argument.POSITIONAL_ONLY if several else Argument.POSITIONAL_OR_KEYWORD
    for name, meanings in flag_fields(kind).items():
        python = name.replace("-", "_") + ("_" if iskeyword(name) else "")
        names[python] = name
        field = meanings[0]
        group = None
        if field.path in positional:
            group = ARGUMENTS
        elif field.about.group:
            group = groups.setdefault(field.about.group, Group(field.about.group, sort_key=len(groups) + 1))
        needed = field.required and all(meaning.required for meaning in meanings) and "." not in field.path
        shown = everything or not all(meaning.about.rare for meaning in meanings)
        if field.path == several:
            words_of: object = Annotated[str, Parameter(help=field.about.text)]
            arguments.append(Argument(python, Argument.VAR_POSITIONAL, annotation=words_of))
            continue
        arguments.append(
            Argument(
                python,
                place if field.path in positional else Argument.KEYWORD_ONLY,
                default=Argument.empty if needed else None,
                annotation=_annotation(name, field, group, shown=shown, needed=needed),
            )
        )
    files = parts_from_files(kind)
    for field in files:
        text: object = Annotated[str | None, Parameter(help=field.about.text)]
        arguments.append(Argument(field.path, Argument.KEYWORD_ONLY, default=None, annotation=text))
    if "set" not in flag_fields(kind):
        has_parts = any(field.parts for field in fields_of(kind))
        setting: object = Annotated[tuple[str, ...], Parameter(name="--set", negative="", help=SET, show=has_parts)]
        arguments.append(Argument("set", Argument.KEYWORD_ONLY, default=(), annotation=setting))
    arguments += [parameter.replace(annotation=hints[name]) for name, parameter in own.items()]
    places = get_type_hints(Outputs, include_extras=True)
    for output in fields(Outputs):
        if output.name in outputs:
            shown = everything or output.name in ("report", "json")
            written: object = Annotated[places[output.name], Parameter(group=OUTPUT, show=shown)]
            arguments.append(Argument(output.name, Argument.KEYWORD_ONLY, default=output.default, annotation=written))
    order = {path: number for number, path in enumerate(positional)}
    arguments.sort(key=lambda argument: order.get(argument.name, len(order)))

    def verb_function(*words: object, **options: Any) -> object:
        options |= zip(positional, words, strict=False)
        if several:
            options[several] = words[len(positional) - 1 :]
        flags = {flag: options[name] for name, flag in names.items() if options.get(name) is not None}
        command_line = FlagValues(
            flags=flags,
            files={field.path: options[field.path] for field in files if options.get(field.path) is not None},
            sets=() if "set" in flags else tuple(options.get("set") or ()),
        )
        below = Below({}) if reader is None else reader(command_line)
        question = from_flags(verb, {**flags, **below.instead}, command_line.sets, below.parts, below.path)
        more = {name: options[name] for name in own if name in options}
        if takes_notes:
            more["notes"] = below.notes
        return show(question, Outputs(**{name: options[name] for name in outputs if name in options}), **more)

    verb_function.__name__ = verb.rpartition(" ")[2]
    row = QUESTIONS[verb]
    verb_function.__doc__ = row.text + (f"\n\nExample: windtunnel {verb} {row.example}" if row.example else "")
    rare = any(all(meaning.about.rare for meaning in meanings) for meanings in flag_fields(kind).values())
    if not everything and (rare or not {*outputs} <= {"report", "json"}):
        verb_function.__doc__ += f"\n\nRarer flags: windtunnel {verb} --help-all"
    verb_function.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
    verb_function.__annotations__ = {argument.name: argument.annotation for argument in arguments}
    return verb_function


def _annotation(name: str, field: Field, group: Group | None, *, shown: bool, needed: bool) -> object:
    about = field.about
    flags = (f"--{name}", *(f"--{alias}" for alias in about.names if not field.parts))
    several = get_origin(field.type) in (tuple, dict) and get_args(field.type)[0] is str
    own = field.type is bool or bool(field.choices)
    kind: Any = tuple[str, ...] if several else field.type if own else str
    options: dict[str, Any] = {"help": about.text, "name": flags, "show": shown, "show_default": False}
    if group is not None:
        options["group"] = group
    if kind is not bool:
        options["negative"] = ""
    if field.type in (int, float) and not about.unit:  # for the help: the question's reader says what is no number
        options["metavar"] = field.type.__name__.upper()
    return Annotated[kind if needed else kind | None, Parameter(**options)]


def spelled(words: Sequence[str]) -> list[str]:
    """The words of a command line as cyclopts takes them: switches spelled out, flags by the names of today."""
    for verb in sorted(QUESTIONS, key=len, reverse=True):  # `serve plan` before `serve`
        parts = verb.split()
        if list(words[: len(parts)]) == parts:
            return [*parts, *switches_spelled_out(verb, renamed(verb, words[len(parts) :]))]
    return list(words)


def switches_spelled_out(verb: str, arguments: Sequence[str]) -> list[str]:
    """`--overlap-tp on` and `--overlap-tp=off` as `--overlap-tp` and `--no-overlap-tp`, as results print them."""
    switches = {f"--{name}" for name, (first, *_) in flag_fields(question_class(verb)).items() if first.type is bool}
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in switches:
            spelled.append(name + equals + value)
            continue
        if not equals and rest and rest[0].lower() in ON + OFF:
            value = rest.pop(0)
        if value.lower() in OFF:
            spelled.append("--no-" + name.removeprefix("--"))
        else:
            spelled.append(name if value.lower() in ("", *ON) else f"{name}={value}")
    return spelled
