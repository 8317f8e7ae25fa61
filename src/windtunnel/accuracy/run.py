"""The study: every row of a table predicted, in the order of the table, and scored."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.accuracy.anchor import anchored
from windtunnel.accuracy.outcome import Outcome, outcome_of
from windtunnel.accuracy.report import Report, report_of
from windtunnel.accuracy.table import Row, read_tables
from windtunnel.errors import SpecError

if TYPE_CHECKING:
    from windtunnel.accuracy.outcome import Predict

LEVELS = ("A", "B", "C")
ANCHORS = ("none", "smallest")
CHUNK = 16  # rows handed to a worker at a time


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
        predict: stands in for `windtunnel.training.predict`.

    Rows that level or source leave out are in the report as skipped, with that as the reason.
    Raises InputFileError on a table that cannot be read, SpecError on a level, anchor or source that does not exist.
    """
    if level is not None and level not in LEVELS:
        raise SpecError("level", level, "use A, B or C, or leave it out for all rows")
    if anchor not in ANCHORS:
        raise SpecError("anchor", anchor, "use none or smallest")
    tables = [table] if isinstance(table, str | Path) else list(table)
    rows = read_tables(tables)
    if source is not None and not any(source.lower() in row.source.lower() for row in rows):
        known = ", ".join(sorted({row.source for row in rows})[:12])
        raise SpecError("source", source, f"no row has it; the table's sources: {known}")
    outcomes: list[Outcome | None] = []
    wanted: list[Row] = []
    for row in rows:
        reason = _left_out(row, level, source)
        outcomes.append(Outcome(row, "skipped", reason) if reason else None)
        if not reason:
            wanted.append(row)
    found = iter(_predicted(wanted, progress, workers, predict))
    filled = [outcome if outcome is not None else next(found) for outcome in outcomes]
    if anchor == "smallest":
        filled = anchored(filled)
    return report_of(", ".join(str(one) for one in tables), filled, level=level, source=source, anchor=anchor)


def _left_out(row: Row, level: str | None, source: str | None) -> str:
    if level is not None and row.level != level:
        return f"specification level {row.level}, only {level} asked for"
    if source is not None and source.lower() not in row.source.lower():
        return "source not asked for"
    return ""


def _predicted(
    rows: Sequence[Row], progress: Callable[[int, int], None] | None, workers: int, predict: Predict | None
) -> Iterable[Outcome]:
    if workers > 1 and predict is None and len(rows) > 4 * CHUNK:
        with ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_parent) as pool:
            yield from _counted(pool.map(_one, rows, chunksize=CHUNK), len(rows), progress)
    else:
        call = predict or _predict()
        yield from _counted((outcome_of(row, call) for row in rows), len(rows), progress)


def _counted(outcomes: Iterable[Outcome], total: int, progress: Callable[[int, int], None] | None) -> Iterable[Outcome]:
    for done, outcome in enumerate(outcomes, start=1):
        if progress is not None:
            progress(done, total)
        yield outcome


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _one(row: Row) -> Outcome:
    return outcome_of(row, _predict())


def _predict() -> Predict:
    from windtunnel.training.predict import predict

    return predict
