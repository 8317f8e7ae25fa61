"""One row predicted: the deployment is built, the row's client is played, and means over requests are taken.

output_tokens_per_s = concurrency x OSL / (TTFT + (OSL - 1) TPOT)      as the tables derive it
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.serving.launches import (
    as_its_recipe,
    captured_by_pools,
    decode_limit,
    deployed,
    drafts_unlisted,
    engine_of_row,
    held_back,
    planned_ahead,
    pooled,
    prompt_tokens,
    repeats,
    sent_again,
    submitted_profile,
    submitted_rules,
    taken_to_draft,
    turnaround_s,
)
from windtunnel.evidence.accuracy.serving.mlperf import at_its_rate, is_mlperf, laid_out, mlperf_workload, replicas_of
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.recipes import DRAFTING, Recipe, layout_of, recipes_of
from windtunnel.evidence.accuracy.serving.rows import ServingRow, deployment_of, engine_named, gpu_of
from windtunnel.evidence.accuracy.serving.sessions import SESSIONS_BAND, in_steady_state, is_replay, replayed, token_s
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.questions.asked.serve.parts import Lengths
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.disaggregated.pools import Pools, run_pools
from windtunnel.studies.serving.engines.profile import Profile, load_engine
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.run import hand_on, serve_with, summarise
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.workload.lengths import lengths
from windtunnel.studies.serving.workload.requests import Turns, Workload

ASSUMED_CONCURRENCY = 16
WHOLE_RUN = "output_tokens_per_s"  # the column of what a client prints: ramp and drain count
MOST_REQUESTS = 8000  # of one row; steady long before
LEAST_WAVES = 4
SIDES = ("prefill", "decode")
ODD_WORKERS = (11, 9, 7, 5, 3)
USUAL_WORKERS = {"trtllm": 4, "sglang": 2}
MOST_BATCH = 512  # sequences of one decode worker
MOST_WORKERS, SLACK = 8, 0.25  # prefill workers; share of one that is not added for so little
DRAFTED, ACCEPTED = 3, 0.7  # tokens per step and acceptance of DeepSeek's drafting layer
ALONE_ACCEPTED = 0.85  # of one token drafted: DeepSeek's report on V3, section 5.4.3
MOST_MEMORY, FEW_TOKENS = 0.98, 2048  # where a model barely fits: share of memory, tokens of a step
LARGE_BATCH = 16384  # tokens from which the first batch compiles
REGIMES = ("stable", "near saturation", "over")


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


def predicted(
    row: ServingRow,
    profiles: dict[str, Profile] | None = None,
    others: Collection[Recipe] = (),
    drafted: bool | None = None,
) -> Predicted:
    """Predict a row; one that cannot be asked is refused, with the reason. Means over requests, or the row's medians.

    `profiles`: instead of the shipped ones. `others`: published recipes that other rows of the table say they are.
    `drafted`: whether the row drafted, where its table tells.
    """
    row, notes = _with_lengths(as_its_recipe(row))
    try:
        slower = 1.0
        if is_mlperf(row):
            results, slower, assumed = _mlperf(row, profiles or {})
        else:
            results, assumed = _run(row, profiles or {}, others, drafted)
    except UserError as error:
        return Predicted(row.id, *(math.nan,) * 5, "", "refused", str(error))
    assumed += notes
    for result in results:
        if result.ttft is None:
            return Predicted(row.id, *(math.nan,) * 5, result.regime, "refused", result.reason)
    median = row.text("statistic") == "median"
    ttft = _middle([result.ttft.p50 if median else result.ttft.mean for result in results if result.ttft is not None])
    ttft += 0.0 if median else _cold_s(row, assumed)
    tpots = [result.tpot.p50 if median else result.tpot.mean for result in results if result.tpot is not None]
    tpot = _middle(tpots) if tpots else math.nan  # answers of one token have none
    if is_replay(row):
        tpot = _middle([token_s(result) for result in results])
    ttft, tpot = slower * ttft, slower * tpot
    concurrency, osl = row.whole_number("concurrency", ASSUMED_CONCURRENCY), row.whole_number("osl", 1)
    if is_mlperf(row):
        rate = _middle([mlperf_rate(row, result) for result in results])
        held_tokens = 0
    # Counted over the whole run, ramp and drain included.
    elif row.number("tokens_per_s_per_gpu") or row.number(WHOLE_RUN) or (is_replay(row) and not in_steady_state(row)):
        rate, held_tokens = _middle([result.output_tokens_per_s for result in results]), held_back(row)
    else:
        rate, held_tokens = concurrency * osl / (ttft + ((osl - 1) * tpot if tpots else 0.0)), held_back(row)
    bands = [result.tpot_band_s or (math.nan, math.nan) for result in results]
    seen = 1.0  # share of the time between first and last token that a client sees
    if 0 < held_tokens < osl - 1:
        ttft, seen = ttft + held_tokens * tpot, 1.0 - held_tokens / (osl - 1)
    tpot *= seen
    wider = math.exp(SESSIONS_BAND if is_replay(row) else 0.0)
    seen *= slower
    low, high = seen * min(band[0] for band in bands) / wider, seen * max(band[1] for band in bands) * wider
    regime = max((result.regime for result in results), key=REGIMES.index)
    reason = "; ".join(dict.fromkeys(assumed))
    return Predicted(row.id, ttft, tpot, rate, low, high, regime, "assumed" if assumed else "predicted", reason)


def _with_lengths(row: ServingRow) -> tuple[ServingRow, list[str]]:
    """A row whose lengths are as every verb takes those that nobody gives, and what is said of it."""
    lacking = {name: str(Lengths.usual) for name in ("isl", "osl") if not row.text(name)}
    if not lacking or is_mlperf(row):
        return row, []
    return ServingRow({**row.fields, **lacking}), [f"{Lengths.usual:,} tokens for {' and '.join(lacking)}"]


def _cold_s(row: ServingRow, assumed: list[str]) -> float:
    """What compiling adds to the mean time to first token where the client is known to have sent no warm-up.

    The first request of every slot waits for it, if together they are a large batch.
    """
    if row.disaggregated or row.number("warmups_per_slot") != 0.0:
        return 0.0
    cold = load_engine(engine_named(row)).cold_start_s
    if not cold or row.whole_number("concurrency", 1) * row.whole_number("isl", 1) <= LARGE_BATCH:
        return 0.0
    assumed.append(f"no warm-up: the first request of every slot waits {cold:.0f} s for compilation")
    return cold / row.whole_number("prompts_per_slot", 10)


def _middle(values: list[float]) -> float:
    """Half-way on a log scale."""
    return math.prod(values) ** (1.0 / len(values))


def workload_of(row: ServingRow, assumed: list[str]) -> Workload:
    """The workload of the row's client."""
    if is_replay(row):
        assumed.append("sessions as recorded: turns of each; nine tenths of a prompt are its history")
        return replayed(row)
    for name in ("isl", "osl"):
        if not (row.number(name) or 0.0) >= 1.0:
            raise UserError(f"{name} = {row.text(name)!r}: a deployment without lengths is no question")
    if not (row.number("concurrency") or 0.0) >= 1.0:
        assumed.append(f"concurrency {ASSUMED_CONCURRENCY}")
    concurrency = row.whole_number("concurrency", ASSUMED_CONCURRENCY)
    if concurrency > 100_000 or row.whole_number("isl", 1) > 10**7 or row.whole_number("osl", 1) > 10**6:
        raise UserError("lengths or concurrency beyond what a deployment serves")
    waves = row.number("prompts_per_slot") or (sent_again()[1] if repeats(row) else 10)  # a slot
    count = max(1, round(concurrency * max(min(waves, LEAST_WAVES), min(waves, MOST_REQUESTS // concurrency))))
    ratio = row.number("length_ratio") or 1.0
    isl = prompt_tokens(row)
    if isl != row.whole_number("isl", 1):
        assumed.append(f"prompts of {isl} tokens: the client's tokenizer counted another way than the server's")
    prompts, outputs = lengths(count, isl, row.whole_number("osl", 1), min(ratio, 1.0), 0)
    pause_s = turnaround_s(row)
    pauses = np.random.default_rng(0).exponential(1e9 * pause_s, len(prompts)).astype(np.int64)
    turns = Turns(np.full(len(prompts), -1), pauses) if pause_s else None  # each a session of one turn
    return Workload(prompts, outputs, None, concurrency, turns=turns)


def _run(
    row: ServingRow, profiles: dict[str, Profile], others: Collection[Recipe], drafted: bool | None
) -> tuple[list[ServingResult], list[str]]:
    assumed: list[str] = []
    model = model_named(row.text("model"), row.text("model_family"))
    load = workload_of(row, assumed)
    if row.disaggregated:
        return _pools(row, model, load, profiles, assumed, _listed(row, others, drafted)), assumed
    deployment = deployed(row, deployment_of(row))
    cluster = gpu_of(row.text("gpu"), deployment.gpus)
    profile = planned_ahead(row, profiles.get(deployment.engine) or load_engine(deployment.engine))
    drafts = [(0, 0.0)]
    if row.text("spec") == "mtp" and not deployment.speculative_tokens:
        drafts = [(recipe.drafted, recipe.accepted) for recipe in recipes_of(row, others) if recipe.drafted] or [
            drafts_unlisted(row)
        ]
    elif DRAFTING in row.text("model").lower() and row.text("spec") != "none":
        drafts = [(recipe.drafted, recipe.accepted) for recipe in recipes_of(row, others)] or drafts
        if any(depth for depth, _ in drafts):
            depths = " or ".join(str(depth) for depth, _ in drafts)
            assumed.append(f"drafting {depths} tokens as published for this concurrency")
    engines = [engine_of_row(row, _engine(model, cluster, _drafting(deployment, *draft), profile)) for draft in drafts]
    engines = [_roomy(engine, load, assumed) for engine in engines]
    if engines[0].rules.prefix_caching and repeats(row):
        assumed.append(f"the client's {sent_again()[0]} prompts were sent again and again")
        load = replace(load, prefix_names=_named(load, sent_again()[0]))
        return [_warm(engine, load, range(len(load))) for engine in engines], assumed
    if engines[0].rules.prefix_caching and row.number("warm_prompts"):
        load = replace(load, prefix_names=_named(load, len(load)))
        return [_warm(engine, load, range(row.whole_number("warm_prompts", 1))) for engine in engines], assumed
    if load.turns is not None and in_steady_state(row) and engines[0].rules.prefix_caching:
        return [_warm(engine, load, load.turns.firsts) for engine in engines], assumed
    return [serve_with(engine, load) for engine in engines], assumed


def _mlperf(row: ServingRow, profiles: dict[str, Profile]) -> tuple[list[ServingResult], float, list[str]]:
    """A row of MLPerf, and what its times are to be multiplied by."""
    assumed = ["lengths: means of MLPerf's data set"]
    model = model_named(row.text("model"), row.text("model_family"))
    deployment = deployment_of(row)
    gpus = row.whole_number("gpus", deployment.gpus)
    if deployment.kv is None and deployment.weights != "bf16":  # all rows that name both have 8 bits for it
        assumed.append("8 bits for the KV cache")
        deployment = replace(deployment, kv="fp8")
    deployment = laid_out(row, model, deployment, gpu_of(row.text("gpu"), gpus))
    if not row.text("tp"):
        assumed.append(f"layout {deployment.words()}")
    cluster = gpu_of(row.text("gpu"), max(gpus, deployment.gpus))
    profile = profiles.get(deployment.engine) or load_engine(deployment.engine)
    engine = _engine(model, cluster, deployment, submitted_profile(row, deployment, profile, cluster.gpu))
    engine = replace(engine, rules=submitted_rules(row, deployment, engine.rules))
    load = mlperf_workload(row, replicas_of(row, deployment.gpus), engine.rules.max_num_seqs)
    engine = _roomy(engine, load, assumed)
    result, slower = at_its_rate(row, load, lambda workload: serve_with(engine, workload))
    if slower != 1.0:
        assumed.append(f"times x {slower:.2f}: those that hold the limits at this rate and no higher one")
    return [result], slower, assumed


def mlperf_rate(row: ServingRow, result: ServingResult) -> float:
    """Output tokens/s of the whole machine: an open loop's while requests come, a full batch's as it neither fills nor
    drains: from its first batch of answers to the last but one.
    """
    load, gpus = result.spec.workload, result.gpus
    rate = row.number("request_rate_target")
    if rate is not None:
        per_s = rate * load.output_tokens_mean
        return min(per_s, result.output_tokens_per_s * replicas_of(row, gpus)) if result.regime == "over" else per_s
    assert result.stamps is not None
    batch, ends = load.concurrency or 1, np.sort(result.stamps.last)
    seconds = float(ends[-1 - batch] - ends[batch - 1])
    return (len(ends) - 2 * batch) * load.output_tokens_mean / seconds * replicas_of(row, gpus)


def _named(load: Workload, different: int) -> list[tuple[int, ...]]:
    """Names of the full blocks of prompts; so many have nothing in common and are sent in turn."""
    counts = load.input_tokens[:different] // load.prefix_block
    ends = np.cumsum(counts)
    prompts = [tuple(range(int(end - count), int(end))) for end, count in zip(ends, counts, strict=True)]
    return [prompts[index % len(prompts)] for index in range(len(load))]


def _warm(engine: Engine, load: Workload, seen: Iterable[int]) -> ServingResult:
    """A load on an engine that has seen the prompts of some requests: after warm-up, or with sessions half-way."""
    server = engine.replica()
    names, span = load.names_in(engine.rules.block_size)
    names = names or ()
    for prompt in dict.fromkeys(names[index] for index in seen if index < len(names)):
        blocks = len(prompt) * span
        if server.pool.cached + blocks <= server.pool.total:
            server.pool.take(blocks)
            server.pool.release(blocks, server.pool.name(prompt), span=span)
    sent, refused = simulate(load, [server], None, block_size=engine.rules.block_size, longest=engine.longest)
    hand_on(sent, engine.profile)
    return summarise(engine, load, [server], stamps_of(sent), refused, {})


def _pools(
    row: ServingRow,
    model: Model,
    load: Workload,
    profiles: dict[str, Profile],
    assumed: list[str],
    recipes: list[Recipe],
) -> list[ServingResult]:
    """One result where the row says what ran; one for each reading where it leaves the workers open."""
    sides = [_in_ranks(row, model, side, pooled(row, deployment_of(row, f"{side}_"))) for side in SIDES]
    counts = [row.whole_number(f"{side}_num_workers", 0) if row.number(f"{side}_num_workers") else 0 for side in SIDES]
    concurrency = row.whole_number("concurrency", ASSUMED_CONCURRENCY)
    serving_results = []
    for read in _readings(row, model, sides, counts, assumed, recipes):
        profile = profiles.get(read.decode.engine) or load_engine(read.decode.engine)
        profile = replace(captured_by_pools(row, read.decode, profile), ranks_share_tokens=False)  # as in recipes
        cluster = gpu_of(row.text("gpu"), max(read.prefill.gpus, read.decode.gpus))
        pair = [_engine(model, cluster, side, profile) for side in (read.prefill, read.decode)]
        lengths = (row.whole_number("isl", 1), row.whole_number("osl", 1))
        n_decode = read.n_decode or decode_workers(concurrency, pair[1].profile.engine)
        n_prefill = read.n_prefill or prefill_workers(pair[0], pair[1], *lengths, concurrency, n_decode)
        if not all(counts):
            drafted = f", {read.decode.speculative_tokens} drafted" if read.decode.speculative_tokens else ""
            assumed.append(
                f"{n_prefill} prefill {read.prefill.words()}, {n_decode} decode {read.decode.words()}{drafted}"
            )
        cluster = gpu_of(row.text("gpu"), n_prefill * read.prefill.gpus + n_decode * read.decode.gpus)
        decode = replace(read.decode, max_num_seqs=decode_limit(row, read.decode, n_decode)[0])
        engines = [_roomy(_engine(model, cluster, side, profile), load, assumed) for side in (read.prefill, decode)]
        first = replace(engines[0], rules=replace(engines[0].rules, reserve="prompt", lag=False))
        serving_results.append(run_pools(Pools(first, engines[1], n_prefill, n_decode), cluster, load, {}))
    return serving_results


def _in_ranks(row: ServingRow, model: Model, side: str, deployment: Deployment) -> Deployment:
    """A worker whose attention nobody says how to split: repeated where a split leaves each GPU the whole cache."""
    whole = all(layer.attention.cache_width(2) == layer.attention.cache_width(1) for layer in model.layers)
    stated = row.text(f"{side}_attn_dp") or row.text(f"{side}_moe_ep")
    if stated or deployment.tp == 1 or not whole:
        return deployment
    return replace(deployment, tp=1, attn_dp=deployment.tp, moe_tp=1, moe_ep=deployment.tp)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What may have run: a worker of each kind, and how many (0 = not known)."""

    prefill: Deployment
    decode: Deployment
    n_prefill: int
    n_decode: int


def _listed(row: ServingRow, others: Collection[Recipe], drafted: bool | None) -> list[Recipe]:
    """Published deployments that a row may be."""
    recipes = recipes_of(row, others)
    drafted = row.text("spec") == "mtp" if row.text("spec") else drafted
    same = [recipe for recipe in recipes if drafted is None or (recipe.drafted > 0) == drafted]
    return same or recipes


def _readings(
    row: ServingRow,
    model: Model,
    sides: list[Deployment],
    counts: list[int],
    assumed: list[str],
    recipes: list[Recipe],
) -> list[_Reading]:
    """What the row says; else the published recipes that fit it; else its layouts, without and with drafting."""
    prefill, decode = sides
    spec = row.text("spec")
    # TensorRT-LLM's pools run under Dynamo, whose client sends prompts outside a chat template.
    unstated = (DRAFTED, ACCEPTED) if decode.engine.startswith("trtllm") else drafts_unlisted(row)
    if all(counts):
        if spec == "mtp":
            depth, acceptance = next(
                ((recipe.drafted, recipe.accepted) for recipe in recipes if recipe.drafted), unstated
            )
            if listed := decode_limit(row, decode, counts[1])[1]:
                depth, acceptance = listed, ALONE_ACCEPTED if listed == 1 else acceptance
            decode = _drafting(decode, depth, acceptance)
        return [_Reading(prefill, decode, *counts)]
    if recipes:
        assumed.append("workers as published for this concurrency" + (", half-way" if len(recipes) > 1 else ""))
        return [
            _Reading(
                replace(prefill, **layout_of(recipe.prefill)),
                _drafting(replace(decode, **layout_of(recipe.decode)), recipe.drafted, recipe.accepted),
                recipe.prefill_workers,
                recipe.decode_workers,
            )
            for recipe in recipes
        ]
    if spec == "mtp":
        return [_Reading(prefill, _drafting(decode, *unstated), *counts)]
    readings = [_Reading(prefill, decode, *counts)]
    if spec == "none":
        return readings
    if decode.engine.startswith("trtllm") and taken_to_draft(row):
        return [_Reading(prefill, _drafting(decode, DRAFTED, ACCEPTED), *counts)]
    if model.mtp_layers:
        readings.append(_Reading(prefill, _drafting(decode, DRAFTED, ACCEPTED), *counts))
        assumed.append("drafting is not stated: half-way, on a log scale, between without and with")
    return readings


def _drafting(deployment: Deployment, tokens: int, accepted: float) -> Deployment:
    return replace(deployment, speculative_tokens=tokens, acceptance=accepted) if tokens else deployment


def decode_workers(concurrency: int, engine: str) -> int:
    """Decode workers of a row that does not say.

    Published TensorRT-LLM deployments load each worker with a power of two of sequences, so an odd factor of the
    concurrency is the number of workers; where there is none, four, SGLang's two: medians of InferenceX's recipes.
    """
    if engine == "trtllm":
        odd = next((n for n in ODD_WORKERS if concurrency % n == 0), None)
        if odd is not None:
            return odd
    usual = USUAL_WORKERS.get(engine, 2)
    return max(1, min(concurrency, max(usual, round(concurrency / MOST_BATCH))))


def prefill_workers(prefill: Engine, decode: Engine, isl: int, osl: int, concurrency: int, n_decode: int) -> int:
    """Enough of them that decoding at the client's concurrency does not wait for prompts."""
    budget = prefill.rules.longest_chunk
    chunks = [(min(isl, budget), 0)] * (prefill.deployment.attn_dp * max(1, budget // isl))
    step_s = prefill.times.mixed(0, 0, chunks, len(chunks)) / TICKS_PER_S
    prompts_per_s = len(chunks) * chunks[0][0] / isl / step_s
    batch = max(1, round(concurrency / n_decode))
    token_s = decode.times.decode(batch).at(batch * (isl + osl // 2)) / TICKS_PER_S
    wanted = n_decode * batch / osl / token_s
    return max(1, min(MOST_WORKERS, math.ceil(wanted / prompts_per_s - SLACK)))


@lru_cache(maxsize=512)
def _engine(model: Model, cluster: Cluster, deployment: Deployment, profile: Profile) -> Engine:
    if all(layer.feed_forward.kind == "dense" for layer in model.layers):  # tables list sizes of experts for them, too
        deployment = replace(deployment, moe_tp=None, moe_ep=None)
    return engine_of(model, cluster, deployment, profile=profile)


def _roomy(engine: Engine, load: Workload, assumed: list[str]) -> Engine:
    """An engine that really ran has had room: what memory leaves at most, and for a few requests in any case."""
    longest = int(load.input_tokens.max() + load.output_tokens.max())
    least = 2 * (-(-longest // engine.rules.block_size) + engine.rules.beside_blocks) * engine.deployment.attn_dp
    if engine.blocks >= least:
        return engine
    if engine.deployment.gpu_memory_utilization is None:
        fuller = _engine(
            engine.model,
            engine.cluster,
            replace(engine.deployment, gpu_memory_utilization=MOST_MEMORY, max_num_batched_tokens=FEW_TOKENS),
            engine.profile,
        )
        if fuller.blocks >= least:
            assumed.append(f"started with {MOST_MEMORY:.0%} of memory, since the usual share leaves no room")
            return replace(fuller, rules=replace(engine.rules, watermark_blocks=fuller.rules.watermark_blocks))
    assumed.append("room for two requests in a cache that seems to have none")
    return replace(engine, blocks=least)
