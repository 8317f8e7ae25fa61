"""The tables of a validation of steps, for the console and for `docs/accuracy.md` alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from windtunnel.evidence.accuracy.ranking import Ranking
from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.score import MemoryScore, Score
from windtunnel.views import Column, Field, Table, table_of

DASH = "-"
ERRORS = (("mean", "mean_abs"), ("median", "median_abs"), ("bias", "bias"), ("worst", "worst"))
SIGNED = ("bias", "worst")


def text_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table of text: the first `left` columns are words; the rest are numbers."""
    columns = [Column(name, "text" if at < left else "number") for at, name in enumerate(header)]
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
    counts = (("rows", "rows"), ("priced", "priced"), ("skipped", "skipped"), ("infeas.", "infeasible"))
    fields: list[Field[Score]] = [
        (what, "text", "name"),
        *((head, "number", _count(name)) for head, name in counts),
        *((head, "number", _percent(name)) for head, name in ERRORS),
        *(("in band", "number", _percent("inside_band")), ("guess", "number", _percent("guess_mean_abs"))),
        ("worst row", "text", lambda score: score.worst_id or DASH),
    ]
    return table_of(title, scores, fields)


def _count(name: str) -> Callable[[object], str]:
    return lambda entry: str(getattr(entry, name))


def _percent(name: str) -> Callable[[object], str]:
    """A share of an entry; with its sign where that may be either."""
    return lambda entry: percent(getattr(entry, name), signed=name in SIGNED)


def _of(count: str, share: str) -> Callable[[object], str]:
    return lambda entry: f"{getattr(entry, count)} ({percent(getattr(entry, share))})"


def _kinds(report: Report) -> Table | None:
    """Only where a source has both; otherwise it would repeat the table by source."""
    names = {score.name.rpartition(":")[0] for score in report.by_kind if score.name.endswith(": MoE")}
    scores = [score for score in report.by_kind if score.name.rpartition(":")[0] in names]
    return _scores("Step time, dense and mixture of experts apart", "source", scores) if scores else None


def _skips(report: Report) -> Table:
    counts: Counter[str] = Counter()
    for score in (score for _, scores in report.by_source for score in scores):
        counts.update(dict(score.skip_reasons))
    rows = [(reason, str(count)) for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return text_table("Skipped rows", ("reason", "rows"), rows)


def _spread(report: Report) -> Table:
    fields = (
        *(("source", "text", "name"), ("rows", "number", _count("rows"))),
        ("wholly in band", "number", lambda spread: f"{spread.covered} ({percent(spread.covered / spread.rows)})"),
        ("measured width", "number", _percent("measured_width")),
        ("stated width", "number", _percent("stated_width")),
    )
    return table_of("Spread of steps: runs that publish p5 and p95 of their own steps", report.spread, fields)


def _memory(report: Report) -> Table:
    def others(score: MemoryScore) -> str:
        return ", ".join(f"{name} {percent(value)}" for name, value in score.other_definitions) or DASH

    fields: list[Field[MemoryScore]] = [
        *(("source", "text", "name"), ("definition", "text", "definition"), ("rows", "number", _count("rows"))),
        *((head, "number", _percent(name)) for head, name in ERRORS),
        *(("worst row", "text", "worst_id"), ("mean by other definitions", "text", others)),
    ]
    return table_of("Peak memory by source", report.memory, fields)


def _feasibility(report: Report) -> Table:
    fields = (
        *(("source", "text", "name"), ("crashed or OOM", "number", _count("crashed"))),
        *(("called infeasible", "number", _of("crashed_called", "recall")), ("ran", "number", _count("ran"))),
        ("false alarms", "number", _of("false_alarms", "false_alarm_share")),
    )
    return table_of("Feasibility", report.feasibility, fields)


def _ranking(ranking: Ranking) -> Table:
    median = "infinite" if ranking.median_regret is None else percent(ranking.median_regret)
    title = (
        f"Layout ranking, {ranking.name}: our choice costs {median} more than the measured best in the median of "
        f"{len(ranking.groups)} groups; at most 3 % in {percent(ranking.share_close)} of them"
    )
    fields = (
        ("job", "text", lambda job: f"{job.model} on {job.n_gpus} x {job.gpu}, batch {job.global_batch}"),
        *(("layouts", "number", _count("layouts")), ("our choice", "text", lambda job: job.chosen_id or "none")),
        ("measured best", "text", "best_id"),
        ("costs more", "number", lambda job: "does not run" if job.regret is None else percent(job.regret)),
    )
    return table_of(title, ranking.groups, fields)


def _ordering(report: Report) -> Table:
    rows = [(ordering.name, str(ordering.rows), f"{ordering.spearman:.3f}") for ordering in report.ordering]
    return text_table("Ordering by tokens/s/GPU (Spearman)", ("rows of", "rows", "rank correlation"), rows)
