"""What stands in a Kubernetes object, whatever its shape: absent, of another kind or malformed is empty."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron")
Object = Mapping[str, object]


def at(value: object, *keys: str) -> object:
    """What stands under these keys; None where a level is no mapping or lacks it."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping(value: object, *keys: str) -> Object:
    """The mapping under these keys."""
    found = at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def items(value: object, *keys: str) -> list[Object]:
    """The mappings of the list under these keys."""
    found = at(value, *keys)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def text(value: object, *keys: str) -> str:
    """The word or number under these keys, as text."""
    found = at(value, *keys)
    return str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""


def count(value: object, *keys: str, default: int = 1) -> int:
    """The whole number under these keys, below 1e9."""
    found = text(value, *keys)
    return int(found) if found.isdecimal() and len(found) < 10 else default


def time_at(value: object, *keys: str) -> float | None:
    """Seconds since 1970."""
    found = at(value, *keys)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def go_seconds(words: str) -> float | None:
    """Seconds of a duration as Go writes it: 1h2m3.5s."""
    left, total = words, 0.0
    for unit, seconds in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        number, mark, rest = left.partition(unit)
        if mark:
            try:
                total, left = total + float(number) * seconds, rest
            except ValueError:
                return None
    return None if left else total
