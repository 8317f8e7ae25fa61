"""The tables of a validation as plain text cells, for the console and for `docs/accuracy.md` alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.evidence.accuracy.ranking import Ranking
from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.score import Score

DASH = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header and rows of text; the first `left` columns are words, the rest numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    detail: bool = False  # for a page, and for a screen only where it is about one source


def percent(value: float | None, signed: bool = False) -> str:
    """`0.123` as "12.3 %"; a dash for what is not known."""
    if value is None:
        return DASH
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def tables_of(report: Report) -> tuple[Table, ...]:
    """Every table that has something to say, most important first."""
    made: list[Table | None] = []
    for level, scores in report.by_source:
        # Level C rows leave too much open for an error to mean anything: only their order counts.
        if level != "C":
            made.append(_scores(f"Step time by source, specification level {level}", "source", scores))
    level = report.by_source[0][0] if report.by_source else ""
    made += [
        _skips(report),
        _kinds(report),
        _scores(f"Step time by source and scale, level {level}", "source, scale", report.by_scale, detail=True),
        _scores(
            f"Step time by source, GPU and precision, level {level}", "source, GPU", report.by_precision, detail=True
        ),
        _spread(report),
        _memory(report),
        _feasibility(report),
        *(_ranking(ranking) for ranking in report.ranking),
        _ordering(report),
    ]
    return tuple(table for table in made if table is not None and table.rows)


def _scores(title: str, what: str, scores: Sequence[Score], detail: bool = False) -> Table:
    errors = ("mean", "median", "bias", "worst", "in band", "guess")
    header = (what, "rows", "priced", "skipped", "infeas.", *errors, "worst row")
    return Table(title, header, tuple(_score_cells(score) for score in scores), detail=detail)


def _score_cells(score: Score) -> tuple[str, ...]:
    return (
        score.name,
        str(score.rows),
        str(score.priced),
        str(score.skipped),
        str(score.infeasible),
        percent(score.mean_abs),
        percent(score.median_abs),
        percent(score.bias, signed=True),
        percent(score.worst, signed=True),
        percent(score.inside_band),
        percent(score.guess_mean_abs),
        score.worst_id or DASH,
    )


def _kinds(report: Report) -> Table | None:
    """Only where a source has both; otherwise it would repeat the table by source."""
    names = {score.name.rpartition(":")[0] for score in report.by_kind if score.name.endswith(": MoE")}
    kept = [score for score in report.by_kind if score.name.rpartition(":")[0] in names]
    return _scores("Step time, dense and mixture of experts apart", "source", kept) if kept else None


def _skips(report: Report) -> Table:
    counts: dict[str, int] = {}
    for _, scores in report.by_source:
        for score in scores:
            for reason, count in score.skip_reasons:
                counts[reason] = counts.get(reason, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple((reason, str(count)) for reason, count in ordered)
    return Table("Skipped rows", ("reason", "rows"), rows)


def _spread(report: Report) -> Table:
    header = ("source", "rows", "wholly in band", "measured width", "stated width")
    rows = [
        (
            one.name,
            str(one.rows),
            f"{one.covered} ({percent(one.covered / one.rows)})",
            percent(one.measured_width),
            percent(one.stated_width),
        )
        for one in report.spread
    ]
    return Table("Spread of steps: runs that publish p5 and p95 of their own steps", header, tuple(rows))


def _memory(report: Report) -> Table:
    errors = ("mean", "median", "bias", "worst", "worst row", "mean by other definitions")
    header = ("source", "definition", "rows", *errors)
    rows = [
        (
            score.name,
            score.definition,
            str(score.rows),
            percent(score.mean_abs),
            percent(score.median_abs),
            percent(score.bias, signed=True),
            percent(score.worst, signed=True),
            score.worst_id,
            ", ".join(f"{name} {percent(value)}" for name, value in score.other_definitions) or DASH,
        )
        for score in report.memory
    ]
    return Table("Peak memory by source", header, tuple(rows), left=2)


def _feasibility(report: Report) -> Table:
    header = ("source", "crashed or OOM", "called infeasible", "ran", "false alarms")
    rows = [
        (
            one.name,
            str(one.crashed),
            f"{one.crashed_called} ({percent(one.recall)})",
            str(one.ran),
            f"{one.false_alarms} ({percent(one.false_alarm_share)})",
        )
        for one in report.feasibility
    ]
    return Table("Feasibility", header, tuple(rows))


def _ranking(ranking: Ranking) -> Table:
    median = "infinite" if ranking.median_regret is None else percent(ranking.median_regret)
    title = (
        f"Layout ranking, {ranking.name}: our choice costs {median} more than the measured best in the median of "
        f"{len(ranking.groups)} groups; at most 3 % in {percent(ranking.share_close)} of them"
    )
    rows = [
        (
            f"{choice.model} on {choice.n_gpus} x {choice.gpu}, batch {choice.global_batch}",
            str(choice.layouts),
            choice.chosen_id or "none",
            choice.best_id,
            percent(choice.regret) if choice.regret is not None else "does not run",
        )
        for choice in ranking.groups
    ]
    return Table(title, ("job", "layouts", "our choice", "measured best", "costs more"), tuple(rows))


def _ordering(report: Report) -> Table:
    rows = [(one.name, str(one.rows), f"{one.spearman:.3f}") for one in report.ordering]
    return Table("Ordering by tokens/s/GPU (Spearman)", ("rows of", "rows", "rank correlation"), tuple(rows))
