"""Published deployments: rows that leave workers and drafting open are read by them."""

from __future__ import annotations

import csv

import pytest

from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.predict import predicted
from windtunnel.evidence.accuracy.serving.recipes import FILE, layout_of, recipes_of, taken_by, when
from windtunnel.evidence.accuracy.serving.rows import ServingRow, engine_named, gpu_of
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine, release_on

SIDES = {f"{side}_{name}": value for side in ("prefill", "decode") for name, value in (("tp", "8"), ("moe_ep", "8"))}
OPEN = {
    "id": "a",
    "spec_level": "B",
    "model": "deepseek-ai/DeepSeek-R1",
    "model_family": "deepseek-v3",
    "gpu": "h200_sxm",
    "engine": "trtllm",
    "engine_version": "0.8.1.post1",
    "measured": "2026-03-23",
    "precision": "fp8",
    "mode": "disagg",
    "gemm_quant": "fp8",
    "moe_quant": "fp8_block",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "144",
    "prompts_per_slot": "4",
    **SIDES,
}


def test_every_line_names_a_deployment_that_can_be_built() -> None:
    with FILE.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) > 300
    for line in lines:
        for side in ("prefill", "decode"):
            workers, _, name = line[side].partition(" x ")
            if workers:
                fields = layout_of(name)
                assert int(workers) >= 1
                assert (
                    fields["moe_tp"] * fields["moe_ep"] == fields["tp"] * fields["attn_dp"] == Deployment(**fields).gpus
                )
        assert (int(line["drafted"]) > 0) == bool(line["accepted"])
        assert all(int(one) > 0 for one in line["concurrency"].split())


def test_a_concurrency_of_one_list_gives_its_workers() -> None:
    (one,) = recipes_of(ServingRow({**OPEN, "concurrency": "36"}))
    assert (one.drafted, one.prefill_workers, one.decode_workers, one.decode) == (0, 1, 9, "tep8")
    answer = predicted(ServingRow({**OPEN, "concurrency": "36"}))
    assert answer.status == "assumed"
    assert "9 decode tp8 ep8" in answer.reason
    told = {"prefill_num_workers": "1", "decode_num_workers": "9", "prefill_tp": "1", "prefill_attn_dp": "8"}
    stated = predicted(ServingRow({**OPEN, **told, "model": "deepseek-ai/DeepSeek-V3", "concurrency": "36"}))
    assert answer.tpot_s == pytest.approx(stated.tpot_s)


def test_of_two_lists_that_fit_the_one_another_row_has_taken_is_left_out() -> None:
    row = ServingRow(OPEN)
    both = recipes_of(row)
    assert sorted(one.drafted for one in both) == [0, 3]
    told = {
        "spec_level": "A",
        "prefill_num_workers": "1",
        "decode_num_workers": "9",
        "model": "deepseek-ai/DeepSeek-V3",
    }
    other = ServingRow({**OPEN, **told, "id": "b"})
    taken = taken_by([row, other])
    assert [one.drafted for one in recipes_of(row, taken[when(row)])] == [3]
    later = ServingRow({**OPEN, "measured": "2026-04-01"})
    assert when(later) not in taken


def test_what_ran_on_the_date_counts_and_nothing_drafted_before_it_was_added() -> None:
    b200 = {**OPEN, "gpu": "b200_sxm", "engine": "sglang", "engine_version": "0.5.8.post1", "concurrency": "16"}
    assert {one.drafted for one in recipes_of(ServingRow({**b200, "measured": "2026-02-07"}))} == {0}
    assert {one.drafted for one in recipes_of(ServingRow({**b200, "measured": "2026-02-13"}))} == {2}
    assert {one.drafted for one in recipes_of(ServingRow({**b200, "measured": "2026-03-18"}))} == {0, 2}
    assert {one.drafted for one in recipes_of(ServingRow({**OPEN, "measured": "2025-12-31"}))} == {0}


def test_a_row_without_a_release_is_read_as_what_was_out() -> None:
    assert release_on("sglang", "2025-11-10") == "0.5"
    assert release_on("sglang", "2026-03-25") == "0.5.9"
    assert release_on("vllm", "2025-11-10") == ""
    row = {**OPEN, "engine": "sglang", "engine_version": "", "measured": "2025-11-10"}
    assert engine_named(ServingRow(row)) == "sglang-0.5"
    assert load_engine("sglang-0.5.1").cold_start_s > 0.0 == load_engine("sglang-0.5.9").cold_start_s


def test_compilation_is_in_the_first_tokens_only_where_nobody_warmed_up() -> None:
    row = {key: value for key, value in OPEN.items() if key not in SIDES}
    row |= {"mode": "agg", "gpu": "b200_sxm", "engine": "sglang", "engine_version": "0.5.5", "concurrency": "32"}
    row |= {"tp": "8", "moe_ep": "8", "prompts_per_slot": "5", "model": "deepseek-ai/DeepSeek-V3"}
    warm, cold = (predicted(ServingRow({**row, "warmups_per_slot": n})) for n in ("2", "0"))
    assert cold.ttft_s - warm.ttft_s == pytest.approx(load_engine("sglang-0.5.5").cold_start_s / 5)
    assert cold.tpot_s == warm.tpot_s


def test_checking_drafts_never_costs_less_than_a_token() -> None:
    """MLA with attention repeated works on every drafted token; a step is longer, a token at most as long."""
    model, cluster = model_named("deepseek-v3"), gpu_of("h200_sxm", 8)
    layers = engine_of(model, cluster, Deployment(engine="sglang", weights="fp8", **layout_of("dep8"))).times.prices
    one, four = layers.decode_surface(1), layers.decode_surface(4)
    for sequences in (1.0, 16.0, 64.0):
        assert one(sequences, 4096.0) < four(sequences, 4096.0) <= 4.5 * one(sequences, 4096.0)
