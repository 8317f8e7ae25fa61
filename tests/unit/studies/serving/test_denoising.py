"""Images by a diffusion transformer: steps are alike, guidance doubles them, more patches take longer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from windtunnel import ask
from windtunnel.physics.cost.training import training_costs
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model.catalogue import FOLDER, load_model
from windtunnel.studies.serving import Deployment, engine_of
from windtunnel.studies.serving.step_time.denoising import Denoising
from windtunnel.studies.serving.step_time.layers import Layers


def step_s(tmp_path: Path, steps: int = 8, **changes: object) -> float:
    config = json.loads((FOLDER / "sd3.5-large.json").read_text()) | {"num_layers": 4} | changes
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    answer = ask(
        {
            "question": "serve",
            "model": str(path),
            "cluster": "h100-sxm:1",
            "engine": {"engine": "sglang", "weights": "bf16"},
            "replicas": {"kind": "together", "tp": 1},
            "load": {"kind": "closed", "concurrency": 1},
            "requests": {"kind": "lengths", "prompt": 1, "output": steps, "requests": 4},
        }
    )
    return float(answer.to_dict()["tpot_s"]["mean"])


def test_a_step_takes_the_same_however_many_there_are(tmp_path: Path) -> None:
    assert step_s(tmp_path, 4) == pytest.approx(step_s(tmp_path, 40), rel=0.02)


def test_guidance_is_a_second_pass_and_a_larger_image_takes_longer(tmp_path: Path) -> None:
    one, two = (step_s(tmp_path, guidance=passes) for passes in (1, 2))
    assert 1.6 * one < two < 2.1 * one
    assert step_s(tmp_path, sample_size=256) > 4 * two  # four times the patches, and attention of each over all


def test_no_step_is_faster_than_its_products(tmp_path: Path) -> None:
    tokens, hidden, layers = 2 * 4429, 2432, 4
    flops = tokens * layers * (24 * hidden * hidden + 4 * 4429 * hidden)
    assert step_s(tmp_path) > flops / 989e12


def test_what_is_not_fused_goes_through_memory_and_attention_is_flash_attention_2() -> None:
    """The sums by hand: 36 times all features of both passes a layer with norms of queries and keys, 19 without."""
    engine = engine_of(load_model("sd3.5-large"), parse_cluster("h100-sxm:1"), Deployment())
    prices, sustained = engine.times.prices, training_costs("hopper").sustained
    assert isinstance(prices, Denoising)
    passed = 2 * prices.model.step_tokens
    fused = Layers.dense(prices, passed)
    moved = 38 * sustained.memory * prices.kernels.stream_s(36 * 4 * passed * prices.model.hidden_size)
    products = 2 * prices.model.matmul_parameters * passed / (sustained.gemm["bf16"] * 989.4e12)
    assert max(fused, products) + moved <= prices.dense(1) <= 1.1 * max(fused, products) + moved
    n = prices.model.step_tokens
    flops = 2 * 38 * 4 * n * n * 38 * 64
    assert prices.prefill(1, 0) == pytest.approx(sustained.attention * flops / (sustained.flash2_share[64] * 989.4e12))
    other = engine_of(load_model("sd3.5-large"), parse_cluster("l40s-pcie:1"), Deployment()).times.prices
    best, factor = Layers.prefill(other, n, n // 2), training_costs("ada").sustained.attention_flash2
    assert other.prefill(1, 0) == pytest.approx(2 * factor * best)  # where its own rate is not known


def test_rotary_positions_go_through_memory() -> None:
    """26 times all queries and keys of FLUX's 57 layers, over a model that has none."""
    model = load_model("flux.1-dev")
    layers = tuple(replace(one, attention=replace(one.attention, position="none")) for one in model.layers)
    with_them, without = (
        engine_of(one, parse_cluster("b200-sxm:1"), Deployment()).times.prices
        for one in (model, replace(model, layers=layers))
    )
    once = 4 * model.step_tokens * model.hidden_size
    apart = [len(model.layers) * with_them.kernels.stream_s(times * once) for times in (36, 62)]
    assert with_them.dense(1) - without.dense(1) == pytest.approx(apart[1] - apart[0], rel=1e-6)


def test_of_two_gpus_each_moves_half_of_what_is_not_fused() -> None:
    model = load_model("flux.1-dev")
    layers = tuple(replace(one, attention=replace(one.attention, position="none")) for one in model.layers)
    with_them, without = (
        engine_of(one, parse_cluster("b200-sxm:2"), Deployment(tp=2)).times.prices
        for one in (model, replace(model, layers=layers))
    )
    half = 2 * model.step_tokens * model.hidden_size
    apart = [len(model.layers) * with_them.kernels.stream_s(times * half) for times in (36, 62)]
    assert with_them.dense(1) - without.dense(1) == pytest.approx(apart[1] - apart[0], rel=1e-6)
