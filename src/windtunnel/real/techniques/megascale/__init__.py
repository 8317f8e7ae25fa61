"""MegaScale's overlap set: features as changes of model and plan in `features`, group initialisation in `groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.megascale.groups import make_groups

__all__ = ["make_groups"]
__getattr__ = lazily(__name__, {"make_groups": "groups"})
