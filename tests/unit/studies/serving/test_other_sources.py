"""Questions of whom no constant was fitted on: limits that engines set by themselves, and how wide the band is."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import hypot, log
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, UserError
from windtunnel.evidence.accuracy.serving.launches import of_source
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.predict import predicted
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.physics.cost.inference.experts import UNPACKED_PER_S
from windtunnel.physics.hardware import get_gpu, parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving import Deployment, engine_of, load_engine
from windtunnel.studies.serving.build import Engine, kv_format
from windtunnel.studies.serving.result import FIRST_TOKEN_BAND
from windtunnel.studies.serving.run import (
    NEW_MODEL_SOURCE_BAND,
    SOURCE_BAND,
    UNTIMED_SOURCE_BAND,
    band_of,
    serve_with,
    sources_of,
)
from windtunnel.studies.serving.workload.requests import Workload

ROW = {
    "id": "a",
    "source": "somebody/else",
    "model": "llama-3.1-8b",
    "gpu": "h200-sxm",
    "engine": "sglang",
    "engine_version": "0.5.9",
    "precision": "bf16",
    "isl": "4000",
    "osl": "20",
    "concurrency": "8",
    "prompts_per_slot": "4",
}


def engine(model: str, name: str, cluster: str = "h200-sxm:1", **layout: int | bool) -> Engine:
    return engine_of(load_model(model), parse_cluster(cluster), Deployment(engine=name, **layout))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["qwen3.5-35b-a3b", "qwen3.5-27b"])
def test_states_have_slots_beside_keys_and_a_sequence_is_admitted_for_several(model: str) -> None:
    state = sum(layer.attention.state_bytes() for layer in load_model(model).layers)
    name = "sglang-0.5.16"
    built = engine(model, name)
    slots = 0.9 * built.memory.kv // state
    assert built.rules.max_num_seqs == slots // 5
    assert engine(model, "sglang-0.5.12").rules.max_num_seqs == slots // 3
    assert engine(model, name, prefix_caching=False).rules.max_num_seqs == min(slots, 1024)
    assert engine(model, name, max_num_seqs=7).rules.max_num_seqs == 7
    beside = replace(load_engine(name), state_share=0.0)
    together = engine_of(load_model(model), parse_cluster("h200-sxm:1"), Deployment(engine=name), profile=beside)
    assert built.memory.kv * 1.9 == pytest.approx(together.memory.kv)
    assert together.rules.max_num_seqs == 1024


def test_rules_of_newer_releases_stand_beside_the_newest_constants(tmp_path: Path) -> None:
    known, newer = load_engine("sglang-0.5.12"), load_engine("sglang-0.5.16")
    assert (known.state_slots, newer.state_slots) == (3, 5)
    assert newer.calibrated_to == "0.5.12"
    assert newer.band > known.band
    path = tmp_path / "own.yaml"
    path.write_text("releases: {a: {}}\nnewer: [1]\n")
    with pytest.raises(InputFileError, match="newer"):
        load_engine(str(path))


@pytest.mark.parametrize(
    ("gpu", "tokens", "graphs"),
    [("b200-sxm", 16384, 1024), ("mi300x", 16384, 512), ("h200-sxm", 8192, 512), ("a100-80gb-sxm", 2048, 512)],
)
def test_vllm_takes_longer_steps_on_large_gpus_from_0_28_on(gpu: str, tokens: int, graphs: int) -> None:
    before, since = load_engine("vllm-0.27").on(get_gpu(gpu)), load_engine("vllm-0.28").on(get_gpu(gpu))
    assert (since.max_num_batched_tokens, since.graph_limit) == (tokens, graphs)
    assert (before.max_num_batched_tokens, before.graph_limit) == (min(tokens, 8192), 512)
    fitted = ("decode_factor", "expert_factor", "prefill_factor", "layer_gap_s")
    assert [getattr(since, name) for name in fitted] == [getattr(before, name) for name in fitted]


def test_models_without_states_and_other_engines_are_limited_as_ever() -> None:
    assert engine("llama-3.1-8b", "sglang-0.5.16").rules.max_num_seqs == 1024
    assert engine("qwen3.5-35b-a3b", "vllm-0.22").rules.max_num_seqs == 1024


def test_deepseek_v4_runs_256_requests_on_sglang_where_nobody_says_otherwise() -> None:
    ranks = {"attn_dp": 4, "moe_ep": 4}
    assert engine("deepseek-v4-flash", "sglang-0.5.15", "b200-sxm:4", **ranks).rules.max_num_seqs == 256
    given = engine("deepseek-v4-flash", "sglang-0.5.15", "b200-sxm:4", **ranks, max_num_seqs=100)
    assert given.rules.max_num_seqs == 400
    assert engine("deepseek-v4-flash", "vllm-0.22", "b200-sxm:4", tp=4).rules.max_num_seqs == 1024


@pytest.mark.parametrize(
    ("model", "cluster", "name", "term", "why"),
    [
        ("llama-3.1-8b", "h200-sxm:1", "sglang-0.5.9", SOURCE_BAND, ""),
        ("qwen3.5-27b", "h200-sxm:1", "sglang-0.5.9", NEW_MODEL_SOURCE_BAND, "family"),
        ("llama-3.1-8b", "mi300x:1", "sglang-0.5.9", UNTIMED_SOURCE_BAND, "not timed"),
        ("llama-3.1-8b", "tpu-v6e:4", "vllm-0.19", 0.0, ""),
    ],
)
def test_the_band_of_another_source_is_wider_and_says_why(
    model: str, cluster: str, name: str, term: float, why: str
) -> None:
    own, of_fitted = (
        engine_of(
            load_model(model),
            parse_cluster(cluster),
            Deployment(engine=name),
            profile=replace(load_engine(name), fitted_source=fitted),
        )
        for fitted in (False, True)
    )
    assert not load_engine(name).fitted_source
    assert band_of(own, 4.0, 500.0, False) == pytest.approx(hypot(band_of(of_fitted, 4.0, 500.0, False), term))
    assert not any(words.startswith("band:") for words in sources_of(of_fitted))
    assert why in "".join(words for words in sources_of(own) if words.startswith("band:"))


@pytest.mark.parametrize(
    ("source", "fitted"), [("InferenceX dashboard", True), ("somebody/else@1", False), ("", False)]
)
def test_rows_of_fitted_sources_are_known_by_their_source(source: str, fitted: bool) -> None:
    row = ServingRow({**ROW, "source": source})
    assert of_source(row, load_engine("sglang-0.5.9")).fitted_source is fitted
    assert (predicted(row).tpot_p95_s < predicted(ServingRow(ROW)).tpot_p95_s) is fitted


def test_prompts_that_were_sent_before_are_answered_sooner() -> None:
    cold, warm, all_warm = (predicted(ServingRow({**ROW, "warm_prompts": n})).ttft_s for n in ("", "16", "32"))
    assert all_warm < 0.5 * cold
    assert all_warm < warm < cold
    assert predicted(ServingRow({**ROW, "warm_prompts": "5000"})).ttft_s == all_warm  # more than the run has


def test_experts_in_four_bit_integers_take_as_long_on_amd_as_unpacking_them() -> None:
    """Under the releases that had a kernel that unpacks, and under no others; by hand at one token."""
    model = load_model("kimi-k2.5")

    def group_s(gpu: str, engine: str) -> float:
        held = Deployment(engine=engine, tp=8, weights="bf16", expert_weights="int4")
        return engine_of(model, parse_cluster(f"{gpu}:8"), held).times.prices.group(1)

    least = 60 * 8 * 3 * 7168 * 2048 / 8 / UNPACKED_PER_S
    for engine in ("vllm-0.14", "sglang-0.5.9"):
        assert least < group_s("mi325x", engine) < 1.3 * least
    assert group_s("mi325x", "vllm-0.19") < 0.5 * least
    assert group_s("h200-sxm", "vllm-0.14") < 0.6 * least


def test_vllm_keeps_a_cache_in_sixteen_bits_where_the_checkpoint_says_nothing_of_it() -> None:
    cluster = parse_cluster("b200-sxm:1")
    cases = (("vllm", "fp8_block", "bf16"), ("vllm", "nvfp4", "fp8"), ("sglang", "fp8_block", "fp8"))
    cases += (("vllm", "int4", "bf16"), ("sglang", "int4", "bf16"), ("trtllm", "int4", "fp8"))
    for engine, weights, kv in cases:
        assert kv_format(Deployment(weights=weights), load_engine(engine), cluster) == kv


def test_prompts_of_mxfp4_experts_have_a_factor_that_no_other_model_has() -> None:
    """vLLM 0.22 on H200 was timed with gpt-oss alone: a dense model's prompts run there as on H100."""

    def prompt_s(model: str, gpu: str, weights: str, experts: str) -> float:
        held = Deployment(engine="vllm-0.22", tp=2, weights=weights, expert_weights=experts)
        times = engine_of(load_model(model), parse_cluster(f"{gpu}:2"), held).times
        return times.mixed(0, 0, [(4096, 0)], 1)

    dense = [prompt_s("qwen3-32b", gpu, "bf16", "bf16") for gpu in ("h100-sxm", "h200-sxm")]
    experts = [prompt_s("gpt-oss-120b", gpu, "bf16", "mxfp4") for gpu in ("h100-sxm", "h200-sxm")]
    assert dense[1] == pytest.approx(dense[0], rel=0.1)
    assert experts[1] > 1.2 * experts[0]


