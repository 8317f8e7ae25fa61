"""What came of a run: a step and its phases, who waits, how old samples are, memory of both sides, cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypedDict

from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import plain_fields


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of one step, means over steps. All but `generation_s` add up to the step."""

    generation_s: float  # from a batch's first sample to its last; hidden where pools overlap
    logprob_s: float
    ref_logprob_s: float
    training_s: float
    weight_sync_s: float
    other_s: float  # data, rewards, engine and trainer changing places, generators that run empty
    exposed_generation_s: float  # for which the learner waits


@dataclass(frozen=True, slots=True)
class Side:
    """One side's memory of a GPU, in bytes."""

    parts: Mapping[str, float]
    needed_bytes: float
    capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.needed_bytes <= self.capacity_bytes

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"fits": self.fits, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Lane:
    """What a pool does over a few steps: (what, begin, end) in seconds."""

    name: str
    spans: tuple[tuple[str, float, float], ...]


class Staleness(TypedDict, total=False):
    """How many versions old samples are when they are trained, and how many samples are so old."""

    mean: float
    most: int
    bound: int
    samples: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class RlResult(Answer):
    """The answer to `rl`. Times in seconds; an infeasible one has a reason and no times."""

    spec: Mapping[str, object]  # model, gpus, layouts, framework as they were settled
    feasible: bool
    reason: str
    step_time_s: float
    p5_s: float
    p95_s: float
    phases: Phases
    idle_share: Mapping[str, float]  # by pool
    staleness: Staleness
    tokens_per_s_per_gpu: float
    tokens: Mapping[str, int]  # begun, trained, dropped, open: they add up
    memory: Mapping[str, Side]  # generation, training
    cost: float | None  # of a step
    cost_per_1000_samples: float | None  # that were trained
    steps: int  # over which means are taken
    preemptions: int
    verdicts: tuple[str, ...]  # what decides it, in sentences
    sources: tuple[str, ...]
    assumptions: tuple[str, ...]
    lanes: tuple[Lane, ...] = ()
    JSON_LEAVES_OUT = ("spec", "sources", "assumptions")

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What to mind."""
        return self.assumptions

    @property
    def band(self) -> Mapping[str, object] | None:
        """Of the step."""
        return band_entry("step_time_s", self.p5_s, self.p95_s) if self.feasible else None

    @property
    def provenance(self) -> Mapping[str, object] | None:
        """What it rests on."""
        return {"rests on": list(self.sources)}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        memory = {name: side.to_dict() for name, side in self.memory.items()}
        return {**plain_fields(self), "memory": memory, "settled": dict(self.spec)}
