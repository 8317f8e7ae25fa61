"""What the parameters of all techniques have in common: the limits that stand with each field."""

from __future__ import annotations

import dataclasses
from typing import Any

from windtunnel.errors import SpecError


class Parameters:
    """Base of a technique's dataclass: `one_of`, `least` and `most` in a field's metadata are kept; None is auto."""

    __slots__ = ()

    def __post_init__(self) -> None:
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self)  # type: ignore[arg-type]
        for field in fields:
            value, rule = getattr(self, field.name), field.metadata
            if value is None:
                continue
            if "one_of" in rule and value not in rule["one_of"]:
                raise SpecError(field.name, value, f"give one of {', '.join(map(str, rule['one_of']))}")
            least, most = rule.get("least", value), rule.get("most", value)
            if not least <= value <= most:
                more = "or more" if "most" not in rule else f"to {most:g}"
                raise SpecError(field.name, value, f"give {least:g} {more}")
