"""Policies side by side with bands over seeds, on any executor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from windtunnel.errors import UserError
from windtunnel.questions import plain
from windtunnel.questions.asked.fleet.study import Fleet

BAND = (5.0, 50.0, 95.0)  # percentiles
ONE = "windtunnel.studies.fleet.study:one_seed"


def run_seeds(question: Fleet, policies: Sequence[str], count: int, executor: str) -> list[dict[str, object]]:
    """For each policy the mean of each figure, its `bands` (5, 50, 95 %) over seeds, and `seeds`. Raises UserError."""
    from windtunnel.studies.sweeps.executors import rows_of

    points = [(name, question.seed + at) for name in policies for at in range(count)]
    questions = [plain(replace(question, policy=name, seed=seed, seeds=None)) for name, seed in points]
    rows: list[dict[str, object]] = [{} for _ in points]
    inputs = [(place, {"question": one}) for place, one in enumerate(questions)]
    for place, row in rows_of(executor, ONE, inputs, os.cpu_count() or 1):
        if row["status"] != "ok":
            name, seed = points[place]
            raise UserError(f"{name}, seed {seed}: {row['reason']}")
        rows[place] = row["outputs"]
    return [_banded(rows[at : at + count]) for at in range(0, len(rows), count)]


def _banded(runs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    import numpy as np

    result: dict[str, object] = {}
    bands: dict[str, list[float]] = {}
    for name, value in runs[0].items():
        values: list[Any] = [run.get(name) for run in runs]
        if isinstance(value, str) or any(each is None for each in values):
            if len(set(values)) == 1:
                result[name] = value
            continue
        result[name] = value if len(set(values)) == 1 else round(float(np.mean(values)), 6)
        bands[name] = [round(float(each), 6) for each in np.percentile(values, BAND)]
    return {**result, "seeds": len(runs), "bands": bands}
