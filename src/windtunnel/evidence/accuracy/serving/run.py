"""The study: every row of a table of measured deployments predicted, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from windtunnel.evidence.accuracy.in_order import in_order
from windtunnel.evidence.accuracy.serving.predict import Predicted, predicted
from windtunnel.evidence.accuracy.serving.recipes import Recipe, taken_by, when
from windtunnel.evidence.accuracy.serving.report import ServingReport
from windtunnel.evidence.accuracy.serving.rows import ServingRow, is_serving_table, read_rows
from windtunnel.evidence.accuracy.serving.runs import drafting_told

__all__ = ["is_serving_table", "run_serving_validation"]


def run_serving_validation(
    tables: Sequence[Path], *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> ServingReport:
    """Predict every row of `tables`. The answers do not depend on `workers`. Raises InputFileError."""
    rows = read_rows(tables)
    taken = taken_by(rows)
    told = drafting_told(rows, taken)
    asked = [(row, taken.get(when(row), frozenset()), told.get(row.id)) for row in rows]
    return ServingReport(", ".join(map(str, tables)), tuple(rows), tuple(in_order(_one, asked, progress, workers)))


def _one(asked: tuple[ServingRow, frozenset[Recipe], bool | None]) -> Predicted:
    return predicted(asked[0], None, asked[1], asked[2])
