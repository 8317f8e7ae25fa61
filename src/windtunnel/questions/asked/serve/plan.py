"""What `serve plan` is asked: the highest rate that keeps the limits, or the best placement for one."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.parts import ClusterPart
from windtunnel.questions.asked.serve.parts import (
    LAYOUT,
    LIMITS,
    Apart,
    Lengths,
    Limits,
    OpenLoad,
    TieredEngine,
    Together,
    Trace,
    TraceTimes,
)
from windtunnel.questions.asked.serve.study import PRICE, SEED


@part
class PlanMethod:
    """A placement that is looked for: how many replicas, and of which layout."""

    kind: ClassVar[str] = "sought"
    phrase: ClassVar[str] = "a placement that is looked for (--method)"
    method: Annotated[
        Literal["fewest", "distserve", "alpaserve", "muxserve"],
        About(
            "Find a placement for --rate: fewest (GPUs, together or apart, with a certificate: what --rate without a"
            " layout asks), distserve; of several models alpaserve or muxserve.",
            LAYOUT,
        ),
    ]
    runs: Annotated[int, About("Plans that may be run (400).", LAYOUT, least=1, most=100_000, rare=True)] = 400


FAILURES = "Failures"


@part
class ReliableGpus:
    """GPUs that do not fail."""

    kind: ClassVar[str] = "lasting"
    phrase: ClassVar[str] = "GPUs that do not fail"


@part
class FailingGpus:
    """GPUs that fail and are repaired: a plan has spare replicas then."""

    kind: ClassVar[str] = "failing"
    phrase: ClassVar[str] = "GPUs that fail (--mtbf-gpu)"
    mtbf_gpu: Annotated[
        float,
        About(
            "GPUs fail, each after so long on average (50000h): how many spare replicas hold the rate.",
            FAILURES,
            least=1.0,
            unit="time",
            rare=True,
        ),
    ]
    repair: Annotated[
        float, About("Until a failed GPU's replica is back (4h).", FAILURES, least=0, unit="time", rare=True)
    ] = 14400.0
    available: Annotated[
        float,
        About(
            "Share of the time for which the rate is held (0.999).",
            FAILURES,
            least=0,
            most=0.9999999,
            unit="share",
            rare=True,
        ),
    ] = 0.999


@part
class ServePlan:
    """Without `method` the highest rate of a deployment, with it the best placement for a rate."""

    verb: ClassVar[str] = "serve plan"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[
        str,
        About(
            "A model of the catalogue, or the path of a config.json; several with --method alpaserve and muxserve, each"
            " with its share of the rate: llama-3.1-8b=3,qwen3-32b=1."
        ),
    ]
    cluster: Annotated[ClusterPart, About("GPU type and number, h100-sxm:8, or a cluster file.")]
    engine: Annotated[TieredEngine, About("", inside=True)] = field(default_factory=TieredEngine)
    replicas: Annotated[Together | Apart | PlanMethod, OneOf(), About("", inside=True)] = field(
        default_factory=Together
    )
    requests: Annotated[Lengths | Trace, OneOf(), About("", inside=True)] = field(default_factory=Lengths)
    load: Annotated[OpenLoad | TraceTimes, OneOf(), About("", inside=True)] = field(default_factory=TraceTimes)
    limits: Annotated[Limits, About("", inside=True)] = field(default_factory=Limits)
    gpus: Annotated[ReliableGpus | FailingGpus, OneOf(), About("", inside=True)] = field(default_factory=ReliableGpus)
    attain: Annotated[
        float | None,
        About(
            "Share of requests that must meet the limits (0.99).", LIMITS, least=1e-9, most=1, unit="share", rare=True
        ),
    ] = None
    price: Annotated[float | None, PRICE] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        sought = isinstance(self.replicas, PlanMethod)
        if sought and self.replicas.method != "fewest" and self.price is not None:  # type: ignore[union-attr]
            raise SpecError("price", self.price, "has no meaning beside method: leave it out")
        if sought and self.replicas.method not in ("fewest", "distserve") and self.attain is not None:  # type: ignore[union-attr]
            raise SpecError("attain", self.attain, "belongs to distserve, and to the highest rate: leave it out")
        if sought and not isinstance(self.requests, Trace) and isinstance(self.load, TraceTimes):
            raise SpecError("load", None, "add --rate, that the placement must carry")
