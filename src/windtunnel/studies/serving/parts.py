"""Parts of a question made: the workload, and the deployment of a replica."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import path_of
from windtunnel.physics.model.architecture import Model, notes_of
from windtunnel.physics.model.checkpoint import PLAIN, Stored
from windtunnel.questions.asked.serve.parts import (
    ClosedLoad,
    Drafts,
    Engine,
    EngineName,
    Lengths,
    OpenLoad,
    Replicas,
    Trace,
    TraceTimes,
)
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Workload

MADE = 1000  # requests of an open loop that names no number


def workload_of(requests: Lengths | Trace, load: OpenLoad | ClosedLoad | TraceTimes, seed: int) -> Workload:
    """The requests of a file, or made ones, as a loop sends them. Raises UserError."""
    if isinstance(requests, Trace):
        path = path_of(requests.workload)
        if not path.exists():
            raise InputFileError(path, "is not there", "give a CSV or JSONL of requests")
        return read_workload(
            path,
            rate_per_s=load.rate if isinstance(load, OpenLoad) else None,
            cv=load.cv if isinstance(load, OpenLoad) else 1.0,
            concurrency=load.concurrency if isinstance(load, ClosedLoad) else None,
            requests=requests.requests,
            seed=seed,
        )
    count = load.concurrency * load.waves if isinstance(load, ClosedLoad) else MADE
    count = count if requests.requests is None else requests.requests
    prompt, output = requests.tokens
    prompts, outputs = lengths(count, prompt, output, requests.length_ratio, seed)
    name, notes = f"{prompt} in, {output} out", requests.assumed
    if isinstance(load, ClosedLoad):
        return Workload(prompts, outputs, None, load.concurrency, name=name, notes=notes)
    assert isinstance(load, OpenLoad)  # the question says when made requests come
    return Workload(prompts, outputs, arrivals(count, load.rate, load.cv, seed), name=name, notes=notes)


def assumed(engine: Engine, *models: Model) -> tuple[str, ...]:
    """What models leave out, and what is said where nobody says how many drafted tokens are kept."""
    drafting = engine.drafting
    unsaid = isinstance(drafting, Drafts) and drafting.speculative_tokens > 0 and drafting.acceptance is None
    return (*notes_of(*models), *([Drafts.warning] if unsaid else ()))


def deployment_of(
    engine: EngineName, layout: Replicas | None = None, stored: Stored = PLAIN, max_model_len: int | None = None
) -> Deployment:
    """One replica as a question says it; without a layout on one GPU.

    Formats that it leaves open are the checkpoint's; so is the cache's, which is in 16 bits where the checkpoint does
    not say. Of a checkpoint quantised otherwise (`weights`) the engine's profile knows.
    """
    settings: dict[str, Any] = {field.name: getattr(engine, field.name) for field in fields(engine)}
    drafting = settings.pop("drafting", None)
    if engine.weights is None:
        del settings["weights"]
    if engine.max_model_len is None:
        settings["max_model_len"] = max_model_len
    if isinstance(drafting, Drafts):
        acceptance = drafting.taken_as if drafting.acceptance is None else drafting.acceptance
        settings |= {"speculative_tokens": drafting.speculative_tokens, "acceptance": acceptance}
    if layout is not None:
        settings |= {"tp": layout.tp, "pp": layout.pp, "attn_dp": layout.dp, "moe_ep": layout.ep}
    deployment = Deployment(**settings)
    return deployment.stored_as(stored) if engine.weights is None else deployment
