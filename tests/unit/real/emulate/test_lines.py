"""What `windtunnel run` prints, in words that fit the numbers."""

import pytest

from windtunnel.faces.report.emulation_console import report_lines
from windtunnel.real.capture.arguments import Launch
from windtunnel.real.emulate.run import Emulation, Outcome


@pytest.mark.parametrize(
    ("size", "unplanned", "peers", "unlike"),
    [
        (2, 1, "1 peer virtual", "1 communication (50.0%) was of steps"),
        (4, 3, "3 peers virtual", "3 communications (75.0%) were of steps"),
    ],
)
def test_one_is_not_many(size: int, unplanned: int, peers: str, unlike: str) -> None:
    facts = {"kinds": {"all_reduce": [4, 64]}, "unplanned": unplanned, "planned": 1}
    asked = Emulation(Launch("train.py", (), False, size, size), 0, f"h100-sxm:{size}")
    text = "\n".join(report_lines(asked, Outcome("ok", 0, facts)))
    assert peers in text
    assert unlike in text
    assert "peers came when the real rank came" in text


@pytest.mark.parametrize(("behind_s", "told"), [(0.1, True), (0.001, False)])
def test_what_emulating_took_beside_the_ranks_own_time_is_told_where_it_matters(behind_s: float, told: bool) -> None:
    facts = {"steps": 20, "step_s": [0.1] * 20, "blocked_s": [0.0] * 20, "behind_s": behind_s}
    asked = Emulation(Launch("train.py", (), False, 2, 2), 0, "h100-sxm:2")
    lines = list(report_lines(asked, Outcome("ok", 0, facts)))
    assert any("took 5.00 ms a step more" in line for line in lines) == told
    assert told or not any(line.startswith("emulating") for line in lines)
