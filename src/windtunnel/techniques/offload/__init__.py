"""A working window of layers on the device: pricing in `window` and `price`, the real twin in `windowed`.

from windtunnel.techniques import offload

windowed = offload.apply(model, lambda parameters: torch.optim.Adam(parameters, lr=1e-3), window="auto",
                         device_memory="8 GiB")
loss(model(batch)).backward()
windowed.step()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.techniques.offload.windowed import Windowed, apply

__all__ = ["Windowed", "apply"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.windowed"), name)
