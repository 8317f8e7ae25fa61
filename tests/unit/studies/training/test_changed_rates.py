"""A GPU's rate that a cluster file or `--set` changes counts once: in burst and sustained rate alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.physics.cost.kernels import kernel_costs
from windtunnel.physics.cost.price import Price
from windtunnel.physics.cost.sustained import sustained_gemm, sustained_grouped_gemm
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.hardware import Cluster, parse_cluster
from windtunnel.physics.hardware.catalogue import with_settings

SHAPES = [(8192, 8192, 8192), (16_384, 28_672, 8192), (4096, 4096, 4096)]
AFTER = 800e12


def file_of(folder: Path, gpu: str) -> Cluster:
    path = folder / "ours.yaml"
    path.write_text(f"gpu: {{base: h100-sxm, {gpu}}}\ngpus: 8\n", encoding="utf-8")
    return parse_cluster(path)


def ways(folder: Path) -> dict[str, Cluster]:
    """The same change, from a file and from the command line."""
    usual = parse_cluster("h100-sxm:8")
    return {
        "file": file_of(folder, "flops: {bf16: 800 TFLOP/s}"),
        "set": with_settings(usual, {"gpu": {"flops": {"bf16": "800 TFLOP/s"}}}),
        "set twice": with_settings(
            with_settings(usual, {"gpu": {"flops": {"bf16": "900 TFLOP/s"}}}),
            {"gpu": {"flops": {"bf16": "800 TFLOP/s"}}},
        ),
    }


def gemm(cluster: Cluster, shape: tuple[int, int, int]) -> Price:
    return sustained_gemm(kernel_costs(cluster.gpu), training_costs("hopper"), *shape, "bf16")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_slower_rate_makes_a_product_as_much_slower_once(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    usual = gemm(parse_cluster("h100-sxm:8"), shape).seconds
    peak = parse_cluster("h100-sxm:8").gpu.peak_flops("bf16")
    for way, cluster in ways(tmp_path).items():
        assert cluster.gpu.peak_flops("bf16") == AFTER
        experts = [
            sustained_grouped_gemm(kernel_costs(one.gpu), training_costs("hopper"), 8, *shape, "bf16").seconds
            for one in (parse_cluster("h100-sxm:8"), cluster)
        ]
        attention = [kernel_costs(one.gpu).attention(1, 8192, 8192, 64, 8, 128).seconds
                     for one in (parse_cluster("h100-sxm:8"), cluster)]  # fmt: skip
        for before, after in ([usual, gemm(cluster, shape).seconds], experts, attention):
            # A launch takes as long as before: less than two thousandths of these.
            assert peak / AFTER * (1 - 2e-3) < after / before <= peak / AFTER * (1 + 1e-9), way


def test_a_file_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    found = [(one.gpu.flops_per_s, one.gpu.kernel_scale.compute) for one in ways(tmp_path).values()]
    assert all(rates == found[0][0] for rates, _ in found)
    assert all(scale == pytest.approx(found[0][1]) for _, scale in found)


def test_a_rate_of_fp32_alone_changes_fp32_alone(tmp_path: Path) -> None:
    usual, changed = parse_cluster("h100-sxm:8"), file_of(tmp_path, "flops: {fp32: 33.45 TFLOP/s}")
    by = usual.gpu.peak_flops("fp32") / 33.45e12
    one, other = (kernel_costs(cluster.gpu).gemm(8192, 8192, 8192, "fp32").seconds for cluster in (usual, changed))
    assert other / one == pytest.approx(by, rel=1e-6)
    assert gemm(changed, SHAPES[0]) == gemm(usual, SHAPES[0])


def test_memory_that_is_half_as_fast_makes_a_streaming_kernel_twice_as_long(tmp_path: Path) -> None:
    usual, changed = parse_cluster("h100-sxm:8"), file_of(tmp_path, "memory_bandwidth: 1.675 TB/s")
    one, other = (kernel_costs(cluster.gpu).memory_bound(1e10).seconds for cluster in (usual, changed))
    assert other / one == pytest.approx(2.0, rel=0.01)
