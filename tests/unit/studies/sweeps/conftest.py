"""What tests of sweeps share."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, *sys.path]))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Says which processes that this test started are there: each inherits a mark."""
    mark = f"WINDTUNNEL_TEST={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))

    def named() -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark.encode() in (folder / "environ").read_bytes()
                found += [(folder / "cmdline").read_text().replace("\0", " ")] if marked else []
            except OSError:  # it has ended, or is not ours
                continue
        return [name for name in found if "resource_tracker" not in name]

    return named
