"""MegaScale's overlap set: features as changes of model and plan in `features`, group initialisation in `groups`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.techniques.megascale.groups import make_groups

__all__ = ["make_groups"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.groups"), name)
