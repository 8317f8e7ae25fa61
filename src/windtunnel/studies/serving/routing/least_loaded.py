"""Fewest requests there; of equals the replica with fewest prompt tokens to compute, then the first."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.loop import Server
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class LeastLoaded:
    """Fewest requests, then fewest prompt tokens."""

    def choose(self, sequence: Sequence, servers: Listed[Server]) -> int:
        """Index of a replica."""
        loads = [server.load for server in servers]
        least = min(loads)
        best = loads.index(least)
        if not least:  # who has none has no tokens either
            return best
        fewest, place = servers[best].outstanding_tokens, best
        for _ in range(loads.count(least) - 1):
            if not fewest:
                break
            place = loads.index(least, place + 1)
            tokens = servers[place].outstanding_tokens
            if tokens < fewest:
                best, fewest = place, tokens
        return best
