"""Deployments as their sources start them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.evidence.accuracy.serving.launches import (
    as_its_recipe,
    captured_by_pools,
    decode_limit,
    deployed,
    engine_of_row,
    held_back,
    planned_ahead,
    pooled,
    prompt_tokens,
    submitted_profile,
    submitted_rules,
)
from windtunnel.evidence.accuracy.serving.mlperf import laid_out
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.predict import _in_ranks, workload_of
from windtunnel.evidence.accuracy.serving.rows import ServingRow, deployment_of, gpu_of
from windtunnel.evidence.accuracy.serving.sessions import in_steady_state, replayed
from windtunnel.studies.serving.build import Engine, engine_of, kv_format
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.replica.rules import rules_of

DEEPSEEK = {
    "id": "a",
    "source": "2026-03-25",
    "measured": "2026-02-06",
    "client": "closed",
    "model": "deepseek-ai/DeepSeek-R1",
    "model_family": "deepseek-v3",
    "gpu": "b200_sxm",
    "engine": "trtllm",
    "engine_version": "1.2.0rc6.post3",
    "precision": "fp4",
    "gemm_quant": "nvfp4",
    "moe_quant": "nvfp4",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "64",
    "tp": "1",
    "attn_dp": "8",
    "moe_tp": "1",
    "moe_ep": "8",
}
OSS = {
    **DEEPSEEK,
    "model": "openai/gpt-oss-120b",
    "model_family": "gpt-oss-120b",
    "engine": "vllm",
    "engine_version": "0.11.0",
    "gemm_quant": "",
    "moe_quant": "",
    "tp": "2",
    "attn_dp": "1",
    "moe_tp": "2",
    "moe_ep": "1",
}


def _started(fields: dict[str, str]) -> Engine:
    row = ServingRow(fields)
    deployment = deployed(row, deployment_of(row))
    profile = planned_ahead(row, load_engine(deployment.engine))
    model = model_named(row.text("model"), row.text("model_family"))
    return engine_of_row(row, engine_of(model, gpu_of(row.text("gpu"), deployment.gpus), deployment, profile=profile))


def test_drafting_with_attention_ranks_is_one_token_and_one_prompt_of_each() -> None:
    engine = _started(DEEPSEEK)
    assert engine.times.speculative == (1, 0.85)
    rules = engine.rules
    assert (rules.ranks, rules.max_num_seqs, rules.chunked) == (8, 64, False)
    assert rules.longest_chunk == 1152  # 2 x 8 + 1,024 + 64, in whole 64
    assert rules.gather_steps == 111  # 60 steps of 1.85 tokens


def test_drafting_without_them_is_three_tokens() -> None:
    engine = _started({**DEEPSEEK, "tp": "8", "attn_dp": "1", "moe_tp": "1", "moe_ep": "8"})
    assert engine.times.speculative[0] == 3
    assert engine.rules.max_num_seqs == 64
    assert engine.rules.longest_chunk == 1344


def test_without_drafting_the_step_has_at_least_8192_tokens() -> None:
    engine = _started({**DEEPSEEK, "engine_version": "1.2.0rc6.post2"})
    assert engine.times.speculative[0] == 0
    assert engine.rules.longest_chunk == 8192
    assert engine.rules.gather_steps == 60


@pytest.mark.parametrize(("gpu", "cache"), [("b200_sxm", "fp8"), ("h200_sxm", "bf16")])
def test_gpt_oss_is_planned_ahead_and_keeps_no_prefixes(gpu: str, cache: str) -> None:
    engine = _started({**OSS, "gpu": gpu})
    assert engine.profile.asynchronous
    assert engine.profile.graph_limit == 2048
    assert engine.rules.lag
    assert not engine.rules.prefix_caching
    assert engine.deployment.kv == cache


def test_gpt_oss_of_tensorrt_llm_waits_for_ranks_on_blackwell_alone() -> None:
    ranks = {
        **OSS,
        "engine": "trtllm",
        "engine_version": "1.1.0",
        "tp": "1",
        "attn_dp": "2",
        "moe_tp": "1",
        "moe_ep": "2",
    }
    assert _started(ranks).rules.ranks == 2
    assert _started({**ranks, "gpu": "h200_sxm"}).rules.ranks == 1
    assert _started(ranks).rules.longest_chunk == 20000


def test_other_rows_stay_as_they_are() -> None:
    row = ServingRow({**OSS, "client": ""})
    deployment = deployment_of(row)
    assert deployed(row, deployment) is deployment
    profile = load_engine("vllm")
    assert planned_ahead(row, profile) == replace(profile, fitted_source=True)


def test_the_first_token_of_sglangs_pools_comes_with_those_after_it() -> None:
    row = {**DEEPSEEK, "engine": "sglang", "engine_version": "0.5.8.post1", "mode": "disagg"}
    assert held_back(ServingRow(row)) == 30
    assert held_back(ServingRow({**row, "gpu": "h200_sxm"})) == 10
    assert held_back(ServingRow({**row, "mode": "agg"})) == 0
    assert held_back(ServingRow({**row, "engine": "trtllm"})) == 0
    assert held_back(ServingRow({**row, "source": "campaign/x"})) == 0


def _sglang(**fields: str) -> Engine:
    one = {**DEEPSEEK, "engine": "sglang", "engine_version": "0.5.12", "tp": "8", "attn_dp": "1", "moe_ep": "1"}
    return _started({**one, "moe_tp": fields.get("tp", "8"), "measured": "2026-05-22", **fields})


EIGHT_BITS = {"precision": "fp8_block", "gemm_quant": "fp8_block", "moe_quant": "fp8_block"}
MXFP4 = {"precision": "mxfp4", "gemm_quant": "mxfp4", "moe_quant": "mxfp4"}


@pytest.mark.parametrize(
    ("fields", "chunk", "seqs", "looks", "cache"),
    [
        ({}, 16384, 256, 30, "fp8"),
        ({**EIGHT_BITS}, 32768, 128, 30, "fp8"),
        ({**EIGHT_BITS, "gpu": "b300_sxm"}, 32768, 128, 30, "fp8"),
        ({**EIGHT_BITS, "tp": "4", "isl": "8192"}, 8192, 32, 10, "fp8"),
        ({**EIGHT_BITS, "gpu": "h200_sxm"}, 32768, 512, 1, "bf16"),
        ({**EIGHT_BITS, "gpu": "mi300x"}, 131072, 1024, 1, "fp8"),
        ({**EIGHT_BITS, "gpu": "mi300x", "engine_version": "0.5.6"}, 196608, 1024, 1, "bf16"),
        ({**MXFP4, "gpu": "mi355x"}, 196608, 1024, 1, "fp8"),
        ({**MXFP4, "gpu": "mi355x", "isl": "8192"}, 32768, 1024, 1, "fp8"),
    ],
)
def test_sglang_starts_as_its_scripts_say(
    fields: dict[str, str], chunk: int, seqs: int, looks: int, cache: str
) -> None:
    engine = _sglang(**fields)
    rules = engine.rules
    assert (rules.longest_chunk, rules.max_num_seqs, rules.receive_steps) == (chunk, seqs, looks)
    kv = engine.deployment.kv or kv_format(engine.deployment, engine.profile, engine.cluster)
    assert kv == cache


def test_prompts_are_as_long_as_the_server_counted_them() -> None:
    row = {**DEEPSEEK, "engine": "sglang", "engine_version": "", "measured": "2026-05-13"}
    assert prompt_tokens(ServingRow(row)) == 5152
    assert prompt_tokens(ServingRow({**row, "measured": "2026-05-16"})) == 1024
    assert prompt_tokens(ServingRow({**row, "measured": "2026-04-17"})) == 1024
    assert prompt_tokens(ServingRow({**row, "measured": "2026-04-17", "gpu": "b300_sxm"})) == 5152
    assert prompt_tokens(ServingRow({**row, "engine": "trtllm"})) == 1024
    assert prompt_tokens(ServingRow({**row, "client": ""})) == 1024


def test_decode_ranks_take_what_is_listed_or_a_round_number() -> None:
    pools = {**DEEPSEEK, "mode": "disagg", "spec": "none", "gpu": "b300_sxm", "precision": "fp8", "concurrency": "1280"}
    ranks = Deployment(engine="trtllm-1.2", attn_dp=8)
    assert decode_limit(ServingRow(pools), ranks, 3) == (48, 0)
    drafting = ServingRow({**pools, "concurrency": "10", "spec": "mtp"})
    assert decode_limit(drafting, Deployment(engine="trtllm", tp=8), 8) == (1, 3)
    unlisted = ServingRow({**pools, "model_family": "gpt-oss-120b", "concurrency": "2150"})
    assert decode_limit(unlisted, ranks, 1) == (256, 0)  # 268 each
    assert decode_limit(unlisted, Deployment(engine="trtllm", tp=8), 1) == (None, 0)
    assert decode_limit(unlisted, Deployment(engine="sglang", attn_dp=8), 1) == (None, 0)


def test_sessions_are_replayed_turn_after_turn() -> None:
    row = ServingRow({"client": "sessions_replayed", "source": "x", "isl": "7000", "osl": "1500", "concurrency": "16"})
    load = replayed(row)
    assert load.turns is not None
    assert len(load.turns.firsts) == 150
    assert len(load) == 1769
    assert abs(load.input_tokens.mean() - 7000) < 70
    assert abs(load.output_tokens.mean() - 1500) < 15
    assert load.prefix_names is not None
    first, second = load.prefix_names[0], load.prefix_names[1]
    assert second[: len(first)] == first
    assert not in_steady_state(row)


@pytest.mark.parametrize(
    ("gpu", "engine", "kind", "tokens", "limits", "kv"),
    [
        ("b300_sxm", "trtllm", "offline", "4638", (896, 13914), None),
        ("b300_sxm", "trtllm", "interactive", "4638", (512, 64932), None),
        ("b300_sxm", "trtllm", "offline", "2048", (128, 2048), None),  # no product there
        ("gb200", "trtllm", "offline", "4638", (512, 13914), None),
        ("mi355x", "vllm", "offline", "", (1792, 65536), "bf16"),
        ("mi355x", "vllm", "server", "", (1024, 65536), "bf16"),
    ],
)
def test_mlperf_is_laid_out_as_its_submission_says_not_by_the_first_factor_of_a_product(
    gpu: str, engine: str, kind: str, tokens: str, limits: tuple[int, int], kv: str | None
) -> None:
    fields = {
        **OSS,
        "gpu": gpu,
        "engine": engine,
        "kind": f"mlperf_{kind}",
        "max_num_seqs": "128",
        "tp": "1",
        "moe_tp": "1",
    }
    row = ServingRow({**fields, "max_num_batched_tokens": tokens, "engine_version": "", "measured": "2026-02"})
    one = laid_out(row, model_named(row.text("model"), ""), deployment_of(row), gpu_of(gpu, 8))
    assert (one.max_num_seqs, one.max_num_batched_tokens) == limits
    assert (one.tp, one.attn_dp, one.kv) == (1, 1, kv)


def test_a_row_says_what_its_launch_allows() -> None:
    """Of an attention rank; a product is no number, and of pools the columns say nothing."""
    limits = {"max_num_seqs": "32", "max_num_batched_tokens": "4096", "memory_fraction": "0.85"}
    one = deployment_of(ServingRow({**DEEPSEEK, **limits}))
    assert (one.max_num_seqs, one.max_num_batched_tokens, one.gpu_memory_utilization) == (32, 4096, 0.85)
    assert deployment_of(ServingRow({**DEEPSEEK, "max_num_seqs": "128 * 7"})).max_num_seqs is None
    pool = {f"decode_{name}": DEEPSEEK[name] for name in ("tp", "attn_dp", "moe_tp", "moe_ep")}
    assert deployment_of(ServingRow({**DEEPSEEK, **limits, **pool}), "decode_").gpu_memory_utilization is None


def test_processes_of_a_gpu_share_what_a_submission_runs_at_once() -> None:
    """ASUS: 85 requests in each of 12 workers, where the table has the engine's limit of 6,000."""
    fields = {**OSS, "model": "llama-3.1-8b", "engine": "trtllm", "gpu": "b300_sxm", "kind": "mlperf_server"}
    limits = {"max_num_seqs": "6000", "max_num_batched_tokens": "12000", "tp": "1", "moe_tp": "1", "engine_version": ""}
    for source, seqs in (("MLPerf closed/ASUSTeK/results", 1020), ("MLPerf closed/GigaComputing/results", 6000)):
        row = ServingRow({**fields, **limits, "source": source})
        one = laid_out(row, model_named(row.text("model"), ""), deployment_of(row), gpu_of("b300_sxm", 8))
        assert (one.max_num_seqs, one.max_num_batched_tokens) == (seqs, 12_000)


