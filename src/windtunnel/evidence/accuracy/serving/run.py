"""The study: every row of a table of measured deployments predicted, in the order of the table.

Which rows drafted is told by where a table lists them. A dump of the benchmark lists the rows of one job together,
and a job drafts or does not: its rows have neighbouring numbers (the end of their ids). So of the readings that a
day's rows allow, the likely one has the fewest changes between drafting and not, in the order of the numbers, and
uses no published entry twice:

    cost = changes + 2 x (rows of a point that read alike - entries for that reading)

A row is told where every division of the day with the other reading costs at least 2 more. A day whose best division
costs more than one in six of its rows is left alone: its jobs ran side by side. Nothing measured enters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.evidence.accuracy.in_order import in_order
from windtunnel.evidence.accuracy.serving.predict import Predicted, predicted
from windtunnel.evidence.accuracy.serving.recipes import DRAFTING, Recipe, point_of, recipes_of, taken_by, when
from windtunnel.evidence.accuracy.serving.report import ServingReport
from windtunnel.evidence.accuracy.serving.rows import ServingRow, is_serving_table, read_rows

__all__ = ["is_serving_table", "run_serving_validation"]
MOST_CHANGES, MOST_ROWS = 3, 90
LEAST_ROWS = 6  # of a day for each change or contradiction of its best division
MARGIN = 2
NUMBER = re.compile(r"_(\d+)$")


def run_serving_validation(
    tables: Sequence[Path], *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> ServingReport:
    """Predict every row of `tables`. The answers do not depend on `workers`. Raises InputFileError."""
    rows = read_rows(tables)
    recipes_by_day = taken_by(rows)
    drafting = drafting_told(rows, recipes_by_day)
    questions = [(row, recipes_by_day.get(when(row), frozenset()), drafting.get(row.id)) for row in rows]
    return ServingReport(
        ", ".join(map(str, tables)), tuple(rows), tuple(in_order(_predict, questions, progress, workers))
    )


def _predict(question: tuple[ServingRow, frozenset[Recipe], bool | None]) -> Predicted:
    return predicted(question[0], None, question[1], question[2])


@dataclass(frozen=True, slots=True)
class _Listed:
    """A row, its number, and the readings that it allows."""

    row: ServingRow
    number: int
    counts: tuple[int, int]  # entries without and with drafting


def drafting_told(
    rows: Sequence[ServingRow], recipes_by_day: Mapping[tuple[object, ...], frozenset[Recipe]]
) -> dict[str, bool]:
    """By id: whether a row drafted, of those where the order of a table tells."""
    days: dict[tuple[str, ...], list[_Listed]] = {}
    by_id = {row.id: row for row in rows}
    for row in rows:
        number = NUMBER.search(row.id)
        if number is None or DRAFTING not in row.text("model").lower() or not row.disaggregated:
            continue
        counts = _counts(row, by_id.get(row.text("duplicate_of")), recipes_by_day)
        key = tuple(row.text(name) for name in ("source", "measured", "gpu", "engine", "precision"))
        days.setdefault(key, []).append(_Listed(row, int(number[1]), counts))
    drafting: dict[str, bool] = {}
    for listed in days.values():
        drafting |= _of_day(sorted(listed, key=lambda entry: entry.number))
    return drafting


def _counts(
    row: ServingRow, same: ServingRow | None, recipes_by_day: Mapping[tuple[object, ...], frozenset[Recipe]]
) -> tuple[int, int]:
    recipes = recipes_of(row, () if same is not None else recipes_by_day.get(when(row), ()))
    drafted = sum(recipe.drafted > 0 for recipe in recipes)
    if same is not None and DRAFTING not in same.text("model").lower():
        return max(1, len(recipes) - drafted), 0  # the same run, listed under the name of the base model
    return len(recipes) - drafted, drafted


def _of_day(listed: list[_Listed]) -> dict[str, bool]:
    n = len(listed)
    open_ = [place for place, entry in enumerate(listed) if all(entry.counts)]
    if not open_ or n > MOST_ROWS:
        return {}
    readings, costs = _divisions(listed)
    if costs.min() * LEAST_ROWS > n:
        return {}  # jobs ran side by side: the order tells nothing
    drafting = {}
    for place in open_:
        least = [int(costs[readings[:, place] == kind].min(initial=1 << 30)) for kind in (0, 1)]
        if abs(least[0] - least[1]) >= MARGIN:
            drafting[listed[place].row.id] = least[1] < least[0]
    return drafting


def _divisions(listed: list[_Listed]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Every reading of a day with few changes, (divisions, rows), and its cost."""
    n = len(listed)
    divisions = []
    changes = []
    for count in range(MOST_CHANGES + 1):
        for places in itertools.combinations(range(1, n), count):
            marks = np.zeros(n, dtype=np.int64)
            marks[list(places)] = 1
            reading = np.cumsum(marks) % 2 == 1
            divisions += [reading, ~reading]
            changes += [count, count]
    readings = np.array(divisions)
    costs = np.array(changes, dtype=np.int64)
    points: dict[tuple[tuple[object, ...], tuple[int, int]], list[int]] = {}
    for place, entry in enumerate(listed):
        points.setdefault((point_of(entry.row), entry.counts), []).append(place)
    for (_, (plain, drafting)), alike in points.items():
        drafted = readings[:, alike].sum(axis=1)
        costs += 2 * (np.maximum(0, drafted - drafting) + np.maximum(0, len(alike) - drafted - plain))
    return readings, costs
