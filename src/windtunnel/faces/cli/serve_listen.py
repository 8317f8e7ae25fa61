"""`windtunnel serve ... --listen`: an endpoint that answers at the simulated times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note
from windtunnel.http_guard import TOKEN_VARIABLE

if TYPE_CHECKING:
    from windtunnel.studies.serving import Deployment
    from windtunnel.studies.serving.build import Engine
    from windtunnel.studies.serving.disaggregated.pools import Pools


def answer_requests(
    model: str,
    cluster: str,
    deployment: Deployment,
    address: str,
    replicas: int,
    router: str,
    speed: float,
    lose: str | None,
    max_waiting: int,
    record: Path | None,
    workload: Path | None,
    output: int | None,
    length_ratio: float,
    seed: int,
    kernels: Path | None,
    pools: tuple[str | None, str | None],
) -> None:
    """Price the deployment and serve it until interrupted."""
    from windtunnel import __version__
    from windtunnel.studies.serving.emulator.listen import drawn_lengths, listen
    from windtunnel.studies.serving.question import priced, priced_pools
    from windtunnel.studies.serving.workload.files import read_workload

    engine: Engine | Pools
    if pools == (None, None):
        engine = priced(model, cluster, deployment, replicas, kernels)
    elif router == "prefix-aware" and replicas > 1:
        raise SpecError("--router", router, "looks into replicas that do both: use least-loaded or round-robin")
    else:
        engine = priced_pools(model, cluster, deployment, replicas, pools)
    natural = None if workload is None else read_workload(workload, concurrency=1)
    draw = drawn_lengths(output, length_ratio, seed, natural)
    names = tuple(dict.fromkeys((model, engine.model.name)))

    def told(where: str, token: str) -> None:
        shown = f"of {TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else token
        key = f"; clients send the token {shown} (`api_key`, Authorization: Bearer)" if token else ""
        note(f"{names[0]} is at {where}/v1{key} (Ctrl-C ends it)")

    listen(
        engine,
        names,
        address,
        replicas=replicas,
        router=router,
        speed=speed,
        lose=lose,
        draw=draw,
        most_waiting=max_waiting,
        record=record,
        version=__version__,
        told=told,
    )
