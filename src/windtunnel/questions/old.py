"""Questions as they were written before: command lines of old runs, and flags that have another name today.

The only file that splits a command line. It goes one minor release after the change.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from windtunnel.errors import SpecError, UserError
from windtunnel.questions import former
from windtunnel.questions.reading import read
from windtunnel.questions.registry import QUESTIONS, Question, question_class
from windtunnel.questions.words import flag_fields, from_flags, positional_of, several_places

RENAMED: Mapping[str, Mapping[str, str]] = {  # verb -> flag of before -> flag of today
    "predict": {"--ops": "--rows"},
    "plan": {"--techniques": "--technique", "--tried": "--rows"},
    "survive": {"--gpu-hour": "--price", "--observed": "--log"},
    "run": {"--write-times": "--rows"},
    "compare": {"--out": "--runs"},
    "whatif": {"--out": "--runs"},
    "runs list": {"--out": "--runs"},
    "runs tag": {"--out": "--runs"},
    "runs delete": {"--out": "--runs"},
    "validate": {"--page": "--report", "--workers": "--jobs"},
    "survive spot": {"--gpu-hour": "--price", "--spot-gpu-hour": "--spot-price", "--decisions-out": "--rows"},
}


SPOT = "it belongs to `windtunnel survive spot MACHINES.csv`"
GONE: Mapping[str, Mapping[str, str]] = {  # verb -> flag of before -> where it went
    "survive": dict.fromkeys(
        ("--spot", "--tables", "--forecast", "--look-ahead", "--spot-gpu-hour", "--decisions-out"), SPOT
    ),
}


def renamed(verb: str, words: Sequence[str]) -> list[str]:
    """The words of a verb with the names that flags have today. Raises SpecError on one that went elsewhere."""
    names, elsewhere = RENAMED.get(verb, {}), GONE.get(verb, {})
    for word in words:
        name = word.partition("=")[0]
        if name in elsewhere:
            raise UserError(f"{name}: {elsewhere[name]}")
    parts = [(word, *word.partition("=")) for word in words]
    return [names[name] + equals + value if name in names else word for word, name, equals, value in parts]


def question_of(document: Mapping[str, Any]) -> Any:
    """The question that gave an answer, from its document: its own, or that of its command line.

    Raises UserError where neither says it.
    """
    if document.get("question"):
        return read(document["question"])
    return question_of_command(str(document.get("reproduce") or ""))


def question_of_command(line: str) -> Question:
    """The question that a command line asks. Raises UserError where it asks none."""
    try:
        program, *words = shlex.split(line)
    except ValueError:
        program, words = "", []
    words = former.renewed(words)
    for verb in sorted(QUESTIONS, key=len, reverse=True):  # `serve plan` before `serve`
        parts = verb.split()
        if program == "windtunnel" and words[: len(parts)] == parts:
            return _question(verb, renamed(verb, words[len(parts) :]))
    raise UserError("it does not say by which question it was made")


def _question(verb: str, words: list[str]) -> Question:
    kind = question_class(verb)
    names: dict[str, str] = {}
    for name, (first, *_) in flag_fields(kind).items():
        names |= {f"--{other}": name for other in (name, *first.about.names)}
    flags: dict[str, Any] = {}
    sets: list[str] = []
    several = several_places(kind)
    places = iter(positional_of(kind))
    rest, ended = list(words), False
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--" and not ended:
            ended = True
            continue
        if ended or not word.startswith("--"):
            place = several if several in flags else next(places, None)
            if place == several:
                flags[place] = (*flags.get(place, ()), word)
                continue
            if place is None:
                raise SpecError("command", word, "nothing takes this word")
            flags[place] = word
            continue
        option = name if name in names or name == "--set" else f"--{name.removeprefix('--no-')}"
        if option not in names and option != "--set":
            raise SpecError("command", word, "is no flag of this question")
        if option == "--set" and option not in names:
            sets.append(value if equals else rest.pop(0) if rest else "")
            continue
        flag = names[option]
        field = flag_fields(kind)[flag][0]
        if field.type is bool:
            if not equals and rest and rest[0] in ("true", "false"):
                value = rest.pop(0)
            flags[flag] = option == name and value != "false"
            continue
        if not equals:
            if not rest:
                raise SpecError("command", word, "has no value")
            value = rest.pop(0)
        repeatable = str(field.type).startswith(("tuple[str", "dict"))
        flags[flag] = (*flags.get(flag, ()), value) if repeatable else value
    return from_flags(verb, flags, sets)
