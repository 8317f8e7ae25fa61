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
from windtunnel.serving.disaggregated.pools import Pools, pools_of, run_pools
from windtunnel.serving.engines.profile import Profile, load_engine
from windtunnel.serving.result import ServingResult
from windtunnel.serving.run import serve_with
from windtunnel.serving.step_time.times import TICKS_PER_S
from windtunnel.serving.workload.lengths import lengths
from windtunnel.serving.workload.requests import Workload

ASSUMED_CONCURRENCY = 16
MOST_REQUESTS = 8000  # of one row; steady long before
LEAST_WAVES = 4
SIDES = ("prefill", "decode")
TYPICAL_BATCH, LEAST_BATCH, MOST_WORKERS = 64, 4, 10


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
    sides = [deployment_of(row, f"{side}_") for side in ("prefill", "decode")]
    cluster = gpu_of(row.text("gpu"), max(one.gpus for one in sides))
    pools = pools_of(model, cluster, (1, sides[0]), (1, sides[1]))
    counts = [row.whole(f"{side}_num_workers", 0) if row.number(f"{side}_num_workers") else 0 for side in SIDES]
    if not all(counts):
        matched = matching_workers(pools, row.whole("isl", 1), row.whole("osl", 1), row.whole("concurrency", 16))
        counts = [given or found for given, found in zip(counts, matched, strict=True)]
        assumed.append(f"{counts[0]} prefill and {counts[1]} decode workers, so that neither side waits for the other")
    cluster = gpu_of(row.text("gpu"), sum(count * one.gpus for count, one in zip(counts, sides, strict=True)))
    profile = profiles.get(sides[0].engine)
    engines = [_roomy(_engine(model, cluster, side, profile), load, assumed) for side in sides]
    prefill = replace(engines[0], rules=replace(engines[0].rules, reserve="prompt", lag=False))
    whole = replace(pools, prefill=prefill, decode=engines[1], n_prefill=counts[0], n_decode=counts[1])
    return run_pools(whole, cluster, load, {})


def matching_workers(pools: Pools, isl: int, osl: int, concurrency: int) -> tuple[int, int]:
    """Workers for a row that does not say: prompts per second of one side over answers per second of the other.

    Decode workers are taken at 64 sequences per attention rank, and no more of them than have four sequences each.
    """
    prefill, decode = pools.prefill, pools.decode
    budget = prefill.rules.longest_chunk
    ranks = prefill.deployment.attn_dp
    chunks = [(min(isl, budget), 0)] * (ranks * max(1, budget // isl))
    step_s = prefill.times.mixed(0, 0, chunks, len(chunks)) / TICKS_PER_S
    prompts_per_s = len(chunks) * chunks[0][0] / isl / step_s
    batch = TYPICAL_BATCH * decode.deployment.attn_dp
    answers_per_s = batch / osl / (decode.times.decode(batch).at(batch * (isl + osl // 2)) / TICKS_PER_S)
    ratio = prompts_per_s / answers_per_s
    most = max(1, min(MOST_WORKERS, concurrency // LEAST_BATCH))
    if ratio >= 1.0:
        return 1, min(most, round(ratio))
    return min(MOST_WORKERS, round(1.0 / ratio)), 1


@lru_cache(maxsize=512)
def _engine(model: Model, cluster: Cluster, deployment: Deployment, profile: Profile | None) -> Engine:
    return engine_of(model, cluster, deployment, profile=profile or load_engine(deployment.engine))


def _roomy(engine: Engine, load: Workload, assumed: list[str]) -> Engine:
    """An engine that really ran has had room for a few requests, whatever our account of its memory says."""
    longest = int(load.input_tokens.max() + load.output_tokens.max())
    least = -(-2 * longest // engine.rules.block_size) * engine.deployment.attn_dp
    if engine.blocks >= least:
        return engine
    assumed.append("room for two requests in a cache that seems to have none")
    return replace(engine, blocks=least)
