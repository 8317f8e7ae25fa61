"""Which shape comes next: affordable, unmeasured, far from what is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.physics.hardware.calibration import calibration_from_document, operation, size_names
from windtunnel.real.calibrate.choose import Limits, Progress, Rates, next_point
from windtunnel.real.calibrate.kinds import KINDS, Curve, curves

RATES = Rates({"fp32": 3e11, "bf16": 2e12}, 2e10, 2e-6)
LIMITS = Limits(call_s=0.2, held_bytes=4e9)
GEMM = Curve("gemm", "forward", "fp32")


def true_seconds(curve: Curve, shape: tuple[int, ...]) -> float:
    flops, moved, _ = KINDS[curve.kind].cost(curve.phase, shape, curve.dtype)
    return flops / 3e11 + moved / 2e10 + 5e-6


def fill(one: Progress, count: int) -> list[tuple[int, ...]]:
    chosen = []
    for _ in range(count):
        found = next_point([one], LIMITS)
        if found is None:
            break
        chosen.append(found[1])
        one.add(found[1], true_seconds(one.curve, found[1]))
    return chosen


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_curve_is_one_that_the_reader_knows(kind: str) -> None:
    found = curves(kind, ("fp32", "bf16"))
    assert len(set(found)) == len(found)
    for curve in found:
        assert operation(curve.key) == curve.key
        assert len(next(KINDS[curve.kind].shapes())) == len(size_names(curve.key))
    points = {curve.key: {curve.dtype: [[*next(KINDS[curve.kind].shapes()), 1e-3, 1e-3, 2e-3]]} for curve in found}
    document = {"device": "x", "kind": kind, "points": points}
    assert len(calibration_from_document(document).points) == len(points)
    single = {curve.kind for curve in found if curve.phase == "single"}
    assert single == ({"adamw"} if kind == "cpu" else set())
    assert any(curve.kind == "h2d" for curve in found) == (kind == "cuda")


def test_no_shape_is_measured_twice_and_none_beyond_the_limits() -> None:
    one = Progress.start(GEMM, RATES)
    chosen = fill(one, 60)
    assert len(set(chosen)) == 60
    expected = one.expected_s()
    for shape in chosen[3:]:
        assert expected[one.shapes.index(shape)] <= LIMITS.call_s * 1.5
        assert KINDS["gemm"].cost("forward", shape, "fp32")[2] <= LIMITS.held_bytes


def test_the_core_spans_cheap_to_dear() -> None:
    chosen = fill(Progress.start(GEMM, RATES), 3)
    times = [true_seconds(GEMM, shape) for shape in chosen]
    assert min(times) < 1e-3 < 3e-2 < max(times)


def test_points_shrink_the_largest_distance() -> None:
    one = Progress.start(GEMM, RATES)
    reach = []
    for count in (5, 20, 40):
        fill(one, count - len(one.seconds))
        known = one.places[list(one.seconds)]
        open_ = one.expected_s() <= LIMITS.call_s
        distance = np.linalg.norm(one.places[open_][:, None] - known[None], axis=-1).min(axis=1)
        reach.append(float(distance.mean()))
    assert reach[0] > 1.15 * reach[1] > 1.15**2 * reach[2]


def test_where_the_ratio_changes_uncertainty_is_higher() -> None:
    smooth, rough = Progress.start(GEMM, RATES), Progress.start(GEMM, RATES)
    for shape in fill(smooth, 10):
        factor = 4.0 if shape[0] >= 1024 else 1.0
        rough.add(shape, factor * float(rough.roofline_s[rough.shapes.index(shape)]))
    for shape in list(smooth.seconds):
        smooth.seconds[shape] = float(smooth.roofline_s[shape])
    assert rough.uncertainty().mean() > 1.5 * smooth.uncertainty().mean()


def test_out_of_memory_closes_the_larger_shapes_too() -> None:
    one = Progress.start(Curve("copy", "forward", "bytes"), RATES)
    one.add((1 << 20,), None)
    while (found := next_point([one], LIMITS)) is not None:
        assert found[1][0] < 1 << 20
        one.add(found[1], 1e-4)
    assert len(one.seconds) == 8


def test_curves_without_points_come_first() -> None:
    known, new = Progress.start(GEMM, RATES), Progress.start(Curve("add", "forward", "fp32"), RATES)
    fill(known, 3)
    found = next_point([known, new], LIMITS)
    assert found is not None
    assert found[0] is new
    best = known.best(LIMITS)
    assert best is not None
    assert not math.isinf(best[0])
