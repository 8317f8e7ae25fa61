"""Scores: how far predictions are from what was measured, never pooled over sources.

error = predicted / measured - 1 of one row; mean and median of its absolute value, bias = its mean with sign, worst =
the one farthest from zero. A row counts as priced when a step time was predicted for it, whether it is said to fit in
memory or not; how many are called infeasible stands beside it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from windtunnel.evidence.accuracy.outcome import Outcome

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Score:
    """Step times of one group of rows. Shares and errors are fractions; None where nothing was priced."""

    name: str
    rows: int  # in the group, crashed runs and anchors apart
    priced: int
    skipped: int
    infeasible: int
    mean_abs: float | None
    median_abs: float | None
    bias: float | None
    worst: float | None
    worst_id: str
    inside_band: float | None
    guess_mean_abs: float | None  # of the constant-rate guess of guess.py, on the same rows
    skip_reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Peak memory of one group of rows, in the definition that its source uses."""

    name: str
    definition: str
    rows: int
    mean_abs: float
    median_abs: float
    bias: float
    worst: float
    worst_id: str
    other_definitions: tuple[tuple[str, float], ...]  # mean absolute error if the figure were another one


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether what could not run is called infeasible, and only that."""

    name: str
    crashed: int
    crashed_called: int
    ran: int
    false_alarms: int

    @property
    def recall(self) -> float | None:
        """Share of the crashed rows that are called infeasible."""
        return self.crashed_called / self.crashed if self.crashed else None

    @property
    def false_alarm_share(self) -> float | None:
        """Share of the rows that ran but are called infeasible."""
        return self.false_alarms / self.ran if self.ran else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Runs that give p5 and p95 of their own steps, against the stated band. Widths are (p95 - p5) / step."""

    name: str
    rows: int
    covered: int  # whose p5 to p95 lies in the band as a whole
    measured_width: float  # median
    stated_width: float


@dataclass(frozen=True, slots=True)
class Ordering:
    """Rank correlation of predicted and measured tokens per second and GPU."""

    name: str
    rows: int
    spearman: float


def score(name: str, outcomes: Iterable[Outcome]) -> Score:
    """Score one group. Anchors and crashed runs are not part of it."""
    rows = [outcome for outcome in outcomes if not outcome.is_anchor and not outcome.row.crashed]
    priced = [(outcome, outcome.error) for outcome in rows]
    errors = [(outcome, error) for outcome, error in priced if error is not None]
    bands = [outcome.inside_band for outcome, _ in errors if outcome.inside_band is not None]
    guesses = [abs(outcome.guess_s / (outcome.row.measured_s or 1.0) - 1) for outcome, _ in errors if outcome.guess_s]
    skipped = [outcome for outcome in rows if outcome.status == "skipped"]
    values = [error for _, error in errors]
    worst = max(errors, key=lambda pair: abs(pair[1]), default=None)
    return Score(
        name=name,
        rows=len(rows),
        priced=len(errors),
        skipped=len(skipped),
        infeasible=sum(outcome.status == "infeasible" for outcome in rows),
        mean_abs=statistics.fmean(abs(value) for value in values) if values else None,
        median_abs=statistics.median(abs(value) for value in values) if values else None,
        bias=statistics.fmean(values) if values else None,
        worst=worst[1] if worst else None,
        worst_id=worst[0].row.id if worst else "",
        inside_band=sum(bands) / len(bands) if bands else None,
        guess_mean_abs=statistics.fmean(guesses) if guesses else None,
        skip_reasons=tuple(Counter(outcome.reason for outcome in skipped).most_common()),
    )


def grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], Key]) -> dict[Key, list[Outcome]]:
    """Outcomes by a key of theirs, each group in the order of the table."""
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return groups


