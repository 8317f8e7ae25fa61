"""Why a job was slower than its ideal: the answer of `explain`, as plain data that renderers read.

    slowdown S     = replayed / ideal                              mean step times
    slowdown of X  = step time with only X as measured / ideal     "leave one in": what X alone would cost
    saved by X     = replayed - step time with X alone ideal       "leave one out": what mending X alone would gain
    share of X     = saved by X / (replayed - ideal)

An ideal step ends with its last optimizer, where the trace names it: what was recorded after that need not be awaited.

Slowdowns and shares of several X need not add up: stragglers hide behind each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from windtunnel.questions.header import Answer
from windtunnel.studies.traces.by_class import StepTime


@dataclass(frozen=True)
class Part:
    """One replica, stage, worker or kind of op, and what it costs."""

    name: str
    slowdown: float  # only this part as measured, everything else ideal
    saved_ns: int  # mean step time gained if this part alone were ideal
    share: float | None  # saved_ns in the time lost to stragglers; None where nothing was lost


@dataclass(frozen=True)
class Repair:
    """What mending all that the user named gives back."""

    parts: tuple[str, ...]  # as given: "stage=3"
    n_ops: int
    step_time_ns: int  # replayed with these parts ideal, all else as measured
    saved_ns: int
    share: float | None
    slowdown: float  # of what then remains


@dataclass(frozen=True)
class Explanation(Answer):
    """Times are means over the steps, in nanoseconds."""

    source: str
    files: tuple[str, ...]
    n_ops: int
    n_workers: int
    n_steps: int
    measured_ns: int  # as the trace has it
    replayed_ns: int  # dependencies and durations as measured, without gaps that no dependency explains
    ideal_ns: int  # the same dependencies, every op as long as its peers on average
    slowdown: float
    by_replica: tuple[Part, ...]  # largest slowdown first, as all of these
    by_stage: tuple[Part, ...]
    by_kind: tuple[Part, ...]
    by_worker: tuple[Part, ...]  # the slowest by `worker_slowdown`, each replayed by itself
    worker_slowdown: Mapping[str, float]  # by worker: the smaller of its replica's and its stage's where both are known
    worker_place: Mapping[str, tuple[int, int]]  # replica and stage, -1 where the trace does not say
    slowest_workers: Part  # the 3 % of the workers with the largest slowdown, together
    last_stage: Part | None  # None without a pipeline
    step_slowdown: Mapping[int, float]
    step_measured_ns: Mapping[int, int]
    verdict: str
    forward_backward_correlation: float | None = None  # how alike forward and backward of a micro-batch deviate
    asked: Repair | None = None
    rank_steps: tuple[StepTime, ...] = ()  # each step of each rank by class of op, where the format tells
    notes: tuple[str, ...] = field(default=())

    @property
    def provenance(self) -> Mapping[str, object]:
        """The trace."""
        return {"trace": self.source}

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the trace lacks."""
        return self.notes

    def to_dict(self) -> dict[str, object]:
        """The own part of `explain --json`."""
        document = asdict(self)
        for key in ("step_slowdown", "step_measured_ns"):
            document[key] = {str(step): value for step, value in document[key].items()}
        return document
