"""MegaScale's overlap set: group initialisation in `groups`; features are priced in `studies.techniques`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.megascale.groups import make_groups

__all__ = ["make_groups"]
__getattr__ = lazily(__name__, {"make_groups": "groups"})
