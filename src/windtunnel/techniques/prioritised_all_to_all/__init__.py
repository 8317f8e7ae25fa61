"""Lina: pricing in `price`, packing and placement in `packing`, the real communicator in `communicator`.

from windtunnel.techniques import prioritised_all_to_all

with prioritised_all_to_all.Communicator() as lane:
    done = lane.all_to_all(received, sent)
    reduced = lane.all_reduce(gradient)
    done.wait()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.techniques.prioritised_all_to_all.communicator import Communicator
    from windtunnel.techniques.prioritised_all_to_all.packed_experts import PackedExperts

_HOME = {"Communicator": "communicator", "PackedExperts": "packed_experts"}
__all__ = ["Communicator", "PackedExperts"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
