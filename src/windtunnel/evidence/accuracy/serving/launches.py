"""How the servers of measured rows were started, and which prompts they were sent, as their sources publish it.

Facts read in launch scripts, no measurement. They decide how prompts are batched, and with that most of TTFT.

*Campaigns* (`source` campaign/...) are deployments written by ai-dynamo/aiconfigurator's generator. Read in
generator/rule_plugin/*.rule and generator/config/backend_templates (043c66c5, 581e4591, ff1a4aa6, 71a2b033, 00fe6de3):

    TensorRT-LLM   chunked prefill off, max_num_tokens = batch (at least 512) + ISL + 1,500, no block reuse
    SGLang         from 0.5.6 on prompts beside decodes (--enable-mixed-chunk; before, the template misspells it). Its
                   max-prefill-tokens of ISL + 1,500 would halve the prompts of a step; the rows show none of that
    vLLM           max-num-batched-tokens = batch (at least 512) + ISL + 1,500
    client         eval/benchmarks/genai_perf_runner.py: as many prompts as requests. benchmark/bench_run.sh: aiperf
                   without a number of prompts, hence 100 (ConversationDefaults.NUM) that are sent again and again

Which client ran is not in the table. Sweeps (lengths that are powers of two) are taken for the first, deployments that
the configurator recommends (thousands of tokens, its own batch) for the second. Of the engines only vLLM keeps prefixes
there.

*InferenceX* (`client` closed), benchmarks/*.sh of SemiAnalysisAI/InferenceX (1fc5d73c, 574bcd35, 0a919c5f), DeepSeek:

    SGLang         H200: chunks of 32,768 tokens; 512 requests at once with 1,024 tokens in and out, else 256.
                   B200, B300 (dsr1_fp*_b*.sh: 1fc5d73c, 8eec0d4e): FP8 128 requests and chunks of 32,768, with TP 4
                   32 and 8,192; FP4 256 and 16,384; drafting 512 and 16,384 (dsr1_fp8_b200_mtp.sh,
                   dsr1_fp8_b300_mtp.sh: 285b6628, 56324839). Requests are looked for once in 10 decode steps, once in
                   30 from 16 in flight on with TP 8 (--scheduler-recv-interval). 8-bit cache, as everywhere there.
                   AMD (dsr1_fp*_mi*.sh: 2e46dba0, 1fc5d73c, 8eec0d4e; perf-changelog.yaml, pull request 544): chunks
                   of 196,608, no limit of requests; MI300X and MI325X from 0.5.7 on 131,072 and an 8-bit cache; FP4
                   on MI355X has that cache, and chunks of 32,768 with 8,192 tokens in, 1,024 out, more than 32 at once.
                   --mem-fraction-static: AMD 0.8, FP4 0.85, FP8 0.82, with TP 4 0.95
    TensorRT-LLM   chunked prefill off, max_num_tokens = concurrency + ISL + 64, at least 8,192; FP8 on B200, 1,024 in
                   and out, 64 to 255 in flight: prompts wait 40 steps for 0.8 of that (batch_wait_*); attention ranks
                   wait for each other 60 steps (attention_dp_config); 0.8 of the memory that is left, 0.75 on H200
    the same,      (*_trt_mtp.sh, 1fc5d73c, 13dd0c2a, 111f0312) one token with attention ranks, else three; batch =
    drafting       concurrency / ranks; max_num_tokens = (tokens drafted + 1) x batch + ISL + 64: one prompt of a rank

    the client     draws tokens, writes them as text and sends that. transformers 5, in SGLang's images from 0.5.10 on,
                   loads DeepSeek's tokenizer with another's way to part words: until 2026-05-15 (pull requests 937,
                   1381) a server got 35,921 tokens for 7,140. Rows keep the number that was asked for

    SGLang,        decode workers hand tokens on when their number is 1 more than a multiple of so many (its
    in pools       stream_output): 10 on H200, 30 on B200 (NVIDIA/srt-slurm, recipes/h200 7f8eb967, recipes/b200-fp8
                   59177911). The first comes from the prefill worker, so clients see it with the 11th or the 31st

The same for gpt-oss (gptoss_fp4_*.sh: 1fc5d73c, 16cd9556, 1825e7f0, 111f0312) and Llama 70B (70b_fp*_*.sh: 409e9a48,
73ef9225, bb4c7f93), of which no row has been seen here: facts that are held against nothing.

    vLLM           8,192 tokens of a step, no prefixes kept, the next step planned while one runs (async-scheduling),
                   8-bit cache for Llama, and for gpt-oss on Blackwell; gpt-oss captures batches up to 2,048
    TensorRT-LLM   no chunks, no prefixes; gpt-oss: 20,000 tokens of a step, 8-bit cache on Blackwell alone, where
                   attention ranks wait for each other; Llama: as many tokens as a request has at most, and with
                   1,024 in and out on fewer than 8 GPUs prompts wait 20 steps for 0.9 of that
"""