R1 = {**DEEPSEEK, "gpu": "gb300", "engine_version": "", "max_num_seqs": "640", "max_num_batched_tokens": "3456"}
LLAMA = {**R1, "model": "llama-3.1-405b", "gpu": "b300_sxm", "gpus": "8", "tp": "4", "attn_dp": "1", "moe_ep": "1"}


@pytest.mark.parametrize(
    ("fields", "kind", "gpus", "tokens", "waits"),
    [
        (R1, "server", "72", 4608, 9),  # an engine built for 3,456 tokens is run with 4,608
        (R1, "offline", "8", 6144, 500),
        (R1, "offline", "72", 6656, 6),
        (LLAMA, "offline", "8", 1536, 50),
    ],
)
def test_submissions_to_mlperf_run_with_the_runtimes_tokens_and_evict(
    fields: dict[str, str], kind: str, gpus: str, tokens: int, waits: int
) -> None:
    row = ServingRow({**fields, "kind": f"mlperf_{kind}", "gpus": gpus})
    one = laid_out(row, model_named(row.text("model"), ""), deployment_of(row), gpu_of(row.text("gpu"), 8))
    assert one.max_num_batched_tokens == tokens
    assert one.attn_dp == int(fields["attn_dp"])  # the layout stays the row's
    profile = submitted_profile(row, one, load_engine(one.engine), gpu_of(row.text("gpu"), 8).gpu)
    rules = submitted_rules(row, one, rules_of(profile, one, 1000))
    assert (rules.reserve, rules.gather_steps, rules.prefix_caching) == ("prompt", waits, False)
    assert (profile.graph_limit == 0) is (fields is LLAMA)  # decode steps are launched there


