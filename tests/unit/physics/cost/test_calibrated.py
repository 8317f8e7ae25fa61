"""Prices of a calibrated device, held against the invented device that the points were taken from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.cost import calibrated
from windtunnel.physics.cost.calibrated import CalibratedCosts, calibrated_costs
from windtunnel.physics.cost.communication.collectives import collective, group_of
from windtunnel.physics.cost.communication.in_a_step import in_a_step
from windtunnel.physics.cost.measured.fitting import fit, nnls
from windtunnel.physics.cost.price import Price, Source
from windtunnel.physics.cost.training import calibrated_training_costs, training_costs
from windtunnel.physics.hardware import Cluster, parse_cluster

NOISE = 0.02


def in_step(alone: float) -> tuple[float, float, float]:
    """Waited for, beside, in a queue: beyond `alone` a share of it and a millisecond that is the same for all sizes."""
    return alone + 0.8 * (alone + 1e-3), alone - 0.05 * (alone + 1e-3), alone + 0.2 * (alone + 1e-3)


def gemm_s(m: float, n: float, k: float) -> float:
    """Tiles, a cache that ends, a launch."""
    padded = math.ceil(m / 32) * math.ceil(n / 32) * 1024 * (k + 40)
    spilled = 1.15 if n * k > 4e6 else 1.0
    return 4e-6 + 2.0 * padded * spilled / 150e9 + 4.0 * (m * k + n * k + m * n) / 18e9


def attention_s(batch: float, seq: float, heads: float, kv_heads: float, dim: float) -> float:
    keys = 2 * attended_one_by_one(int(seq)) / seq
    return 8e-6 + batch * heads * seq * (keys + 90) * (2.0 * dim + 12) / 120e9 + 8e-11 * batch * seq * kv_heads * dim


def attended_one_by_one(seq: int) -> int:
    """Keys that all queries meet together: blocks of 512, up to the one that holds the query's own."""
    return sum(min(512 * (query // 512 + 1), seq) for query in range(seq))


def streamed_s(rows: float, width: float) -> float:
    """20 GB/s of memory, 80 GB/s of cache, and a cost per row."""
    size = 8.0 * rows * width
    return 5e-6 + min(size, 4e6) / 80e9 + max(0.0, size - 4e6) / 20e9 + 2e-9 * rows


def points_of(time: Callable[..., float], shapes: list[tuple[int, ...]], seed: int = 0) -> list[list[float]]:
    noise = np.random.default_rng(seed).normal(0.0, NOISE, len(shapes))
    times = [time(*shape) * math.exp(error) for shape, error in zip(shapes, noise, strict=True)]
    return [[*shape, t, t * 0.97, t * 1.05] for shape, t in zip(shapes, times, strict=True)]


def scattered(low: tuple[int, ...], high: tuple[int, ...], count: int, seed: int) -> list[tuple[int, ...]]:
    draw = np.random.default_rng(seed)
    logs = draw.uniform(np.log(low), np.log(high), (count, len(low)))
    return [tuple(int(value) for value in row) for row in np.exp(logs).round()]


GEMMS = [
    (64, 128, 128),
    (4096, 4096, 4096),
    *scattered((64, 128, 128), (4096, 4096, 4096), 22, 1),
]  # a quick calibration
STREAMS = scattered((64, 128), (8192, 8192), 16, 2)
ATTENTIONS = [
    (b, s, h, kv, d) for b, s, (h, kv), d in itertools.product((1, 4), (128, 512, 2048), ((4, 4), (8, 2)), (64, 128))
]
SIZES = [4 << (10 + 2 * i) for i in range(8)]


def cluster_of(**points: Any) -> Cluster:
    return parse_cluster(
        {
            "gpu": {
                "name": "some-cpu",
                "vendor": "test",
                "generation": "cpu",
                "memory": "16 GiB",
                "memory_bandwidth": "20 GB/s",
                "flops": {"bf16": "300 GFLOP/s", "fp32": "150 GFLOP/s"},
                "sm_count": 2,
                "tdp": 100,
            },
            "gpus": 2,
            "gpus_per_node": 2,
            "scale_up_domain": 2,
            "scale_up": {"bandwidth": "10 GB/s", "latency": "1 us", "protocol": "pcie"},
            "scale_out": {"bandwidth": "1 GB/s", "latency": "10 us", "protocol": "ethernet"},
            "host": {"pcie": "10 GB/s", "memory": "16 GiB"},
            "calibration": {
                "device": "Some CPU",
                "kind": "cpu",
                "host": {"launch_eager_s": 3e-6, "launch_compiled_s": 1e-6},
                "overlap": {"compute_by_copy": 0.21},
                "points": {op.replace("__", " "): rows for op, rows in points.items()},
                "collectives": {
                    "all_reduce": {"gloo 2": [[size, t := 8e-5 + size / 1.5e9, t * 0.9, t * 1.2] for size in SIZES]},
                    "broadcast": {
                        "gloo 2": [
                            [size, t := 8e-5 + size / 3e9, t * 0.9, t * 1.2, *in_step(t * 0.9)] for size in SIZES
                        ]
                    },
                },
            },
        }
    )


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return cluster_of(
        gemm__forward={"fp32": points_of(gemm_s, GEMMS)},
        gemm__wgrad={"fp32": points_of(lambda *s: 1.3 * gemm_s(*s), GEMMS)},
        attention__forward={"fp32": points_of(attention_s, ATTENTIONS)},
        rms_norm__forward={"fp32": points_of(streamed_s, STREAMS)},
        adamw__foreach={"fp32": [[1 << i, 1e-5 + 3e-9 * (1 << i), 1e-5, 1.0] for i in range(14, 27, 3)]},
        copy__forward={"bytes": [[1 << i, 1e-6 + (1 << i) / 8e9, 1e-6, 1.0] for i in range(12, 30, 3)]},
    )


@pytest.fixture(scope="module")
def costs(cluster: Cluster) -> CalibratedCosts:
    found = calibrated_costs(cluster)
    assert found is not None
    return found


def held_out(
    price: Callable[..., Price], truth: Callable[..., float], shapes: list[tuple[int, ...]]
) -> tuple[float, float]:
    """Mean absolute error, and the share of true times inside the band."""
    prices = [(price(*shape), truth(*shape)) for shape in shapes]
    errors = [abs(found.seconds / true - 1.0) for found, true in prices]
    return float(np.mean(errors)), float(np.mean([found.p5 <= true <= found.p95 for found, true in prices]))


def test_no_calibration_no_prices() -> None:
    assert calibrated_costs(parse_cluster("h100-sxm:8")) is None


def test_a_measured_size_costs_what_was_measured(costs: CalibratedCosts) -> None:
    for *shape, seconds, low, high in points_of(gemm_s, GEMMS):
        price = costs.gemm("forward", *shape, "fp32")
        assert price.source is Source.MEASURED
        assert price.seconds == seconds
        assert price.p5 <= low < high <= price.p95


def test_few_gemms_predict_the_rest_and_say_how_surely(costs: CalibratedCosts) -> None:
    shapes = scattered((80, 160, 160), (3600, 3600, 3600), 200, 7)
    error, inside = held_out(lambda *s: costs.gemm("forward", *s, "fp32"), gemm_s, shapes)
    assert error < 0.06
    assert inside > 0.85


@pytest.mark.parametrize("seq", [1, 100, 511, 512, 513, 1000, 2048, 3333])
def test_a_cpu_computes_whole_blocks_of_keys(costs: CalibratedCosts, seq: int) -> None:
    assert float(costs.attended(seq)) == pytest.approx(attended_one_by_one(seq) / seq)


def test_few_attentions_and_streams_predict_the_rest(costs: CalibratedCosts) -> None:
    shapes = [(2, 256, 4, 4, 64), (2, 1024, 8, 2, 128), (1, 768, 4, 4, 96), (4, 1536, 8, 2, 64), (3, 300, 8, 8, 64)]
    error, _ = held_out(lambda *s: costs.attention(*s, "fp32"), attention_s, shapes)
    assert error < 0.06
    streams = scattered((80, 160), (7000, 7000), 100, 8)
    error, inside = held_out(lambda *s: costs.elementwise("rms_norm forward", *s, "fp32"), streamed_s, streams)
    assert error < 0.10
    assert inside > 0.8


def test_between_points_is_interpolated_and_beyond_them_is_not(costs: CalibratedCosts) -> None:
    inside = costs.gemm("forward", 1000, 1000, 1000, "fp32")
    beyond = costs.gemm("forward", 16384, 1000, 1000, "fp32")
    far = costs.gemm("forward", 10**6, 10**5, 1000, "fp32")
    assert [price.source for price in (inside, beyond, far)] == [Source.INTERPOLATED, Source.FITTED, Source.ROOFLINE]
    widths = [math.log(price.p95 / price.p5) for price in (inside, beyond, far)]
    assert widths == sorted(widths)
    assert widths[0] < widths[2]
    assert far.seconds == pytest.approx(gemm_s(10**6, 10**5, 1000), rel=0.3)


def test_nothing_is_faster_than_what_was_seen(costs: CalibratedCosts) -> None:
    best = max(math.prod(row[:3]) / row[3] for row in points_of(gemm_s, GEMMS))
    least = min(row[3] for row in points_of(gemm_s, GEMMS))
    for size in (1, 8, 10**3, 10**5):
        price = costs.gemm("forward", size, size, size, "fp32")
        assert price.seconds >= size**3 / best / 1.1 * (1 - 1e-12)
        assert price.seconds >= 0.5 * least
        assert price.p5 <= price.seconds <= price.p95


def test_what_was_not_measured_comes_from_its_sibling_and_says_so(costs: CalibratedCosts) -> None:
    shape = GEMMS[0]
    forward = costs.gemm("forward", *shape, "fp32")
    m, n, k = shape
    turned = costs.gemm("dgrad", m, n, k, "fp32")
    assert turned.source is Source.FITTED
    assert turned.seconds == costs.gemm("forward", m, k, n, "fp32").seconds
    assert costs.gemm("wgrad", m, n, k, "fp32").source is Source.MEASURED
    half = costs.gemm("forward", m, n, k, "bf16")
    assert half.seconds == pytest.approx(forward.seconds / 2.0)  # the data sheet's ratio of rates
    assert half.source is Source.FITTED
    experts = costs.grouped_gemm("forward", 8, m, n, k, "fp32")
    assert experts.seconds == pytest.approx(8 * forward.seconds)
    back = costs.attention(*ATTENTIONS[0], "fp32", backward=True)
    assert back.seconds == pytest.approx(2.5 * costs.attention(*ATTENTIONS[0], "fp32").seconds)
    unknown = costs.elementwise("gelu backward", 1024, 1024, "fp32")
    assert unknown.source is Source.ROOFLINE
    assert unknown.seconds == pytest.approx(1024 * 1024 * 4 * 3 / 16e9, rel=0.1)  # at the measured copy's bandwidth


def test_grouped_gemms_stand_on_the_gemm_and_need_few_points() -> None:
    shapes = [(g, m, 512, 512) for g, m in itertools.product((4, 16), (32, 128, 1024))]

    def grouped_s(groups: float, m: float, n: float, k: float) -> float:
        return groups * (gemm_s(m, n, k) + 5e-6)

    cluster = cluster_of(
        gemm__forward={"fp32": points_of(gemm_s, GEMMS)},
        grouped_gemm__forward={"fp32": points_of(grouped_s, shapes)},
    )
    costs = calibrated_costs(cluster)
    assert costs is not None
    error, _ = held_out(
        lambda *s: costs.grouped_gemm("forward", *s, "fp32"), grouped_s, [(8, 64, 512, 512), (8, 400, 512, 512)]
    )
    assert error < 0.10


def test_optimizer_and_copies_are_curves_over_one_size(costs: CalibratedCosts) -> None:
    assert costs.optimizer("adamw foreach", 5_000_000, "fp32").seconds == pytest.approx(1e-5 + 15e-3, rel=0.05)
    assert costs.copy(3e7).seconds == pytest.approx(1e-6 + 3e7 / 8e9, rel=0.05)
    assert costs.optimizer("adamw foreach", 0, "fp32").seconds == 0.0
    big = costs.optimizer("adamw foreach", 1e9, "fp32")
    assert big.source is Source.FITTED
    assert big.seconds == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf])
def test_a_size_that_is_none_is_refused(costs: CalibratedCosts, size: float) -> None:
    with pytest.raises(SpecError, match="must be 1 or more"):
        costs.gemm("forward", size, 128, 128, "fp32")


def test_an_unknown_operation_is_refused(costs: CalibratedCosts) -> None:
    with pytest.raises(SpecError, match="is none that"):
        costs.gemm("sideways", 128, 128, 128, "fp32")
    with pytest.raises(SpecError, match="is none that"):
        costs.elementwise("adamw foreach", 128, 128, "fp32")


def test_a_single_point_is_enough_for_a_price() -> None:
    cluster = cluster_of(gelu__forward={"bf16": [[1024, 1024, 1e-3, 1e-3, 1e-3]]})
    costs = calibrated_costs(cluster)
    assert costs is not None
    price = costs.elementwise("gelu forward", 2048, 1024, "bf16")
    assert 1e-3 <= price.seconds <= 2.1e-3
    assert price.source is Source.FITTED
    shape = (1, 4096, 8, 8, 128, "bf16")  # not measured: five products backward where forward has two
    assert costs.attention(*shape, backward=True).seconds == pytest.approx(2.5 * costs.attention(*shape).seconds)


def test_curves_show_points_form_and_residuals(costs: CalibratedCosts) -> None:
    curves = {(curve.op, curve.dtype): curve for curve in costs.curves()}
    assert set(curves) == set(costs.calibration.points)
    gemm = curves["gemm forward", "fp32"]
    assert gemm.names == ("m", "n", "k")
    assert gemm.mean_error < 0.1
    assert "m n k" in gemm.formula


def test_left_out_points_are_those_of_a_fit_without_them() -> None:
    draw = np.random.default_rng(3)
    x = np.sort(draw.uniform(0.0, 4.0, 14))
    terms, features = np.stack([np.exp(x), np.ones(14)], axis=1), x[:, None]
    whole = fit(terms, features, np.exp(x + 0.2 * np.sin(3 * x)), np.full(14, 0.01))
    keep = np.arange(14) != 7
    near = np.linalg.inv(np.linalg.inv(whole._inverse)[np.ix_(keep, keep)])
    across = np.linalg.inv(whole._inverse)[7, keep]
    assert whole.left_out[7] == pytest.approx(whole.residuals[7] - across @ near @ whole.residuals[keep], abs=1e-9)


def test_a_few_points_widen_the_band_by_their_number_alone() -> None:
    """Below eight points no quantile of what was left out is taken: 1 + 1 / root of 6, and 6 over what is free."""
    x = np.linspace(0.0, 2.0, 6)
    found = fit(np.stack([np.exp(x)], axis=1), x[:, None], np.exp(x + 0.3 * np.cos(9 * x)), np.full(6, 0.01))
    assert found.calibration == pytest.approx((1.0 + 1.0 / 6**0.5) * (6 / 5) ** 0.5)


def test_nnls_is_the_constrained_optimum() -> None:
    draw = np.random.default_rng(5)
    for _ in range(20):
        matrix, target = draw.normal(size=(12, 5)), draw.normal(size=12)
        found = nnls(matrix, target)
        slope = matrix.T @ (target - matrix @ found)
        assert (found >= 0).all()
        assert (slope <= 1e-8).all()  # Karush-Kuhn-Tucker: no coefficient wants to rise
        assert np.abs(slope[found > 0]).max(initial=0.0) < 1e-8


def test_collectives_are_the_measured_ones(cluster: Cluster) -> None:
    group = group_of(2, 1, cluster)
    on, between, beyond = (collective("all_reduce", size, group, cluster) for size in (SIZES[3], 3e6, 1e9))
    assert (on.source, between.source, beyond.source) == (Source.MEASURED, Source.INTERPOLATED, Source.FITTED)
    assert on.seconds == pytest.approx(8e-5 + SIZES[3] / 1.5e9)
    for price, size in ((between, 3e6), (beyond, 1e9)):
        assert price.seconds == pytest.approx(8e-5 + size / 1.5e9, rel=0.1)
        assert price.p5 < price.seconds < price.p95
    sizes = np.geomspace(100, 1e10, 60)
    times = [collective("all_reduce", size, group, cluster).seconds for size in sizes]
    assert times == sorted(times)
    assert collective("all_gather", 1e6, group, cluster).source is not Source.MEASURED  # not timed: the formula
    assert collective("all_reduce", 1e6, group, cluster, algorithm="ring").source is not Source.INTERPOLATED


def test_what_a_collective_adds_to_a_step_is_what_was_measured_between_and_beyond_sizes(cluster: Cluster) -> None:
    assert in_a_step("all_reduce", 1e6, 2, cluster) is None  # of that only single calls were timed
    assert in_a_step("broadcast", 1e6, 4, cluster) is None
    for size in (float(SIZES[0]), 3e6, float(SIZES[-1])):
        assert in_a_step("broadcast", size, 2, cluster) == pytest.approx(in_step(0.9 * (8e-5 + size / 3e9)))
    a_steps = [in_a_step("broadcast", size, 2, cluster) for size in np.geomspace(1, 1e10, 40)]
    for column in zip(*(one for one in a_steps if one is not None), strict=True):
        assert list(column) == sorted(column)
    last, twice = (in_a_step("broadcast", times * SIZES[-1], 2, cluster) for times in (1, 2))
    assert last is not None
    assert twice == pytest.approx([2 * one for one in last])


def test_training_constants_of_a_calibrated_device_are_its_own(cluster: Cluster) -> None:
    assert cluster.calibration is not None
    found = calibrated_training_costs("cpu", cluster.calibration)
    assert not found.sustained.gemm
    assert found.sustained.attention == found.sustained.memory == found.sustained.p2p == 1.0
    assert set(found.launch_s.values()) == {3e-6}
    assert "pytorch" in found.launch_s
    assert found.compiled_launch_s == 1e-6
    assert found.graph_launch_s == training_costs("cpu").graph_launch_s  # not measured: as elsewhere
    assert found.compute_by_scale_out == 0.21


def test_a_fit_is_told_half_the_band_from_10th_to_90th_in_standard_deviations(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points go from 0.97 to 1.05 times their middle; the 90th percentile of a normal error is at 1.282."""
    spreads = []
    monkeypatch.setattr(calibrated, "fit", lambda *asked: spreads.append(asked[3]) or fit(*asked))
    assert cluster.calibration is not None
    CalibratedCosts(cluster.calibration, cluster.gpu).curve("gemm forward", "fp32")
    (spread,) = spreads
    assert spread == pytest.approx(math.log(1.05 / 0.97) / 2 / 1.282)
