"""Routers over replicas of one model.

round robin     the next in turn
least loaded    fewest requests there; of equals the one with fewest prompt tokens to compute, then the first
prefix aware    the most known leading blocks, unless that replica has more than `slack` requests above the least
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Any, final

from windtunnel.studies.serving.replica.sequence import Sequence


@final
class RoundRobin:
    """The next in turn."""

    in_turn = True  # looks at no replica: each can be simulated on its own

    def __init__(self) -> None:
        self._next = -1

    def choose(self, one: Sequence, servers: Listed[Any]) -> int:
        """Index of a replica."""
        self._next = (self._next + 1) % len(servers)
        return self._next


@final
class LeastLoaded:
    """Fewest requests, then fewest prompt tokens."""

    def choose(self, one: Sequence, servers: Listed[Any]) -> int:
        """Index of a replica."""
        best, least = 0, servers[0].load
        for place in range(1, len(servers)):
            load = servers[place].load
            if load < least or (load == least and servers[place].outstanding_tokens < servers[best].outstanding_tokens):
                best, least = place, load
        return best


@final
class PrefixAware:
    """Where most of the prompt is known, as long as that replica is not overloaded."""

    def __init__(self, slack: int = 8) -> None:
        self.slack = slack

    def choose(self, one: Sequence, servers: Listed[Any]) -> int:
        """Index of a replica."""
        least = min(server.load for server in servers)
        fitting = [place for place, server in enumerate(servers) if server.load <= least + self.slack]
        return max(fitting, key=lambda place: (servers[place].pool.known(one.names), -servers[place].load, -place))
