"""The tables of a validation of steps, for the console and for `docs/accuracy.md` alike."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.evidence.accuracy.ranking import Ranking
from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.score import Score
from windtunnel.views import Column, Table

DASH = "-"


WORDS = ("worst row", "mean by other definitions", "our choice", "measured best")


def text_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table of text: the first `left` columns are words, and those of WORDS; the rest are numbers."""
    columns = [Column(name, "text" if at < left or name in WORDS else "number") for at, name in enumerate(header)]
    return Table(title, columns, rows, most=len(rows))


def percent(value: float | None, signed: bool = False) -> str:
    """`0.123` as "12.3 %"; a dash for what is not known."""
    if value is None:
        return DASH
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def tables_of(report: Report) -> list[Table]:
    """Every table that has something to say, most important first."""
    tables = [
        *steps_by_source(report),
        _skips(report),
        _kinds(report),
        _spread(report),
        _memory(report),
        _feasibility(report),
        *(_ranking(ranking) for ranking in report.ranking),
        _ordering(report),
    ]
    return [table for table in tables if table is not None and table.rows]


def details_of(report: Report) -> list[Table]:
    """The sources once more, by scale and by GPU."""
    level = report.by_source[0][0] if report.by_source else ""
    tables = [
        _scores(f"Step time by source and scale, level {level}", "source, scale", report.by_scale),
        _scores(f"Step time by source, GPU and precision, level {level}", "source, GPU", report.by_precision),
    ]
    return [table for table in tables if table.rows]


def steps_by_source(report: Report) -> list[Table]:
    """One table a level; level C rows leave too much open for an error to mean anything: only their order counts."""
    title = "Step time by source, specification level"
    return [_scores(f"{title} {level}", "source", scores) for level, scores in report.by_source if level != "C"]


def _scores(title: str, what: str, scores: Sequence[Score]) -> Table:
    errors = ("mean", "median", "bias", "worst", "in band", "guess")
    header = (what, "rows", "priced", "skipped", "infeas.", *errors, "worst row")
    return text_table(title, header, [_score_cells(score) for score in scores])


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
    scores = [score for score in report.by_kind if score.name.rpartition(":")[0] in names]
    return _scores("Step time, dense and mixture of experts apart", "source", scores) if scores else None


def _skips(report: Report) -> Table:
    counts: dict[str, int] = {}
    for _, scores in report.by_source:
        for score in scores:
            for reason, count in score.skip_reasons:
                counts[reason] = counts.get(reason, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(reason, str(count)) for reason, count in ordered]
    return text_table("Skipped rows", ("reason", "rows"), rows)


def _spread(report: Report) -> Table:
    header = ("source", "rows", "wholly in band", "measured width", "stated width")
    rows = [
        (
            spread.name,
            str(spread.rows),
            f"{spread.covered} ({percent(spread.covered / spread.rows)})",
            percent(spread.measured_width),
            percent(spread.stated_width),
        )
        for spread in report.spread
    ]
    return text_table("Spread of steps: runs that publish p5 and p95 of their own steps", header, rows)


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
    return text_table("Peak memory by source", header, rows, left=2)


def _feasibility(report: Report) -> Table:
    header = ("source", "crashed or OOM", "called infeasible", "ran", "false alarms")
    rows = [
        (
            feasibility.name,
            str(feasibility.crashed),
            f"{feasibility.crashed_called} ({percent(feasibility.recall)})",
            str(feasibility.ran),
            f"{feasibility.false_alarms} ({percent(feasibility.false_alarm_share)})",
        )
        for feasibility in report.feasibility
    ]
    return text_table("Feasibility", header, rows)


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
    return text_table(title, ("job", "layouts", "our choice", "measured best", "costs more"), rows)


def _ordering(report: Report) -> Table:
    rows = [(ordering.name, str(ordering.rows), f"{ordering.spearman:.3f}") for ordering in report.ordering]
    return text_table("Ordering by tokens/s/GPU (Spearman)", ("rows of", "rows", "rank correlation"), rows)
