"""What stands where in a Kubernetes object, by the names on the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

Object = Mapping[str, object]
ACCELERATORS = (  # resources of whole ones by the names of device plugins, beside any that ends with /gpu
    *("habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron"),
    *("huawei.com/Ascend910", "huawei.com/Ascend310P", "cambricon.com/mlu", "hygon.com/dcu"),
    *("gpu.intel.com/i915", "gpu.intel.com/xe"),  # by their driver; its other resources are parts and monitors
)


def _at(value: object, *keys: str) -> object:
    """What stands under these keys; None where a level is no mapping or lacks it."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def is_whole_gpu(resource: str) -> bool:
    """Whether a resource of this name is whole accelerators."""
    return resource.endswith("/gpu") or resource in ACCELERATORS


def mapping_at(value: object, *keys: str) -> Object:
    """The mapping that stands under these keys; empty where none does."""
    inner = _at(value, *keys)
    return inner if isinstance(inner, Mapping) else {}


def items_at(value: object, *keys: str) -> list[Object]:
    """The mappings of the list under these keys."""
    inner = _at(value, *keys)
    return [each for each in inner if isinstance(each, Mapping)] if isinstance(inner, list) else []


def text_at(value: object, *keys: str) -> str:
    """The text or number under these keys as text; empty where there is none."""
    inner = _at(value, *keys)
    return str(inner) if isinstance(inner, str | int | float) and not isinstance(inner, bool) else ""


def count_at(value: object, *keys: str, default: int = 1) -> int:
    """The whole number under these keys."""
    text = text_at(value, *keys)
    return int(text) if text.isdecimal() and len(text) < 10 else default


def time_at(value: object, *keys: str) -> float | None:
    """Seconds since 1970."""
    inner = _at(value, *keys)
    if isinstance(inner, str):
        try:
            inner = datetime.fromisoformat(inner.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(inner, datetime):
        return None
    return (inner if inner.tzinfo else inner.replace(tzinfo=UTC)).timestamp()
