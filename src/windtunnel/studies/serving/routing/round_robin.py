"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.loop import Server
from windtunnel.studies.serving.replica.sequence import Sequence


@final
class RoundRobin:
    """The next in turn."""

    in_turn = True  # looks at no replica: each can be simulated on its own

    def __init__(self) -> None:
        self._next = -1

    def choose(self, sequence: Sequence, servers: Listed[Server]) -> int:
        """Index of a replica."""
        self._next = (self._next + 1) % len(servers)
        return self._next
