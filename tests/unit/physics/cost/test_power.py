"""Power by what a GPU does: laws, and the sums by hand."""

from __future__ import annotations

import random

import pytest

from windtunnel import Plan, predict, serve
from windtunnel.physics.cost.power import draw_of, least_joules, step_watts, watts_band
from windtunnel.physics.hardware import get_gpu
from windtunnel.physics.model import load_model
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.power import read_share
from windtunnel.studies.serving.workload.requests import Workload

H100 = get_gpu("h100-sxm")


def test_a_step_by_hand() -> None:
    draw = draw_of(H100)
    flops = 0.5 * H100.peak_flops("bf16") * 0.6  # for .6 s at half of the rate
    parts = {"gemm": 600_000_000, "optimizer": 100_000_000, "exposed dp (scale-out)": 300_000_000}
    computes = min(1.0, draw.busy + draw.matrix * 0.5)
    moves = draw.busy + draw.memory * 0.88
    expected = 700 * (0.6 * computes + 0.1 * moves + 0.3 * draw.waiting)
    assert step_watts(H100, "bf16", parts, flops) == pytest.approx(expected)
    assert step_watts(H100, "bf16", {}, 0.0) == 0.0


@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "a100-80gb-sxm", "mi300x", "gb300"])
def test_no_gpu_draws_more_than_it_is_rated_for_or_less_than_when_it_waits(name: str) -> None:
    gpu = get_gpu(name)
    draw = draw_of(gpu)
    assert draw.waiting <= draw.busy < draw.running(1.0, 0.0) <= draw.running(1.0, 1.0) == 1.0
    low, high = watts_band(gpu, 0.9 * gpu.tdp_w)
    assert low < 0.9 * gpu.tdp_w < high <= gpu.tdp_w


@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "a100-80gb-sxm", "mi300x", "gb300"])
def test_no_step_takes_less_energy_than_products_at_the_peak_and_waiting(name: str) -> None:
    gpu, draws = get_gpu(name), random.Random(5)
    for _ in range(200):
        parts = {name: draws.randrange(10**9) for name in ("gemm", "attention", "memory-bound", "host")}
        seconds, computes = sum(parts.values()) / 1e9, (parts["gemm"] + parts["attention"]) / 1e9
        at_peak_s = draws.random() * computes
        joules = seconds * step_watts(gpu, "bf16", parts, at_peak_s * gpu.peak_flops("bf16"))
        assert joules >= least_joules(gpu, draws.random() * seconds, at_peak_s) * (1.0 - 1e-9)
    parts = {"gemm": 10**9, "host": 10**9}
    exact = 2.0 * step_watts(gpu, "bf16", parts, gpu.peak_flops("bf16"))
    assert exact == pytest.approx(least_joules(gpu, 2.0, 1.0))


def test_waiting_costs_less_than_computing_and_a_token_more() -> None:
    near = predict("llama-3-8b", "h100-sxm:8", Plan(global_batch=64, seq_len=4096))
    far = predict("llama-3-8b", "h100-sxm:512", Plan(global_batch=512, seq_len=4096))
    assert far.gpu_watts < near.gpu_watts < 700
    assert far.joules_per_token > near.joules_per_token
    assert near.joules_per_token == pytest.approx(near.gpu_watts * 8 / near.tokens_per_s)


def test_a_token_of_a_large_batch_costs_less() -> None:
    model, layout = load_model("mixtral-8x7b"), Deployment(weights="fp8")
    assert read_share(model, layout, 1) < read_share(model, layout, 4) < read_share(model, layout, 1e3)
    assert read_share(model, layout, 1e3) == pytest.approx(1.0)
    assert read_share(load_model("llama-3-8b"), layout, 1) == 1.0
    few, many = (
        serve("llama-3-8b", "h100-sxm:1", Deployment(), Workload([500] * n, [50] * n, concurrency=n)) for n in (2, 32)
    )
    assert many.joules_per_token is not None
    assert few.joules_per_token is not None
    assert many.joules_per_token < few.joules_per_token
    assert few.gpu_watts < many.gpu_watts <= 700
