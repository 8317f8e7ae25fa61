"""Each way to a price on a measured device, by hand: the point, the curve, a sibling, the forward kernel, the bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.physics.cost import roofline
from windtunnel.physics.cost.calibrated import CalibratedCosts, _features, _merged, _steps, calibrated_costs
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.calibration import Points

Z, RUN_Z = 1.645, 1.282
BANDWIDTH, LAUNCH = 20e9, 3e-6
SIZES = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]


def costs(kind: str = "cuda", **points: dict[str, list[list[float]]]) -> CalibratedCosts:
    """A device of 300 TFLOP/s in bf16 and half of that in fp32 of which this was measured."""
    machine = parse_cluster(
        {
            "gpu": {
                **{"name": "device", "vendor": "test", "generation": "cpu", "memory": "16 GiB", "sm_count": 2},
                **{"memory_bandwidth": "20 GB/s", "flops": {"bf16": "300 GFLOP/s", "fp32": "150 GFLOP/s"}, "tdp": 100},
            },
            **{"gpus": 2, "gpus_per_node": 2, "scale_up_domain": 2, "host": {"pcie": "10 GB/s", "memory": "16 GiB"}},
            "scale_up": {"bandwidth": "10 GB/s", "latency": "1 us", "protocol": "pcie"},
            "scale_out": {"bandwidth": "1 GB/s", "latency": "10 us", "protocol": "ethernet"},
            "calibration": {
                **{"device": "device", "kind": kind, "host": {"launch_eager_s": LAUNCH}},
                "points": {op.replace("__", " "): rows for op, rows in points.items()},
            },
        }
    )
    found = calibrated_costs(machine)
    assert found is not None
    return found


def rows(*points: tuple[float, ...]) -> list[list[float]]:
    """Sizes and a median, with single runs from 3 % below to 5 % above."""
    return [[*point, point[-1] * 0.97, point[-1] * 1.05] for point in points]


def widened(price: Price, width: float, factor: float = 1.0) -> Price:
    """Times a factor, with a band that is wider by a share to both sides."""
    return price.scaled(factor).widened(width, width, Source.FITTED)


def same(found: Price, expected: Price) -> None:
    assert tuple(found)[:3] == pytest.approx(tuple(expected)[:3])
    assert found.source == expected.source


GEMMS = {"bf16": rows((64, 128, 256, 1e-3), (128, 512, 64, 2e-3), (512, 512, 512, 9e-3))}


def test_a_point_is_itself_with_the_band_of_its_runs() -> None:
    found = costs(gemm__forward=GEMMS).gemm("forward", 64, 128, 256, "bf16")
    assert (found.seconds, found.source) == (1e-3, Source.MEASURED)
    assert found.p5 == pytest.approx(1e-3 * 0.97 ** (Z / RUN_Z))
    assert found.p95 == pytest.approx(1e-3 * 1.05 ** (Z / RUN_Z))


def test_a_curve_gives_the_mean_of_what_it_knows_by_its_log_and_no_less_than_half_of_the_shortest() -> None:
    one = costs(gelu__forward={"bf16": rows(*((rows_, 64, 1e-5 * rows_) for rows_ in SIZES))})
    curve = one.curve("gelu forward", "bf16")
    assert curve is not None
    place = np.array([[55.0, 64.0]])
    at = curve.fitted.at(one._terms("gelu forward", "bf16", place, curve.steps)[0], _features("gelu forward", place)[0])
    found = one.elementwise("gelu forward", 55, 64, "bf16")
    assert found.seconds == pytest.approx(math.exp(at.log_value + 0.5 * at.spread**2))
    assert found.p5 == pytest.approx(found.seconds * math.exp(-Z * at.spread))
    assert found.p95 == pytest.approx(found.seconds * math.exp(Z * at.spread))
    assert found.source == Source.INTERPOLATED
    far = one.elementwise("gelu forward", 2000, 64, "bf16")
    place = np.array([[2000.0, 64.0]])
    at = curve.fitted.at(one._terms("gelu forward", "bf16", place, curve.steps)[0], _features("gelu forward", place)[0])
    assert at.outside == pytest.approx(math.log(2.0))
    assert far.p95 == pytest.approx(far.seconds * math.exp(Z * at.spread + 0.1 * math.log(2.0)))
    assert far.source == Source.FITTED
    assert one.elementwise("gelu forward", 39_000, 64, "bf16").source == Source.FITTED
    assert one.elementwise("gelu forward", 41_000, 64, "bf16").source == Source.ROOFLINE
    assert one.elementwise("gelu forward", 1, 1, "bf16").seconds == pytest.approx(0.5e-5)


def test_no_product_beats_the_best_rate_by_more_than_a_tenth() -> None:
    one = costs(gemm__forward=GEMMS)
    best = max(m * n * k / seconds for m, n, k, seconds, *_ in GEMMS["bf16"])
    for shape in ((300, 300, 300), (4096, 4096, 4096)):
        assert math.prod(shape) / one.gemm("forward", *shape, "bf16").seconds <= best * 1.1 * (1 + 1e-12)


def test_another_dtype_is_as_much_slower_as_its_peak_or_its_bytes() -> None:
    one = costs(gemm__forward=GEMMS, gelu__forward={"bf16": rows((8, 64, 1e-5), (64, 64, 5e-5))})
    gemm = one.gemm("forward", 64, 128, 256, "bf16")
    same(one.gemm("forward", 64, 128, 256, "fp32"), widened(gemm, 0.4, 2.0))
    same(one.gemm("forward", 64, 128, 256, "fp16"), widened(gemm, 0.2))
    gelu = one.elementwise("gelu forward", 8, 64, "bf16")
    same(one.elementwise("gelu forward", 8, 64, "fp32"), widened(gelu, 0.4, 2.0))
    both = costs(gelu__forward={"fp32": rows((8, 64, 3e-5)), "fp64": rows((8, 64, 9e-5))})
    same(  # the nearest in bytes
        both.elementwise("gelu forward", 8, 64, "bf16"),
        widened(both.elementwise("gelu forward", 8, 64, "fp32"), 0.4, 0.5),
    )


def test_copies_are_of_bytes_in_whichever_dtype() -> None:
    one = costs(copy__forward={"int8": rows((1000, 1e-6), (8000, 8e-6))}, h2d__forward={"fp32": rows((1000, 4e-6))})
    assert one.copy(1000).seconds == 1e-6
    assert one.copy(1000, "h2d").seconds == 4e-6
    assert one.copy(0).seconds == 0.0
    same(one._priced("copy", (1000,), "bf16"), widened(one.copy(1000), 0.2))
    down = one.copy(500, "d2h")  # never measured: read and written at the rate of the longest copy
    assert down.seconds == pytest.approx(LAUNCH + 2 * 500 / (2 * 8000 / 8e-6))


def test_products_that_were_not_measured_stand_on_those_that_were() -> None:
    one = costs(gemm__forward=GEMMS)
    same(one.gemm("dgrad", 64, 256, 128, "bf16"), widened(one.gemm("forward", 64, 128, 256, "bf16"), 0.2))
    same(one.gemm("wgrad", 256, 64, 128, "bf16"), widened(one.gemm("forward", 64, 128, 256, "bf16"), 0.2))
    same(
        one.grouped_gemm("forward", 5, 64, 128, 256, "bf16"),
        widened(one.gemm("forward", 64, 128, 256, "bf16"), 0.1, 5.0),
    )
    assert one.grouped_gemm("forward", 5, 0.3, 128, 256, "bf16") == one.grouped_gemm("forward", 5, 1, 128, 256, "bf16")
    nothing = costs()
    same(nothing.gemm("dgrad", 64, 128, 256, "bf16"), roofline.gemm(nothing.gpu, 64, 128, 256, "bf16"))
    same(nothing.gemm("forward", 64, 128, 256, "fp8"), roofline.gemm(nothing.gpu, 64, 128, 256, "bf16"))


def test_attention_backward_is_two_and_a_half_times_forward() -> None:
    shape = (2, 128, 8, 4, 64)
    one = costs(attention__forward={"bf16": rows((*shape, 1e-3), (2, 256, 8, 4, 64, 3e-3))})
    same(one.attention(*shape, "bf16", backward=True), widened(one.attention(*shape, "bf16"), 0.4, 2.5))
    nothing = costs()
    moved = 2 * 2 * 2 * 128 * (8 + 4) * 64
    forward = roofline.attention(nothing.gpu, 2 * 8 * 128, 64, 64, moved, "bf16")
    same(nothing.attention(*shape, "bf16"), forward)
    same(nothing.attention(*shape, "bf16", backward=True), forward.scaled(2.5))


@pytest.mark.parametrize(
    ("op", "tensors"),
    [("rms_norm forward", 2), ("swiglu forward", 3), ("add backward", 4.5), ("cross_entropy forward", 3)],
)
def test_without_a_measurement_only_bytes_and_bandwidth_are_known(op: str, tensors: float) -> None:
    seconds = LAUNCH + tensors * 8 * 64 * 2 / (0.8 * BANDWIDTH)
    expected = Price(seconds, seconds * math.exp(-0.5), seconds * math.exp(0.5), Source.ROOFLINE)
    same(costs().elementwise(op, 8, 64, "bf16"), expected)


def test_an_optimizer_that_was_not_measured_reads_and_writes_its_state() -> None:
    one = costs()
    assert one.optimizer("adamw fused", 1000, "fp32").seconds == pytest.approx(
        LAUNCH + 7 * 1000 * 4 / (0.8 * BANDWIDTH)
    )
    assert one.optimizer("zero_grad", 1000, "bf16").seconds == pytest.approx(LAUNCH + 1000 * 2 / (0.8 * BANDWIDTH))
    assert one.optimizer("adamw fused", 0, "fp32").seconds == 0.0


def test_a_gpu_meets_half_of_the_keys_and_a_cpu_whole_blocks() -> None:
    assert costs().attended(1024) == 512
    cpu = costs("cpu")
    assert cpu.attended(512) == 512
    assert cpu.attended(1024) == (512 * 512 + 512 * 1024) / 1024
    assert cpu.attended(600) == (512 * 512 + 88 * 600) / 600


def test_terms_and_distances_of_each_kind() -> None:
    one = costs(gemm__forward=GEMMS)
    sizes = np.array([[2.0, 3.0, 5.0]])
    assert one._terms("gemm dgrad", "bf16", sizes, ()).tolist() == [[30, 6, 10, 15, 1]]
    grouped = np.array([[7.0, 64.0, 128.0, 256.0]])
    assert one._terms("grouped_gemm forward", "bf16", grouped, ()).tolist() == [[pytest.approx(7e-3), 7, 1]]
    alone = np.array([[7.0, 2.0, 3.0, 5.0]])
    assert costs()._terms("grouped_gemm forward", "bf16", alone, ()).tolist() == [[210, 42, 70, 105, 7, 1]]
    heads = np.array([[2.0, 10.0, 8.0, 4.0, 16.0]])  # 160 rows, which meet 5 keys on average
    assert one._terms("attention forward", "bf16", heads, ()).tolist() == [[160 * 5 * 16, 800, 2560, 2 * 4 * 160, 1]]
    assert one._terms("gelu forward", "bf16", np.array([[4.0, 8.0]]), (20.0, 40.0)).tolist() == [[32, 12, 0, 4, 1]]
    assert one._terms("zero_grad", "fp32", np.array([[32.0]]), (20.0,)).tolist() == [[32, 12, 1]]
    e = math.e
    assert _features("gemm forward", np.array([[e, e**2, e**3]]))[0] == pytest.approx([1, 2, 3])
    assert _features("grouped_gemm forward", np.array([[e**4, e, e**2, e**3]]))[0] == pytest.approx([2, 1, 2, 3])
    assert _features("attention forward", np.array([[e, e**2, e**5, e**3, e**4]]))[0] == pytest.approx([6, 2, 4, 1])
    assert _features("gelu forward", np.array([[e, e**2]]))[0] == pytest.approx([3, 0.6])
    assert _features("zero_grad", np.array([[e]]))[0] == pytest.approx([1])


def test_a_curve_gets_steeper_between_points_and_not_where_they_are_few() -> None:
    sizes = np.exp(np.arange(0.0, 16.0))[:, None]
    assert _steps("zero_grad", sizes) == pytest.approx(np.exp([2.5, 5.0, 7.5, 10.0, 12.5]))
    assert _steps("zero_grad", sizes[:7]) == pytest.approx(np.exp([2.0, 4.0]))
    assert _steps("zero_grad", sizes[:4]) == pytest.approx([math.exp(1.5)])
    assert _steps("zero_grad", sizes[:3]) == _steps("gemm forward", sizes) == ()
    assert _steps("zero_grad", np.repeat(sizes[:2], 8, axis=0)) == ()  # the same sizes again


def test_a_size_that_was_measured_twice_is_its_median_in_the_widest_band() -> None:
    shapes, seconds = np.array([[4], [9], [4], [4]]), np.array([3.0, 8.0, 1.0, 2.0])
    found = _merged(Points(shapes, seconds, seconds * 0.5, seconds * 2.0))
    assert found.shapes.tolist() == [[4], [9]]
    assert found.seconds.tolist() == [2.0, 8.0]
    assert (found.low.tolist(), found.high.tolist()) == ([0.5, 4.0], [6.0, 16.0])
