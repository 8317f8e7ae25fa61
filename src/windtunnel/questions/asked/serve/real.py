"""What `serve real` is asked."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from windtunnel.questions.about import About, part
from windtunnel.questions.asked.serve.study import SEED


@part
class ServeReal:
    """A small real model on this machine, served under each policy, measured beside predicted."""

    verb: ClassVar[str] = "serve real"
    positional: ClassVar[tuple[str, ...]] = ("model",)
    model: Annotated[Literal["tiny-llama"], About("Which model: tiny-llama.")] = "tiny-llama"
    requests: Annotated[int, About("How many (100).", least=1, most=10_000_000)] = 100
    rate: Annotated[float | None, About("Requests per second; by default 0.85 of what it can carry.", least=0)] = None
    cv: Annotated[float, About("Burstiness of arrivals: 0 constant, 1 Poisson (1).", least=0)] = 1.0
    seed: Annotated[int, SEED] = 0
