"""What can be said about partitioned collectives (`--technique centauri:pieces=4,group=true`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.studies.techniques.parameters import Parameters

PIECES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class PartitionPlan(Parameters):
    """The plan that pricing and the real modules share; what is None is chosen by simulated gain."""

    group: bool | None = field(
        default=None, metadata={"help": "reduce inside nodes, across them and gather, as three collectives"}
    )
    pieces: int | None = field(
        default=None,
        metadata={"help": "chunks of an all-to-all and the experts between; 1, 2, 4 or 8", "one_of": PIECES},
    )
    late_weights: bool | None = field(
        default=None, metadata={"help": "weight gradients fill the time that collectives leave (layer tier)"}
    )
    overlap: bool = field(
        default=True, metadata={"help": "every overlap of the plan on where that is faster (model tier)"}
    )
