"""Rows that leave workers and drafting open: what is assumed is said, and the band holds both readings."""

from __future__ import annotations

import pytest

from windtunnel.evidence.accuracy.serving.predict import decode_workers, predicted
from windtunnel.evidence.accuracy.serving.rows import ServingRow

OPEN = {
    "id": "a",
    "model": "deepseek-ai/DeepSeek-R1",
    "gpu": "h200_sxm",
    "engine": "trtllm",
    "engine_version": "0.8.1.post1",
    "mode": "disagg",
    "gemm_quant": "fp8",
    "moe_quant": "fp8",
    "isl": "1024",
    "osl": "256",
    "concurrency": "28",
    "prompts_per_slot": "4",
    **{f"{side}_{name}": value for side in ("prefill", "decode") for name, value in (("tp", "8"), ("moe_ep", "8"))},
}


def test_an_odd_factor_of_the_load_is_the_number_of_decode_workers() -> None:
    assert [decode_workers(c, "trtllm") for c in (28, 88, 896, 1152, 36, 160)] == [7, 11, 7, 9, 9, 5]
    assert decode_workers(64, "trtllm") == 4
    assert decode_workers(64, "sglang") == 2
    assert decode_workers(4096, "sglang") == 8
    assert decode_workers(1, "trtllm") == 1


def test_drafting_that_is_not_stated_lies_inside_the_band() -> None:
    one = predicted(ServingRow(OPEN))
    assert one.status == "assumed"
    assert "7 decode tp8 ep8" in one.reason
    assert "drafting is not stated" in one.reason
    stated = predicted(ServingRow({**OPEN, "prefill_num_workers": "1", "decode_num_workers": "7"}))
    assert stated.status == "predicted"
    assert one.tpot_p5_s < one.tpot_s < stated.tpot_s == pytest.approx(one.tpot_p95_s, rel=0.4)
    assert stated.tpot_s < one.tpot_p95_s


def test_a_model_that_barely_fits_had_the_room_it_ran_with() -> None:
    """DeepSeek-V3 in 8 bits on four B200: no room at the usual share of memory, and it was really run so."""
    row = {
        **{key: value for key, value in OPEN.items() if not key.startswith(("prefill", "decode"))},
        "mode": "agg",
        "gpu": "b200_sxm",
        "engine": "sglang",
        "engine_version": "0.5.9",
        "tp": "4",
        "moe_tp": "4",
        "isl": "8192",
        "concurrency": "16",
    }
    one = predicted(ServingRow(row))
    assert "98% of memory" in one.reason
    assert one.ttft_s < 5.0  # all sixteen run together: none waits for a place


def test_slots_beyond_what_the_cache_holds_raise_no_rate_of_a_full_batch() -> None:
    """MLPerf, offline; the KV cache's format is not stated either: 8 bits, as in all rows that state it."""
    row = {
        "id": "a",
        "kind": "mlperf_offline",
        "model": "llama-2-70b",
        "gpu": "h100_sxm",
        "gpus": "2",
        "engine": "vllm",
        "engine_version": "0.12",
        "gemm_quant": "fp8",
        "mode": "agg",
        "tp": "2",
    }
    few, many = (predicted(ServingRow({**row, "max_num_seqs": seqs})) for seqs in ("800", "1600"))
    assert "8 bits for the KV cache" in few.reason
    assert many.output_tokens_per_s == pytest.approx(few.output_tokens_per_s, rel=0.02)
