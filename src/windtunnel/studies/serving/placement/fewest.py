"""The fewest GPUs that carry a rate within limits: together or apart, layouts and replicas, with a certificate.

    plan      n replicas of one shape, or n prefill and m decode workers of two
    holds     enough of the requests meet the limits in simulation, and the queue does not grow
    bound     of a shape: the fewest replicas that could hold them (`least`); None where none ever will

Plans are run in the order of their GPUs, those below their bounds left out, until some hold: what has fewer GPUs was
run and missed, or could not hold. Before, each shape, alone and behind the leanest prefill workers, is doubled and
bisected, for a plan that is known to hold. Where the allowance of runs ends first, the gap says how many GPUs fewer
nobody has ruled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Shape:
    """What one replica may be, and the fewest of it that could do: both phases, prompts alone, answers alone."""

    name: str
    gpus: int
    least: int | None
    least_prefill: int | None
    least_decode: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`n` replicas of a shape, or with `prefill` that many workers that compute prompts beside `n` that answer."""

    shape: Shape
    n: int
    prefill: Shape | None = None
    n_prefill: int = 0

    @property
    def gpus(self) -> int:
        """In all."""
        return self.n * self.shape.gpus + (self.n_prefill * self.prefill.gpus if self.prefill else 0)

    @property
    def words(self) -> str:
        """As people write it."""
        own = f"{self.n}x{self.shape.name}"
        return f"prefill {self.n_prefill}x{self.prefill.name}, decode {own}" if self.prefill else own


@dataclass(frozen=True, slots=True)
class PlanRun(Generic[Outcome]):
    """A plan that was run."""

    plan: Plan
    holds: bool
    rank: tuple[float, ...]  # of two with as many GPUs the one with less is better
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PlanSearch(Generic[Outcome]):
    """Plans that hold, best first, and what is known of those with fewer GPUs."""

    plans: tuple[PlanRun[Outcome], ...]
    runs: int
    ruled_out_below: int  # no plan with fewer GPUs than this holds

    @property
    def gap(self) -> float:
        """Share of the best plan's GPUs that nobody has ruled out; 0 is a proof."""
        best = self.plans[0].plan.gpus
        return max(0.0, (best - self.ruled_out_below) / best)


def plans_of(shapes: Sequence[Shape], gpus: int, apart: bool) -> Iterator[Plan]:
    """All plans with just so many GPUs that their bounds allow."""
    for shape in shapes:
        n, rest = divmod(gpus, shape.gpus)
        if not rest and shape.least is not None and n >= shape.least:
            yield Plan(shape, n)
    for prefill in shapes if apart else ():
        if prefill.least_prefill is None:
            continue
        for n_prefill in range(max(1, prefill.least_prefill), gpus // prefill.gpus + 1):
            left = gpus - n_prefill * prefill.gpus
            for shape in shapes:
                n, rest = divmod(left, shape.gpus)
                if n and not rest and shape.least_decode is not None and n >= shape.least_decode:
                    yield Plan(shape, n, prefill, n_prefill)


def fewest(
    shapes: Sequence[Shape], most_gpus: int, run: Callable[[Plan], PlanRun[Outcome]], *, apart: bool, runs: int
) -> PlanSearch[Outcome] | None:
    """The plans with the fewest GPUs that hold; None where none was found. `runs`: how many may be run."""
    results: dict[Plan, PlanRun[Outcome]] = {}

    def holds(plan: Plan) -> bool:
        if plan not in results:
            results[plan] = run(plan)
        return results[plan].holds

    best = most_gpus + 1
    for shape in shapes:
        if shape.least is not None and len(results) < runs:
            best = min(best, grown(Plan(shape, max(1, shape.least)), best - 1, holds))
    able = [shape for shape in shapes if shape.least_prefill is not None] if apart else []
    lean = min(able, key=lambda shape: (shape.least_prefill or 1) * shape.gpus, default=None)
    for shape in shapes if lean is not None else ():
        if lean is not None and shape.least_decode is not None and len(results) < runs:
            begin = Plan(shape, max(1, shape.least_decode), lean, max(1, lean.least_prefill or 1))
            best = min(best, grown(begin, best - 1, holds))
    ruled_out = 0
    for gpus in range(1, min(best, most_gpus) + 1):
        plans = list(plans_of(shapes, gpus, apart))
        for plan in plans:
            if plan not in results and len(results) >= runs:
                break
            holds(plan)
        else:
            ruled_out = gpus
            if any(results[plan].holds for plan in plans):
                break
            continue
        break
    rans = sorted((ran for ran in results.values() if ran.holds), key=lambda ran: (ran.plan.gpus, ran.rank))
    if not rans:
        return None
    return PlanSearch(tuple(rans), len(results), min(ruled_out + 1, rans[0].plan.gpus))


def grown(begin: Plan, most_gpus: int, holds: Callable[[Plan], bool]) -> int:
    """GPUs of the fewest replicas, from those of `begin` on, that hold; more than `most_gpus` if none do."""
    fixed = begin.gpus - begin.n * begin.shape.gpus
    most = (most_gpus - fixed) // begin.shape.gpus
    low, n = begin.n - 1, begin.n
    while n <= most and not holds(replace(begin, n=n)):
        low, n = n, min(2 * n, most) if n < most else most + 1
    if n > most:
        return most_gpus + 1
    while n - low > 1:
        middle = (low + n) // 2
        low, n = (low, middle) if holds(replace(begin, n=middle)) else (middle, n)
    return fixed + n * begin.shape.gpus
