"""What a user asks to be mended, and the page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kineto_jobs
import pytest
from tables import job, write

from windtunnel.errors import UserError
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.explanation import explanation_document
from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Explanation
from windtunnel.studies.traces.trace import Trace
from windtunnel.views import Heat


def slow_worker(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
    return 0.3 if (replica, stage) == (2, 1) else 0.1


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    rows = job(2, 4, 4, seconds=slow_worker)
    rows = [{**row, "rank": 100 + row["stage"] * 4 + row["dp_rank"]} for row in rows]
    return read_trace([write(rows, tmp_path_factory.mktemp("table") / "ops.parquet")])


def asked(trace: Trace, *without: str) -> Any:
    found = explain(trace, without=without)
    assert found.asked is not None
    assert found.asked.parts == without
    assert found.asked.step_time_ns + found.asked.saved_ns == pytest.approx(found.replayed_ns, abs=2)
    return found.asked


def test_mending_the_slow_worker_gives_everything_back_by_any_name(trace: Trace) -> None:
    for words in ("worker=106", "rank=106", "worker=replica 2 stage 1", " worker = 106 "):
        assert asked(trace, words).share == pytest.approx(1.0, abs=0.05)
    assert asked(trace, "worker=101").share == pytest.approx(0.0, abs=0.02)


def test_a_part_asked_for_is_the_part_of_the_tables(trace: Trace) -> None:
    found = explain(trace)
    for field, parts in (("stage", found.by_stage), ("replica", found.by_replica), ("op", found.by_kind)):
        for part in parts:
            assert asked(trace, f"{field}={part.name}").saved_ns == pytest.approx(part.saved_ns, abs=1)


def test_several_parts_are_mended_together(trace: Trace) -> None:
    both = asked(trace, "op=forward-compute", "op=backward-compute")
    assert both.share == pytest.approx(1.0, abs=0.02)
    assert both.slowdown == pytest.approx(1.0, abs=0.01)
    assert both.n_ops == sum(asked(trace, f"op={way}-compute").n_ops for way in ("forward", "backward"))
    everything = asked(trace, "stage=0", "stage=1")
    assert everything.slowdown == pytest.approx(1.0, rel=1e-9)


def test_single_ops_and_steps_have_names_too(trace: Trace) -> None:
    assert asked(trace, "op=forward-send").n_ops < asked(trace, "op=forward-pp-comm").n_ops
    assert asked(trace, "op=forward-compute 0").n_ops == 2 * 4 * 2
    assert asked(trace, "step=7").saved_ns == pytest.approx(asked(trace, "step=9").saved_ns, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "without = ''"),
        ("stage", "name a part"),
        ("stage=", "name a part"),
        ("gpu=3", "name a part"),
        ("stage=7", "unknown stage '7'"),
        ("worker=7", "unknown worker '7'"),
        ("op=coffee", "unknown op 'coffee'"),
        ("step=8", "unknown step '8'"),
    ],
)
def test_what_is_not_there_is_refused(trace: Trace, words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        explain(trace, without=[words])


def test_traces_without_stages_say_so(tmp_path: Path) -> None:
    ranks = read_trace(kineto_jobs.write(kineto_jobs.job(slow={2: 1.5}), tmp_path))
    assert asked(ranks, "worker=2").share == pytest.approx(1.0, abs=0.05)
    assert asked(ranks, "op=gemm").share == pytest.approx(1.0, abs=0.05)
    for words in ("stage=0", "replica=0", "step=5"):
        with pytest.raises(UserError, match="this trace"):
            explain(ranks, without=[words])


def test_the_page_says_what_the_explanation_says(trace: Trace) -> None:
    found = explain(trace, ["a <b>.parquet"], ["stage=1"])
    page = page_of(explanation_document(found))
    assert page == page_of(explanation_document(found))
    assert "<b>.parquet" not in page
    assert f"{found.slowdown:.3f}" in page
    heat = next(view for view in explanation_document(found).details if isinstance(view, Heat))
    assert heat.columns.count * heat.rows.count == found.n_workers
    assert (heat.low, heat.high) == (pytest.approx(1.0, abs=0.05), max(found.worker_slowdown.values()))
    (columns,) = re.findall(r'class="columns s-line-0" d="(.*?)"', page)
    assert columns.count("M") == found.n_steps
    for words in ("By stage", "By replica", "By kind of op", "By worker", " were ideal", "Slowdown by step"):
        assert words in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched


def test_the_page_of_ranks_without_places_lists_them(tmp_path: Path) -> None:
    found: Explanation = explain(read_trace(kineto_jobs.write(kineto_jobs.job(slow={2: 1.5}), tmp_path)))
    page = page_of(explanation_document(found))
    heat = next(view for view in explanation_document(found).details if isinstance(view, Heat))
    assert heat.columns.labels == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "By stage" not in page
    assert "Slowdown by step" not in page
