"""Threshold and sparse gradients: pricing in `price`, the DDP communication hook in `ddp_hook`.

from windtunnel.techniques import sparse_gradients

state = sparse_gradients.State(ddp.module, ratio=0.05)
ddp.register_comm_hook(state, sparse_gradients.hook)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.techniques.sparse_gradients.ddp_hook import State, hook

__all__ = ["State", "hook"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.ddp_hook"), name)
