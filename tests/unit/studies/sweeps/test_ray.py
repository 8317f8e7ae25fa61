"""Sweeps on a Ray cluster of their own: processes take points until it is there, and all that they started ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from windtunnel.studies.sweeps import sweep
from windtunnel.studies.sweeps.ray_cluster import RayCluster

pytest.importorskip("ray")
pytestmark = [pytest.mark.extras, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def test_processes_begin_and_ray_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[[], list[str]]
) -> None:
    on_ray, taken = RayCluster.rows, []

    def counted(cluster: RayCluster, batches: Any) -> Any:
        taken.extend(place for batch in batches for place, _ in batch)
        return on_ray(cluster, batches)

    monkeypatch.setattr(RayCluster, "rows", counted)
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
