"""Lines that real jobs printed are read with their units, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from windtunnel.studies.measured_run.lines import Record, read_line

FOLDER = Path(__file__).parent
LINES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "real_lines.yaml").read_text())
ISSUES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "issue_lines.yaml").read_text())
# Not read: own formats of one repository, and micro-steps of litgpt, which are no steps.
REFUSED = ("litgpt 1110", "Liger-Kernel 110", "prime-diloco 25", "OpenPCDet 1229", "scepter 48")


def values_of(found: Record) -> dict[str, float | None]:
    """What a line says, by the names of the cases."""
    step = found.step
    return {
        "number": step.number,
        "s": step.seconds,
        "tps": step.tokens_per_s_per_gpu,
        "world_tps": step.tokens_per_s,
        "sps": step.samples_per_s,
        "rank": step.rank,
        "batch": found.values.get("global_batch"),
        "allocated": found.values.get("allocated_bytes"),
        "reserved": found.values.get("reserved_bytes"),
    }


@pytest.mark.parametrize("case", ISSUES, ids=[f"{at}-{one['from']}" for at, one in enumerate(ISSUES)])
def test_a_line_of_an_issue_is_right_or_refused(case: dict[str, Any]) -> None:
    found = read_line(case["line"])
    if found is None or found.format == "litgpt":  # of its micro-steps one alone is no step
        assert found is None or found.step.seconds is None
        assert case.get("nothing") or case["from"].endswith(REFUSED)
        return
    assert "nothing" not in case
    said = values_of(found)
    for name in said:
        if name in case:
            assert said[name] == pytest.approx(case[name], rel=1e-6), name
    for name in ("s", "tps", "world_tps", "sps"):
        assert name in case or said[name] is None, name
    for name, seconds in case.get("parts", {}).items():
        assert found.step.phases[name] == pytest.approx(seconds)


@pytest.mark.parametrize("case", LINES, ids=[f"{at}-{one['format']}" for at, one in enumerate(LINES)])
def test_a_real_line(case: dict[str, Any]) -> None:
    found = read_line(case["line"])
    if case["format"] == "none":
        assert found is None
        return
    assert found is not None
    assert found.format == case["format"]
    step, said = found.step, values_of(found)
    for name, value in said.items():
        if name in case and case[name] is None:
            assert value is None, name
        elif name in case:
            assert value == pytest.approx(case[name], rel=1e-6), name
    # What the framework does not print is not made up.
    for name in ("s", "tps", "world_tps", "sps"):
        assert name in case or said[name] is None, name
    for name, seconds in case.get("parts", {}).items():
        assert step.phases[name] == pytest.approx(seconds)
    assert dict(found.spread) == {name: pytest.approx(tuple(pair)) for name, pair in case.get("spread", {}).items()}


def test_there_are_sixty_lines_of_ten_frameworks() -> None:
    read = [one for one in LINES if one["format"] != "none"]
    assert len(read) >= 60
    assert len({one["format"] for one in read}) >= 13
