"""What `fleet share` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part


@part
class FleetShare:
    """Jobs whose traffic comes in turns, on links that they share."""

    verb: ClassVar[str] = "fleet share"
    positional: ClassVar[tuple[str, ...]] = ("jobs",)
    jobs: Annotated[str, About("YAML of a link and jobs: period, busy, rate (docs/fleet.md).")]
    links: Annotated[int, About("Links that the jobs are spread over (1).", least=1, most=64)] = 1
