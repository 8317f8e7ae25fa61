"""A traced step held against a predicted one, class of op by class of op; both sides sum to their step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from windtunnel.physics.step.result import Result
from windtunnel.studies.traces.by_class import SENDS, StepTime

COMPUTE = ("gemm", "attention", "memory-bound", "optimizer", "other kernels", "copies")
COMMUNICATION, PIPELINE = "exposed communication", "pipeline"
CONSTANT = 0.7  # of the steps in which the same rank is last
ORDER = (*COMPUTE, COMMUNICATION, PIPELINE, "data loader", "host", "idle")
SLOWED = "slowed by overlap"


@dataclass(frozen=True, slots=True)
class ClassTime:
    """One class of op in a step. `longest`: the op that took most, as the trace names it."""

    name: str
    predicted_s: float
    measured_s: float
    calls: int = 0
    longest: str = ""

    @property
    def difference_s(self) -> float:
        """Measured less predicted."""
        return self.measured_s - self.predicted_s


def predicted_classes(result: Result) -> dict[str, float]:
    """The breakdown of a prediction in the classes of a trace: receiving from a stage before is the pipeline's."""
    seconds_of: dict[str, float] = {}
    for name, ns in result.breakdown_ns.items():
        if name != SLOWED:
            kind = PIPELINE if name == "pipeline bubble" or name.startswith("exposed pp") else name
            if kind.startswith(("exposed ", "waiting ")):
                kind = COMMUNICATION
            seconds_of[kind] = seconds_of.get(kind, 0.0) + ns * 1e-9
    kernels = [name for name in COMPUTE if seconds_of.get(name)] or ["gemm"]
    whole = sum(seconds_of.get(name, 0.0) for name in kernels) or 1.0
    for name in kernels:  # a kernel beside communication is the same kernel, only longer
        share = seconds_of.get(name, 0.0) / whole if whole else 1.0
        seconds_of[name] = seconds_of.get(name, 0.0) + share * result.breakdown_ns.get(SLOWED, 0) * 1e-9
    return seconds_of


def measured_classes(step: StepTime) -> dict[str, float]:
    """A traced step in the same classes."""
    seconds_of: dict[str, float] = {}
    for name, seconds in step.seconds.items():
        kind = name if name in ORDER else PIPELINE if name in SENDS else COMMUNICATION
        seconds_of[kind] = seconds_of.get(kind, 0.0) + seconds
    return seconds_of


def representative(steps: Sequence[StepTime]) -> StepTime:
    """The step of median length of a rank; the first is left out where there are others, as it warms up."""
    later = sorted(steps, key=lambda step_time: step_time.step)[1:] or list(steps)
    ordered = sorted(later, key=lambda step_time: (step_time.length_s, step_time.step))
    return ordered[(len(ordered) - 1) // 2]


def mean_classes(traced: Mapping[int, Sequence[StepTime]]) -> dict[str, float]:
    """Mean over the ranks of their representative steps."""
    each = [measured_classes(representative(steps)) for steps in traced.values()]
    return {
        name: sum(entry.get(name, 0.0) for entry in each) / len(each)
        for name in ORDER
        if any(name in entry for entry in each)
    }


def classes_against(result: Result, traced: Mapping[int, Sequence[StepTime]]) -> tuple[ClassTime, ...]:
    """Class by class, in the order of a step."""
    predicted, measured = predicted_classes(result), mean_classes(traced)
    steps = [representative(step_times) for step_times in traced.values()]
    class_times = []
    for name in (*ORDER, *sorted(set(predicted) - set(ORDER))):
        if predicted.get(name) or measured.get(name):
            mine = [kind for kind in steps[0].calls if _belongs(kind, name)]
            calls = sum(steps[0].calls[kind] for kind in mine)
            longest = max((steps[0].longest.get(kind, "") for kind in mine), key=len, default="")
            class_times.append(ClassTime(name, predicted.get(name, 0.0), measured.get(name, 0.0), calls, longest))
    return tuple(class_times)


def _belongs(kind: str, name: str) -> bool:
    return name == (kind if kind in ORDER else PIPELINE if kind in SENDS else COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Whom the others wait for in traced steps."""

    rank: int  # that is last most often
    seconds: float  # a step, that it works longer than the others in the median
    share: float  # of the steps in which it is the last
    kind: str  # class in which it differs most
    is_constant: bool  # the same rank in nearly all steps, and by more than its own steps differ
    spread_s: float = 0.0  # of what the last one of each step is behind by


def lateness(traced: Mapping[int, Sequence[StepTime]]) -> Lateness | None:
    """Who works longest before the others can go on; None with one rank, or where nobody does by much."""
    numbers = set.intersection(*({step.step for step in steps} for steps in traced.values()))
    first = min(numbers, default=0)
    by_step = {
        number: {rank: next(step for step in steps if step.step == number) for rank, steps in traced.items()}
        for number in sorted(numbers)
        if number != first or len(numbers) == 1
    }
    if len(traced) < 2 or not by_step:
        return None
    last: dict[int, list[float]] = {}
    leads: dict[int, list[float]] = {rank: [] for rank in traced}
    for ranks in by_step.values():
        own = {rank: own_work_s(step) for rank, step in ranks.items()}
        for rank in own:
            leads[rank].append(own[rank] - median([seconds for number, seconds in own.items() if number != rank]))
        rank = max(own, key=lambda candidate: (own[candidate], -candidate))
        last.setdefault(rank, []).append(leads[rank][-1])
    rank = max(last, key=lambda candidate: (len(last[candidate]), sum(last[candidate])))
    every = [lead for mine in last.values() for lead in mine]
    share = len(last[rank]) / len(every)
    mine = [measured_classes(ranks[rank]) for ranks in by_step.values()]
    theirs = [measured_classes(step) for ranks in by_step.values() for number, step in ranks.items() if number != rank]
    kinds = [name for name in ORDER if name not in (COMMUNICATION, PIPELINE, "idle")]

    def differs(name: str) -> float:
        return median([entry.get(name, 0.0) for entry in mine]) - median([their.get(name, 0.0) for their in theirs])

    constant = share >= CONSTANT and median(leads[rank]) > 2.0 * spread(leads[rank])
    seconds = median(leads[rank]) if constant else sum(every) / len(every)
    return Lateness(rank, seconds, share, max(kinds, key=differs), constant, spread(every))


def spread(values: Sequence[float]) -> float:
    """Between the quarters of some values: what they differ by without a cause."""
    ordered = sorted(values)
    return ordered[(3 * (len(ordered) - 1)) // 4] - ordered[(len(ordered) - 1) // 4]


def noise(traced: Mapping[int, Sequence[StepTime]], name: str) -> float:
    """By how much a class differs from step to step, in the median over the ranks."""
    each = []
    for steps in traced.values():
        later = sorted(steps, key=lambda step_time: step_time.step)[1:] or list(steps)
        each.append(spread([measured_classes(step_time).get(name, 0.0) for step_time in later]))
    return median(each)


def own_work_s(step: StepTime) -> float:
    """What a rank does before others can go on: all but communication and idling."""
    return sum(
        seconds for name, seconds in measured_classes(step).items() if name not in (COMMUNICATION, PIPELINE, "idle")
    )