def memory_scores(outcomes: Iterable[Outcome]) -> tuple[MemoryScore, ...]:
    """Peak memory by source and definition, for the rows that publish one."""
    measured = (outcome for outcome in outcomes if outcome.memory_error is not None and not outcome.row.crashed)
    groups = grouped(measured, lambda outcome: (outcome.row.source, outcome.memory_definition))
    return tuple(_memory(name, definition, group) for (name, definition), group in sorted(groups.items()))


def _memory(name: str, definition: str, group: Sequence[Outcome]) -> MemoryScore:
    errors = [(outcome, outcome.memory_error or 0.0) for outcome in group]
    worst = max(errors, key=lambda pair: abs(pair[1]))
    others = []
    for other in ("allocated", "reserved", "device"):
        values = [
            abs(value / outcome.row.peak_mem_gib - 1.0)
            for outcome in group
            if (value := getattr(outcome, f"{other}_gib")) is not None and outcome.row.peak_mem_gib
        ]
        if other != definition and values:
            others.append((other, statistics.fmean(values)))
    return MemoryScore(
        name=name,
        definition=definition,
        rows=len(errors),
        mean_abs=statistics.fmean(abs(error) for _, error in errors),
        median_abs=statistics.median(abs(error) for _, error in errors),
        bias=statistics.fmean(error for _, error in errors),
        worst=worst[1],
        worst_id=worst[0].row.id,
        other_definitions=tuple(others),
    )


def feasibility(outcomes: Iterable[Outcome]) -> tuple[Feasibility, ...]:
    """Per source that has crashed runs: what we call infeasible of them, and of those that ran, skipped rows apart."""
    groups = grouped(
        (outcome for outcome in outcomes if outcome.status != "skipped"), lambda outcome: outcome.row.source
    )
    feasibilities = []
    for name, group in sorted(groups.items()):
        crashed = [outcome.status == "infeasible" for outcome in group if outcome.row.crashed]
        ran = [outcome.status == "infeasible" for outcome in group if not outcome.row.crashed]
        if crashed:
            feasibilities.append(Feasibility(name, len(crashed), sum(crashed), len(ran), sum(ran)))
    return tuple(feasibilities)


def spreads(outcomes: Iterable[Outcome]) -> tuple[Spread, ...]:
    """Per source that publishes percentiles of its steps."""
    stated = (
        outcome
        for outcome in outcomes
        if outcome.covers_spread is not None and not outcome.row.crashed and not outcome.is_anchor
    )
    groups = grouped(stated, lambda outcome: outcome.row.source)
    return tuple(
        Spread(
            name,
            len(group),
            sum(bool(outcome.covers_spread) for outcome in group),
            statistics.median(
                ((outcome.row.step_time_p95_s or 0.0) - (outcome.row.step_time_p5_s or 0.0))
                / (outcome.row.measured_s or 1.0)
                for outcome in group
            ),
            statistics.median(
                ((outcome.p95_s or 0.0) - (outcome.p5_s or 0.0)) / (outcome.step_time_s or 1.0) for outcome in group
            ),
        )
        for name, group in sorted(groups.items())
    )


def ordering(name: str, outcomes: Iterable[Outcome]) -> Ordering | None:
    """Spearman's rank correlation over the priced rows; None for fewer than three."""
    predicted, measured = [], []
    for outcome in outcomes:
        row = outcome.row
        if outcome.error is None or not (row.global_batch and row.seq_len and row.n_gpus):
            continue
        tokens = row.global_batch * row.seq_len / row.n_gpus
        predicted.append(tokens / (outcome.step_time_s or 1.0))
        measured.append(tokens / (row.measured_s or 1.0))
    if len(predicted) < 3:
        return None
    left, right = _ranks(predicted), _ranks(measured)
    if len(set(left)) < 2 or len(set(right)) < 2:
        return None
    return Ordering(name, len(predicted), statistics.correlation(left, right))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    return [
        (sum(other < value for other in values) + sum(other <= value for other in values) + 1) / 2 for value in values
    ]
