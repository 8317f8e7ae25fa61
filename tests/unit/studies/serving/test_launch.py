"""An engine's command line in the place of the model, through the doors that take plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import SpecError
from windtunnel.faces.mcp import answered
from windtunnel.questions import read, spelled_out
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.launch.flags import flags_of
from windtunnel.studies.serving.launch.lines import parts_of
from windtunnel.studies.serving.replica.rules import rules_of

LINE = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768 --max-num-seqs 64"
ASKED = {"cluster": "h100-sxm:2", "requests": {"prompt": 100, "output": 10, "requests": 9}, "load": {"rate": 2}}
ENGINE = {"engine": "vllm", "max_model_len": 32768, "max_num_seqs": 64}
BY_HAND = {"model": "Qwen/Qwen3-8B", "engine": ENGINE, "replicas": {"tp": 2}}


@pytest.mark.parametrize(
    ("verb", "more", "said", "noted"),
    [
        ("serve", {}, {}, ""),
        ("serve", {"engine": {"max_num_seqs": 8}}, {"engine": {**ENGINE, "max_num_seqs": 8}}, ""),  # it wins
        ("serve plan", {}, {"replicas": {}}, "left open"),  # for a rate the layout is looked for
        ("serve policies", {}, {}, ""),
        ("serve scale", {"tpot": 0.05}, {}, ""),
        (
            "serve spot", {"machines": "m.csv"},
            {"engine": {"engine": "vllm", "max_model_len": 32768}, "replicas": None}, "max_num_seqs",
        ),
    ],
)  # fmt: skip
def test_a_command_line_says_the_parts_that_a_verb_asks(
    verb: str, more: dict[str, Any], said: dict[str, Any], noted: str
) -> None:
    data, notes = spelled_out({**ASKED, **more, "question": verb, "model": LINE})
    by_hand = {name: part for name, part in {**BY_HAND, **said}.items() if part is not None}
    assert read(data) == read({**ASKED, **more, "question": verb, **by_hand})
    assert noted in " ".join(notes)
    assert bool(notes) == bool(noted)


def test_pools_apart_are_no_replicas_of_both(tmp_path: Path) -> None:
    (tmp_path / "prefill.sh").write_text(LINE)
    (tmp_path / "decode.sh").write_text(LINE)
    with pytest.raises(SpecError, match="pools apart"):
        spelled_out({**ASKED, "question": "serve policies", "model": str(tmp_path)})


def test_python_and_tools_take_a_command_line(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"docker run --gpus all vllm/vllm-openai:v0.20.0 {LINE[11:]} --new-flag 3")
    shown = answered("serve", {**ASKED, "model": "serve.sh"}, tmp_path)
    assert shown["engine"] == "vllm 0.20.0"
    assert shown["max_model_len"] == 32768
    assert shown["warnings"] == ["not modelled and ignored: --new-flag 3"]
    asked: Any = windtunnel.ask({**ASKED, "question": "serve", "model": str(tmp_path / "serve.sh")})
    assert asked.warnings == tuple(shown["warnings"])
    assert asked.result.to_dict()["tpot_s"] == shown["tpot_s"]


def test_a_file_of_the_folder_names_no_model_of_another(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve /etc/other --tensor-parallel-size 2")
    with pytest.raises(SpecError, match="name a file of the folder"):
        answered("serve", {**ASKED, "model": "serve.sh"}, tmp_path)


def test_a_line_is_told_with_its_volumes_and_none_of_them_is_read(tmp_path: Path) -> None:
    start = "docker run -v /root/.cache/huggingface:/root/.cache/huggingface vllm/vllm-openai:v0.20.0 "
    assert answered("serve", {**ASKED, "model": start + LINE[11:]}, tmp_path)["engine"] == "vllm 0.20.0"
    for model in ("/etc/other", '"/e"tc/other', "${A:-/etc}/other", '"."./other'):
        with pytest.raises(SpecError, match="name a file of the folder"):
            answered("serve", {**ASKED, "model": start + model}, tmp_path)


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("lmsysorg/sglang:v0.5.6-cu126 python3 -m sglang.launch_server --model-path", "sglang-0.5.6"),
        ("lmsysorg/sglang:v0.5.9 sglang serve --model-path", "sglang-0.5.9"),
        ("localhost:5000/vllm/vllm-openai:v0.12.0 vllm serve", "vllm-0.12.0"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6 trtllm-serve", "trtllm-1.2.0rc6"),
        ("vllm/vllm-openai@sha256:0123abcd --model", "vllm/vllm-openai@sha256:0123abcd"),
        ("-v vllm/cache:/a/vllm:b vllm/vllm-openai:v0.20.0 --model", "vllm-0.20.0"),
    ],
)
def test_the_image_of_docker_run_says_the_release(image: str, engine: str) -> None:
    assert parts_of(f"docker run --gpus all {image} gpt2 --port 8000").engine["engine"] == engine


@pytest.mark.parametrize(
    "text",
    [
        "kind: DynamoGraphDeployment\nspec: [1]",
        "kind: DynamoGraphDeployment\nspec: {services: [1]}",
        "kind: Deployment\nspec: {template: {spec: {containers: [3]}}}",
        "kind: Deployment\nspec: {replicas: two, template: {spec: {containers: [{name: modelserver}]}}}",
    ],
)
def test_a_manifest_that_has_another_shape_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "dynamo.yaml").write_text(f"apiVersion: v1\n{text}\n")
    with pytest.raises(SpecError, match="is no manifest as Kubernetes takes them"):
        spelled_out({**ASKED, "question": "serve", "model": str(tmp_path)})


@pytest.mark.parametrize(
    "flag",
    ["--language-model-only", "--limit-mm-per-prompt.image 0", """--limit-mm-per-prompt '{"image": 0, "video": 0}'"""],
)
def test_a_line_without_images_has_no_vision_tower(flag: str) -> None:
    parts = parts_of(f"vllm serve Qwen/Qwen3.5-27B {flag} --max-num-seqs 8")
    assert (parts.engine["images"], parts.engine["max_num_seqs"], parts.notes) == (False, 8, ())
    assert "images" not in parts_of("""vllm serve Qwen/Qwen3.5-27B --limit-mm-per-prompt '{"image": 2}'""").engine
    assert "--language-model-only" in flags_of(Deployment(images=False))
    sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3.5-27B"
    assert parts_of(f"{sglang} --language-only").engine["images"] is False


def test_attention_ranks_of_sglang_share_its_chunk_and_its_limit_of_requests() -> None:
    """_handle_data_parallelism and _handle_a2a_moe of its server_args.py."""
    line = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --max-running-requests 256"
    limits = "--chunked-prefill-size 32768 --moe-a2a-backend deepep"
    parts = parts_of(f"{line} {limits} --dp 8 --enable-dp-attention")
    assert (parts.engine["max_num_seqs"], parts.engine["max_num_batched_tokens"]) == (32, 4096)
    assert (parts.replicas["dp"], parts.replicas["ep"]) == (8, 8)
    alone = parts_of(f"{line} {limits}")
    assert (alone.engine["max_num_seqs"], alone.engine["max_num_batched_tokens"]) == (256, 32768)
    assert (alone.replicas["ep"], parts_of(f"{line} --moe-a2a-backend none").replicas.get("ep")) == (8, None)


@pytest.mark.parametrize(("engine", "tokens"), [("sglang", 16_384), ("vllm", 8 * 8192)])
def test_the_chunk_that_nobody_gives_is_shared_where_the_engine_shares_it(engine: str, tokens: int) -> None:
    assert rules_of(load_engine(engine), Deployment(engine=engine, attn_dp=8), 1000).token_budget == tokens
    stated = Deployment(engine=engine, attn_dp=8, max_num_batched_tokens=4096)
    assert rules_of(load_engine(engine), stated, 1000).token_budget == 8 * 4096  # what is given is of each rank


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--max-num-seqs -5", "--max-num-seqs", "'-5'"),
        ("--max-num-seqs=0", "--max-num-seqs", "'0'"),
        ("-tp -2", "--tp", "'-2'"),
        ("--gpu-memory-utilization -0.5", "--gpu-memory-utilization", "'-0.5'"),
        ("--cpu-offload-gb -3", "--cpu-offload-gb", "'-3'"),
        ("--max-num-batched-tokens -1", "--max-num-batched-tokens", "'-1'"),
        ("""--speculative-config '{"num_speculative_tokens": -3}'""", "num_speculative_tokens", "'-3'"),
    ],
)
def test_a_negative_value_is_told_with_its_flag(flags: str, field: str, value: str) -> None:
    with pytest.raises(SpecError, match=rf"{field} = {value}: give ") as caught:
        parts_of(f"vllm serve Qwen/Qwen3-8B {flags} --port 80")
    assert "''" not in str(caught.value)


def test_a_flag_without_its_value_is_told_so() -> None:
    with pytest.raises(SpecError, match="--max-num-seqs is not given: give a whole number"):
        parts_of("vllm serve Qwen/Qwen3-8B --max-num-seqs --port 80")


def test_minus_one_means_what_the_engine_says() -> None:
    assert "max_model_len" not in parts_of("vllm serve Qwen/Qwen3-8B --max-model-len -1 --seed -1").engine
    line = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --chunked-prefill-size -1"
    assert parts_of(line).engine["chunked_prefill"] is False


@pytest.mark.parametrize(("word", "tokens"), [("32k", 32_000), ("32K", 32_768), ("1M", 1_048_576), ("4096", 4_096)])
def test_lengths_are_short_as_vllm_reads_them(word: str, tokens: int) -> None:
    assert parts_of(f"vllm serve Qwen/Qwen3-8B --max-model-len {word}").engine["max_model_len"] == tokens
    with pytest.raises(SpecError, match="--max-num-seqs = '32k'"):
        parts_of("vllm serve Qwen/Qwen3-8B --max-num-seqs 32k")
