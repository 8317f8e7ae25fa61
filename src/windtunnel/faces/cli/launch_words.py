"""Verbs that take a launch line: their own options, torchrun's, the script, and the script's own words after it.

What follows the script is the script's, even `--seed` or `--help`; so the words are parted before they are parsed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_args, get_type_hints

from windtunnel.questions.old import RENAMED
from windtunnel.real.capture.arguments import split_words

_EVERYWHERE = ("--help", "--help-all", "-h", "--version")


def script_apart(words: list[str], verb: Callable[..., object]) -> tuple[list[str], list[str]]:
    """(words to parse, words to pass on as they are, from `--`).

    `verb`: the one that `words` begin with, its options as keyword-only parameters.
    """
    with_value, switches = options_of(verb)
    parted = split_words(words[1:], [*with_value, *RENAMED.get(words[0], ())], (*switches, *_EVERYWHERE))
    at = parted.index("--")
    return [words[0], *parted[:at]], parted[at:] if len(parted) > at + 1 else []


def options_of(verb: Callable[..., object]) -> tuple[list[str], list[str]]:
    """Options of a verb that take a value, and those that take none."""
    hints = get_type_hints(verb, include_extras=True)
    with_value: list[str] = []
    switches: list[str] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[name]
        kind, extras = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", ())
        flags = [flag for extra in extras for flag in getattr(extra, "name", None) or ()]
        flags = flags or ["--" + name.replace("_", "-")]
        if bool in (kind, *get_args(kind)):
            switches += [*flags, *(f"--no-{flag.removeprefix('--')}" for flag in flags)]
        else:
            with_value += flags
    return with_value, switches
