"""What stands where in a Kubernetes object, by the names on the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

Object = Mapping[str, object]
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron")


def _at(value: object, *keys: str) -> object:
    """What stands under these keys; None where a level is no mapping or lacks it."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def mapping_at(value: object, *keys: str) -> Object:
    """The mapping that stands under these keys; empty where none does."""
    found = _at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def items_at(value: object, *keys: str) -> list[Object]:
    """The mappings of the list under these keys."""
    found = _at(value, *keys)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def text_at(value: object, *keys: str) -> str:
    """The text or number under these keys as text; empty where there is none."""
    found = _at(value, *keys)
    return str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""


def count_at(value: object, *keys: str, default: int = 1) -> int:
    """The whole number under these keys."""
    text = text_at(value, *keys)
    return int(text) if text.isdecimal() and len(text) < 10 else default


def time_at(value: object, *keys: str) -> float | None:
    """Seconds since 1970."""
    found = _at(value, *keys)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
