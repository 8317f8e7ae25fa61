"""Fields of the fleet's YAML files: a site, its clouds, a serving pool. Every mistake is one SpecError."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from windtunnel.errors import SpecError


def known_keys(data: Mapping[str, object], names: Collection[str], where: str) -> None:
    """Raises SpecError for a key that is none of `names`."""
    for key in data:
        if key not in names:
            raise SpecError(str(key), data[key], f"known are {', '.join(sorted(names))}", where)


def number(data: Mapping[str, object], name: str, where: str, default: float | None = None) -> float:
    """A number that is not negative."""
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise SpecError(name, value, "give a number that is not negative", where)
    return float(value)
