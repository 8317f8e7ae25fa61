"""Power of GPUs that serve: what a step reads of weights and cache, what its tokens compute, how long they wait."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.physics.cost.inference.formats import GEMM_DTYPE, WEIGHT_BYTES
from windtunnel.physics.cost.power import draw_of
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.replica.tally import Tally
from windtunnel.studies.serving.step_time.times import TICKS_PER_S


def read_share(model: Model, deployment: Deployment, tokens: float) -> float:
    """Share of all weights that a step of so many tokens reads: not of experts that no token is routed to."""
    stored = read = 0.0
    for layer, count in model.distinct_layers():
        layer_parameters, block = model.parameters_of(layer), layer.feed_forward
        dense = count * (layer_parameters.total - layer_parameters.experts) * WEIGHT_BYTES[deployment.weights]
        experts = count * layer_parameters.experts * WEIGHT_BYTES[deployment.routed]
        stored += dense + experts
        read += dense + experts * (1.0 - (1.0 - block.experts_per_token / max(1, block.experts)) ** tokens)
    return read / stored


def rates(engine: Engine, tokens: float, kv_use: float, step_s: float) -> tuple[float, float]:
    """Shares of HBM bandwidth and of the matrix rate that steps of this length use on each GPU.

    `tokens`: of a step, prompts included. `kv_use`: share of the cache that is in use, and read.
    """
    gpu, deployment = engine.cluster.gpu, engine.deployment
    weights = engine.memory.weights * read_share(engine.model, deployment, tokens)
    moved = weights + max(0.0, engine.memory.kv) * kv_use
    each = 2.0 * engine.model.matmul_parameters
    if image := engine.model.step_tokens:  # a token of a diffusion model is a step of all of them
        each = image * engine.model.step_passes * engine.model.forward_flops_per_token(image, "full")
    flops = each * tokens / deployment.gpus
    dtype = GEMM_DTYPE.get(deployment.routed, deployment.routed)
    peak = gpu.flops_per_s.get(dtype) or gpu.peak_flops("bf16")
    return moved / step_s / gpu.memory_bandwidth_bytes_per_s, flops / step_s / peak


def gpu_watts(engine: Engine, tallies: Sequence[Tally], window_s: float) -> float:
    """Mean power of one GPU of these replicas, seconds in which no step runs included."""
    gpu = engine.cluster.gpu
    draw = draw_of(gpu)
    ticks, steps = sum(tally.busy_ticks for tally in tallies), sum(tally.steps for tally in tallies)
    if not steps:
        return gpu.tdp_w * draw.waiting
    kv_use = min(1.0, sum(tally.block_ticks for tally in tallies) / ticks / max(1, engine.blocks))
    tokens, step_s = sum(tally.tokens for tally in tallies) / steps, ticks / TICKS_PER_S / steps
    busy = min(1.0, ticks / TICKS_PER_S / window_s / len(tallies))
    running = draw.running(*rates(engine, tokens, kv_use, step_s))
    return gpu.tdp_w * (draw.waiting + busy * (running - draw.waiting))
