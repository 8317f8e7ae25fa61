"""What `windtunnel run` prints, in words that fit the numbers."""

import pytest

from windtunnel.capture.script.arguments import Launch
from windtunnel.emulate.lines import report_lines
from windtunnel.emulate.run import Emulation, Outcome


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
