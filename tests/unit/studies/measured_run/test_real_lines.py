"""Lines that real jobs printed are read with their units, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from windtunnel.studies.measured_run.lines import read_line

LINES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "real_lines.yaml").read_text())


@pytest.mark.parametrize("case", LINES, ids=[f"{at}-{one['format']}" for at, one in enumerate(LINES)])
def test_a_real_line(case: dict[str, Any]) -> None:
    found = read_line(case["line"])
    if case["format"] == "none":
        assert found is None
        return
    assert found is not None
    assert found.format == case["format"]
    step = found.step
    said = {
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
