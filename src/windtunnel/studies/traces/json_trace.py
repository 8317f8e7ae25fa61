"""A trace that was written as JSON, before anyone reads what its events mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BLANK = re.compile(r"[\s,]*")


@dataclass(frozen=True, eq=False)
class JsonTrace:
    """One file: its events (Kineto) or nodes (Chakra), and what else its top level holds."""

    path: Path
    items: Sequence[object]
    is_kineto: bool
    top: dict[str, object]
    notes: tuple[str, ...] = ()


def whole_values(text: str, at: int) -> tuple[list[object], bool]:
    """The JSON values that follow each other from `at` on, commas between them or not; and whether the text ends so."""
    decoder = json.JSONDecoder()
    values: list[object] = []
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank else at
        if at >= len(text):
            return values, True
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return values, False
        values.append(value)
