"""What `fleet live` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.fleet.jobs import SITE, Scheduled


@part
class FleetLive(Scheduled):
    """The commands of a trace run here under one policy, beside their simulation."""

    verb: ClassVar[str] = "fleet live"
    host: Annotated[
        tuple[str, ...], About("What starts a command on a node, such as 'ssh b'; one for each, '' is here.", SITE)
    ] = ()