def test_a_server_that_is_no_engine_of_nvidias_keeps_its_rules() -> None:
    row = ServingRow({**OSS, "gpu": "mi355x", "kind": "mlperf_server", "engine_version": ""})
    one = deployment_of(row)
    rules = rules_of(load_engine(one.engine), one, 1000)
    assert submitted_rules(row, one, rules) == replace(rules, prefix_caching=False)


@pytest.mark.parametrize("kind", ["mlperf_server", ""])
def test_amds_submissions_run_attention_kernels_of_their_own(kind: str) -> None:
    """Attention of a long prompt takes longer under vLLM as it comes; of a short one there is little."""
    gpu = gpu_of("mi355x", 8).gpu
    profile, one = load_engine("vllm-0.19"), Deployment(engine="vllm-0.19", tp=8)
    if kind:
        profile = submitted_profile(ServingRow({**OSS, "gpu": "mi355x", "kind": kind}), one, profile, gpu)
    factors = [profile.on(gpu).prefill_attention_factor, profile.on(gpu_of("h100-sxm", 8).gpu).prefill_attention_factor]
    assert factors == [1.0 if kind else 1.85, 1.0]
    engine = engine_of(model_named("llama-3.1-70b", "llama"), gpu_of("mi355x", 8), one, profile=profile)
    plain = engine_of(
        model_named("llama-3.1-70b", "llama"),
        gpu_of("mi355x", 8),
        one,
        profile=replace(profile.on(gpu), by_gpu=(), prefill_attention_factor=1.0),
    )
    longer = [
        engine.times.mixed(0, 0, [(tokens, 0)], 1) / plain.times.mixed(0, 0, [(tokens, 0)], 1)
        for tokens in (128, 65_536)
    ]
    assert longer == [1.0, 1.0] if kind else (longer[0] < 1.02 and 1.1 < longer[1] < 1.85)


