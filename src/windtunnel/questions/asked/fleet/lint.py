"""What `fleet lint` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.fleet.jobs import SITE, JobTrace


@part
class FleetLint(JobTrace):
    """What is wrong with a trace."""

    verb: ClassVar[str] = "fleet lint"
    cluster: Annotated[str, About("The cluster that the load is held against.", SITE)] = ""
