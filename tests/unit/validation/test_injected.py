"""A fault put into a real job of two processes is the cause that is found first."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import script

pytestmark = [
    pytest.mark.long,  # it measures real seconds, which a busy machine stretches
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]
SECONDS = 0.2


def test_a_slow_loader_is_found_with_its_seconds(tmp_path: Path) -> None:
    injected = script("own_run/injected.py")
    for name in ("healthy", "loader"):
        (tmp_path / name).mkdir()
    healthy, _ = injected.run("healthy", tmp_path / "healthy")
    traces, put_in = injected.run("loader", tmp_path / "loader", SECONDS)
    causes = injected.found_in(traces, healthy)
    assert causes[0].cause == "data loader"
    assert causes[0].seconds == pytest.approx(put_in, rel=0.15)
