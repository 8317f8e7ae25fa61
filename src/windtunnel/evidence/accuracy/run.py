"""The study: every row of a table predicted, in the order of the table, and scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.evidence.accuracy.anchor import anchored
from windtunnel.evidence.accuracy.in_order import in_order
from windtunnel.evidence.accuracy.outcome import Outcome, outcome_of
from windtunnel.evidence.accuracy.report import Report, report_of
from windtunnel.evidence.accuracy.table import Row, read_tables, unread_columns

if TYPE_CHECKING:
    from windtunnel.evidence.accuracy.outcome import Predict

LEVELS = ("A", "B", "C")
ANCHORS = ("none", "smallest")


def run_validation(
    table: str | Path | Sequence[str | Path],
    level: str | None = None,
    source: str | None = None,
    anchor: str = "none",
    progress: Callable[[int, int], None] | None = None,
    workers: int = 1,
    predict: Predict | None = None,
) -> Report:
    """Predict every row of `table` and score the predictions.

    Args:
        table: CSV of measured runs, or several of them.
        level: "A", "B" or "C" takes only rows specified that well; None takes all, scored level by level.
        source: takes only rows whose source contains this text, whatever the case.
        anchor: "smallest" scales each (source, GPU, model, precision) by its smallest run and judges the others.
        progress: called with (rows done, rows to do).
        workers: processes; the answers do not depend on it.
        predict: stands in for `windtunnel.studies.training.predict`.

    Rows that level or source leave out are in the report as skipped, with that as the reason.
    Raises InputFileError on a table that cannot be read, SpecError on a level, anchor or source that does not exist.
    """
    if level is not None and level not in LEVELS:
        raise SpecError("level", level, "use A, B or C, or leave it out for all rows")
    if anchor not in ANCHORS:
        raise SpecError("anchor", anchor, "use none or smallest")
    if not isinstance(table, str | Path | Sequence):
        raise SpecError("table", table, "give the path of a CSV, or several")
    tables = [table] if isinstance(table, str | Path) else list(table)
    rows = read_tables(tables)
    if source is not None and not any(source.lower() in row.source.lower() for row in rows):
        text = ", ".join(sorted({row.source for row in rows})[:12])
        raise SpecError("source", source, f"no row has it; the table's sources: {text}")
    reasons = [_left_out(row, level, source) for row in rows]
    wanted = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
    if predict is None:
        outcomes = in_order(_predict_row, wanted, progress, workers)
    else:
        outcomes = in_order(lambda row: outcome_of(row, predict), wanted, progress)
    filled = [
        Outcome(row, "skipped", reason) if reason else next(outcomes) for row, reason in zip(rows, reasons, strict=True)
    ]
    if anchor == "smallest":
        filled = anchored(filled)
    words = ", ".join(str(path) for path in tables)
    return report_of(words, filled, level=level, source=source, anchor=anchor, unread=unread_columns(tables))


def _left_out(row: Row, level: str | None, source: str | None) -> str:
    if level is not None and row.level != level:
        return f"specification level {row.level}, only {level} asked for"
    if source is not None and source.lower() not in row.source.lower():
        return "source not asked for"
    return ""


def _predict_row(row: Row) -> Outcome:
    from windtunnel.studies.training.predict import predict

    return outcome_of(row, predict)
