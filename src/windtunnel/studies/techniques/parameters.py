"""What the parameters of all techniques have in common: the limits that stand with each field."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import get_type_hints

from windtunnel.errors import SpecError
from windtunnel.questions.typed import check


@cache
def _hints(kind: object) -> dict[str, object]:
    return get_type_hints(kind)


class Parameters:
    """Base of a technique's parameters: keeps `one_of`, `above`, `least` and `most` of fields; None is auto."""

    __slots__ = ()

    def __post_init__(self) -> None:
        fields: tuple[dataclasses.Field[object], ...] = dataclasses.fields(self)  # type: ignore[arg-type]
        kind: object = type(self)
        hints = _hints(kind)
        for field in fields:
            value, rule = getattr(self, field.name), field.metadata
            if value is None:
                continue
            check({field.name: value}, **{field.name: hints[field.name]})
            if "one_of" in rule and value not in rule["one_of"]:
                raise SpecError(field.name, value, f"give one of {', '.join(map(str, rule['one_of']))}")
            above, least, most = (rule.get(name) for name in ("above", "least", "most"))
            if (
                (above is not None and not value > above)
                or (least is not None and not value >= least)
                or (most is not None and not value <= most)
            ):
                low = f"{least:g} or more" if above is None else f"a number above {above:g}"
                raise SpecError(field.name, value, f"give {low}" + (f", at most {most:g}" if most is not None else ""))
