"""Local SGD with a learning rate that decays over rounds and over local steps: pricing in `price`, loop in `loop`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windtunnel.techniques.local_sgd.parameters import LocalPlan

if TYPE_CHECKING:
    from windtunnel.techniques.local_sgd.loop import LearningRate, LocalSGD

__all__ = ["LearningRate", "LocalPlan", "LocalSGD"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.loop"), name)
