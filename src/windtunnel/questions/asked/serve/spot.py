"""What `serve spot` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.serve.parts import (
    EngineName,
    Lengths,
    OpenLoad,
    ServedModel,
    Trace,
    TraceTimes,
    check_load,
)
from windtunnel.questions.asked.serve.study import PRICE, SEED


@part
class ServeSpot(ServedModel):
    """A model on machines that come and go; each policy chooses its layouts."""

    verb: ClassVar[str] = "serve spot"
    positional: ClassVar[tuple[str, ...]] = ("model", "machines")
    machines: Annotated[str, About("Machines as they come and go, CSV: time_s,event,node or minute,added,removed.")]
    policy: Annotated[str, About("One or several, with commas: spotserve, reroute, restart (all).")] = (
        "spotserve,reroute,restart"
    )
    notice: Annotated[float, About("From the notice to the loss of a machine (30s).", least=0, unit="time")] = 30.0
    engine: Annotated[EngineName, About("", inside=True)] = field(default_factory=EngineName)
    requests: Annotated[Lengths | Trace, OneOf(), About("", inside=True)] = field(default_factory=Lengths)
    load: Annotated[OpenLoad | TraceTimes, OneOf(), About("", inside=True)] = field(default_factory=TraceTimes)
    price: Annotated[float | None, PRICE] = None
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_load(self.requests, self.load)
