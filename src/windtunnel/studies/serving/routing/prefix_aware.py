"""The most known leading blocks, unless that replica has more than `slack` requests above the least."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.loop import Server
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class PrefixAware:
    """Where most of the prompt is known, as long as that replica is not overloaded."""

    def __init__(self, slack: int = 8) -> None:
        self.slack = slack

    def choose(self, sequence: Sequence, servers: Listed[Server]) -> int:
        """Index of a replica."""
        loads = [server.load for server in servers]
        most = min(loads) + self.slack
        best, best_known, best_load = 0, -1, 0
        for place, load in enumerate(loads):
            if load <= most:
                blocks = servers[place].known_blocks(sequence)
                if blocks > best_known or (blocks == best_known and load < best_load):
                    best, best_known, best_load = place, blocks, load
        return best
