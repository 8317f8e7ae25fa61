"""Layout ranking: of the layouts that somebody measured for one job, how good is the one we would choose?

A group is one job: same source, model, GPUs, batch, sequence and precision. We choose the layout that we predict to be
fastest among those that we call feasible and that `plan` would propose: of those that fill the device it proposes none.

    regret = measured step of our choice / fastest measured step - 1

A choice that crashed when it was run has infinite regret, written as None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from windtunnel.evidence.accuracy.outcome import Outcome

LAYOUTS_AT_LEAST = 4  # measured layouts, below which choosing is no task
CLOSE = 0.03


@dataclass(frozen=True, slots=True)
class Choice:
    """One group: what we would choose, what was best, and what the difference costs."""

    model: str
    gpu: str
    n_gpus: int
    global_batch: int
    layouts: int  # rows of the group, crashed ones included
    chosen_id: str  # "" where we call every layout infeasible
    best_id: str
    regret: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """All groups of one source."""

    name: str
    groups: tuple[Choice, ...]
    median_regret: float | None  # None: infinite, more than half of the choices do not run
    share_close: float  # share of groups with a regret of at most 3 %
    worst_regret: float | None


def rankings(outcomes: Iterable[Outcome]) -> tuple[Ranking, ...]:
    """Rankings per source, of the groups with enough measured layouts."""
    groups: dict[tuple[str, str, str, int, int, int, str], list[Outcome]] = {}
    for outcome in outcomes:
        row = outcome.row
        if outcome.status == "skipped" or outcome.is_anchor:
            continue
        if row.n_gpus is None or row.global_batch is None or row.seq_len is None:
            continue
        key = (row.source, row.model, row.gpu, row.n_gpus, row.global_batch, row.seq_len, row.precision)
        groups.setdefault(key, []).append(outcome)
    by_source: dict[str, list[Choice]] = {}
    for key, group in sorted(groups.items()):
        if len({_layout(outcome) for outcome in group if _time(outcome) < math.inf}) >= LAYOUTS_AT_LEAST:
            by_source.setdefault(key[0], []).append(_choice(key[1], key[2], key[3], key[4], group))
    return tuple(_ranking(name, choices) for name, choices in by_source.items())


def _choice(model: str, gpu: str, n_gpus: int, global_batch: int, group: list[Outcome]) -> Choice:
    best = min(group, key=_time)
    proposed = [
        outcome for outcome in group if outcome.status == "ok" and outcome.step_time_s is not None and not outcome.full
    ]
    chosen = min(proposed, key=lambda outcome: (outcome.step_time_s, outcome.row.line), default=None)
    regret = _time(chosen) / _time(best) - 1.0 if chosen else math.inf
    return Choice(
        model=model,
        gpu=gpu,
        n_gpus=n_gpus,
        global_batch=global_batch,
        layouts=len(group),
        chosen_id=chosen.row.id if chosen else "",
        best_id=best.row.id,
        regret=regret if math.isfinite(regret) else None,
    )


def _ranking(name: str, choices: list[Choice]) -> Ranking:
    regrets = [math.inf if choice.regret is None else choice.regret for choice in choices]
    median, worst = statistics.median(regrets), max(regrets)
    return Ranking(
        name=name,
        groups=tuple(choices),
        median_regret=median if math.isfinite(median) else None,
        share_close=sum(regret <= CLOSE for regret in regrets) / len(regrets),
        worst_regret=worst if math.isfinite(worst) else None,
    )


def _layout(outcome: Outcome) -> tuple[object, ...]:
    row = outcome.row
    return (row.tp, row.pp, row.vpp, row.cp, row.ep, row.zero_stage, row.sp, row.micro_batch, row.recompute)


def _time(outcome: Outcome) -> float:
    measured = outcome.row.measured_s
    return math.inf if measured is None or outcome.row.crashed else measured
