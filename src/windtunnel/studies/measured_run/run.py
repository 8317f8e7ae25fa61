"""A measured run, and its steady state: warm-up left out, outliers set aside and counted.

steady step    median of the lines behind the warm-up that take at most OUTLIER times their median
set aside      the lines above that: a checkpoint, an evaluation, garbage collection, a hiccup
drift          median of the last third over that of the first third, less one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from windtunnel.errors import UserError

WARM_UP = 3  # lines
OUTLIER = 1.5  # of the median
FEW = 5  # steady lines below which a median is no steady state
PERIODS_LEAST = 3  # outliers that a period is told from


@dataclass(frozen=True, slots=True)
class Step:
    """One step, or the mean of the steps since the line before. What the source does not say is None."""

    number: int | None = None
    seconds: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    clock_s: float | None = None  # when the line was written
    rank: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of each named part; parts may be nested


@dataclass(frozen=True, slots=True)
class Collective:
    """Runs of one collective of one size, as NCCL Inspector or the flight recorder tells them."""

    kind: str
    size_bytes: int
    rank: int
    seconds: float
    sequence: int = -1


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What the files of one run say; `notes` say what was inferred, `not_understood` which lines were not read."""

    source: str
    format: str
    steps: tuple[Step, ...] = ()
    allocated_bytes: Mapping[int, int] = field(default_factory=dict)  # peak by rank
    reserved_bytes: Mapping[int, int] = field(default_factory=dict)
    ranks_spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # least and most seconds over ranks
    n_gpus: int | None = None
    global_batch: int | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)  # that the framework printed of itself
    collectives: tuple[Collective, ...] = ()
    is_mean: bool = False  # one figure of the whole run, start and end in it
    notes: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()

    def with_seconds(self, tokens_per_step: float, sequences: int, n_gpus: int) -> MeasuredRun:
        """The run with the seconds of each step from its throughput, else from the clock of its lines."""
        if not self.steps or any(step.seconds is not None for step in self.steps):
            return self
        seconds = [_seconds(step, tokens_per_step, sequences, n_gpus) for step in self.steps]
        if any(value is not None for value in seconds):
            note = f"step time from throughput and {tokens_per_step:,.0f} tokens a step on {n_gpus:,} GPUs"
        else:
            seconds, note = _by_clock(self.steps), "step time from the clock of the lines"
        steps = tuple(replace(step, seconds=value) for step, value in zip(self.steps, seconds, strict=True))
        return replace(self, steps=steps, notes=(*self.notes, note))


def _seconds(step: Step, tokens: float, sequences: int, n_gpus: int) -> float | None:
    for rate, amount in (
        (step.tokens_per_s_per_gpu, tokens / n_gpus),
        (step.tokens_per_s, tokens),
        (step.samples_per_s, float(sequences)),
    ):
        if rate:
            return amount / rate
    return None


def _by_clock(steps: Sequence[Step]) -> list[float | None]:
    seconds: list[float | None] = [None]
    before = steps[0]
    for after in steps[1:]:
        is_complete = None not in (before.clock_s, after.clock_s, before.number, after.number)
        count, passed = (after.number or 0) - (before.number or 0), (after.clock_s or 0.0) - (before.clock_s or 0.0)
        seconds.append(passed / count if is_complete and count > 0 and passed > 0.0 else None)
        before = after if count else before  # of several lines of one step the first: parts of it, or ranks
    return seconds


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady state of a run."""

    seconds: float
    p5_s: float
    p95_s: float
    lines: int  # that it rests on
    warm_up: int  # lines left out before it
    set_aside: int  # lines above OUTLIER times the median
    lost_s: float  # a step, to what was set aside: mean less median
    every: int | None  # steps between what was set aside, where it comes back regularly
    drift: float

    @property
    def spread(self) -> float:
        """p95 over p5, less one."""
        return self.p95_s / self.p5_s - 1.0


def steady_of(run: MeasuredRun, remedy: str = "give it with --measured 11s") -> Steady:
    """The steady state. Raises UserError, with the remedy, for a run without a step time."""
    first = next((step.rank for step in run.steps if step.seconds is not None), None)
    timed = [step for step in run.steps if step.seconds is not None and step.rank == first]
    if not timed:
        lines = f"; not understood: {'; '.join(run.not_understood[:3])}" if run.not_understood else ""
        lines = lines or "".join(f"; {note}" for note in run.notes[:1])
        raise UserError(f"{run.source}: holds no step time that can be read{lines}; {remedy}")
    times = [float(step.seconds or 0.0) for step in timed]
    skipped = WARM_UP if len(times) > 2 * WARM_UP else max(len(times) // 3, min(1, len(times) - 1))
    rest = times[skipped:]
    level = median(rest)
    steady = [value for value in rest if value <= OUTLIER * level]
    late = [at for at, value in enumerate(rest) if value > OUTLIER * level]
    gaps = [b - a for a, b in pairwise(late)]
    numbers = [step.number for step in timed if step.number is not None]
    stride = numbers[-1] - numbers[-2] if len(numbers) > 1 else 1
    regular = len(late) >= PERIODS_LEAST and max(gaps) - min(gaps) <= max(1, median(gaps) // 10)
    ordered, third = sorted(steady), max(1, len(steady) // 3)
    middle = median(steady)
    return Steady(
        seconds=middle,
        p5_s=ordered[int(0.05 * (len(ordered) - 1))],
        p95_s=ordered[round(0.95 * (len(ordered) - 1))],
        lines=len(steady),
        warm_up=skipped,
        set_aside=len(late),
        lost_s=sum(rest[at] - middle for at in late) / len(rest),
        every=round(median(gaps)) * max(1, stride) if regular else None,
        drift=median(steady[-third:]) / median(steady[:third]) - 1.0 if len(steady) >= 2 * FEW else 0.0,
    )


def phases_of(run: MeasuredRun) -> dict[str, float]:
    """Median seconds a step of each named part, behind the warm-up."""
    times: dict[str, list[float]] = {}
    for step in run.steps[WARM_UP if len(run.steps) > 2 * WARM_UP else 0 :]:
        for name, seconds in step.phases.items():
            times.setdefault(name, []).append(seconds)
    return {name: median(seconds) for name, seconds in times.items()}
