"""Fields of a pool's file, each by its place in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windtunnel.errors import SpecError
from windtunnel.units import parse_time


def mapping_at(body: object, where: str) -> Mapping[str, Any]:
    """A mapping with an entry at least. Raises SpecError."""
    if not isinstance(body, dict) or not body:
        raise SpecError(where, body, "give a mapping that holds at least one entry")
    return {str(key): value for key, value in body.items()}


def known_keys(body: Mapping[str, object], names: tuple[str, ...], where: str) -> None:
    """Raises SpecError for a key that is none of `names`."""
    for key in body:
        if key not in names:
            raise SpecError(f"{where}.{key}", body[key], f"unknown; known are {', '.join(names)}")


def needed(body: Mapping[str, object], key: str, where: str) -> str:
    """The text of a key that has to be there. Raises SpecError."""
    if body.get(key) is None:
        raise SpecError(f"{where}.{key}", None, "is needed")
    return str(body[key])


def whole(value: Any, where: str, least: int, most: int) -> int:
    """A whole number between two. Raises SpecError."""
    try:
        number = int(value) if not isinstance(value, bool) and int(value) == float(value) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not least <= number <= most:
        raise SpecError(where, value, f"give a whole number of {least} to {most}")
    return number


def nanoseconds(value: object, where: str) -> int:
    """A time as people write it. Raises SpecError."""
    return round(1e9 * parse_time(value, where))


def parsed_slo(text: str | None) -> dict[str, float]:
    """`ttft=1s,tpot=50ms` in seconds. Raises SpecError."""
    limits: dict[str, float] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        key = f"{name.strip().lower()}_s"
        if not equals or key not in ("ttft_s", "tpot_s"):
            raise SpecError("slo", text, "write ttft=1s,tpot=50ms")
        limits[key] = parse_time(value.strip(), "slo")
        if limits[key] <= 0.0:
            raise SpecError("slo", text, "a limit is above zero")
    return limits
