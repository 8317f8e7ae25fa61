"""Threshold and sparse gradients: the DDP communication hook in `ddp_hook`; priced in `studies.techniques`.

from windtunnel.real.techniques import sparse_gradients

state = sparse_gradients.apply(ddp, ratio=0.05)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.sparse_gradients.ddp_hook import State, apply, hook

__all__ = ["State", "apply", "hook"]
__getattr__ = lazily(__name__, {"State": "ddp_hook", "apply": "ddp_hook", "hook": "ddp_hook"})
