"""Rows of TensorRT-LLM's own tables, read by the rules of its benchmark: pipelines, one GPU, several."""

from __future__ import annotations

import csv
from types import ModuleType

import pytest
from scripts import script

from windtunnel.physics.cost.measured.cache import package_data


@pytest.fixture(scope="module")
def offline() -> ModuleType:
    return script("serving/offline_throughput.py")


def test_graphs_are_those_listed_up_to_the_largest_batch_and_that_one(offline: ModuleType) -> None:
    assert offline.graphs(896)[-3:] == (384, 512, 896)
    assert offline.graphs(512)[-2:] == (384, 512)


@pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")
@pytest.mark.parametrize(
    ("gpu", "tp", "pp", "isl", "osl"),
    [
        ("h200-sxm", 1, 1, 1000, 1000),
        ("h100-sxm", 2, 1, 500, 2000),
        ("rtx-pro-6000", 1, 4, 128, 2048),
        ("rtx-pro-6000", 1, 8, 128, 2048),
        ("rtx-pro-6000", 1, 8, 5000, 500),
    ],
)
def test_a_published_row_is_met(offline: ModuleType, gpu: str, tp: int, pp: int, isl: int, osl: int) -> None:
    wanted = {"release": "1.0", "model": "llama-3.3-70b", "gpu": gpu}
    wanted |= {name: str(value) for name, value in (("tp", tp), ("pp", pp), ("isl", isl), ("osl", osl))}
    with offline.TABLE.open() as file:
        (row,) = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    rate, _ = offline.predicted(row)
    assert rate == pytest.approx(float(row["output_tokens_per_s"]), rel=0.15)


@pytest.mark.skipif(package_data() is None, reason="aiconfigurator-core is not installed")
def test_a_picture_tower_takes_cache_from_text(offline: ModuleType) -> None:
    """Without its 3.5 GB this row is 1.27 times too fast."""
    wanted = {"model": "llama-4-scout", "gpu": "h100-sxm", "isl": "2048", "osl": "2048"}
    with offline.TABLE.open() as file:
        (row,) = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    rate, _ = offline.predicted(row)
    assert rate == pytest.approx(float(row["output_tokens_per_s"]), rel=0.2)
