"""Calibrations are read strictly, written back the same, and part of what makes a cluster that cluster."""

from __future__ import annotations

import copy
import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from windtunnel.errors import InputFileError, SpecError
from windtunnel.physics.hardware import cluster_with, parse_cluster, with_settings
from windtunnel.physics.hardware.calibration import (
    OPERATIONS,
    calibration_from_document,
    calibration_to_document,
    operation,
    size_names,
)

CALIBRATION: dict[str, Any] = {
    "device": "Some CPU, 2 threads",
    "kind": "cpu",
    "date": "2026-11-21",
    "software": {"torch": "2.13.0", "python": "3.11.9"},
    "threads": 2,
    "host": {"launch_eager_s": 3.1e-6},
    "memory": {"context_bytes": 0},
    "overlap": {},
    "points": {
        "gemm forward": {"fp32": [[512, 256, 128, 1e-3, 9e-4, 1.2e-3], [64, 64, 64, 1e-5, 1e-5, 1e-5]]},
        "attention backward": {"bf16": [[1, 128, 8, 2, 64, 2e-3, 1.9e-3, 2.1e-3]]},
        "adamw foreach": {"fp32": [[1048576, 4e-3, 4e-3, 5e-3]]},
        "copy": {"bytes": [[4096, 1e-6, 1e-6, 2e-6]]},
    },
    "collectives": {
        "all_reduce": {"gloo 2": [[4096, 1e-4, 9e-5, 2e-4], [8192, 2e-4, 1e-4, 3e-4]]},
        "all_gather": {"gloo 2": [[4096, 1e-4, 9e-5, 2e-4, 8e-4, 0.0, 4e-4]]},
    },
}
DEVICE: dict[str, Any] = {
    "name": "some-cpu",
    "gpu": {
        "name": "some-cpu",
        "vendor": "test",
        "generation": "cpu",
        "memory": "16 GiB",
        "memory_bandwidth": "20 GB/s",
        "flops": {"bf16": "200 GFLOP/s", "fp32": "100 GFLOP/s"},
        "sm_count": 2,
        "tdp": 100,
    },
    "gpus": 1,
    "gpus_per_node": 1,
    "scale_up_domain": 1,
    "scale_up": {"bandwidth": "10 GB/s", "latency": "1 us", "protocol": "pcie"},
    "scale_out": {"bandwidth": "1 GB/s", "latency": "10 us", "protocol": "ethernet"},
    "host": {"pcie": "10 GB/s", "memory": "16 GiB"},
    "calibration": CALIBRATION,
}


def changed(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """`CALIBRATION` with one entry set anew."""
    document = copy.deepcopy(CALIBRATION)
    inner = document
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    return document


def test_a_document_comes_back_as_it_was_read() -> None:
    read = calibration_from_document(CALIBRATION)
    again = calibration_from_document(json.loads(json.dumps(calibration_to_document(read))))
    assert again == read
    assert hash(again) == hash(read)
    assert read.points["gemm forward", "fp32"].shapes.tolist() == [[512, 256, 128], [64, 64, 64]]
    assert read.points["copy forward", "bytes"].seconds.tolist() == [1e-6]
    assert read.collectives["all_reduce", "gloo", 2].high.tolist() == [2e-4, 3e-4]
    assert read.collectives["all_reduce", "gloo", 2].waited is None
    waited = read.collectives["all_gather", "gloo", 2].waited
    assert waited is not None
    assert waited.tolist() == [8e-4]
    assert "2026-11-21" in read.source()


def test_a_file_holds_a_calibrated_cluster_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(DEVICE))
    cluster = parse_cluster(f"{path}:1")
    assert cluster.calibration == calibration_from_document(CALIBRATION)
    assert parse_cluster(json.loads(json.dumps(cluster.to_dict()))) == cluster


def test_a_long_file_is_read_and_means_the_same(tmp_path: Path) -> None:
    rows = [[64 + i, 64, 64, 1e-5, 1e-5, 1e-5] for i in range(8000)]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**DEVICE, "calibration": changed(("points", "gemm forward", "fp32"), rows)}))
    assert path.stat().st_size > 256 * 1024
    calibration = parse_cluster(path).calibration
    assert calibration is not None
    assert len(calibration.points["gemm forward", "fp32"].seconds) == len(rows)
    path.write_text("# " + "x" * (5 << 20))
    with pytest.raises(InputFileError, match="larger than 4 MiB"):
        parse_cluster(path)


