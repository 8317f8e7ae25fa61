"""What `serve policies` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.serve.parts import (
    LAYOUT,
    ClosedLoad,
    Lengths,
    Limits,
    OpenLoad,
    Replicas,
    ServedModel,
    TieredEngine,
    Trace,
    TraceTimes,
    check_load,
)
from windtunnel.questions.asked.serve.study import PRICE, SEED


@part
class ServePolicies(ServedModel):
    """The same requests under each batching policy and each router, or each way to share GPUs, side by side."""

    verb: ClassVar[str] = "serve policies"
    policy: Annotated[
        str | None,
        About(
            "One or several with commas; batching: fcfs (the engine's own), skip-join (FastServe's). Of several models"
            " (llama-3.1-8b=3,qwen3-8b=1, with their shares of the rate): shares (of SMs and cache, MuxServe's), turns,"
            " apart. (All.)"
        ),
    ] = None
    router: Annotated[
        str,
        About("Which replica gets a request, one or several with commas (least-loaded).", LAYOUT),
    ] = "least-loaded"
    engine: Annotated[TieredEngine, About("", inside=True)] = field(default_factory=TieredEngine)
    replicas: Annotated[Replicas, About("", inside=True)] = field(default_factory=Replicas)
    requests: Annotated[Lengths | Trace, OneOf(), About("", inside=True)] = field(default_factory=Lengths)
    load: Annotated[OpenLoad | ClosedLoad | TraceTimes, OneOf(), About("", inside=True)] = field(
        default_factory=TraceTimes
    )
    limits: Annotated[Limits, About("", inside=True)] = field(default_factory=Limits)
    price: Annotated[float | None, PRICE] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_load(self.requests, self.load)
