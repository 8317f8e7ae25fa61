from __future__ import annotations

import dataclasses
import pickle

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import Gpu, KernelScale, get_gpu, gpu_names

GPU = get_gpu("h100-sxm")


def test_dense_rate_by_dtype() -> None:
    assert GPU.peak_flops("bf16") == 989.4e12
    assert GPU.supports("fp8")
    assert not get_gpu("a100").supports("fp8")


def test_a_dtype_without_a_rate_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match=r"a100-80gb-sxm has no such rate; it has .*bf16"):
        get_gpu("a100").peak_flops("fp8")


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": 0},
        {"memory_bandwidth_bytes_per_s": float("nan")},
        {"memory_bandwidth_bytes_per_s": float("inf")},
        {"usable_memory_bytes": GPU.memory_bytes + 1},
        {"flops_per_s": {"fp8": 1e15}},
        {"flops_per_s": {"bf16": 1e15, "fp7": 1e15}},
        {"flops_per_s": {"bf16": -1e15}},
        {"generation": "fermi"},
        {"kernel_scale": KernelScale(0.0, 1.0)},
        {"tdp_w": -1.0},
    ],
)
def test_a_gpu_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        dataclasses.replace(GPU, **change)


def test_hashable_picklable_and_equal_by_what_it_is() -> None:
    twin = dataclasses.replace(GPU, sources={})
    assert twin == GPU
    assert hash(twin) == hash(GPU)
    assert pickle.loads(pickle.dumps(GPU)) == GPU
    assert dataclasses.replace(GPU, flops_per_s={"bf16": 1e12}) != GPU


@pytest.mark.parametrize("name", gpu_names())
def test_narrower_types_are_never_slower_among_the_matrix_types(name: str) -> None:
    rates: Gpu = get_gpu(name)
    order = [dtype for dtype in ("fp64", "fp32", "tf32", "bf16", "fp8", "nvfp4") if rates.supports(dtype)]
    assert order == sorted(order, key=rates.peak_flops)
    if rates.generation == "volta" or name == "mi100":  # fp16 alone; half the rate in bf16
        return
    assert rates.flops_per_s.get("fp16", rates.peak_flops("bf16")) == rates.peak_flops("bf16")