@pytest.mark.parametrize(("each", "count"), [("0.78", 400), ("12.5", 6400), ("", 5120)])
def test_a_client_sends_as_many_prompts_as_its_page_says_also_where_slots_stay_empty(each: str, count: int) -> None:
    row = ServingRow({**OSS, "client": "", "concurrency": "512", "prompts_per_slot": each})
    assert len(workload_of(row, [])) == pytest.approx(count, abs=1)


def test_a_row_whose_recipe_is_published_has_its_drafts() -> None:
    said = {"source": "Prathmesh234/mutliturn-inferenceX@21cc5b9 results/x/conc4.json", "spec": "none"}
    said |= {"model_family": "deepseek-v4", "engine": "sglang"}
    assert as_its_recipe(ServingRow({**DEEPSEEK, **said, "mode": "disagg"})).text("spec") == "mtp"
    for other in (DEEPSEEK, {**DEEPSEEK, **said}, {**DEEPSEEK, **said, "mode": "disagg", "engine": "vllm"}):
        row = ServingRow(other)
        assert as_its_recipe(row) is row


@pytest.mark.parametrize(("model", "ranks"), [("deepseek-v3", 4), ("kimi-k2", 4), ("minimax-m2.5", 1)])
def test_attention_that_nobody_splits_is_repeated_where_a_split_saves_no_cache(model: str, ranks: int) -> None:
    row = ServingRow({**DEEPSEEK, "prefill_tp": "4"})
    one = _in_ranks(row, model_named(model, ""), "prefill", deployment_of(row, "prefill_"))
    assert (one.gpus, one.attn_dp) == (4, ranks)
    told = ServingRow({**row.fields, "prefill_attn_dp": "1"})
    assert _in_ranks(told, model_named(model, ""), "prefill", deployment_of(told, "prefill_")).attn_dp == 1


