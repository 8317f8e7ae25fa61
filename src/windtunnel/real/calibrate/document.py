"""The file: a complete cluster document of one device, with everything that was measured under `calibration`.

Written as plain YAML, a row per line, numbers with four digits: for people as much as for the reader
(`windtunnel.physics.hardware.calibration`). Collectives of an earlier file are kept, and the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError
from windtunnel.files.document import read_mapping, to_yaml_rows
from windtunnel.real.calibrate.device import Device, today
from windtunnel.real.calibrate.kinds import KINDS, Curve, Shape
from windtunnel.real.calibrate.timing import Timing

Rows = dict[str, list[list[float]]]
Measured = Mapping[Curve, Mapping[Shape, Timing]]
_ASSUMED = "assumed: not used by a step on one device; calibrate collectives measures the link"


def cluster_document(
    device: Device,
    measured: Measured,
    host: Mapping[str, float],
    memory: Mapping[str, float],
    overlap: Mapping[str, float],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The whole document. Peak rates are the best that was measured."""
    flops = {dtype: _best_flops(measured, dtype) for dtype in device.dtypes}
    copy_rate = _best_rate(measured, "copy", ("bytes",)) or 1e9
    pcie = _best_rate(measured, "h2d", ("pinned", "pageable")) or copy_rate / 2
    day = today()
    here = f"measured here, {day}"
    return {
        "name": f"{device.name} as measured",
        "gpus": 1,
        "gpus_per_node": 1,
        "scale_up_domain": 1,
        "gpu": {
            "name": device.name,
            "vendor": "nvidia" if device.kind == "cuda" else "cpu",
            "generation": device.generation,
            "memory": device.memory_bytes,
            "usable_memory": device.available_bytes,
            "memory_bandwidth": f"{_short(2 * copy_rate / 1e9)} GB/s",  # a copy reads and writes
            "flops": {dtype: f"{_short(rate / 1e12)} TFLOP/s" for dtype, rate in flops.items() if rate},
            "sm_count": device.units,
            "tdp": device.tdp_w,
            "sources": {
                "flops": f"best GEMM, {here}",
                "memory_bandwidth": f"best copy, {here}",
                "memory": f"the system, {day}",
                **({"tdp": "assumed"} if device.kind == "cpu" else {}),
            },
        },
        "scale_up": {"bandwidth": f"{_short(pcie / 1e9)} GB/s", "latency": "5 us", "protocol": "pcie"},
        "scale_out": {"bandwidth": "1.25 GB/s", "latency": "50 us", "protocol": "ethernet"},
        "host": {"pcie": f"{_short(pcie / 1e9)} GB/s", "memory": device.memory_bytes},
        "sources": {"scale_up": _ASSUMED, "scale_out": _ASSUMED, "host.pcie": here},
        "calibration": {
            "device": device.name,
            "kind": device.kind,
            "date": day,
            "software": dict(device.software),
            "threads": device.threads,
            "host": dict(host),
            "memory": dict(memory),
            "overlap": dict(overlap),
            "points": _points(measured),
            "collectives": {},
            "notes": list(notes),
        },
    }


def _points(measured: Measured) -> dict[str, dict[str, list[list[float]]]]:
    points: dict[str, dict[str, list[list[float]]]] = {}
    for curve in sorted(measured, key=lambda curve: (list(KINDS).index(curve.kind), curve.phase, curve.dtype)):
        rows = [
            [*shape, timing.median_s, timing.p10_s, timing.p90_s] for shape, timing in sorted(measured[curve].items())
        ]
        if rows:
            points.setdefault(curve.key, {})[curve.dtype] = rows
    return points


def _best_flops(measured: Measured, dtype: str) -> float:
    kind = KINDS["gemm"]
    return max(
        (
            kind.flops(shape) / timing.median_s
            for curve, timings in measured.items()
            if curve.kind == "gemm" and curve.dtype == dtype
            for shape, timing in timings.items()
        ),
        default=0.0,
    )


def _best_rate(measured: Measured, kind: str, words: tuple[str, ...]) -> float:
    """Bytes of the payload per second, of sizes past every cache where there are such."""
    rates = [
        (shape[0], shape[0] / timing.median_s)
        for curve, timings in measured.items()
        if curve.kind == kind and curve.dtype in words
        for shape, timing in timings.items()
    ]
    large = [rate for size, rate in rates if size >= 64 << 20]
    return max(large or [rate for _, rate in rates], default=0.0)


def load_document(path: Path) -> dict[str, Any] | None:
    """The document at `path`, numbers as numbers; None where there is no file.

    Raises:
        InputFileError: not a calibrated cluster document.
    """
    if not path.exists():
        return None
    remedy = "give a file that `windtunnel calibrate` wrote"
    document = read_mapping(path, remedy)
    if not isinstance(document.get("calibration"), dict):
        raise InputFileError(path, "holds no calibration", remedy)
    return document


def to_yaml(document: Mapping[str, object]) -> str:
    """The document as text, one row per line."""
    text = to_yaml_rows(_without_none(document), _number)
    return f"# Written by `windtunnel calibrate`. Read by any verb as --cluster FILE:1\n{text}"


def _without_none(value: object) -> object:
    """Without what is None."""
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return value


def _number(value: float) -> str:
    """Four digits, in a form that YAML 1.1 reads as a number: `1.234e-05`, and with a point."""
    text = f"{value:.4g}"
    mantissa, e, exponent = text.partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    return mantissa + e + exponent


def _short(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
