"""`windtunnel serve` and `validate` on served deployments, through the real command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.faces.cli import main

SMALL = ["serve", "llama-3.1-8b", "--cluster", "h100-sxm:2"]
PLAN = ["serve", "plan", *SMALL[1:]]
COLUMNS = (
    "id,source,model,model_family,gpu,engine,engine_version,precision,gemm_quant,"
    "moe_quant,mode,isl,osl,concurrency,tp,pp,attn_dp,moe_tp,"
    "moe_ep,prefill_num_workers,prefill_tp,decode_num_workers,decode_tp,client,prompts_per_slot,length_ratio,ttft_ms,"
    "tpot_ms,d_output_tokens_per_s,duplicate_of"
)
ROWS = f"""{COLUMNS}
a,x,Qwen/Qwen3-32B,qwen3-32b,h100_sxm,vllm,0.12.0,,,,agg,1024,128,8,2,1,1,1,1,,,,,closed,10,0.8,150,16,480,
b,x,meta-llama/Llama-3.1-8B-Instruct,,h200_sxm,sglang,0.5.9,fp8,fp8_block,,disagg,512,64,4,,,,,,1,1,1,1,,,,,,,
c,x,nobody/unheard-of,,h100_sxm,vllm,0.12.0,,,,agg,512,64,4,1,1,1,1,1,,,,,,,,,,,
d,x,Qwen/Qwen3-32B,qwen3-32b,h100_sxm,vllm,0.12.0,,,,agg,1024,128,,2,1,1,1,1,,,,,,,,150,16,,a
"""


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_answer_holds_what_others_build_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(
        capsys,
        *SMALL,
        "--prompt",
        "300",
        "--output",
        "60",
        "--rate",
        "5",
        "--requests",
        "80",
        "--slo",
        "ttft=1s,tpot=50ms",
    )
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        assert set(found[name]) == {"mean", "p50", "p90", "p95", "p99"}
    for name in ("output_tokens_per_s", "requests_per_s", "slo_attainment", "goodput_requests_per_s", "gpu_seconds"):
        assert found[name] > 0
    assert found["regime"] == "stable"
    assert found["finished"] == 80


def test_closed_loop_pools_goodput_page_and_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    closed = _json(capsys, *SMALL, "--prompt", "300", "--output", "30", "--concurrency", "4", "--waves", "3")
    assert closed["requests"] == 12
    words = ["--prompt", "300", "--output", "30", "--requests", "60"]
    pools = _json(capsys, *SMALL, *words, "--rate", "4", "--prefill", "1xtp1", "--decode", "1xtp1")
    assert pools["gpus"] == 2
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    found = _json(
        capsys,
        *PLAN,
        *words,
        "--slo",
        "ttft=200ms,tpot=20ms",
        "--report",
        str(page),
        "--trace",
        str(trace),
    )
    assert found["goodput_requests_per_s"] > 0
    assert found["search"]["rates_tried"] > 3
    text = page.read_text()
    assert "requests/s" in text
    assert "http://" not in text
    assert json.loads(trace.read_text())["traceEvents"]


def test_stamps_of_every_request_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked, answered = tmp_path / "in.csv", tmp_path / "out.csv"
    asked.write_text(
        "request,input_tokens,output_tokens,arrival_ns,prefix_block_ids\n"
        "0,64,5,0,1 2 3 4\n1,64,5,900000000,1 2 3 4\n2,20,1,950000000,7\n"
    )
    found = _json(capsys, *SMALL, "--requests", str(asked), "--requests-out", str(answered))
    assert found["prefix_hit_rate"] > 0
    with open(answered, newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["request"] for line in lines] == ["0", "1", "2"]
    for line in lines:
        times = [float(line[name]) for name in ("queued_s", "scheduled_s", "first_token_s", "last_token_s")]
        assert times == sorted(times)
    cold, warm = (float(line["first_token_s"]) - float(line["queued_s"]) for line in lines[:2])
    assert warm <= cold


def test_measured_kernels_can_be_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    attention, layers = tmp_path / "my_kernels_attention.csv", tmp_path / "my_kernels_layers.csv"
    lines = ["gpu,model,tp,prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for size in (16, 256, 2048):
        lines += [f"H100-SXM,Llama-3.1-8B,1,{size},{past},0,0,{5 + size * 0.02}" for past in (0, 512)]
        lines += [f"H100-SXM,Llama-3.1-8B,1,0,0,{n},{size},{5 + n * size * 0.01}" for n in (1, 64)]
    attention.write_text("\n".join(lines) + "\n")
    rows = ["gpu,model,tp,table,layer,size,time_us,activated_experts"]
    for size in (1, 64, 2048):
        rows += [
            f"H100-SXM,Llama-3.1-8B,1,dense,{name},{size},{20 + size * 0.1}," for name in ("qkv_proj", "layernorm")
        ]
        rows += [f"H100-SXM,Llama-3.1-8B,1,per_sequence,lm_head,{size},300,"]
    layers.write_text("\n".join(rows) + "\n")
    words = [*SMALL, "--prompt", "100", "--output", "20", "--concurrency", "1", "--waves", "2"]
    found = _json(capsys, *words, "--kernels", str(attention))
    assert found["sources"][0] == f"kernels: given by {attention}, timed on H100-SXM"
    slower = [line.replace(",20.1,", ",2000,") for line in rows]
    layers.write_text("\n".join(slower) + "\n")
    other = _json(capsys, *words, "--kernels", str(tmp_path))
    assert other["tpot_s"]["mean"] > 3 * found["tpot_s"]["mean"]


@pytest.mark.parametrize(
    "words",
    [
        [*SMALL, "--prompt", "10", "--output", "5"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--ttft", "fast"],
        [*PLAN, "--prompt", "10", "--output", "5", "--rate", "3"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--tp", "4"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--engine", "nothing"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "-3"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--prefill", "1xtp1"],
        [*SMALL, "--workload", "missing.csv"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--requests", "-5"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--requests", "1e3"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--requests", ""],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--ep", "2"],
        [*SMALL, "--prompt", "10", "--output", "5", "--rate", "3", "--prefill", "1xtp1tp1", "--decode", "1xtp1"],
    ],
)
def test_mistakes_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("windtunnel: error:")
    assert "\n" not in told


def test_requests_that_a_cache_can_never_hold_are_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompt", "300", "--output", "9", "--rate", "3", "--requests", "4", "--num-gpu-blocks", "10"]
    found = _json(capsys, *SMALL, *words)
    assert (found["refused"], found["finished"]) == (4, 0)
    assert not found["feasible"]
    assert found["reason"] == "4 of 4 requests are refused: 300 + 9 tokens exceed the 160 that fit in the KV cache"
    assert main([*SMALL, *words]) == 0
    assert found["reason"] in " ".join(capsys.readouterr().out.split())


def test_what_does_not_fit_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(
        capsys, "serve", "llama-3.1-405b", "--cluster", "h100-sxm:1", "--prompt", "9", "--output", "9", "--rate", "1"
    )
    assert not found["feasible"]
    assert "does not fit" in found["reason"]


def test_validate_answers_every_row_of_a_table_of_deployments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, rows = tmp_path / "table.csv", tmp_path / "rows.csv"
    table.write_text(ROWS)
    found = _json(capsys, "validate", str(table), "--rows", str(rows), "--workers", "1")
    assert found["overall"]["rows"] == 3  # without the repeat
    with open(rows, newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [
        "id",
        "ttft_s",
        "tpot_s",
        "output_tokens_per_s",
        "tpot_p5_s",
        "tpot_p95_s",
        "regime",
        "status",
        "reason",
    ]
    assert [line["status"] for line in lines] == ["predicted", "predicted", "refused", "assumed"]
    assert float(lines[0]["tpot_p5_s"]) < float(lines[0]["tpot_s"]) < float(lines[0]["tpot_p95_s"])
    assert "unheard-of" in lines[2]["reason"]


def test_a_rate_that_a_client_prints_is_of_its_whole_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    columns = "id,source,model,gpu,engine,engine_version,isl,osl,concurrency,tp,prompts_per_slot,length_ratio"
    question = "x,Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,1024,128,16,2,4,0.001"
    rates = {}
    for name in ("d_output_tokens_per_s", "output_tokens_per_s"):
        table, rows = tmp_path / f"{name}.csv", tmp_path / f"{name}-rows.csv"
        table.write_text(f"{columns},{name}\na,{question},500\n")
        found = _json(capsys, "validate", str(table), "--rows", str(rows), "--workers", "1")
        with open(rows, newline="") as file:
            rates[name] = float(next(csv.DictReader(file))["output_tokens_per_s"])
        assert found["overall"]["tokens_mean"] == pytest.approx(abs(rates[name] / 500 - 1), abs=1e-4)
    assert rates["output_tokens_per_s"] < 0.9 * rates["d_output_tokens_per_s"]  # slots fall empty at the end


def test_cells_that_say_nan_are_empty_and_infinite_ones_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, rows = tmp_path / "table.csv", tmp_path / "rows.csv"
    names = "id,model,gpu,engine,engine_version,isl,osl,concurrency,tp,ttft_ms,tpot_ms"
    lines = ["a,llama-3.1-8b,h100-sxm,vllm,main,100,20,2,nan,nan,9", "b,llama-3.1-8b,h100-sxm,vllm,,nan,20,2,,,NaN"]
    lines.append("c,llama-3.1-8b,h100-sxm,vllm,,100,20,-2,,,9")
    table.write_text("\n".join([names, *lines, ""]))
    found = _json(capsys, "validate", str(table), "--rows", str(rows), "--workers", "1")
    with open(rows, newline="") as file:
        assert [line["status"] for line in csv.DictReader(file)] == ["predicted", "assumed", "assumed"]
    assert found["overall"]["rows"] == 3
    table.write_text(f"{names}\na,llama-3.1-8b,h100-sxm,vllm,,inf,20,2,,,9\n")
    assert main(["validate", str(table), "--rows", str(rows), "--workers", "1"]) == 2
    assert "isl" in capsys.readouterr().err


def test_a_row_of_deployments_without_lengths_takes_a_length_and_a_cell_of_letters_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, rows = tmp_path / "table.csv", tmp_path / "rows.csv"
    names = "id,model,gpu,engine,isl,osl,concurrency,tpot_ms"
    table.write_text(f"{names}\na,llama-3.1-8b,h100-sxm,vllm,,200,8,9\nb,llama-3.1-8b,h100-sxm,vllm,100,20,2,9\n")
    assert main(["validate", str(table), "--rows", str(rows), "--workers", "1"]) == 0
    with open(rows, newline="") as file:
        told = [(line["status"], line["reason"].partition(":")[0]) for line in csv.DictReader(file)]
    assert told == [("assumed", "1,024 tokens for isl"), ("predicted", "")]
    table.write_text(f"{names}\na,llama-3.1-8b,h100-sxm,vllm,100,200,x,9\n")
    capsys.readouterr()
    assert main(["validate", str(table)]) == 2
    assert f"{table}: line 2: concurrency = 'x'" in capsys.readouterr().err


def test_drafts_that_nobody_says_are_kept_are_taken_to_be_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--prompt", "300", "--output", "30", "--rate", "1", "--requests", "5"]
    line = "vllm serve --enforce-eager llama-3.1-8b --speculative-config '{\"num_speculative_tokens\": 3}'"
    found = _json(capsys, "serve", line, "--cluster", "h100-sxm:2", *words)
    assert [text.split(":")[0] for text in found["warnings"]] == [
        "not modelled and ignored", "no --acceptance is given",
    ]  # fmt: skip
    drafting = [*SMALL, *words, "--speculative-tokens", "3", "--acceptance"]
    given = {kept: _json(capsys, *drafting, kept) for kept in ("0.6", "0")}
    assert given["0.6"]["tpot_s"] == found["tpot_s"]
    assert not given["0"]["warnings"]
    assert given["0"]["tpot_s"]["mean"] > found["tpot_s"]["mean"]
