"""How a serving pool keeps its promises at each rate, by the serving study, handed to the fleet."""

from __future__ import annotations

from pathlib import Path

from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.studies.fleet.loans.pool import Loans
from windtunnel.studies.fleet.loans.pool_file import read_pool
from windtunnel.studies.serving import Deployment, ServingResult, Workload, engine_of, serve_with
from windtunnel.studies.serving.attainment import attained
from windtunnel.studies.serving.workload.lengths import arrivals, lengths

REQUESTS = 4000  # that each rate is measured on: attainment to a quarter of a per mille


def loans_of(serving: Path | None, elastic: float, seed: int) -> Loans:
    """How the site lends and scales. Raises UserError."""
    if serving is None:
        return Loans(elastic=elastic)
    asked = read_pool(serving)
    machine = parse_cluster(f"{asked.gpu}:{asked.gpus_per_server}")
    engine = engine_of(load_model(asked.model), machine, Deployment(**asked.deployment))
    prompts, outputs = lengths(REQUESTS, asked.prompt, asked.output, asked.length_ratio, seed)
    load = Workload(prompts, outputs, arrivals(REQUESTS, 1.0, asked.cv, seed))

    def run(workload: Workload) -> ServingResult:
        return serve_with(engine, workload, slo=asked.slo_s)

    found = attained(run, load, asked.promise)
    return Loans(lambda begin_s, end_s: asked.pool(found.goodput_per_s, found.at, begin_s, end_s), elastic)
