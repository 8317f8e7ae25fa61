"""The file: what is written is what every verb reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.real.calibrate.device import Device
from windtunnel.real.calibrate.document import cluster_document, load_document, to_yaml
from windtunnel.real.calibrate.kinds import Curve
from windtunnel.real.calibrate.session import Measurements, finished_document
from windtunnel.real.calibrate.timing import Timing

DEVICE = Device(
    *("cpu", "cpu", 'An "odd" CPU: 2 threads # really', 16 << 30, 12 << 30, 1 << 28, 2, 150.0, "cpu"),
    ("fp32", "bf16"),
    2,
    {"torch": "2.13.0", "python": "3.11"},
)


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.9 * seconds, 1.2 * seconds, 9, 0)


MEASURED = {
    Curve("gemm", "forward", "fp32"): {(1024, 1024, 1024): timing(7e-3), (128, 256, 256): timing(1e-4)},
    Curve("gemm", "dgrad", "bf16"): {(1024, 1024, 1024): timing(1e-3)},
    Curve("copy", "forward", "bytes"): {(1 << 27,): timing(1e-2), (4096,): timing(1e-7)},
    Curve("zero_grad", "", "fp32"): {(1 << 20,): timing(1e-4)},
}


def document(**changes: object) -> dict[str, object]:
    whole = cluster_document(
        DEVICE, MEASURED, {"launch_eager_s": 2e-6}, {"context_bytes": 2.7e8}, {}, ["it: was # warm"]
    )
    return {**whole, **changes}


def test_any_verb_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(to_yaml(document()), encoding="utf-8")
    cluster = parse_cluster(f"{path}:1")
    assert cluster.gpu.flops_per_s["fp32"] == pytest.approx(2 * 1024**3 / 7e-3, rel=1e-3)
    assert cluster.gpu.flops_per_s["bf16"] == pytest.approx(2 * 1024**3 / 1e-3, rel=1e-3)
    assert cluster.gpu.memory_bandwidth_bytes_per_s == pytest.approx(2 * (1 << 27) / 1e-2, rel=1e-3)
    assert (cluster.gpu.memory_bytes, cluster.gpu.usable_memory_bytes) == (16 << 30, 12 << 30)
    found = cluster.calibration
    assert found is not None
    assert found.device == DEVICE.name
    assert found.host["launch_eager_s"] == 2e-6
    assert sum(len(points.seconds) for points in found.points.values()) == 6
    assert found.points["gemm forward", "fp32"].seconds.tolist() == [1e-4, 7e-3]


def test_it_is_plain_yaml_and_loads_as_it_was(tmp_path: Path) -> None:
    text = to_yaml(document())
    whole = yaml.safe_load(text)
    assert whole["calibration"]["points"]["gemm forward"]["fp32"][1] == [1024, 1024, 1024, 7e-3, 6.3e-3, 8.4e-3]
    assert whole["calibration"]["notes"] == ["it: was # warm"]
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    assert to_yaml(load_document(tmp_path / "my.yaml") or {}) == text


def test_collectives_and_the_link_they_measured_outlive_a_new_calibration(tmp_path: Path) -> None:
    out, found = tmp_path / "my.yaml", Measurements()
    document = finished_document(DEVICE, found, out)
    document["scale_out"]["bandwidth"], document["sources"]["scale_out"] = "3.5 GB/s", "send and receive"
    document["calibration"]["collectives"] = {"send_recv": {"gloo 2": [[4096, 1e-4, 1e-4, 2e-4]]}}
    out.write_text(to_yaml(document))
    again = finished_document(DEVICE, found, out)
    assert again["scale_out"]["bandwidth"] == "3.5 GB/s"
    assert again["sources"]["scale_out"] == "send and receive"
    assert again["calibration"]["collectives"] == document["calibration"]["collectives"]


@given(st.text(max_size=20), st.floats(1e-9, 1e12), st.integers(0, 2**50))
def test_texts_and_numbers_survive(text: str, number: float, whole: int) -> None:
    text = "".join(c for c in text if c.isprintable())
    read = yaml.safe_load(to_yaml({"a": text, "b": {"c": [number, whole]}, "n": [text]}))
    assert read["a"] == text
    assert read["n"] == [text]
    assert read["b"]["c"][0] == pytest.approx(number, rel=1e-3)
    assert read["b"]["c"][1] == whole


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    assert load_document(tmp_path / "none.yaml") is None
    for text in ("gpus: 8\n", "- 1\n", "a: [", "calibration: 3\n"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(InputFileError, match=r"x\.yaml"):
            load_document(tmp_path / "x.yaml")
