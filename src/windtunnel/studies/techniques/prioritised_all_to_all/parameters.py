"""What can be said about Lina (`--technique lina:micro_op=30MB,packing=2`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.studies.techniques.parameters import Parameters


@dataclass(frozen=True, slots=True)
class LinaPlan(Parameters):
    """The plan that pricing and the real communicator share."""

    priority: bool = field(default=True, metadata={"help": "an all-to-all goes before gradients' all-reduce"})
    micro_op: int = field(
        default=30_000_000,
        metadata={"help": "bytes of one micro-operation; 0: collectives stay whole", "unit": "bytes", "least": 0},
    )
    pipeline: bool = field(
        default=True, metadata={"help": "experts compute on each piece of an all-to-all that has arrived"}
    )
    packing: int | None = field(
        default=None,
        metadata={"help": "times as many experts on a device; auto: until compute hides the all-to-all", "least": 1},
    )
