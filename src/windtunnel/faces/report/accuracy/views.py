"""The validation reports of steps and of serving as views."""

from __future__ import annotations

from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.serving.report import ServingReport
from windtunnel.evidence.accuracy.serving.tables import HEAD, NAIVE, cells, scored
from windtunnel.faces.report.accuracy.tables import tables_of
from windtunnel.views import Column, Document, Notes, Table, View

WORDS = ("worst row", "mean by other definitions", "our choice", "measured best")
READING = (
    "error = predicted / measured - 1; mean and median of its size, bias with sign",
    "guess = mean error of one FLOP rate per framework, GPU and precision, fitted on these rows",
)


def accuracy_document(report: Report) -> Document:
    """Every table that has rows."""
    asked = [f"level {report.level}" if report.level else "all levels"]
    if report.source:
        asked.append(f"source {report.source!r}")
    if report.anchor != "none":
        asked.append(
            f"anchored on the {report.anchor} run of each source, GPU, model and precision; anchors not scored"
        )
    unread = [f"columns that nothing reads: {', '.join(report.unread)}"] if report.unread else []
    views: list[View] = [Notes("", [*READING, *unread])]
    for table in tables_of(report):
        if table.detail and not report.source:
            continue
        words = [number < table.left or name in WORDS for number, name in enumerate(table.header)]
        columns = [Column(name, "text" if left else "number") for name, left in zip(table.header, words, strict=True)]
        views.append(Table(table.title, columns, table.rows, most=len(table.rows)))
    return Document("accuracy", report.table, views, subtitle=f"{len(report.outcomes)} rows, {', '.join(asked)}")


def serving_accuracy_document(report: ServingReport) -> Document:
    """One line per group, and the whole."""
    rows = [cells(score) for score in scored(report)]
    columns = [Column(name, "text" if name == "group" else "number") for name in (*HEAD, *NAIVE)]
    refused = [f"{one.id}: {one.reason}" for one in report.predictions if one.status == "refused"]
    views: list[View] = [Table("", columns, rows, most=len(rows)), Notes("Refused", refused[:10], tone="warn")]
    return Document("accuracy", "Serving predictions", views)
