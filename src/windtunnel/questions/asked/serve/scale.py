"""What `serve scale` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.serve.parts import (
    Engine,
    Lengths,
    OpenLoad,
    Replicas,
    ServedModel,
    Trace,
    TraceTimes,
    check_load,
)
from windtunnel.questions.asked.serve.study import SEED


@part
class ServeScale(ServedModel):
    """Replicas that come and go with the sessions they hold: what each way of emptying and filling them brings."""

    verb: ClassVar[str] = "serve scale"
    policy: Annotated[str, About("One or several, with commas: fixed, drain, recompute, move (all).")] = (
        "fixed,drain,recompute,move"
    )
    tpot: Annotated[
        float, About("Longest time per output token that is kept, e.g. 50ms.", least=1e-9, unit="time", bare_most=1)
    ]
    stop: Annotated[float, About("Longest stop of a session that moves (1s).", least=0, unit="time")] = 1.0
    start: Annotated[float, About("From asking for a replica to its first token (30s).", least=0, unit="time")] = 30.0
    calm: Annotated[float, About("How long fewer would do before one goes (60s).", least=0, unit="time")] = 60.0
    engine: Annotated[Engine, About("", inside=True)] = field(default_factory=Engine)
    replicas: Annotated[Replicas, About("", inside=True)] = field(default_factory=Replicas)
    requests: Annotated[Lengths | Trace, OneOf(), About("", inside=True)] = field(default_factory=Lengths)
    load: Annotated[OpenLoad | TraceTimes, OneOf(), About("", inside=True)] = field(default_factory=TraceTimes)
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_load(self.requests, self.load)
