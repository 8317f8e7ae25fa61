"""What `fleet pack` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.fleet.jobs import BANDS, SITE, JobTrace


@part
class FleetPack(JobTrace):
    """Pods on unlike nodes, packed once."""

    verb: ClassVar[str] = "fleet pack"
    cluster: Annotated[str, About("CSV of unlike nodes: node,cpu_milli,memory_mib,gpus,gpu_model.", SITE)]
    policy: Annotated[
        str,
        About("One or several, with commas: random, bestfit, dotprod, gpupacking, gpuclustering, fgd (fgd)."),
    ] = "fgd"
    seed: Annotated[int, About("Of the first shuffle (0).", least=0)] = 0
    seeds: Annotated[int, About("Shuffles that figures are averaged over (10).", BANDS, least=1, most=100_000)] = 10
