"""What `serve` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.serve.parts import (
    Apart,
    ClosedLoad,
    Lengths,
    Limits,
    OpenLoad,
    ServedModel,
    TieredEngine,
    Together,
    Trace,
    TraceTimes,
    check_load,
)

PRICE = About("Of one GPU for an hour: cost per million tokens.", least=0, most=1e6)
SEED = About("Seed of made lengths and arrivals (0).", least=0, rare=True)


@part
class Serve(ServedModel):
    """What a deployment does to its users."""

    verb: ClassVar[str] = "serve"
    engine: Annotated[TieredEngine, About("", inside=True)] = field(default_factory=TieredEngine)
    replicas: Annotated[Together | Apart, OneOf(), About("", inside=True)] = field(default_factory=Together)
    requests: Annotated[Lengths | Trace, OneOf(), About("", inside=True)] = field(default_factory=Lengths)
    load: Annotated[OpenLoad | ClosedLoad | TraceTimes, OneOf(), About("", inside=True)] = field(
        default_factory=TraceTimes
    )
    limits: Annotated[Limits, About("", inside=True)] = field(default_factory=Limits)
    price: Annotated[float | None, PRICE] = None
    measured: Annotated[
        float | None,
        About(
            "Mean time per output token (TPOT) that you measured, e.g. 32ms.",
            unit="time",
            least=1e-9,
            bare_most=1.0,
            rare=True,
        ),
    ] = None
    measured_output: Annotated[
        float | None, About("Output tokens per second of all replicas that you measured.", least=1e-9, rare=True)
    ] = None
    bench: Annotated[
        str | None,
        About(
            "What a load generator measured of it: the file that vllm bench serve, SGLang's bench_serving or AIPerf"
            " saved or printed. Its requests and load are asked, its figures held against the prediction."
        ),
    ] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        if self.bench is None:
            check_load(self.requests, self.load)
