"""The report of a validation: every outcome and every score, as plain data; renderers work from it alone.

The guess that a prediction has to beat: every run of a framework, GPU and precision reaches the same FLOP rate.

    rate = median of model FLOPs / (GPUs x measured step) over the rows of a framework, GPU and precision
    guess = model FLOPs / (GPUs x rate)

It is fitted on the very rows it is judged on, so it is as good as a single number for each can be.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.evidence.accuracy.ranking import Ranking, rankings
from windtunnel.evidence.accuracy.score import (
    Feasibility,
    MemoryScore,
    Ordering,
    Score,
    Spread,
    feasibility,
    grouped,
    memory_scores,
    ordering,
    score,
    spreads,
)
from windtunnel.files.write import write_csv
from windtunnel.questions.header import Answer

ENDLESS = 10**12  # GPUs
SCALES = ((1, 8), (9, 64), (65, 256), (257, 1024), (1025, 4096), (4097, ENDLESS))
GROUPS = ("by_scale", "by_kind", "by_precision", "spread", "memory", "feasibility", "ranking", "ordering")
ROW_FIELDS = ("id", "step_time_s", "p5_s", "p95_s", "peak_mem_gib", "status", "reason", "band_reason")


@dataclass(frozen=True, slots=True)
class Report(Answer):
    """Outcomes in the order of the table, and their scores. `level`, `source` and `anchor` are what was asked for."""

    table: str
    level: str | None
    source: str | None
    anchor: str
    outcomes: tuple[Outcome, ...]
    by_source: tuple[tuple[str, tuple[Score, ...]], ...]  # per level: per source
    by_scale: tuple[Score, ...]  # per source, of the best level there is
    by_kind: tuple[Score, ...]  # dense and MoE, per source, of the best level
    by_precision: tuple[Score, ...]
    spread: tuple[Spread, ...]
    memory: tuple[MemoryScore, ...]
    feasibility: tuple[Feasibility, ...]
    ranking: tuple[Ranking, ...]
    ordering: tuple[Ordering, ...]
    unread: tuple[str, ...] = ()  # columns of the table that nothing reads

    @property
    def provenance(self) -> Mapping[str, object]:
        """Which table."""
        return {"measured": self.table}

    def to_dict(self) -> dict[str, object]:
        """The report as JSON-able data."""
        groups = {name: [asdict(score) for score in getattr(self, name)] for name in GROUPS}
        for shown, entry in zip(groups["feasibility"], self.feasibility, strict=True):
            shown |= {"recall": entry.recall, "false_alarm_share": entry.false_alarm_share}
        return {
            **{name: getattr(self, name) for name in ("table", "level", "source", "anchor")},
            "columns_not_read": list(self.unread),
            "by_source": {level: [asdict(score) for score in scores] for level, scores in self.by_source},
            **groups,
            "rows": [row_of(outcome) for outcome in self.outcomes],
        }

    def write_rows(self, path: str | Path) -> None:
        """One CSV line per row of the table, skipped ones included. Raises InputFileError if it cannot be written."""
        write_csv(path, ROW_FIELDS, (row_of(outcome) for outcome in self.outcomes))


def row_of(outcome: Outcome) -> dict[str, object]:
    """The fields of `--rows`; numbers rounded to what they can bear."""
    return {
        "id": outcome.row.id,
        "step_time_s": _rounded(outcome.step_time_s),
        "p5_s": _rounded(outcome.p5_s),
        "p95_s": _rounded(outcome.p95_s),
        "peak_mem_gib": _rounded(outcome.peak_mem_gib),
        "status": outcome.status,
        "reason": outcome.reason,
        "band_reason": outcome.band_reason,
    }


def report_of(
    table: str,
    outcomes: Sequence[Outcome],
    level: str | None,
    source: str | None,
    anchor: str,
    unread: tuple[str, ...] = (),
) -> Report:
    """Score the outcomes that were asked for."""
    selection = [
        outcome
        for outcome in outcomes
        if (level is None or outcome.row.level == level)
        and (source is None or source.lower() in outcome.row.source.lower())
    ]
    levels = sorted({outcome.row.level for outcome in selection})
    # A rate is fitted on rows of one level: those of another are other kinds of runs.
    guessed = {
        with_guess.row.id: with_guess
        for level in levels
        for with_guess in with_guesses([outcome for outcome in selection if outcome.row.level == level])
    }
    selection = [guessed[outcome.row.id] for outcome in selection]
    best = [outcome for outcome in selection if levels and outcome.row.level == levels[0]]
    orderings = (ordering(f"level {name}", [o for o in selection if o.row.level == name]) for name in levels)
    return Report(
        table=table,
        level=level,
        source=source,
        anchor=anchor,
        outcomes=tuple(outcomes),
        by_source=tuple(
            (name, _scores((o for o in selection if o.row.level == name), lambda o: o.row.source)) for name in levels
        ),
        by_scale=_scores((o for o in best if o.row.n_gpus), _scale, key=_by_scale),
        by_kind=_scores(best, lambda o: f"{o.row.source}: {'MoE' if o.row.moe else 'dense'}"),
        by_precision=_scores(best, lambda o: f"{o.row.source}: {o.row.gpu} {o.row.precision}"),
        spread=spreads(selection),
        memory=memory_scores(selection),
        feasibility=feasibility(selection),
        ranking=rankings(selection),
        ordering=tuple(order for order in orderings if order is not None),
        unread=unread,
    )


def _scores(
    outcomes: Iterable[Outcome], name: Callable[[Outcome], str], key: Callable[[str], Any] | None = None
) -> tuple[Score, ...]:
    groups = grouped(outcomes, name)
    return tuple(score(label, groups[label]) for label in sorted(groups, key=key))


def _scale(outcome: Outcome) -> str:
    n_gpus = outcome.row.n_gpus or 1
    low, high = next((low, high) for low, high in SCALES if low <= n_gpus <= high)
    return f"{outcome.row.source}: {low:,}-{high:,} GPUs" if high < ENDLESS else f"{outcome.row.source}: {low:,}+ GPUs"


def _by_scale(label: str) -> tuple[str, int]:
    source, _, scale = label.rpartition(": ")
    return source, int(re.split("[-+]", scale)[0].replace(",", ""))


def _rounded(value: float | None) -> float | str:
    return "" if value is None else float(f"{value:.6g}")


def with_guesses(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with `guess_s` set where it can be."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        measured, per_gpu = outcome.row.measured_s, _flops_per_gpu(outcome)
        if measured is not None and per_gpu is not None:
            rates.setdefault(_key(outcome), []).append(per_gpu / measured)
    medians = {key: statistics.median(values) for key, values in rates.items()}
    guessed = []
    for outcome in outcomes:
        per_gpu, rate = _flops_per_gpu(outcome), medians.get(_key(outcome))
        guessed.append(outcome if per_gpu is None or rate is None else replace(outcome, guess_s=per_gpu / rate))
    return guessed


def _key(outcome: Outcome) -> tuple[str, str, str]:
    return (outcome.row.framework, outcome.row.gpu, outcome.row.precision)


def _flops_per_gpu(outcome: Outcome) -> float | None:
    n_gpus = outcome.row.n_gpus
    return outcome.model_flops / n_gpus if outcome.model_flops is not None and n_gpus else None
