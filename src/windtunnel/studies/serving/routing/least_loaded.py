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
        best, least = 0, servers[0].load
        for place in range(1, len(servers)):
            load = servers[place].load
            if load < least or (load == least and servers[place].outstanding_tokens < servers[best].outstanding_tokens):
                best, least = place, load
        return best


ROUTER = Traits(LeastLoaded)
