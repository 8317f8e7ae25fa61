"""Lina: the communicator in `communicator`, experts that move in `packed_experts`; priced in `studies.techniques`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.techniques.prioritised_all_to_all.communicator import Communicator
    from windtunnel.real.techniques.prioritised_all_to_all.lane import Lane, apply
    from windtunnel.real.techniques.prioritised_all_to_all.packed_experts import PackedExperts

__all__ = ["Communicator", "Lane", "PackedExperts", "apply"]
__getattr__ = lazily(
    __name__, {"Communicator": "communicator", "Lane": "lane", "PackedExperts": "packed_experts", "apply": "lane"}
)