def test_a_smaller_model_is_not_taken_for_the_one_whose_name_it_extends() -> None:
    assert model_named("zai-org/GLM-5.3-FP8").name == "glm-5.2"
    assert model_named("deepseek-ai/DeepSeek-V4-Flash").name == "deepseek-v4-flash"
    with pytest.raises(UserError):
        model_named("zai-org/GLM-5.3-Flash")


def test_the_band_of_the_first_token_holds_what_it_was_not_chosen_by() -> None:
    folder, inside = Path(__file__).parents[4] / "validation" / "serving", []
    for name in ("unseen_2026_f", "unseen_2026_g"):  # as they were predicted blind
        tables = (csv.DictReader((folder / f"{name}{end}.csv").open(newline="")) for end in ("", "_blind"))
        for row, blind in zip(*tables, strict=True):
            if not row["ttft_ms"] or blind["tpot_p5_s"] in ("", "nan"):
                continue
            step = log(float(blind["tpot_p95_s"]) / float(blind["tpot_p5_s"])) / 2
            error = abs(log(float(blind["ttft_s"]) * 1e3 / float(row["ttft_ms"])))
            inside.append(error <= hypot(step, FIRST_TOKEN_BAND))
    assert len(inside) > 50
    assert 0.85 <= sum(inside) / len(inside) <= 0.96