def test_content_makes_equality_and_a_cluster_without_is_another() -> None:
    cluster = parse_cluster(DEVICE)
    other = parse_cluster({**DEVICE, "calibration": changed(("host",), {"launch_eager_s": 4e-6})})
    bare = cluster_with(cluster, calibration=None)
    assert len({cluster, other, bare, parse_cluster(copy.deepcopy(DEVICE))}) == 3
    assert bare.to_dict()["calibration"] is None


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("points", "gemn forward"), {}, "no such operation"),
        (("points", "rms_norm sideways"), {}, "no such operation"),
        (("points", "gemm"), "x", "must be `key: value` lines"),
        (("points", "gemm forward", "fp31"), [], "no such dtype"),
        (("points", "gemm forward", "bf16"), "x", "must be a list of rows of m, n, k, seconds"),
        (("points", "gemm forward", "bf16"), [[1, 2, 1e-3, 1e-3, 1e-3]], "row 1 .*must be 6 numbers: m, n, k, seconds"),
        (("points", "gemm forward", "bf16"), [[1, 2, 3, "fast", 1, 1]], "row 1 .*must be 6 numbers"),
        (("points", "gemm forward", "bf16"), [[1, 2, 3, 1, 1, 1], [1, 2, 0, 1, 1, 1]], "row 2 .*at least 1"),
        (("points", "gemm forward", "bf16"), [[1, 2, 2.5, 1, 1, 1]], "whole numbers"),
        (("points", "gemm forward", "bf16"), [[1, 2, 3, -1, 1, 1]], "above zero"),
        (("points", "gemm forward", "bf16"), [[1, 2, 3, "nan", 1, 1]], "finite"),
        (("points", "gemm forward", "bf16"), [[1, 2, 3, 1.0, 1.5, 2.0]], "median must lie between"),
        (("points", "copy forward"), {"bytes": [[1, 1, 1, 1]]}, "given twice"),
        (("collectives", "all_reduse"), {}, "no such collective"),
        (("collectives", "all_reduce", "gloo"), [], "such as `gloo 2`"),
        (("collectives", "all_reduce", "gloo 2"), [[8, 2e-4, 1e-4, 3e-4, 1e-4, 0, -1.0]], "at least zero"),
        (
            ("collectives", "all_reduce", "gloo 2"),
            [[8, 2e-4, 1e-4, 3e-4, 1e-4, 0, 0], [9, 1, 1, 1]],
            "must be 7 numbers",
        ),
        (("collectives", "all_reduce", "gloo 2"), [[8, 2e-4, 1e-4, 3e-4, 1e-4, 0]], "in all rows or none waited, .*"),
        (("host", "launch_eager_s"), -1, "at least 0"),
        (("threads",), "two", "at least 1"),
        (("kind",), "tpu", "one of cpu, cuda"),
        (("device",), None, "is not given"),
        (("pionts",), {}, "unknown key"),
    ],
)
def test_what_cannot_be_used_is_one_message_that_names_the_place(
    path: tuple[str, ...], value: object, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**DEVICE, "calibration": changed(path, value)}))
    with pytest.raises(SpecError, match=said) as caught:
        parse_cluster(file)
    assert str(file) in str(caught.value)
    assert f"calibration.{path[0]}" in str(caught.value)


def test_every_operation_is_known_by_its_phases() -> None:
    for name, (sizes, phases) in OPERATIONS.items():
        for phase in phases:
            canonical = operation(f"{name} {phase}")
            assert canonical == f"{name} {phase}".strip()
            assert size_names(canonical) == sizes
    assert operation("copy") == "copy forward"
    assert operation("zero_grad forward") == "zero_grad"
    assert operation("adamw") is None  # foreach or fused must be said
    assert operation("gemm backward") is None


def test_another_memory_keeps_the_calibration_other_rates_cannot() -> None:
    cluster = parse_cluster(DEVICE)
    assert with_settings(cluster, {"gpu": {"memory": "32 GiB"}}).calibration == cluster.calibration
    assert with_settings(cluster, {"gpu": "h100-sxm"}).calibration is None
    with pytest.raises(SpecError, match="was calibrated"):
        with_settings(cluster, {"gpu": {"memory_bandwidth": "40 GB/s"}})


def test_an_old_or_disturbed_calibration_says_so_and_stays_equal() -> None:
    busy = "the machine was busy: load 12.5 on 2 cores when the calibration began"
    plain = calibration_from_document(CALIBRATION)
    noted = calibration_from_document({**CALIBRATION, "notes": [busy, "2 of 753 repetitions took over three times"]})
    soon, late = datetime.date(2026, 11, 25), datetime.date(2027, 1, 21)
    assert plain.doubts(soon) == []
    assert plain.doubts(late) == ["measured 61 days ago, on 2026-11-21"]
    assert noted.doubts(soon) == [busy]
    assert noted == plain
    assert calibration_from_document({**CALIBRATION, "notes": busy}).doubts(soon) == [busy]
    assert calibration_from_document({**CALIBRATION, "notes": 5}).doubts(soon) == []
    assert calibration_from_document({**CALIBRATION, "date": "last week"}).doubts(late) == []
