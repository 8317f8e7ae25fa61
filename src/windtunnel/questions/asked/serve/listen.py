"""What `serve listen` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.serve.parts import LAYOUT, REQUESTS, Apart, Engine, Router, ServedModel, Together
from windtunnel.questions.asked.serve.study import SEED

LISTEN = "Listening"


@part
class PairsApart(Apart):
    """Equal pairs of a prefill and a decode pool behind one router."""

    replicas: Annotated[int, About("Equal pairs of pools (1).", LAYOUT, least=1)] = 1
    router: Annotated[Router, About("Which pair gets a request (least-loaded).", LAYOUT, rare=True)] = "least-loaded"


@part
class OwnLengths:
    """Answers as long as each request allows."""

    kind: ClassVar[str] = "asked"
    phrase: ClassVar[str] = "answers as long as each request allows"


@part
class DrawnLengths:
    """Answers of drawn lengths."""

    kind: ClassVar[str] = "drawn"
    phrase: ClassVar[str] = "answers of drawn lengths (--output)"
    output: Annotated[int, About("Tokens of the longest answers.", REQUESTS, least=1, most=10_000_000)]
    length_ratio: Annotated[
        float, About("Lengths uniform from this share of it to all of it (1).", REQUESTS, least=0, most=1, rare=True)
    ] = 1.0
    seed: Annotated[int, SEED] = 0


@part
class TraceLengths:
    """Answers as long as those of a trace, in turn."""

    kind: ClassVar[str] = "trace"
    phrase: ClassVar[str] = "a trace (--workload)"
    workload: Annotated[str, About("Trace of the lengths that answers have, in turn: CSV or JSONL.", REQUESTS)]


@part
class ServeListen(ServedModel):
    """OpenAI's API, answered in simulated time."""

    verb: ClassVar[str] = "serve listen"
    positional: ClassVar[tuple[str, ...]] = ("model", "address")
    address: Annotated[str, About("Where it answers (127.0.0.1:8000).")] = "127.0.0.1:8000"
    engine: Annotated[Engine, About("", inside=True)] = field(default_factory=Engine)
    replicas: Annotated[Together | PairsApart, OneOf(), About("", inside=True)] = field(default_factory=Together)
    answers: Annotated[OwnLengths | DrawnLengths | TraceLengths, OneOf(), About("", inside=True)] = field(
        default_factory=OwnLengths
    )
    speed: Annotated[float, About("Simulated seconds in a second (1).", LISTEN, least=0.001, most=1000)] = 1.0
    lose: Annotated[str | None, About("Replica 0 is lost at 30 s, back 10 s later: 0@30s+10s.", LISTEN)] = None
    max_waiting: Annotated[int, About("Requests that may wait; more get 503 (4096).", LISTEN, least=1)] = 4096
    record: Annotated[str | None, About("Write requests as they come here, for --workload.", LISTEN)] = None