from __future__ import annotations

import math
from dataclasses import replace

from windtunnel.evidence.accuracy.serving.recipes import drafted_not_yet
from windtunnel.evidence.accuracy.serving.rows import ServingRow, engine_named, gpu_of
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile, order_of
from windtunnel.studies.serving.replica.rules import Rules, in_tokens, looks_every

BATCH, SPARE = 512, 1500  # the generator's least batch, and tokens beside batch and prompt
PROMPTS = 100  # aiperf's, where none are said
REPEATED_WAVES = 50  # requests per slot of bench_run.sh
MIXED_SINCE = "0.5.6"
LOOKS = ((16, 30), (0, 10))  # from so many requests in flight on, decode steps between two looks
AMDS_CHUNK, AMDS_LATER_CHUNK, AMDS_CACHE_SINCE = 196608, 131072, "0.5.7"
WAIT_STEPS, WAIT_SHARE = 40, 0.8
RANKS_WAIT_STEPS = 60
MISREAD_SINCE, MISREAD_UNTIL, MISREAD = "0.5.10", "2026-05-15", 35921 / 7140
HELD = {"b200": 30, "h200": 10}
# By whether attention ranks have sequences of their own: tokens drafted, and the chance that one is kept. Of one: as
# DeepSeek's report on V3 says (85 to 90 %, section 5.4.3). Of three, for which its layer was not trained: fitted on
# seven deployments of TensorRT-LLM on B200, and taken wherever a run drafted and does not say how many (SGLang's script
# on MI355X drafts three, too).
DRAFTED_BY = {True: (1, 0.85), False: (3, 0.6)}
# --speculative-num-steps 2 on NVIDIA (dsr1_fp8_{h200,b200,b300}_mtp.sh); kept as in `recipes`.
SGLANGS_DRAFTS = (2, 0.7)
LLAMA_STEPS, LLAMA_SHARE = 20, 0.9
SPARE_LENGTH = 200  # tokens that a request may have beyond those asked for
OSS_TOKENS, OSS_GRAPHS, OSS_REST = 20000, 2048, 0.85
REST = {"blackwell": 0.8, "hopper": 0.75}  # share of the memory that weights leave


def engine_of_row(row: ServingRow, engine: Engine) -> Engine:
    """An engine that serves both phases, started as the row's source publishes it."""
    if of_configurator(row):
        rules = _configurators(row, engine)
    elif _inferencex_deepseek(row):
        rules = _inferencex(row, engine)
    elif _inferencex_other(row):
        rules = _rules_of_others(row, engine)
    else:
        return engine
    return replace(engine, rules=rules)


def deployed(row: ServingRow, deployment: Deployment) -> Deployment:
    """A deployment with what has to be known before its memory is laid out: as InferenceX starts it."""
    if _inferencex_other(row):
        return _others_deployed(row, deployment)
    if not _inferencex_deepseek(row):
        return deployment
    if deployment.engine.startswith("sglang"):
        amd = _on_amd(row)
        share = 0.8 if amd else 0.85 if _four_bits(row) else 0.95 if deployment.tp == 4 else 0.82
        eight = _four_bits(row) or (
            gpu_of(row.text("gpu"), 1).gpu.generation == "cdna3" and _since(row, AMDS_CACHE_SINCE)
        )
        kv = ("fp8" if eight else "bf16") if amd else None
        return replace(deployment, gpu_memory_utilization=share, kv=deployment.kv or kv)
    if not deployment.engine.startswith("trtllm"):
        return deployment
    share = REST["blackwell" if _on_blackwell(row) else "hopper"]
    deployment = replace(deployment, gpu_memory_utilization=share)
    if not taken_to_draft(row):
        return deployment
    depth, kept = DRAFTED_BY[deployment.attn_dp > 1]
    return replace(deployment, speculative_tokens=depth, acceptance=kept)


