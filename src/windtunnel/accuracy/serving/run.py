"""The study: every row of a table of measured deployments predicted, in the order of the table."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from windtunnel.accuracy.serving.predict import Predicted, predicted
from windtunnel.accuracy.serving.recipes import Recipe, taken_by, when
from windtunnel.accuracy.serving.report import ServingReport
from windtunnel.accuracy.serving.rows import ServingRow, is_serving_table, read_rows
from windtunnel.accuracy.serving.runs import drafting_told

CHUNK = 16
__all__ = ["is_serving_table", "run_serving_validation"]


def run_serving_validation(
    tables: Sequence[Path], *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> ServingReport:
    """Predict every row of `tables`. The answers do not depend on `workers`. Raises InputFileError."""
    rows = read_rows(tables)
    done: list[Predicted] = []

    def count(one: Predicted) -> None:
        done.append(one)
        if progress is not None:
            progress(len(done), len(rows))

    taken = taken_by(rows)
    told = drafting_told(rows, taken)
    asked = [(row, taken.get(when(row), frozenset()), told.get(row.id)) for row in rows]
    if workers > 1 and len(rows) > 4 * CHUNK:
        with ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_parent) as pool:
            for one in pool.map(_one, asked, chunksize=CHUNK):
                count(one)
    else:
        for pair in asked:
            count(_one(pair))
    return ServingReport(", ".join(map(str, tables)), tuple(rows), tuple(done))


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _one(asked: tuple[ServingRow, frozenset[Recipe], bool | None]) -> Predicted:
    return predicted(asked[0], None, asked[1], asked[2])
