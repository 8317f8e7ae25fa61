"""Accuracy on published runs may not get worse than what is committed in `validation/gate.csv`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

ROOT = Path(__file__).parents[4]
WORSE = 0.3  # percentage points that rounding and another libm may bring


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    return script("gate.py")


def test_every_source_has_a_committed_figure(gate: ModuleType) -> None:
    assert set(gate.committed()) == set(gate.rows_of_level_a())


def test_a_few_runs_of_every_source_are_as_close_as_they_were(gate: ModuleType) -> None:
    known = gate.committed()
    now = {source: gate.mean_error(gate.few(rows)) for source, rows in gate.rows_of_level_a().items()}
    worse = {source: (error, known[source][0]) for source, error in now.items() if error > known[source][0] + WORSE}
    assert not worse


@pytest.mark.long
def test_all_runs_of_every_source_are_as_close_as_they_were(gate: ModuleType) -> None:
    known = gate.committed()
    now = {source: gate.mean_error(rows) for source, rows in gate.rows_of_level_a().items()}
    worse = {source: (error, known[source][1]) for source, error in now.items() if error > known[source][1] + WORSE}
    assert not worse
