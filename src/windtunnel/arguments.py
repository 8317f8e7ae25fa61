"""Arguments of public functions, held against their annotations: what cannot be meant is one SpecError, no traceback.

    @typed
    def sweep(study, *, jobs: int | None = None, ...)         every argument whose annotation is understood

    @typed("slow", "techniques")                            these alone, where the others are read with units

Understood are the names in `_KINDS`, `Literal[...]`, `Sequence[str]`, `tuple[str, ...]`, `Mapping[...]` and unions of
them; a parameter that is annotated with anything else is left alone. A text alone where texts are asked for is a list
of one. Numbers of NumPy are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar, overload

from windtunnel.errors import SpecError

P = ParamSpec("P")
R = TypeVar("R")

_TEXTS = ("Sequence[str]", "tuple[str, ...]")
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: isinstance(value, Integral) and not isinstance(value, bool), "a whole number"),
    "float": (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number"),
    "bool": (lambda value: isinstance(value, bool) or type(value).__name__ == "bool_", "true or false"),
    "str": (lambda value: isinstance(value, str), "text"),
    "Path": (lambda value: isinstance(value, PathLike), "a path"),
    "None": (lambda value: value is None, "nothing"),
    **dict.fromkeys(
        _TEXTS,
        (
            lambda value: (
                isinstance(value, Sequence)
                and not isinstance(value, bytes)
                and all(isinstance(one, str) for one in value)
            ),
            "a list of texts",
        ),
    ),
}
_CLASSES = (
    "CapturedJob",
    "Cluster",
    "Deployment",
    "Jobs",
    "Model",
    "Options",
    "Plan",
    "Profile",
    "Result",
    "Scenario",
    "Workload",
)


@overload
def typed(first: Callable[P, R]) -> Callable[P, R]: ...
@overload
def typed(first: str, *names: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def typed(first: Any, *names: str) -> Any:
    """Of a function, or, by name, of some of its parameters: raises SpecError before it runs."""
    if not isinstance(first, str):
        return _checking(first, ())
    return lambda function: _checking(function, (first, *names))


def texts(field: str, value: object) -> tuple[str, ...]:
    """Texts from a text or several. Raises SpecError."""
    if isinstance(value, str):
        return (value,)
    kind, words = _KINDS[_TEXTS[0]]
    if not kind(value):
        raise SpecError(field, value, f"give {words}")
    return tuple(value)  # type: ignore[arg-type]


def held(field: str, value: object, annotation: str) -> None:
    """Raise SpecError where a value is not what the annotation of its field says; what is not understood is left."""
    kinds = _alternatives(annotation)
    if kinds is not None:
        _held(field, value, {field: kinds})


def _checking(function: Callable[P, R], names: Sequence[str]) -> Callable[P, R]:
    code = function.__code__
    in_order = code.co_varnames[: code.co_argcount]
    several = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & 0x04 else None
    annotated = {name: str(kind) for name, kind in function.__annotations__.items() if name != "return"}
    understood = {name: found for name, kind in annotated.items() if (found := _alternatives(kind)) is not None}
    unknown = set(names) - set(understood)
    assert not unknown, f"{function.__name__}: annotations of {unknown} are not understood"
    kinds = {name: understood[name] for name in names or understood}

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> R:
        named = [_held(name, value, kinds) for name, value in zip(in_order, args, strict=False)]
        rest = [_held(several, value, kinds) for value in args[len(in_order) :]] if several else args[len(in_order) :]
        return function(*named, *rest, **{name: _held(name, value, kinds) for name, value in kwargs.items()})

    return called


def _held(name: str, value: Any, kinds: Mapping[str, Sequence[str]]) -> Any:
    if name not in kinds:
        return value
    for kind in kinds[name]:
        if _is(kind, value):
            return (value,) if isinstance(value, str) and kind in _TEXTS else value
    wanted = [_words(kind) for kind in kinds[name] if kind != "None"]
    raise SpecError(name, value, f"give {' or '.join(dict.fromkeys(wanted))}")


def _alternatives(annotation: str) -> list[str] | None:
    """The members of a union, or None where one of them is not understood. A text is tried before texts."""
    found = [part.strip() for part in re.split(r"\|(?![^\[]*\])", annotation)]
    if all(part in _KINDS or part in _CLASSES or part.startswith(("Literal[", "Mapping[")) for part in found):
        return found
    return None


def _is(kind: str, value: Any) -> bool:
    if kind in _KINDS:
        return _KINDS[kind][0](value)
    if kind.startswith("Literal["):
        return isinstance(value, str) and value in _choices(kind)
    if kind.startswith("Mapping["):
        return isinstance(value, Mapping)
    return any(one.__name__ == kind for one in type(value).__mro__)


def _choices(literal: str) -> list[str]:
    return re.findall(r"[\"']([^\"']*)[\"']", literal)


def _words(kind: str) -> str:
    if kind in _KINDS:
        return _KINDS[kind][1]
    if kind.startswith("Literal["):
        return " or ".join(_choices(kind))
    if kind.startswith("Mapping["):
        return "a mapping"
    return f"a {kind}"
