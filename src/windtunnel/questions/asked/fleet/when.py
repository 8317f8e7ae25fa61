"""What `fleet when` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.fleet.jobs import BANDS, Simulated


@part
class FleetWhen(Simulated):
    """When one job will start and end, how sure that is, and why it waits."""

    verb: ClassVar[str] = "fleet when"
    positional: ClassVar[tuple[str, ...]] = ("trace", "job")
    job: Annotated[str, About("The job, by its name.")]
    seeds: Annotated[int, About("Draws that give the band (40).", BANDS, least=1, most=100_000)] = 40
    spread: Annotated[
        float,
        About("Of the logarithm of run times that are not yet known; 0: as traced (0.3).", BANDS, least=0, most=10),
    ] = 0.3