@pytest.mark.parametrize(
    ("gpu", "release", "kv"), [("mi355x", "0.5.12", "fp8"), ("mi355x", "0.5.8", None), ("h200_sxm", "0.5.12", None)]
)
def test_pools_have_the_cache_of_their_recipe_where_the_row_is_silent(gpu: str, release: str, kv: str | None) -> None:
    fields = {"id": "a", "model": "deepseek-ai/DeepSeek-R1", "model_family": "deepseek-v3", "client": "closed"}
    row = ServingRow({**fields, "gpu": gpu, "engine": "sglang", "engine_version": release, "mode": "disagg"})
    assert pooled(row, Deployment(engine=f"sglang-{release}", tp=8)).kv == kv
    assert pooled(row, Deployment(engine=f"sglang-{release}", tp=8, kv="bf16")).kv == "bf16"


@pytest.mark.parametrize(
    ("gpu", "framework", "release", "precision", "tokens"),
    [
        ("mi355x", "mori-sglang", "0.5.12", "fp4", 512),
        ("mi355x", "mori-sglang", "0.5.8", "fp8", 160),
        ("mi355x", "sglang", "0.5.12", "fp4", 0),
        ("mi300x", "mori-sglang", "0.5.12", "fp8", 0),
    ],
)
def test_pools_have_buffers_of_one_size_where_the_row_names_mori(
    gpu: str, framework: str, release: str, precision: str, tokens: int
) -> None:
    fields = {**DEEPSEEK, "gpu": gpu, "engine": "sglang", "engine_version": release, "mode": "disagg"}
    row = ServingRow({**fields, "framework": framework, "precision": precision})
    name = f"sglang-{release}"
    assert captured_by_pools(row, Deployment(engine=name, tp=8), load_engine(name)).all_to_all_buffer == tokens


SWEEP = {
    **DEEPSEEK,
    "source": "campaign/h100_sxm/vllm/0.12.0/Qwen_Qwen3-32B",
    "client": "not stated",
    "model": "Qwen/Qwen3-32B",
    "model_family": "qwen3-32b",
    "gpu": "h100_sxm",
    "engine": "vllm",
    "engine_version": "0.12.0",
    "precision": "bf16",
    "gemm_quant": "",
    "moe_quant": "",
    "mode": "agg",
    "isl": "1024",
    "osl": "128",
    "concurrency": "8",
    "gpus": "2",
    "tp": "2",
    "attn_dp": "1",
    "moe_tp": "1",
    "moe_ep": "1",
}


def test_slots_of_a_campaign_pause_between_answer_and_request() -> None:
    load = workload_of(ServingRow(SWEEP), [])
    assert load.turns is not None
    assert load.concurrency == 8
    assert set(load.turns.following) == {-1}
    assert float(load.turns.delay_ns.mean()) == pytest.approx(3e7, rel=0.25)
    assert workload_of(ServingRow({**SWEEP, "source": "2026-03-25"}), []).turns is None


@pytest.mark.parametrize(("isl", "tokens"), [("1024", 1024 + 8), ("4000", 4000 + 512 + 1500)])
def test_steps_of_a_sweep_hold_one_prompt_and_the_batch(isl: str, tokens: int) -> None:
    row = ServingRow({**SWEEP, "isl": isl})
    deployment = deployment_of(row)
    cluster = gpu_of("h100_sxm", deployment.gpus)
    engine = engine_of(model_named(row.text("model"), row.text("model_family")), cluster, deployment)
    assert engine_of_row(row, engine).rules.longest_chunk == tokens
