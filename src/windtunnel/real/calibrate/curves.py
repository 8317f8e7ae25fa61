"""A calibrated file as points against the curves that predictions use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from windtunnel.errors import InputFileError
from windtunnel.files.bytes import path_of
from windtunnel.physics.cost.calibrated import calibrated_costs
from windtunnel.physics.cost.communication.measured_curve import measured_curve
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.calibration import Points
from windtunnel.questions.asked.calibrate import CalibrateShow
from windtunnel.questions.typed import plain_fields
from windtunnel.real.calibrate.document import load_document


@dataclass(frozen=True, slots=True)
class CurveChart:
    """One op, phase and dtype as arrays of one length, sorted as the file has them."""

    name: str  # "gemm forward"
    dtype: str
    size_names: tuple[str, ...]
    shapes: Sequence[tuple[int, ...]]
    measured_s: Sequence[float]
    low_s: Sequence[float]
    high_s: Sequence[float]
    curve_s: Sequence[float]  # at each point, made from all other points
    mean_error: float
    formula: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated device: what was measured, and the curves made of it."""

    file: str
    device: str
    kind: str
    date: str
    software: Mapping[str, str]
    threads: int | None
    values: Mapping[str, Mapping[str, float]]  # host, memory, overlap
    curves: Sequence[CurveChart]
    collectives: Sequence[CurveChart] = ()
    notes: Sequence[str] = field(default=())

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return dict(plain_fields(self))


def answer(question: CalibrateShow) -> Calibration:
    """What a calibrated file holds, and the curves that are made of it. Raises UserError."""
    path = path_of(question.file)
    document = load_document(path)
    if document is None:
        raise InputFileError(path, "is not there", "give a file that `windtunnel calibrate` wrote")
    costs = calibrated_costs(parse_cluster(f"{path}:1"))
    assert costs is not None
    charts = [
        CurveChart(
            curve.op,
            curve.dtype,
            curve.names,
            [tuple(shape) for shape in curve.shapes.tolist()],
            curve.seconds.tolist(),
            curve.low.tolist(),
            curve.high.tolist(),
            curve.left_out_seconds.tolist(),
            curve.mean_error,
            curve.formula,
        )
        for curve in costs.curves()
    ]
    calibration = costs.calibration
    return Calibration(
        str(path),
        calibration.device,
        calibration.kind,
        calibration.date,
        calibration.software,
        calibration.threads,
        {"host": calibration.host, "memory": calibration.memory, "overlap": calibration.overlap},
        charts,
        _collective_charts(calibration.collectives),
        [str(text) for text in document["calibration"].get("notes") or []],
    )


def _collective_charts(collectives: Mapping[tuple[str, str, int], Points]) -> list[CurveChart]:
    """Each point against the curve through the others."""
    curve_charts = []
    for (kind, backend, ranks), points in sorted(collectives.items()):
        count = len(points.seconds)
        curve = points.seconds.tolist()
        for at in range(count) if count > 2 else ():
            others = [other for other in range(count) if other != at]
            left = Points(points.shapes[others], points.seconds[others], points.low[others], points.high[others])
            without = measured_curve(left)
            curve[at] = without.at(float(points.shapes[at, 0]))[0]
        off = [abs(estimate / measured - 1) for estimate, measured in zip(curve, points.seconds.tolist(), strict=True)]
        shapes = [(int(size),) for size in points.shapes[:, 0]]
        name, lows, highs = f"{kind} on {ranks} ranks", points.low.tolist(), points.high.tolist()
        seconds = points.seconds.tolist()
        curve_charts.append(
            CurveChart(name, backend, ("bytes",), shapes, seconds, lows, highs, curve, sum(off) / max(count, 1), "")
        )
    return curve_charts