def taken_to_draft(row: ServingRow) -> bool:
    """Whether a run of DeepSeek-R1 on TensorRT-LLM drafted: what its column says; else whether its release's runs did.

    No column of the first dumps says it. Those of 1.1 and of 1.2.0rc6.post3 take 0.6 to 0.7 of the others' time.
    """
    if row.text("spec"):
        return row.text("spec") == "mtp"
    if drafted_not_yet(row):
        return False
    release = order_of(engine_named(row).partition("-")[2])
    return (1, 1) <= release < (1, 2) or (1, 2, 0, 6, 3) <= release < (1, 3)


def drafts_unlisted(row: ServingRow) -> tuple[int, float]:
    """Tokens drafted, and the chance that one is kept, of a run that drafted and is in no published list."""
    return SGLANGS_DRAFTS if row.text("engine") == "sglang" and not _on_amd(row) else DRAFTED_BY[False]


def _others_deployed(row: ServingRow, deployment: Deployment) -> Deployment:
    oss, blackwell = _gpt_oss(row), _on_blackwell(row)
    kv = "fp8" if blackwell or not oss else "bf16"
    longest = row.whole_number("isl", 1) + row.whole_number("osl", 1)
    if deployment.engine.startswith("trtllm"):
        share, tokens = (OSS_REST, OSS_TOKENS) if oss else (None, longest + SPARE_LENGTH)
        return replace(deployment, kv=kv, gpu_memory_utilization=share, max_num_batched_tokens=tokens)
    return replace(deployment, kv=kv, max_num_batched_tokens=8192, prefix_caching=False)


def planned_ahead(row: ServingRow, profile: Profile) -> Profile:
    """vLLM's profile where a launch script asks that the next step be planned while one runs."""
    if not _inferencex_other(row) or profile.framework != "vllm":
        return profile
    limit = OSS_GRAPHS if _gpt_oss(row) else profile.graph_limit
    return replace(profile, asynchronous=True, delay_steps=1, graph_limit=limit)


def held_back(row: ServingRow) -> int:
    """Steps after a prompt that was computed elsewhere until the client gets its first token."""
    told = row.disaggregated and row.text("engine").lower() == "sglang" and not of_configurator(row)
    return HELD.get(row.text("gpu").lower().partition("_")[0], 0) if told else 0


def prompt_tokens(row: ServingRow) -> int:
    """Tokens of a prompt as the server counts them; see the module's docstring on the client's tokenizer."""
    asked = row.whole_number("isl", 1)
    if not _inferencex_deepseek(row) or row.text("engine") != "sglang" or row.disaggregated:
        return asked
    if not row.text("measured") or row.text("measured") > MISREAD_UNTIL:
        return asked
    # The first images for B300 were of that release already.
    since = row.text("gpu").startswith("b300") or _since(row, MISREAD_SINCE)
    return round(asked * MISREAD) if since else asked


def of_configurator(row: ServingRow) -> bool:
    """Whether a row is of a campaign."""
    return row.text("source").startswith("campaign/")


def repeats(row: ServingRow) -> bool:
    """Whether the client sent the same prompts again and again."""
    isl = row.whole_number("isl", 1)
    return of_configurator(row) and isl & (isl - 1) != 0


def _inferencex_deepseek(row: ServingRow) -> bool:
    return row.text("client") == "closed" and row.text("model_family").startswith("deepseek")


def _inferencex_other(row: ServingRow) -> bool:
    name = (row.text("model") + row.text("model_family")).lower()
    return row.text("client") == "closed" and ("gpt-oss" in name or ("llama" in name and "70b" in name))


def _gpt_oss(row: ServingRow) -> bool:
    return "gpt-oss" in (row.text("model") + row.text("model_family")).lower()


def _on_blackwell(row: ServingRow) -> bool:
    return row.text("gpu").lower().startswith(("b", "gb"))


def _configurators(row: ServingRow, engine: Engine) -> Rules:
    rules, profile, isl = engine.rules, engine.profile, row.whole_number("isl", 1)
    if profile.framework == "trtllm":
        budget = BATCH + isl + SPARE
        return replace(_holding(rules, engine, budget), chunked=False, prefix_caching=False)
    if profile.framework == "sglang":
        mixed = order_of(profile.release) >= order_of(MIXED_SINCE)
        return replace(rules, prefix_caching=False, batching="mixed" if mixed else rules.batching)
    return _holding(rules, engine, BATCH + isl + SPARE)


