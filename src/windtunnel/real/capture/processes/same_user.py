"""A rank stays the user that it was started as: what it leaves lies where no other user may go.

A script that gives up being root would lose its messages, its log and its outcome with it. What it asks for is told
when it looks, and nothing else changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from windtunnel.real.capture.replacements import Replacements

_FIELDS = {"uid": ("u", "eu", "su"), "euid": ("eu",), "reuid": ("u", "eu"), "resuid": ("u", "eu", "su")}
_OTHERS = ("setgroups", "initgroups")


def user_stays(note: Callable[[str], None]) -> Replacements:
    """Until `undo`, `os.setuid` and its likes change what `os.getuid` and its likes say; where this process is root."""
    replaced = Replacements()
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return replaced  # the system says no, as it would anywhere
    ids: dict[str, int] = {}  # that the script has set

    def say(name: str) -> None:
        note(f"os.{name} changes only what the script is told: the rank stays the user that it was started as")

    def setter(name: str, fields: tuple[str, ...]) -> Callable[..., None]:
        def change(*numbers: int) -> None:
            say(name)
            each = numbers * len(fields) if len(numbers) == 1 else numbers
            ids.update({field: number for field, number in zip(fields, each, strict=True) if number != -1})

        return change

    def getter(field: str, before: Callable[[], int]) -> Callable[[], int]:
        return lambda: ids.get(field, before())

    def getter_of_three(letter: str, before: Callable[[], tuple[int, int, int]]) -> Callable[[], tuple[int, ...]]:
        return lambda: tuple(
            ids.get(f"{of}{letter}", number) for of, number in zip(("", "e", "s"), before(), strict=True)
        )

    for kind in ("uid", "gid"):
        for word, fields in _FIELDS.items():
            name = f"set{word.replace('uid', kind)}"
            if hasattr(os, name):  # not every system sets the saved one
                replaced.set(os, name, setter(name, tuple(field.replace("u", kind[0]) for field in fields)))
        for short in ("", "e"):
            name = f"get{short}{kind}"
            replaced.set(os, name, getter(f"{short}{kind[0]}", getattr(os, name)))
        if hasattr(os, name := f"getres{kind}"):
            replaced.set(os, name, getter_of_three(kind[0], getattr(os, name)))
    for name in _OTHERS:
        replaced.set(os, name, lambda *_, name=name: say(name))
    return replaced
