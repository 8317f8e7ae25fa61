"""One row predicted: the deployment is built, the row's client is played, and means over requests are taken.

output_tokens_per_s = concurrency x OSL / (TTFT + (OSL - 1) TPOT)      as the tables derive it
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from windtunnel.accuracy.serving.models import model_named
from windtunnel.accuracy.serving.rows import ServingRow, deployment_of, gpu_of
from windtunnel.errors import UserError
from windtunnel.hardware.cluster import Cluster
from windtunnel.model.architecture import Model
from windtunnel.serving.build import Engine, engine_of
from windtunnel.serving.deployment import Deployment
from windtunnel.serving.disaggregated.pools import pools_of, run_pools
from windtunnel.serving.engines.profile import Profile, load_engine
from windtunnel.serving.result import ServingResult
from windtunnel.serving.run import serve_with
from windtunnel.serving.workload.lengths import lengths
from windtunnel.serving.workload.requests import Workload

ASSUMED_CONCURRENCY = 16
MOST_REQUESTS = 8000  # of one row; steady long before
LEAST_WAVES = 4


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is said of one row; NaN where nothing can be said."""

    id: str
    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    tpot_p5_s: float
    tpot_p95_s: float
    regime: str
    status: str  # predicted, assumed (something was left open), refused
    reason: str


def predicted(row: ServingRow, profiles: dict[str, Profile] | None = None) -> Predicted:
    """Predict a row; one that cannot be asked is refused, with the reason. `profiles`: instead of the shipped ones."""
    try:
        result, assumed = _run(row, profiles or {})
    except UserError as error:
        return Predicted(row.id, *(math.nan,) * 5, "", "refused", str(error))
    if result.ttft is None or result.tpot is None:
        reason = result.reason or "no request got an answer of two tokens"
        return Predicted(row.id, *(math.nan,) * 5, result.regime, "refused", reason)
    ttft, tpot = result.ttft.mean, result.tpot.mean
    concurrency, osl = row.whole("concurrency", ASSUMED_CONCURRENCY), row.whole("osl", 1)
    rate = concurrency * osl / (ttft + (osl - 1) * tpot)
    low, high = result.tpot_band_s or (math.nan, math.nan)
    return Predicted(
        row.id, ttft, tpot, rate, low, high, result.regime, "assumed" if assumed else "predicted", "; ".join(assumed)
    )


def workload_of(row: ServingRow, assumed: list[str]) -> Workload:
    """The row's client."""
    if row.number("concurrency") is None:
        assumed.append(f"concurrency {ASSUMED_CONCURRENCY}")
    concurrency = row.whole("concurrency", ASSUMED_CONCURRENCY)
    if concurrency > 100_000 or row.whole("isl", 1) > 10**7 or row.whole("osl", 1) > 10**6:
        raise UserError("lengths or concurrency beyond what a deployment serves")
    waves = row.whole("prompts_per_slot", 10)
    waves = max(min(waves, LEAST_WAVES), min(waves, MOST_REQUESTS // concurrency))
    ratio = row.number("length_ratio") or 1.0
    prompts, outputs = lengths(concurrency * waves, row.whole("isl", 1), row.whole("osl", 1), min(ratio, 1.0), 0)
    return Workload(prompts, outputs, None, concurrency)


def _run(row: ServingRow, profiles: dict[str, Profile]) -> tuple[ServingResult, list[str]]:
    assumed: list[str] = []
    model = model_named(row.text("model"), row.text("model_family"))
    load = workload_of(row, assumed)
    if row.disaggregated:
        return _pools(row, model, load, profiles, assumed), assumed
    deployment = deployment_of(row)
    cluster = gpu_of(row.text("gpu"), deployment.gpus)
    engine = _roomy(_engine(model, cluster, deployment, profiles.get(deployment.engine)), load, assumed)
    return serve_with(engine, load), assumed


def _pools(
    row: ServingRow, model: Model, load: Workload, profiles: dict[str, Profile], assumed: list[str]
) -> ServingResult:
    counts = []
    for side in ("prefill", "decode"):
        if row.number(f"{side}_num_workers") is None:
            assumed.append(f"one {side} worker")
        counts.append(row.whole(f"{side}_num_workers", 1))
    sides = [deployment_of(row, f"{side}_") for side in ("prefill", "decode")]
    gpus = sum(count * one.gpus for count, one in zip(counts, sides, strict=True))
    cluster = gpu_of(row.text("gpu"), gpus)
    pools = pools_of(model, cluster, (counts[0], sides[0]), (counts[1], sides[1]))
    profile = profiles.get(sides[0].engine)
    engines = [
        _roomy(_engine(model, cluster, side, profile), load, assumed, part.rules.reserve)
        for side, part in zip(sides, (pools.prefill, pools.decode), strict=True)
    ]
    prefill = replace(engines[0], rules=replace(engines[0].rules, reserve="prompt", lag=False))
    return run_pools(replace(pools, prefill=prefill, decode=engines[1]), cluster, load, {})


@lru_cache(maxsize=512)
def _engine(model: Model, cluster: Cluster, deployment: Deployment, profile: Profile | None) -> Engine:
    return engine_of(model, cluster, deployment, profile=profile or load_engine(deployment.engine))


def _roomy(engine: Engine, load: Workload, assumed: list[str], reserve: str = "") -> Engine:
    """An engine that really ran has had room for a few requests, whatever our account of its memory says."""
    longest = int(load.input_tokens.max() + load.output_tokens.max())
    least = -(-2 * longest // engine.rules.block_size) * engine.deployment.attn_dp
    if engine.blocks >= least:
        return engine
    assumed.append("room for two requests in a cache that seems to have none")
    return replace(engine, blocks=least)
