"""What `fleet` is asked."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windtunnel.errors import SpecError
from windtunnel.questions.about import About, OneOf, part
from windtunnel.questions.asked.fleet.jobs import BANDS, NODES, SITE, Simulated

EVERY = About("Progress between checkpoints; 0: nothing is lost; never: all since the start (30min).", NODES)


@part
class Steady:
    """Nodes that stay."""

    kind: ClassVar[str] = "steady"
    phrase: ClassVar[str] = "nodes that stay"


@part
class Failing:
    """Nodes that fail at random and are repaired."""

    kind: ClassVar[str] = "failing"
    phrase: ClassVar[str] = "nodes that fail at random (--mtbf-node)"
    mtbf_node: Annotated[
        str, About("Nodes fail: mean time between failures of one, with its unit, such as 30d.", NODES)
    ]
    repair: Annotated[str, About("Until a failed node is back (1h); with --repair-spread in the median.", NODES)] = "1h"
    repair_spread: Annotated[
        float,
        About("Repairs differ: standard deviation of their logarithm (0).", NODES, least=0, most=5, rare=True),
    ] = 0.0
    frailty: Annotated[
        float | None,
        About("Nodes differ: shape of the gamma law of their rates.", NODES, least=0.01, most=1000, rare=True),
    ] = None
    checkpoint_every: Annotated[str, EVERY] = "30min"


@part
class ByFile:
    """Nodes that come and go as a file says."""

    kind: ClassVar[str] = "by-file"
    phrase: ClassVar[str] = "nodes that come and go as a file says (--capacity)"
    capacity: Annotated[str, About("Nodes come and go as in this CSV: time_s,node,gpus or time_s,nodes.", NODES)]
    checkpoint_every: Annotated[str, EVERY] = "30min"


@part
class Fleet(Simulated):
    """Many jobs, one cluster: what each policy makes of a trace."""

    verb: ClassVar[str] = "fleet"
    capacity: Annotated[Steady | Failing | ByFile, OneOf(), About("", inside=True)] = field(default_factory=Steady)
    serving: Annotated[str | None, About("Lyra: the serving pool that lends servers, a YAML file.", SITE)] = None
    elastic: Annotated[
        float | None,
        About("Lyra: share of jobs that can use twice their GPUs (0.05).", SITE, least=0, most=1, rare=True),
    ] = None
    emit: Annotated[
        Literal["kueue", "slurm"] | None,
        About("Write the scheduler's configuration, as changed: Slurm's files, or Kueue's ClusterQueues.", SITE),
    ] = None
    seeds: Annotated[int | None, About("So many runs of each policy give bands.", BANDS, least=1, most=100_000)] = None

    def __post_init__(self) -> None:
        lyra = any(name.strip().lower().startswith("lyra") for name in self.policy.split(","))
        for name, value in (("elastic", self.elastic), ("serving", self.serving)):
            if value is not None and not lyra:
                raise SpecError(name, value, "it is for lyra: give --policy lyra, or leave it out")
