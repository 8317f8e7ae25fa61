"""One test over thousands of cases that each take less than a test of pytest's own: it names all that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import pytest


def over(name: str, cases: Iterable[Any], label: Callable[[Any], str] = str) -> Callable[[Callable[..., None]], Any]:
    """Run a test for each case, given as its argument `name`; the other arguments stay fixtures and parameters."""
    kept = tuple(cases)

    def one_test(check: Callable[..., None]) -> Callable[..., None]:
        def over_all(**fixtures: Any) -> None:
            assert kept, "no cases"
            wrong: dict[str, BaseException] = {}
            skipped: list[str] = []
            for case in kept:
                try:
                    check(**{name: case}, **fixtures)
                except pytest.skip.Exception as reason:
                    skipped.append(f"{label(case)}: {reason}")
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"{name}: {label(case)}")
                    wrong[label(case)] = error
            if wrong:
                raise BaseExceptionGroup(f"{len(wrong)} of {len(kept)}: {', '.join(wrong)}", [*wrong.values()])
            if len(skipped) == len(kept):
                pytest.skip("; ".join(skipped))

        shown = signature(check)
        left = [parameter for parameter in shown.parameters.values() if parameter.name != name]
        over_all.__signature__ = shown.replace(parameters=left)  # type: ignore[attr-defined]
        over_all.__name__, over_all.__doc__, over_all.__module__ = check.__name__, check.__doc__, check.__module__
        return over_all

    return one_test
