"""Fewest requests there; of equals the replica with fewest prompt tokens to compute, then the first."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.loop import Server
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.routing.traits import Traits


@final
class LeastLoaded:
    """Fewest requests, then fewest prompt tokens."""

    def choose(self, one: Sequence, servers: Listed[Server]) -> int:
        """Index of a replica."""
        loads = [server.load for server in servers]
        least = min(loads)
        best = loads.index(least)
        if least and loads.count(least) > 1:  # who has none has no tokens either
            fewest = servers[best].outstanding_tokens
            for place in range(best + 1, len(loads)):
                if loads[place] == least and servers[place].outstanding_tokens < fewest:
                    best, fewest = place, servers[place].outstanding_tokens
        return best


ROUTER = Traits(LeastLoaded)