def _on_amd(row: ServingRow) -> bool:
    return row.text("gpu").lower().startswith("mi")


def _since(row: ServingRow, release: str) -> bool:
    return order_of(engine_named(row).partition("-")[2]) >= order_of(release)


def _four_bits(row: ServingRow) -> bool:
    return "4" in row.text("precision")


def _sglangs_limits(row: ServingRow, engine: Engine) -> tuple[int, int, int]:
    """Tokens of a chunk, requests at once (0: no limit), and decode steps between two looks for requests."""
    concurrency, isl = row.whole_number("concurrency", 1), row.whole_number("isl", 1)
    short = isl == row.whole_number("osl", 1) == 1024
    generation = engine.cluster.gpu.generation
    if generation.startswith("cdna"):
        if _four_bits(row):
            long = isl == 8192 and row.whole_number("osl", 1) == 1024 and concurrency > 32
            return 32768 if long else AMDS_CHUNK, 0, 1
        later = generation == "cdna3" and _since(row, AMDS_CACHE_SINCE)
        return AMDS_LATER_CHUNK if later else AMDS_CHUNK, 0, 1
    if not generation.startswith("blackwell"):
        return 32768, 512 if short else 256, 1
    looks = next(steps for least, steps in LOOKS if concurrency >= least)
    if engine.times.speculative[0]:
        return 16384, 512, looks
    if _four_bits(row):
        return 16384, 256, looks
    return (8192, 32, 10) if engine.deployment.tp == 4 else (32768, 128, looks)


def _inferencex(row: ServingRow, engine: Engine) -> Rules:
    rules, concurrency, isl = engine.rules, row.whole_number("concurrency", 1), row.whole_number("isl", 1)
    blackwell = _on_blackwell(row)
    four_bits = _four_bits(row)
    if engine.profile.engine == "sglang":
        chunk, seqs, looks = _sglangs_limits(row, engine)
        steps = looks_every(looks, engine.times.tokens_per_step)
        seqs = min(rules.max_num_seqs, (seqs or rules.max_num_seqs) * engine.deployment.attn_dp)
        return replace(_holding(rules, engine, chunk), receive_steps=steps, max_num_seqs=seqs)
    if engine.profile.framework == "trtllm":
        ranks, drafted = engine.deployment.attn_dp, engine.times.speculative[0]
        budget = max(8192, math.ceil((concurrency + isl + 64) / 64) * 64)
        if drafted:
            batch = max(1, concurrency // ranks)
            budget = math.ceil(((drafted + 1) * batch + isl + 64) / 64) * 64
            rules = replace(rules, max_num_seqs=batch * ranks)
        waits = in_tokens(RANKS_WAIT_STEPS, engine.times.tokens_per_step)
        rules = replace(_holding(rules, engine, budget), chunked=False, gather_steps=waits if ranks > 1 else 0)
        waits = blackwell and not four_bits and isl == row.whole_number("osl", 1) == 1024 and 64 <= concurrency < 256
        if waits and engine.deployment.attn_dp == 1:
            rules = replace(rules, gather=math.ceil(WAIT_SHARE * budget / isl), gather_steps=WAIT_STEPS)
    return rules


def _rules_of_others(row: ServingRow, engine: Engine) -> Rules:
    rules = replace(engine.rules, prefix_caching=False)
    if engine.profile.framework != "trtllm":
        return rules
    rules = replace(rules, chunked=False)
    if _gpt_oss(row):
        return rules if _on_blackwell(row) else replace(rules, ranks=1, gather_steps=0)
    isl = row.whole_number("isl", 1)
    if isl == row.whole_number("osl", 1) == 1024 and engine.gpus < 8:
        rules = replace(rules, gather=math.ceil(LLAMA_SHARE * rules.longest_chunk / isl), gather_steps=LLAMA_STEPS)
    return rules


def _holding(rules: Rules, engine: Engine, tokens: int) -> Rules:
    """With so many tokens in a step of one attention rank."""
    return replace(rules, token_budget=tokens * engine.deployment.attn_dp, longest_chunk=tokens)
