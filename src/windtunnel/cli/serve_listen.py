"""`windtunnel serve ... --listen`: an endpoint that answers at the simulated times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.serving import Deployment


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
    pools: str | None,
) -> None:
    """Price the deployment and serve it until interrupted."""
    from windtunnel import __version__
    from windtunnel.cli.output import note
    from windtunnel.errors import SpecError
    from windtunnel.serving.emulator.listen import LOOPBACK, drawn_lengths, listen, parsed_address
    from windtunnel.serving.question import priced
    from windtunnel.serving.workload.files import read_workload

    if pools is not None:
        raise SpecError("--prefill, --decode", pools, "--listen serves replicas that do both: leave them out")
    engine = priced(model, cluster, deployment, replicas, kernels)
    natural = None if workload is None else read_workload(workload, concurrency=1)
    draw = drawn_lengths(output, length_ratio, seed, natural)
    host, _ = parsed_address(address)
    if host not in (LOOPBACK, "localhost", "::1"):
        note(f"{host} is not loopback: whoever reaches this machine can send requests")
    names = tuple(dict.fromkeys((model, engine.model.name)))
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
        told=lambda where: note(f"{names[0]} is at {where}/v1 (Ctrl-C ends it)"),
    )