def test_the_first_token_is_less_certain_than_a_step() -> None:
    served = serve_with(engine("llama-3.1-8b", "vllm-0.12"), Workload([900], [9], None, 1))
    (low, high), (fast, slow) = served.ttft_band_s or (0, 0), served.tpot_band_s or (0, 0)
    assert served.ttft is not None
    assert low < served.ttft.mean < high
    assert high / low > slow / fast
    assert served.to_dict()["ttft_band_s"] == {"p5": low, "p95": high}


@pytest.mark.parametrize(
    ("model", "name", "cluster", "layout", "ms"),
    [
        ("minimax-m2.7", "sglang-0.5.10.post1", "gb300:2", {"tp": 2}, 0.0),
        ("minimax-m2.7", "sglang-0.5.9", "gb300:2", {"tp": 2}, 2.7),
        ("minimax-m2.7", "sglang-0.5.10", "h200-sxm:8", {"attn_dp": 8, "moe_ep": 8}, 1.35),
        ("kimi-k2.5", "sglang-0.5.12", "gb300:4", {"tp": 4}, 2.7),  # sees
        ("deepseek-v4-pro", "sglang-0.5.12", "gb300:8", {"tp": 8}, 2.7),  # behind an indexer
        ("deepseek-r1", "sglang-0.5.12", "h200-sxm:8", {"tp": 8}, 0.0),
        ("qwen3.6-35b-a3b", "sglang-0.5.15", "b200-sxm:1", {}, 1.35),
    ],
)
def test_prompts_are_launched_kernel_by_kernel_where_sglang_captures_none(
    model: str, name: str, cluster: str, layout: dict[str, int], ms: float
) -> None:
    assert engine(model, name, cluster, **layout).times.profile.prompt_layer_s == pytest.approx(ms / 1e3)
