"""The formula without scheduling: what it says by hand, and where it has nothing to say."""

from __future__ import annotations

import pytest

from windtunnel.evidence.accuracy.serving.naive import naive_times
from windtunnel.evidence.accuracy.serving.predict import Predicted
from windtunnel.evidence.accuracy.serving.report import ServingReport
from windtunnel.evidence.accuracy.serving.rows import ServingRow

ROW = {
    "id": "a",
    "model": "llama-3.1-8b",
    "gpu": "h100_sxm",
    "engine": "vllm",
    "engine_version": "0.12",
    "isl": "1000",
    "osl": "100",
    "concurrency": "1",
    "tp": "1",
}


def test_one_request_is_weights_over_bandwidth_and_a_time_per_layer() -> None:
    found = naive_times(ServingRow(ROW))
    assert found is not None
    cache = 1050 * 2 * 32 * 8 * 128 * 2
    weights = 2 * (8.03e9 - 128256 * 4096)  # without the embedding, which is looked up
    assert found[1] == pytest.approx((weights + cache) / (0.75 * 3.35e12) + 32 * 80e-6, rel=0.01)
    assert found[0] == pytest.approx(2 * 8.03e9 * 1000 / (0.7 * 989e12), rel=0.1)


def test_more_slots_stall_each_other_and_what_is_open_gets_no_answer() -> None:
    alone, many = naive_times(ServingRow(ROW)), naive_times(ServingRow({**ROW, "concurrency": "64"}))
    assert alone is not None
    assert many is not None
    assert many[1] > alone[1]
    assert many[0] > 30 * alone[0]
    assert naive_times(ServingRow({**ROW, "concurrency": ""})) is None
    assert naive_times(ServingRow({**ROW, "mode": "disagg"})) is None
    assert naive_times(ServingRow({**ROW, "model": "no-such-model"})) is None


def test_a_rate_of_fewer_tokens_than_answers_is_none() -> None:
    """Of a table whose tokens are in millions: times are judged, rates are not."""
    fields = {**ROW, "tpot_ms": "20", "samples_per_s": "664.7"}
    said = Predicted("a", 1.0, 0.01, 2e6, 0.005, 0.02, "stable", "predicted", "")
    for tokens, error in (("2.494", None), ("4000000", 0.5)):
        score = ServingReport("", (ServingRow({**fields, "d_output_tokens_per_s": tokens}),), (said,)).overall()
        assert (score.tokens_mean, score.tpot_mean) == (error, 0.5)
