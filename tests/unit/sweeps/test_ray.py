"""Sweeps on a Ray cluster of their own: processes take points until it is there, and all that they started ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from windtunnel.sweeps import sweep

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def test_processes_begin_and_ray_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[[], list[str]]
) -> None:
    executors = import_module("windtunnel.sweeps.executors")
    on_ray, taken = executors._ray_rows, []

    def counted(ray: Any, function: str, todo: list[Any], workers: int) -> Any:
        taken.extend(place for batch in todo for place, _ in batch)
        return on_ray(ray, function, todo, workers)

    monkeypatch.setattr(executors, "_ray_rows", counted)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of another cluster: nobody asked for that
    asked = [*range(40), -1, *range(40, 120), -2]  # the first that dies takes the processes with it
    before = set(os.listdir("/tmp"))
    outcome = sweep(
        {"grid": {"a": asked}}, out=tmp_path / "t.parquet", jobs=2, executor="ray", function="swept_functions:slow"
    )
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("windtunnel-ray-")]
    assert not started()
    rows = pq.read_table(outcome.path).to_pylist()
    assert [row["a"] for row in rows] == asked
    assert [row["status"] for row in rows] == ["died" if a < 0 else "ok" for a in asked]
    assert all(row["twice"] == 2 * row["a"] for row in rows if row["a"] >= 0)
    assert taken[-1] == len(asked) - 1
    assert 0 not in taken
