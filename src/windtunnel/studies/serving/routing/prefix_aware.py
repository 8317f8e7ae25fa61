"""The most known leading blocks, unless that replica has more than `slack` requests above the least."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import final

from windtunnel.studies.serving.loop import Server
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.routing.traits import Traits


@final
class PrefixAware:
    """Where most of the prompt is known, as long as that replica is not overloaded."""

    def __init__(self, slack: int = 8) -> None:
        self.slack = slack

    def choose(self, one: Sequence, servers: Listed[Server]) -> int:
        """Index of a replica."""
        loads = [server.load for server in servers]
        most = min(loads) + self.slack
        fitting = [place for place, load in enumerate(loads) if load <= most]
        return max(fitting, key=lambda place: (servers[place].known_blocks(one.names), -loads[place], -place))


ROUTER = Traits(PrefixAware, looks_into_caches=True)
