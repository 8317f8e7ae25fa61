"""The table of published serving runs: every row can be asked, a handful is predicted."""

from __future__ import annotations

import csv
from types import ModuleType

import pytest
from scripts import script

from windtunnel.physics.cost.measured.cache import package_data


@pytest.fixture(scope="module")
def unseen() -> ModuleType:
    return script("serving/unseen.py")


@pytest.fixture(scope="module")
def rows(unseen: ModuleType) -> dict[str, dict[str, str]]:
    with unseen.TABLE.open() as file:
        found = list(csv.DictReader(file))
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def test_every_row_is_a_workload_of_the_published_totals(unseen: ModuleType, rows: dict[str, dict[str, str]]) -> None:
    for row in rows.values():
        load = unseen.workload_of(row)
        assert len(load) == int(row["requests"])
        for lengths, name in ((load.input_tokens, "input_tokens"), (load.output_tokens, "output_tokens")):
            assert lengths.sum() == pytest.approx(int(row[name]), rel=0.02), row["id"]


def test_what_a_row_says_of_itself_agrees(rows: dict[str, dict[str, str]]) -> None:
    for row in rows.values():
        if row["duration_s"]:
            rate = int(row["output_tokens"]) / float(row["duration_s"])
            assert rate == pytest.approx(float(row["output_tokens_per_s"]), rel=0.01), row["id"]


@pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize(
    "name", ["gpustack-020", "gpustack-061", "gpustack-079", "gpustack-105", "nim-002", "buildkite-001"]
)
def test_a_published_run_is_met(unseen: ModuleType, rows: dict[str, dict[str, str]], name: str) -> None:
    """A100, H200, H100; dense, experts and 4-bit experts; three engines; all at once, closed loop, one batch."""
    found = unseen.predicted(rows[name])
    assert found.reason == ""
    assert found.values["output_tokens_per_s"] == pytest.approx(float(rows[name]["output_tokens_per_s"]), rel=0.15)
