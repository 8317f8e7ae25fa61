"""What a formula without any scheduling says of a row: what the simulation has to beat.

    decode    (weights of a GPU + cache of its sequences) / (0.75 x bandwidth) + 80 us x layers
    prompt    2 x active parameters x tokens / (0.7 x peak FLOP/s x GPUs)
    TPOT      decode + (concurrency - 1) prompts per answer, each of which stalls every slot, over the answer's tokens
    TTFT      the prompts of half of the others, then its own

The three constants (75 % bandwidth, 70 % FLOP/s, 80 us per layer) were fitted on the aggregate rows of the same table
by who published it: TPOT 19.6 %, tokens/s 24.0 % there. A mixture reads N (1 - (1 - k / N)^tokens) of its N experts.
"""

from __future__ import annotations

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.rows import ServingRow, deployment_of, gpu_of
from windtunnel.physics.cost.inference.formats import WEIGHT_BYTES
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import kv_format
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.kv.capacity import kv_bytes_per_token

BANDWIDTH, FLOPS, LAYER_S = 0.75, 0.70, 80e-6


def naive_times(row: ServingRow) -> tuple[float, float] | None:
    """(TTFT, TPOT) in seconds of a row where prompts and answers share GPUs; None of others and of what is refused."""
    if row.disaggregated or any((row.number(name) or 0.0) < 1.0 for name in ("isl", "osl", "concurrency")):
        return None
    try:
        model = model_named(row.text("model"), row.text("model_family"))
        deployment = deployment_of(row)
        cluster = gpu_of(row.text("gpu"), deployment.gpus)
        gpu, kv = cluster.gpu, kv_format(deployment, load_engine(deployment.engine), cluster)
    except UserError:
        return None
    isl, osl, slots = row.whole_number("isl", 1), row.whole_number("osl", 1), row.whole_number("concurrency", 1)
    cache = slots / deployment.attn_dp * (isl + osl / 2) * kv_bytes_per_token(model, deployment, kv)
    decode = (_read_bytes(model, deployment, slots) + cache) / (BANDWIDTH * gpu.memory_bandwidth_bytes_per_s)
    decode += LAYER_S * model.n_layers
    prompt = 2.0 * model.active_parameters * isl / (FLOPS * _peak(gpu, deployment.weights) * deployment.gpus)
    return (slots + 1) / 2 * prompt, decode + (slots - 1) * prompt / osl


def _read_bytes(model: Model, deployment: Deployment, tokens: int) -> float:
    """Weights that one GPU reads in a step of so many tokens."""
    dense, routed = WEIGHT_BYTES[deployment.weights], WEIGHT_BYTES[deployment.routed]
    total = 0.0
    for layer, count in model.distinct_layers():
        part, block = model.parameters_of(layer), layer.feed_forward
        total += count * dense * (part.attention + part.dense + part.shared) / deployment.tp
        if block.kind == "moe":
            used = 1.0 - (1.0 - block.experts_per_token / block.experts) ** tokens
            total += count * routed * part.experts * used / (deployment.tp * deployment.attn_dp)
    return total / deployment.pp + 2.0 * model.head_parameters / deployment.tp


def _peak(gpu: Gpu, weights: str) -> float:
    name = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4"}.get(weights, "bf16")
    return gpu.peak_flops(name if gpu.supports(name) else "bf16")
