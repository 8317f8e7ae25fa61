"""Prices of captured ops: shapes are read right, nothing is free unawares, and known kernels cost what they cost."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from calibrated_cpu import calibrated_cpu
from handmade import spec

from windtunnel.physics.cost.communication.collectives import Group, collective
from windtunnel.physics.cost.roofline import launch_floor_s
from windtunnel.physics.hardware import parse_cluster
from windtunnel.studies.programs.lowering.pricing import NO_KERNEL, OpPricer, op_pricer
from windtunnel.studies.programs.op_shapes import Attention, Grouped, Product, attention_of, grouped_of, product_of
from windtunnel.studies.programs.program import Op, TensorSpec


@lru_cache
def gpu(name: str = "h100-sxm:8") -> OpPricer:
    return op_pricer(parse_cluster(name))


def cpu(tmp_path: Path) -> OpPricer:
    path = tmp_path / "cpu.yaml"
    path.write_text(yaml.safe_dump(calibrated_cpu()))
    return op_pricer(parse_cluster(str(path)))


def op(name: str, *inputs: TensorSpec, out: tuple[TensorSpec, ...] = (), scalars: tuple[object, ...] = (),
       phase: str = "forward", kind: str = "compute", moved: float = 0.0) -> Op:  # fmt: skip
    return Op(f"aten.{name}", kind, inputs, out, scalars=scalars, phase=phase, bytes_read=moved)


def seconds(pricer: OpPricer, one: Op) -> float:
    priced = pricer.price(one)
    assert priced is not None
    return priced.price.seconds


PRODUCTS = [
    (op("mm", spec(8, 16), spec(16, 32)), Product(1, 8, 32, 16, "bfloat16")),
    (op("addmm", spec(32), spec(8, 16), spec(16, 32)), Product(1, 8, 32, 16, "bfloat16")),
    (op("bmm", spec(4, 8, 16), spec(4, 16, 32)), Product(4, 8, 32, 16, "bfloat16")),
    (op("baddbmm", spec(4, 8, 32), spec(4, 8, 16), spec(4, 16, 32)), Product(4, 8, 32, 16, "bfloat16")),
    (op("linear", spec(2, 8, 16), spec(32, 16)), Product(1, 16, 32, 16, "bfloat16")),
    (op("mv", spec(8, 16), spec(16)), Product(1, 8, 1, 16, "bfloat16")),
    (op("dot", spec(16), spec(16)), Product(1, 1, 1, 16, "bfloat16")),
    (
        op("_scaled_mm", spec(8, 16, dtype="float8_e4m3fn"), spec(16, 32, dtype="float8_e4m3fn"), spec(1), spec(1)),
        Product(1, 8, 32, 16, "float8_e4m3fn"),
    ),
    (
        op("convolution", spec(2, 3, 8, 8), spec(5, 3, 3, 3), out=(spec(2, 5, 8, 8),)),
        Product(1, 128, 5, 27, "bfloat16"),
    ),
    (
        op("convolution_backward", spec(2, 5, 8, 8), spec(2, 3, 8, 8), spec(5, 3, 3, 3)),
        Product(1, 128, 5, 27, "bfloat16", times=2.0),
    ),
    (op("mm", spec(8, 16), spec(16, 32), scalars=((1, 8), (32, 1))), Product(1, 8, 32, 16, "bfloat16", True)),
    (op("mm", spec(8, 16), spec(16, 32), scalars=((16, 1), (1, 16))), Product(1, 8, 32, 16, "bfloat16", False)),
]


@pytest.mark.parametrize(("one", "expected"), PRODUCTS, ids=[one.name + str(n) for n, (one, _) in enumerate(PRODUCTS)])
def test_products_are_read_off_shapes(one: Op, expected: Product) -> None:
    assert product_of(one) == expected
    assert product_of(op("add", spec(8, 8), spec(8, 8))) is None


def test_grouped_products_forward_and_of_weights() -> None:
    offsets = spec(4, dtype="int32")
    forward = op("_grouped_mm", spec(64, 16), spec(4, 16, 32), offsets, out=(spec(64, 32),))
    assert grouped_of(forward) == Grouped(4, 16.0, 32, 16, "bfloat16")
    weights = op("_grouped_mm", spec(16, 64), spec(64, 32), offsets, out=(spec(4, 16, 32),))
    assert grouped_of(weights) == Grouped(4, 16.0, 32, 16, "bfloat16")
    assert seconds(gpu(), forward) > 0


@pytest.mark.parametrize(
    ("name", "scalars", "causal", "kernel"),
    [
        ("_scaled_dot_product_flash_attention", (("is_causal", True),), True, "flash"),
        ("_scaled_dot_product_flash_attention", (0.0, False, False), False, "flash"),
        ("_scaled_dot_product_efficient_attention", (True, 0.0, False), False, "efficient"),
        ("_scaled_dot_product_efficient_attention", (True, 0.0, True), True, "efficient"),
        ("_scaled_dot_product_cudnn_attention", (("is_causal", True),), True, "cudnn"),
        ("_scaled_dot_product_flash_attention_for_cpu", (0.0, True), True, "cpu"),
        ("_scaled_dot_product_flash_attention", (), True, "flash"),
    ],
)
def test_attention_is_read_off_its_tensors(name: str, scalars: tuple[object, ...], causal: bool, kernel: str) -> None:
    q, k = spec(2, 8, 128, 64), spec(2, 4, 128, 64)
    expected = Attention(2, 128, 128, 8, 4, 64, 64, causal, False, kernel, "bfloat16")
    assert attention_of(op(name, q, k, k, scalars=scalars)) == expected
    back = op(f"{name}_backward", q, q, k, k, q, spec(2, 8, 128), scalars=(("is_causal", causal),))
    assert attention_of(back) == expected._replace(backward=True)


def test_flash_attention_lays_its_tensors_the_other_way() -> None:
    q, k = spec(2, 128, 8, 64), spec(2, 128, 4, 64)
    found = attention_of(op("_flash_attention_forward", q, k, k, scalars=(("is_causal", True),)))
    assert found is not None
    assert found[:5] == (2, 128, 128, 8, 4)
    packed = attention_of(op("_flash_attention_forward", spec(256, 8, 64), spec(256, 4, 64), spec(256, 4, 64)))
    assert packed is not None
    assert packed[:5] == (1, 256, 256, 8, 4)


def test_a_product_costs_what_a_planned_layer_costs() -> None:
    from windtunnel.physics.model import load_model
    from windtunnel.studies.training.layout import resolve
    from windtunnel.studies.training.plan import read_plan
    from windtunnel.studies.training.pricing import Pricer

    plan = read_plan({"global_batch": 8, "seq_len": 4096, "framework": "torchtitan"})
    planned = Pricer(resolve(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:8"), plan))
    for m, n, k in ((4096, 4096, 4096), (8192, 14336, 4096), (16384, 16384, 16384), (17, 33, 65)):
        assert seconds(gpu(), op("mm", spec(m, k), spec(k, n))) == planned._gemm(m, n, k, low=False).seconds
    assert seconds(gpu(), op("relu", spec(10), moved=1e8)) == planned.moved(1e8).seconds


def test_time_grows_with_shape_and_causal_attention_is_cheaper() -> None:
    small, large = (seconds(gpu(), op("mm", spec(m, 4096), spec(4096, 4096))) for m in (1024, 8192))
    assert large > small
    q = spec(1, 32, 8192, 128)
    whole, half = (
        seconds(gpu(), op("_scaled_dot_product_flash_attention", q, q, q, scalars=(("is_causal", flag),)))
        for flag in (False, True)
    )
    assert 1.5 < whole / half < 2.5
    back = op("_scaled_dot_product_flash_attention_backward", q, q, q, q, q, scalars=(("is_causal", True),))
    assert 2.0 < seconds(gpu(), back) / half < 5.0


NAMES = ("add", "mul", "gelu", "_fused_adamw_", "_foreach_add_", "index_select", "embedding", "nll_loss_forward",
         "sum", "cumsum", "topk", "sort", "never_heard_of_it", "bernoulli_", "index_put_", "cat", "clone",
         "fill_")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_nothing_with_a_kernel_is_free(name: str, tmp_path: Path) -> None:
    for pricer in (gpu(), gpu("mi300x:8"), cpu(tmp_path)):
        for shape in ((4096, 4096), (1,), (0,), ()):
            tensor = spec(*shape)
            assert seconds(pricer, op(name, tensor, tensor, out=(tensor,))) > 0


def test_every_format_has_a_price() -> None:
    for dtype in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "complex64", "int64"):
        for name in ("h100-sxm:8", "a100-sxm-80gb:8", "mi300x:8"):
            tensor = spec(512, 512, dtype=dtype)
            assert seconds(gpu(name), op("mm", tensor, tensor, out=(tensor,))) > 0
    assert seconds(gpu(), op("mm", spec(4096, 4096, dtype="float32"), spec(4096, 4096, dtype="float32"))) > seconds(
        gpu(), op("mm", spec(4096, 4096), spec(4096, 4096))
    )


def test_a_fused_optimizer_moves_all_its_tensors_in_one_launch() -> None:
    tensors = tuple(spec(1 << 20, dtype="float32") for _ in range(64))
    together = seconds(gpu(), op("_foreach_mul_", *tensors, moved=64 * 8.0 * (1 << 20), phase="optimizer"))
    alone = seconds(gpu(), op("mul_", tensors[0], moved=8.0 * (1 << 20)))
    assert together < 64 * alone
    assert together > 64 * (alone - launch_floor_s() * gpu().training.sustained.memory) * 0.99
    priced = gpu().price(op("_foreach_mul_", *tensors, phase="optimizer"))
    assert priced is not None
    assert priced.category == "optimizer"


def test_what_only_asks_the_allocator_is_not_launched() -> None:
    for name in sorted(NO_KERNEL):
        assert gpu().price(op(name, spec(8))) is None


def test_copies_cross_the_link_to_the_host() -> None:
    host, device = spec(1 << 26, device="host"), spec(1 << 26)
    link = gpu().cluster.host.offload_bandwidth_bytes_per_s
    for target, source in ((device, host), (host, device)):
        one = op("copy_", target, source, out=(target,), kind="copy")
        assert seconds(gpu(), one) == pytest.approx((1 << 27) / link, rel=0.01)


def test_a_measured_device_prices_each_pass_of_a_layer_as_itself(tmp_path: Path) -> None:
    pricer = cpu(tmp_path)
    costs = pricer.calibrated
    assert costs is not None
    x, w, g = spec(512, 64), spec(64, 4096), spec(512, 4096)
    assert seconds(pricer, op("mm", x, w)) == costs.gemm("forward", 512.0, 4096.0, 64.0, "bf16").seconds
    grad = op("mm", g, spec(4096, 64), scalars=((4096, 1), (64, 1)), phase="backward")
    assert seconds(pricer, grad) == costs.gemm("dgrad", 512.0, 4096.0, 64.0, "bf16").seconds
    weight = op("mm", spec(4096, 512), x, scalars=((1, 4096), (64, 1)), phase="backward")
    assert seconds(pricer, weight) == costs.gemm("wgrad", 512.0, 4096.0, 64.0, "bf16").seconds
    norm = op("_fused_rms_norm", spec(512, 64), spec(64), out=(spec(512, 64), spec(512, 1)))
    assert seconds(pricer, norm) == costs.elementwise("rms_norm forward", 512.0, 64.0, "bf16").seconds


def test_communications_cost_what_collectives_do() -> None:
    cluster = parse_cluster("h100-sxm:64")
    pricer = op_pricer(cluster)
    near, far = Group(8, 8), Group(64, 8)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"):
        for group in (near, far):
            assert pricer.communication(kind, 1 << 24, group) == collective(kind, 1 << 24, group, cluster)
    pair = Group(2, 1)
    alone = collective("send_recv", 1 << 24, pair, cluster).seconds
    assert pricer.communication("send", 1 << 24, pair).seconds == alone * pricer.training.sustained.p2p
    assert pricer.nic_share("all_reduce", 1 << 24, near) == 0
    assert 0 < pricer.nic_share("all_reduce", 1 << 24, far) <= 1
    for kind in ("gather", "scatter"):
        assert pricer.communication(kind, 1 << 24, far).seconds > 0


def test_a_recomputed_product_costs_what_its_forward_pass_did(tmp_path: Path) -> None:
    """On a device whose backward products take twice as long, and whichever of the two was asked for first."""
    document = calibrated_cpu()
    for op_name, points in document["calibration"]["points"].items():
        if op_name in ("gemm dgrad", "gemm wgrad"):
            for rows in points.values():
                rows[:] = [[*row[:-3], *(2.0 * seconds for seconds in row[-3:])] for row in rows]
    path = tmp_path / "slow-backward.yaml"
    path.write_text(yaml.safe_dump(document))
    product = op("mm", spec(512, 512), spec(512, 512), phase="backward")
    again = replace(product, recompute=True)
    for asked in ((product, again), (again, product)):
        pricer = op_pricer(parse_cluster(str(path)))
        found = {one.recompute: seconds(pricer, one) for one in asked}
        assert found[True] == seconds(pricer, op("mm", spec(512, 512), spec(512, 512)))
        assert found[False] == pytest.approx(2 * found[True])


@pytest.mark.parametrize(("m", "parts"), [(64, 8), (512, 4), (4096, 8)])
def test_a_part_of_a_cut_product_takes_what_it_would_alone_and_its_share_of_the_whole(m: int, parts: int) -> None:
    """The longer of the two: each part reads all weights again, and cutting never makes a product faster."""

    def product(rows: int, parts: int = 1) -> float:
        one = op("mm", spec(rows, 4096), spec(4096, 4096))
        return gpu()._product(one, Product(1, rows, 4096, 4096, "bfloat16", parts=parts)).seconds

    assert product(m, parts) == pytest.approx(max(product(m), product(m * parts) / parts))
    assert product(64, 8) > 1.5 * product(512) / 8
