"""Threshold and sparse gradients: pricing in `price`, the DDP communication hook in `ddp_hook`.

from windtunnel.real.techniques import sparse_gradients

state = sparse_gradients.State(ddp.module, ratio=0.05)
ddp.register_comm_hook(state, sparse_gradients.hook)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.sparse_gradients.ddp_hook import State, hook

__all__ = ["State", "hook"]
__getattr__ = lazily(__name__, {"State": "ddp_hook", "hook": "ddp_hook"})
