"""Published serving runs that nothing was fitted on: every row is read, and a few are predicted."""

from __future__ import annotations

import csv
from types import ModuleType

import pytest
from scripts import script

from windtunnel.cost.measured.cache import package_data


@pytest.fixture(scope="module")
def unseen() -> ModuleType:
    return script("serving/unseen.py")


def rows(unseen: ModuleType) -> list[dict[str, str]]:
    with unseen.TABLE.open() as file:
        return list(csv.DictReader(file))


def test_every_row_cites_its_page_and_sends_what_it_counted(unseen: ModuleType) -> None:
    found = rows(unseen)
    assert len({row["id"] for row in found}) == len(found) == 174
    for row in found:
        assert "@" in row["source"] or "/" in row["source"]
        workload = unseen.workload_of(row)
        prompts, outputs = int(row["input_tokens"]), int(row["output_tokens"])
        assert sum(workload.input_tokens) == pytest.approx(prompts, rel=0.05)
        assert sum(workload.output_tokens) == pytest.approx(outputs, rel=0.05)


@pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize("name", ["gpustack-019", "gpustack-044", "gpustack-079", "gpustack-106"])
def test_long_prompts_are_predicted_within_an_eighth(unseen: ModuleType, name: str) -> None:
    (row,) = [row for row in rows(unseen) if row["id"] == name]
    rate = unseen.predicted(row).values["output_tokens_per_s"]
    assert rate == pytest.approx(float(row["output_tokens_per_s"]), rel=0.125)
