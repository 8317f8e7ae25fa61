"""What this process was asked, as the header of its answer says it.

Where an answer goes is no part of the question: two calls that differ in the file they write print the same bytes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

SWITCHES = ("--json", "--no-save")
FILES = (
    *("--report", "--page", "--trace", "--rows", "--tried", "--write-times"),
    *("--requests-out", "--jobs-out", "--decisions-out", "--failures-out"),
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words without where outputs go, and what gives the arguments of the verb by name from them."""

    words: Sequence[str]
    arguments: Callable[[], Mapping[str, Any]]
    begun_s: float = field(default_factory=monotonic)

    @property
    def command(self) -> str:
        """The command line that asks the same."""
        return shlex.join(["windtunnel", *self.words])

    def spec(self) -> dict[str, Any]:
        """The arguments as JSON has them: paths as text, fields of a plan among the others."""
        found: dict[str, Any] = {}
        for name, value in self.arguments().items():
            found |= value.given() if hasattr(value, "given") else {name: value}
        plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return plain


ASKED: ContextVar[CommandLine | None] = ContextVar("ASKED", default=None)


def without_outputs(words: Sequence[str]) -> list[str]:
    """The words of a question alone. `--out` names what is read (`runs/`) but for flows, whose CSV goes there."""
    files = (*FILES, "--out") if list(words[:2]) == ["fleet", "flows"] else FILES
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if name in files:
            if not equals and rest:
                rest.pop(0)
        elif name not in SWITCHES:
            kept.append(word)
    return kept
