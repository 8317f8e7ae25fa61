"""Lina: the real communicator in `communicator`, experts that move in `packed_experts`; priced in `studies.techniques`.

from windtunnel.real.techniques import prioritised_all_to_all

lane = prioritised_all_to_all.apply(ddp)     # the script's own all-to-alls and reductions, until lane.close()

with prioritised_all_to_all.Communicator() as lane:
    done = lane.all_to_all(received, sent)
    reduced = lane.all_reduce(gradient)
    done.wait()
"""

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
