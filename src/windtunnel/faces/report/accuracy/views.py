"""The validation reports of steps and of serving as views. As Markdown the first is `docs/accuracy.md`."""

from __future__ import annotations

from pathlib import Path

from windtunnel.evidence.accuracy.anchor import anchored
from windtunnel.evidence.accuracy.constants import fitted_constants
from windtunnel.evidence.accuracy.report import Report, report_of
from windtunnel.evidence.accuracy.serving.report import Score, ServingReport
from windtunnel.faces.report.accuracy.tables import details_of, percent, steps_by_source, tables_of, text_table
from windtunnel.files.table import read_table
from windtunnel.views import Document, Notes, Table, View

LEAVE_ONE_OUT = "leave_one_source_out.csv"
READING = (
    "error = predicted / measured - 1; mean and median of its size, bias with sign, worst the farthest from zero",
    "in band = share of runs inside the predicted p5-p95: what the model does not know, not how steps differ",
    "level A states model, degrees, batch, precision and recomputation; of level B one to three are swept, the fastest"
    " that fits is the prediction; level C is used for ordering only; what cannot be represented is skipped",
    "guess = mean error of one FLOP rate per framework, GPU and precision, fitted on these rows: what to beat",
    "sources are not pooled: their conventions, releases and clusters differ",
)
SERVING_READING = (
    "errors are |predicted / measured - 1|, means over rows; repeats are left out",
    "naive: bytes over bandwidth, a time per layer and stalls by prompts, with three constants that others fitted on"
    " these very rows; it answers rows where prompts and answers share GPUs",
    "aiconfigurator's own estimate is not computed: aiconfigurator-core prices single steps; TPOT of release 0.12 of"
    " the larger package was measured 25 % off (mean) on the first table, with 65 % of the rows answered",
)


def accuracy_document(report: Report) -> Document:
    """Scores of the sources; in detail also by scale and GPU, with one anchor, and what was fitted."""
    scope = [f"level {report.level}" if report.level else "all levels"]
    if report.source:
        scope.append(f"source {report.source!r}")
    if report.anchor != "none":
        scope.append(
            f"anchored on the {report.anchor} run of each source, GPU, model and precision; anchors not scored"
        )
    unread = [f"columns that nothing reads: {', '.join(report.unread)}"] if report.unread else []
    views: list[View] = [Notes("", [*READING, *unread]), *tables_of(report)]
    details: list[View] = [*details_of(report), *_leave_one_out(report), *_one_anchor(report), _sources(report)]
    if report.source:  # few rows: all of them at once
        views, details = [*views, *details], []
    for file in fitted_constants():
        rows = [(constant.name, constant.value, constant.comment) for constant in file.constants]
        table = text_table(f"Constants of {file.file}", ("constant", "value", "fitted on, or source"), rows, left=3)
        details += [table, *([Notes("", [file.about])] if file.about else [])]
    subtitle = f"{report.table}: {len(report.outcomes)} rows, {', '.join(scope)}"
    return Document("accuracy", "Accuracy of step times", views, details, subtitle)


def serving_accuracy_document(report: ServingReport) -> Document:
    """One line per group and level, and the whole."""
    rows = [_cells(score) for score in (*report.scores(), *report.by_level(), report.overall())]
    errors = ("TPOT", "median", "bias", "tok/s", "median", "TTFT median", "in band")
    header = ("group", "rows", "answered", *errors, "naive rows", "TPOT", "tok/s")
    refused = [
        f"{prediction.id}: {prediction.reason}" for prediction in report.predictions if prediction.status == "refused"
    ]
    views: list[View] = [text_table("", header, rows), Notes("Refused", refused[:10], tone="warn")]
    return Document("accuracy", "Accuracy of serving predictions", views, [Notes("", SERVING_READING)])


def _cells(score: Score) -> tuple[str, ...]:
    shares = (score.tokens_mean, score.tokens_median, score.ttft_median, score.in_band)
    return (
        *(score.name, str(score.rows), str(score.answered)),
        *(percent(score.tpot_mean), percent(score.tpot_median)),
        "-" if score.tpot_bias is None else f"{score.tpot_bias:.2f}",
        *map(percent, shares),
        *(str(score.naive_rows), percent(score.naive_tpot_mean), percent(score.naive_tokens_mean)),
    )


def _one_anchor(report: Report) -> list[View]:
    """The rows of an unanchored report once more, each group moved by its smallest run."""
    if report.anchor != "none":
        return []
    best = report.by_source[0][0] if report.by_source else None
    again = report_of(report.table, anchored(report.outcomes), best, report.source, "smallest")
    how = "The run on the fewest GPUs of each (source, GPU, model, precision) moves the others by nearness, and is left"
    return [Notes("One anchor", [f"{how} out of the score (--anchor smallest)."]), *steps_by_source(again)]


def _sources(report: Report) -> Table:
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in report.outcomes:
        row = outcome.row
        groups.setdefault((row.source, row.licence), []).append(row.url_or_file)
    rows = [
        (source, str(len(urls)), licence, urls[0] + (" and others" if len(set(urls)) > 1 else ""))
        for (source, licence), urls in sorted(groups.items())
    ]
    return text_table("Sources", ("source", "rows", "licence", "where"), rows, left=4)


def _leave_one_out(report: Report) -> list[View]:
    """The table beside the measurements, where somebody has made one: it takes a fit per source to make."""
    path = Path(report.table.split(", ")[0]).parent / LEAVE_ONE_OUT
    if not path.exists():
        return []
    table = read_table(path, "write it again with validation/fit.py")
    rows = [tuple(row.values()) for _, row in table.rows()]
    title = "Leave one source out: the constants fitted again without its rows, and it predicted with them"
    return [text_table(title, tuple(table.columns), rows)]
