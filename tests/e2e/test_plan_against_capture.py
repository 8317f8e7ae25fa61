"""The same model and layout, from a plan and from a captured script: FLOPs and bytes agree but for what is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    return script("capture/plan_against_capture.py")


@pytest.mark.long
@pytest.mark.parametrize("name", ["debug fsdp2 4 ac", "debug tp 4"])
def test_flops_and_bytes_of_plan_and_capture_agree(comparison: ModuleType, tmp_path: Path, name: str) -> None:
    case = comparison.cases()[name]
    rows, shown = comparison.compared(case, tmp_path / "captured")
    quantities = {row.quantity for row in rows}
    assert {"forward FLOPs", "backward FLOPs"} <= quantities
    assert {"reduce_scatter tp", "all_gather tp"} <= quantities or {"reduce_scatter dp", "all_gather dp"} <= quantities
    assert not [(row.quantity, row.plan, row.captured, row.unexplained) for row in rows if not row.agrees]
    assert all(row.captured > 0 for row in shown if row.quantity.startswith(("step", "device memory")))
    # The same script against a plan that recomputes otherwise, or sends more: that is seen.
    other = {**case.plan, "recompute": "none" if case.plan.get("recompute") == "full" else "full"}
    rows, _ = comparison.compared(replace(case, plan=other), tmp_path / "captured")
    assert "recomputed FLOPs" in [row.quantity for row in rows if not row.agrees]


def test_every_known_difference_is_of_a_quantity_that_is_compared(comparison: ModuleType) -> None:
    for case in comparison.cases().values():
        for quantity, known in case.known.items():
            assert known.why
            assert known.amount or known.share, (case.name, quantity)
