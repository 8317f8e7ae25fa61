"""What can be said about sparse gradients (`--technique sparse_gradients:ratio=0.01,chunk=1024`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.studies.techniques.parameters import Parameters


@dataclass(frozen=True, slots=True)
class SparsePlan(Parameters):
    """The plan that pricing and the DDP hook share."""

    ratio: float = field(default=0.05, metadata={"help": "share of the chunks that is sent", "above": 0, "most": 1})
    chunk: int = field(
        default=1024, metadata={"help": "elements that are chosen together; 1: single elements", "least": 1}
    )
    rule: str = field(default="topk", metadata={"help": "how chunks are chosen", "one_of": ("topk", "threshold")})
    threshold: float | None = field(
        default=None, metadata={"help": "a fixed threshold of a chunk's mean magnitude; none: steered to the ratio"}
    )
    momentum: float = field(
        default=0.0, metadata={"help": "momentum correction, that of the optimizer", "least": 0, "most": 1}
    )
    warmup: int = field(default=0, metadata={"help": "steps at first whose gradients are sent whole", "least": 0})
