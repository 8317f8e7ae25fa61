"""Attributes of modules and classes that are replaced for a while, and functions that run within a context."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

Context = Callable[[], AbstractContextManager[object]]


def in_context(context: Context, function: Callable[..., object]) -> Callable[..., object]:
    """A function every call of which is in a context of its own."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with context():
            return function(*args, **kwargs)

    return run


class Replacements:
    """Replaces attributes; `undo`, or leaving the context, puts back what was there, last first.

    with Replacements((module, "name", value), ...):
        ...
    """

    def __init__(self, *triples: tuple[object, str, object]) -> None:
        self._undo = ExitStack()
        for owner, name, value in triples:
            self.set(owner, name, value)

    def set(self, owner: object, name: str, value: object) -> None:
        """`owner.name = value` until `undo`; `owner` is a module or a class, one of pybind11 too."""
        own = vars(owner)
        if name in own:
            self._undo.callback(setattr, owner, name, own[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        self._undo.close()

    def __enter__(self) -> Replacements:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
