"""`serve --bench FILE`: what a load generator measured, as the question of its run and what it is held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windtunnel.errors import UserError
from windtunnel.questions import read
from windtunnel.questions.asked.serve.parts import ClosedLoad, Lengths, OpenLoad, Trace, TraceTimes
from windtunnel.studies.serving.study import answer
from windtunnel.studies.serving.workload.benchmark import read_benchmark

SAVED = {
    "completed": 4, "total_input_tokens": 800, "total_output_tokens": 120, "max_concurrency": 2, "request_rate": "inf",
    "request_throughput": 5.0, "output_throughput": 150.0, "mean_ttft_ms": 30.0, "mean_tpot_ms": 9.0,
}  # fmt: skip
PRINTED = """
============ Serving Benchmark Result ============
Successful requests:                     4
Maximum request concurrency:             2
Total input tokens:                      800
Total generated tokens:                  120
Request throughput (req/s):              5.00
Output token throughput (tok/s):         150.00
Mean TTFT (ms):                          30.00
Mean TPOT (ms):                          9.00
"""
AIPERF = {
    "request_count": {"avg": 4}, "input_sequence_length": {"avg": 200.0}, "output_sequence_length": {"avg": 30.0},
    "time_to_first_token": {"unit": "s", "avg": 0.030}, "inter_token_latency": {"unit": "ms", "avg": 9.0},
    "output_token_throughput": {"avg": 150.0}, "input_config": {"loadgen": {"concurrency": 2}},
}  # fmt: skip
GENAI_PERF = {**AIPERF, "inter_token_latency": {"unit": "ns", "avg": 9e6}, "input_config": {"concurrency": 2}}
STIMULUS = {**AIPERF, "input_config": {"perf_analyzer": {"stimulus": {"concurrency": 2}}}}
ASKED = {"question": "serve", "model": "qwen3-8b", "cluster": "h100-sxm:1"}


def written(folder: Path, what: object) -> Path:
    path = folder / "bench.json"
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    return path


@pytest.mark.parametrize(
    "what",
    [
        SAVED,
        PRINTED,
        AIPERF,
        GENAI_PERF,
        STIMULUS,
        '{"completed": 1}\n' + json.dumps(SAVED) + "\n",
        PRINTED.replace("Maximum", "Max"),
    ],
    ids=[
        "json",
        "printed",
        "aiperf",
        "genai-perf",
        "genai-perf with settings in parts",
        "the last of json lines",
        "sglang",
    ],
)
def test_all_forms_say_the_same(what: object, tmp_path: Path) -> None:
    bench = read_benchmark(written(tmp_path, what))
    assert (bench.prompts.tolist(), bench.outputs.tolist(), bench.concurrency) == ([200] * 4, [30] * 4, 2)
    assert (bench.tpot_s, bench.ttft_s, bench.output_tokens_per_s) == pytest.approx((0.009, 0.030, 150.0))


def test_each_request_has_its_lengths_and_one_that_failed_is_none(tmp_path: Path) -> None:
    lists = {"input_lens": [5, 7, 9], "output_lens": [1, 0, 4]}
    bench = read_benchmark(written(tmp_path, {**SAVED, **lists}))
    assert (bench.prompts.tolist(), bench.outputs.tolist()) == ([5, 9], [1, 4])


@pytest.mark.parametrize(
    ("load", "concurrency", "rate"),
    [
        ({"max_concurrency": None}, None, None),  # all at once
        ({"request_rate": 8.0}, 2, None),  # 5 a second came of 8: the limit paces
        ({"request_rate": 5.1}, None, 5.1),
        ({"request_rate": 5.0, "max_concurrency": None, "burstiness": 4.0}, None, 5.0),
    ],
)
def test_what_paces_requests(load: dict[str, Any], concurrency: int | None, rate: float | None, tmp_path: Path) -> None:
    bench = read_benchmark(written(tmp_path, {**SAVED, "completed": 400, "total_input_tokens": 80_000, **load}))
    workload = bench.workload(Lengths(), TraceTimes(), 0)
    assert workload.concurrency == concurrency
    if concurrency is None:
        assert workload.arrival_ns is not None
        gaps = np.diff(workload.arrival_ns) * 1e-9
        assert gaps.mean() == pytest.approx(1 / rate if rate else 0.0, rel=0.15)
        if "burstiness" in load:  # the shape of the Gamma law
            assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.15)


def test_what_the_question_states_wins(tmp_path: Path) -> None:
    bench = read_benchmark(written(tmp_path, SAVED))
    made = bench.workload(Lengths(prompt=50, requests=7), OpenLoad(rate=2.0, cv=0.0), 0)
    assert (made.input_tokens.tolist(), made.output_tokens.tolist()) == ([50] * 7, [30] * 7)
    assert np.diff(made.arrival_ns).tolist() == [500_000_000] * 6  # type: ignore[arg-type]
    assert bench.workload(Lengths(), ClosedLoad(concurrency=3), 0).concurrency == 3
    with pytest.raises(UserError, match="one of the two"):
        bench.workload(Trace(workload="t.csv"), TraceTimes(), 0)


def test_its_figures_are_held_against_the_prediction(tmp_path: Path) -> None:
    alike = answer(
        read({**ASKED, "requests": {"prompt": 200, "output": 30, "requests": 4}, "load": {"concurrency": 2}})
    )
    benchmarked = answer(read({**ASKED, "bench": str(written(tmp_path, SAVED))}))
    assert benchmarked.result.tpot.mean == alike.result.tpot.mean
    assert [(figure.of, figure.measured) for figure in benchmarked.measured] == [
        ("tpot_s.mean", 0.009), ("ttft_s.mean", 0.030), ("output_tokens_per_s", 150.0)
    ]  # fmt: skip
    slow = answer(read({**ASKED, "bench": str(written(tmp_path, {**SAVED, "mean_ttft_ms": 3e4, "mean_tpot_ms": 1.0}))}))
    assert [figure.verdict for figure in slow.measured][:2] == ["faster", "slower"]
    kept_up = {**SAVED, "max_concurrency": None, "request_rate": 5.0}
    rated = answer(read({**ASKED, "bench": str(written(tmp_path, kept_up))}))
    assert [figure.of for figure in rated.measured] == ["tpot_s.mean", "ttft_s.mean"]  # the rate is what was asked
    assert not rated.warnings
    at_once = answer(read({**ASKED, "bench": str(written(tmp_path, {**SAVED, "max_concurrency": None}))}))
    assert [figure.of for figure in at_once.measured] == ["tpot_s.mean", "ttft_s.mean", "output_tokens_per_s"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no result", "is no result of a benchmark"),
        ([1, 2], "is no result of a benchmark"),
        ({"completed": 0}, "completed requests"),
        ({"completed": 5}, "how many tokens"),
        ({**SAVED, "mean_tpot_ms": "fast"}, "mean_tpot_ms is 'fast'"),
        ({**SAVED, "mean_tpot_ms": -1}, "mean_tpot_ms is '-1'"),
        ({**SAVED, "input_lens": [1.5], "output_lens": [1]}, "input_lens is no list"),
        ({**SAVED, "input_lens": [10**30], "output_lens": [1]}, "input_lens is no list"),
        ({**SAVED, "mean_tpot_ms": 10**400}, "mean_tpot_ms is"),
        ({**SAVED, "total_input_tokens": 1e300}, "total_input_tokens is"),
        ({**SAVED, "input_lens": [1, 2], "output_lens": [1]}, "has 2 input_lens and 1 output_lens"),
        ({**SAVED, "input_lens": [1], "output_lens": [0]}, "no answered request"),
        ({**SAVED, "max_concurrency": 0.5}, "bench.json: max_concurrency is '0.5'"),
        ({**SAVED, "max_concurrency": None, "request_rate": 0}, "bench.json: rate = 0.0"),
        (
            PRINTED.replace("Maximum request concurrency:             2", ""),
            "bench.json: rate is not given: nor is a concurrency: add --rate R or --concurrency C",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_error(what: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        answer(read({**ASKED, "bench": str(written(tmp_path, what))}))
