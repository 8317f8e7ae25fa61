"""Rows of measured deployments in the words of other tables: read as the same row, and answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError, UserError
from windtunnel.evidence.accuracy.serving.mlperf import LIMITS, at_its_rate, laid_out, means_of, mlperf_workload
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.predict import predicted
from windtunnel.evidence.accuracy.serving.rows import (
    ServingRow,
    deployment_of,
    engine_named,
    gpu_of,
    read_rows,
    weights_of,
)
from windtunnel.evidence.accuracy.serving.spelling import as_spelled
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.run import serve_with

ROW = {
    "id": "a",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "model_family": "llama-3.1-8b",
    "gpu": "h100_sxm",
    "engine": "vllm",
    "engine_version": "0.12.0",
    "precision": "fp8",
    "mode": "agg",
    "isl": "500",
    "osl": "20",
    "concurrency": "4",
    "tp": "1",
}


def _table(path: Path, row: Mapping[str, str]) -> Path:
    path.write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n", encoding="utf-8")
    return path


def _read(**fields: str) -> ServingRow:
    return ServingRow(as_spelled({**ROW, **fields}))


@pytest.mark.parametrize(
    ("fields", "engine"),
    [
        ({"engine": "vLLM"}, "vllm-0.12.0"),
        ({"engine": "dynamo-vllm"}, "vllm-0.12.0"),
        ({"engine": "llm-d"}, "vllm-0.12.0"),
        ({"engine": "TensorRT-LLM", "engine_version": "1.2.0rc6"}, "trtllm-1.2.0rc6"),
        ({"engine": "trt", "engine_version": "0.8.1.post2"}, "trtllm-1.2.0rc6"),
        ({"engine": "SGLang", "engine_version": "", "image": "lmsysorg/sglang:v0.5.9-cu130"}, "sglang-0.5.9"),
        ({"engine": "sglang", "engine_version": "lmsysorg/sglang:v0.5.12-cu130"}, "sglang-0.5.12"),
        ({"engine": "", "engine_version": "unknown", "image": "vllm/vllm-openai:v0.11.0"}, "vllm-0.11.0"),
        ({"engine": "", "framework": "mori-sglang", "engine_version": "0.5.8"}, "sglang-0.5.8"),
    ],
)
def test_engines(fields: dict[str, str], engine: str) -> None:
    assert engine_named(_read(**fields)) == engine


@pytest.mark.parametrize(
    ("word", "formats"),
    [
        ("FP8", ("fp8", "fp8")),
        ("fp8-block", ("fp8_block", "fp8_block")),
        ("fp8_e4m3", ("fp8", "fp8")),
        ("w8a8_fp8", ("fp8", "fp8")),
        ("MXFP4", ("mxfp4", "mxfp4")),
        ("w4a16_mxfp4", ("mxfp4", "mxfp4")),
        ("nvfp4-fp8", ("nvfp4", "nvfp4")),
        ("FP4", ("nvfp4", "nvfp4")),
        ("AWQ", ("int4", "int4")),
        ("w4a8", ("int4", "int4")),
        ("INT8", ("int8", "int8")),
        ("FP16", ("bf16", "bf16")),
        ("auto", ("bf16", "bf16")),  # the checkpoint's own
    ],
)
def test_formats(word: str, formats: tuple[str, str]) -> None:
    assert weights_of(_read(precision=word)) == formats


def test_a_format_that_no_column_says_is_the_names_or_the_checkpoints() -> None:
    assert weights_of(_read(precision="", model="RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic")) == ("fp8", "fp8")
    assert weights_of(_read(precision="", model="deepseek-ai/DeepSeek-R1")) == ("fp8_block", "fp8_block")
    with pytest.raises(UserError, match="fp5"):
        weights_of(_read(precision="fp5"))


@pytest.mark.parametrize(("word", "spec"), [("MTP", "mtp"), ("eagle3", "mtp"), ("2", "mtp"), ("off", "none"), ("", "")])
def test_drafting(word: str, spec: str) -> None:
    assert _read(spec=word).text("spec") == spec


def test_modes_caches_and_models() -> None:
    assert [_read(mode=word).disaggregated for word in ("P/D", "prefill-decode", "Disagg", "static", "")] == [
        *(True, True, True),
        *(False, False),
    ]
    assert [_read(kv_dtype=word).text("kv_dtype") for word in ("FP8_E5M2", "float16", "auto")] == ["fp8", "bf16", ""]
    for short, name in (("dsr1", "deepseek-v3"), ("llama2-70b-99.9", "llama-2-70b"), ("llama3_1-8b", "llama-3.1-8b")):
        assert model_named(_read(model=short).text("model")).name == name
    assert model_named("amd/DeepSeek-R1-0528-MXFP4-Preview").name == "deepseek-v3"


@pytest.mark.parametrize(
    ("word", "gpu"),
    [("H100-SXM5-80GB", "h100-sxm"), ("gb200_nvl4", "gb200"), ("gh200_144gb", "gh200"), ("b200_nvl72", "b200-sxm")],
)
def test_gpus(word: str, gpu: str) -> None:
    assert gpu_of(word, 1).gpu.name == gpu


def test_a_row_that_is_known_stays_as_it_is() -> None:
    assert as_spelled(ROW) == ROW
    with pytest.raises(UserError, match="abc"):
        gpu_of("abc_sxm", 1)


def test_missing_lengths_and_answers_of_one_token_are_answered() -> None:
    whole = predicted(_read(isl="", osl=""))
    assert whole.status == "assumed"
    assert "1,024 tokens for isl and osl" in whole.reason
    assert whole.tpot_s > 0
    alone = predicted(_read(osl="1"))
    assert alone.status == "predicted"
    assert alone.ttft_s > 0
    assert math.isnan(alone.tpot_s)
    assert alone.output_tokens_per_s == pytest.approx(4 / alone.ttft_s)


@pytest.mark.parametrize(
    ("column", "word", "value"),
    [
        ("isl", "1,024", 1024),
        ("isl", "8k", 8192),
        ("osl", "1K", 1024),
        ("concurrency", "1,000", 1000),
        ("d_output_tokens_per_s", "12,345.5", 12345.5),
    ],
)
def test_numbers(column: str, word: str, value: float, tmp_path: Path) -> None:
    assert _read(**{column: word}).number(column) == value
    table = _table(tmp_path / "t.csv", {**ROW, column: word})
    assert [row.number(column) for row in read_rows([table])] == [value]


@pytest.mark.parametrize(("column", "word"), [("concurrency", "8k"), ("isl", "1,02"), ("isl", "k"), ("osl", "ten")])
def test_what_is_no_number_is_refused(column: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=f"line 2: {column} = '{word}'"):
        read_rows([_table(tmp_path / "t.csv", {**ROW, column: word})])


def test_sizes_of_experts_that_a_dense_model_has_not_are_left_out() -> None:
    plain, listed = predicted(_read(tp="2")), predicted(_read(tp="2", moe_tp="1", moe_ep="2"))
    assert listed == plain


def test_a_hybrid_model_that_seems_to_have_no_room_had_some() -> None:
    one = predicted(_read(model="Qwen/Qwen3.5-397B-A17B", model_family="", tp="4", engine_version="0.22.0"))
    assert "room for two requests" in one.reason
    assert one.tpot_s > 0


def _mlperf(rate: str) -> ServingRow:
    return _read(kind="mlperf_server", gpus="1", request_rate_target=rate, max_num_seqs="256", isl="", osl="")


def test_a_submitted_rate_is_the_highest_that_holds_the_limits() -> None:
    row = _mlperf("20")
    model, cluster = model_named("llama-3.1-8b"), gpu_of("h100_sxm", 1)
    engine = engine_of(model, cluster, laid_out(row, model, deployment_of(row), cluster))
    load = mlperf_workload(row, 1, 256)
    result, slower = at_its_rate(row, load, lambda one: serve_with(engine, one))
    ttft, tpot = LIMITS["llama-3.1-8b"][0]
    assert result.ttft is not None
    assert result.tpot is not None
    assert slower > 1.0  # the machine could do more than 20 a second
    assert slower * result.ttft.p99 <= ttft
    assert slower * result.tpot.p99 <= tpot
    assert max(slower * result.ttft.p99 / ttft, slower * result.tpot.p99 / tpot) > 0.8
    answer = predicted(row)
    assert 0.4 * tpot < answer.tpot_s < tpot
    assert "hold the limits" in answer.reason
    assert answer.output_tokens_per_s == pytest.approx(20 * load.output_tokens.mean(), rel=0.01)


@pytest.mark.parametrize(("rate", "count"), [("2", 1200), ("0.01", 600), ("1000", 6000)])
def test_an_open_loop_of_mlperf_is_played_for_loadgens_ten_minutes(rate: str, count: int) -> None:
    assert len(mlperf_workload(_mlperf(rate), 1, 256)) == count


def test_a_submission_that_nobody_lists_holds_as_many_as_its_cache() -> None:
    row = ServingRow({**_mlperf("20").fields, "max_num_seqs": "", "tp": ""})
    cluster = gpu_of("h100_sxm", 1)
    one = laid_out(row, model_named("llama-3.1-8b"), deployment_of(row), cluster)
    engine = engine_of(model_named("llama-3.1-8b"), cluster, one)
    assert one.max_num_seqs is not None
    assert one.max_num_seqs * sum(means_of(row)) == pytest.approx(engine.memory.tokens, rel=0.1)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama3-8b", "llama-3-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("Llama2-70B", "llama-2-70b"),
        ("DeepSeek R1", "deepseek-v3"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("amd/DeepSeek-R1-0528-MXFP4-Preview", "deepseek-v3"),
    ],
)
def test_names_of_models_as_people_write_them(name: str, model: str) -> None:
    assert model_named(name).name == model


@pytest.mark.parametrize("name", ["bigscience/bloom-3b", "deepseek-ai/DeepSeek-R1-Distill-Yi-9B"])
def test_a_size_in_a_name_is_never_left_out(name: str) -> None:
    with pytest.raises(UserError, match="Its shapes are not known"):
        model_named(name)
