"""The disturbed part of console and page: who is named, what adds up, and that 100,000 ranks stay small."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.prediction.categories import label_of
from windtunnel.faces.report.prediction.disturbed import disturbed_views
from windtunnel.faces.report.prediction.ranks import Ranks, foremost, path_words
from windtunnel.faces.report.prediction.views import limit_views, prediction_document
from windtunnel.physics.step.result import Limit, PathPart, RankClass, Result
from windtunnel.views import Heat, Lanes, Number
from windtunnel.views.text import text_of


def printed(result: Result, width: int = 90) -> str:
    file = io.StringIO()
    print_document(prediction_document(result), Console(file=file, width=width), full=True)
    return file.getvalue()


def heats(result: Result) -> list[Heat]:
    return [view for view in disturbed_views(result)[1] if isinstance(view, Heat)]


def test_the_console_names_the_slow_rank_and_the_way_of_the_path(disturbed: Result) -> None:
    text = printed(disturbed)
    assert "8,192 ranks simulated as 32 programs; 33 kinds of ranks can be told apart" in " ".join(text.split())
    assert "GPU 1037 (gpu=1037:1.15)" in text
    assert re.search(r"gpu=1037:1\.15 +\+7\.2 % +−6\.2 % +−5\.0 % – −7\.1 % +stage 2, replica 0", text)
    assert re.search(r"pause=1%:50ms .*%$", text, re.MULTILINE)  # nowhere in particular
    assert "stage 0 → 15 → 2 of replica 0" in text
    lines = text[text.index("waiting in") :].splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["pp 1 to 0", "tp x cp of stage 2", "dp of stage 0"]


def test_every_rank_is_of_its_class(disturbed: Result) -> None:
    known = disturbed.disturbed
    assert known is not None
    for rank, stage, slow in ((0, 0, ()), (15, 0, ()), (16, 0, ()), (1037, 2, ("gpu=1037:1.15",)), (8191, 15, ())):
        found = Ranks(known).class_of(rank)
        assert found is not None
        assert (found.stage, found.disturbed_by) == (stage, slow)
    assert Ranks(known).class_of(8192) is Ranks(known).class_of(-1) is None
    assert Ranks(known).words(16) == "GPU 16"


@pytest.mark.parametrize(
    ("stages", "words"),
    [([3], "stage 3 of"), ([0, 1, 2], "stage 0 → 2 of"), ([0, 2, 1, 1, 3, 0], "stage 0 → 2 → 1 → 3 → 0 of")],
)
def test_a_path_is_told_by_its_turns(disturbed: Result, stages: list[int], words: str) -> None:
    known = disturbed.disturbed
    assert known is not None
    path = tuple(PathPart(stage * 512, stage, 0, "forward", i, i + 1) for i, stage in enumerate(stages))
    assert path_words(replace(known, critical_path=path), Ranks(known)).startswith(words)
    long = tuple(PathPart(i % 2 * 512, i % 2, i, "forward", i, i + 1) for i in range(100))
    assert "…" in path_words(replace(known, critical_path=long), Ranks(known))
    assert "of 100 replicas" in path_words(replace(known, critical_path=long), Ranks(known))


def test_foremost_takes_some_of_every_kind_and_none_that_waits_for_nobody(disturbed: Result) -> None:
    known = disturbed.disturbed
    assert known is not None
    names = [one.communicator for one in foremost(known.waiting, 3)]
    assert names == ["pp 1 to 0", "tp x cp of stage 2", "dp of stage 0", "dp of stage 1", "dp of stage 2"]


def test_the_page_holds_every_rank_as_runs(disturbed: Result) -> None:
    text = page_of(prediction_document(disturbed))
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert data is not None
    document = json.loads(data[1])
    by_host, by_stage = document["every-rank-by-host"], document["every-rank-by-replica-and-stage"]
    assert sum(by_host["runs"][1::2]) == disturbed.n_gpus == by_host["columns"] * by_host["rows"]
    assert (by_stage["columns"], by_stage["rows"]) == (32, 16)
    known = disturbed.disturbed
    assert known is not None
    total = known.rank_classes[0].busy_ns + known.rank_classes[0].waiting_ns
    assert by_host["values"] == pytest.approx(sorted({one.busy_ns / total for one in known.rank_classes}), rel=1e-5)
    assert by_host["marked"][::2] == [1037]
    assert by_stage["marked"][::2] == [2]  # replica 0, stage 2


def test_the_whole_path_is_drawn_in_its_lanes(disturbed: Result) -> None:
    known = disturbed.disturbed
    assert known is not None
    path = next(view for view in disturbed_views(disturbed)[1] if isinstance(view, Lanes))
    spans = sorted((span.begin_s, span.end_s, lane.name) for lane in path.lanes for span in lane.spans)
    assert spans == [(part.start_ns / 1e9, part.end_ns / 1e9, f"stage {part.stage}") for part in known.critical_path]
    assert sum(span.marked for lane in path.lanes for span in lane.spans) == 2
    assert "and 13 more" in printed(disturbed)


def test_without_ranks_told_apart_there_is_no_map(result: Result, disturbed: Result) -> None:
    assert "disturbances cost" not in printed(result)
    known = disturbed.disturbed
    assert known is not None
    bare = replace(disturbed, disturbed=replace(known, rank_classes=(), class_runs=(), critical_path=(), waiting=()))
    assert "655.4 GPUs  worth of the step" in printed(bare)
    assert disturbed_views(bare)[1] == []
    assert "Critical path" not in printed(bare)
    assert "kinds of ranks" not in printed(bare)


def test_a_plan_that_does_not_say_its_degrees_still_has_hosts(disturbed: Result) -> None:
    strange = replace(disturbed, spec={"plan": "none", "cluster": {"gpus_per_node": "many"}})
    assert [(heat.columns.count, heat.rows.count) for heat in heats(strange)] == [(1024, 8)]


def test_a_calm_job_does_not_look_troubled(disturbed: Result) -> None:
    known = disturbed.disturbed
    assert known is not None
    even = tuple(RankClass(512, n * 512, n, 0, 10**9 + n, 10**8 - n) for n in range(16))
    calm = replace(known, rank_classes=even, class_runs=tuple((n, 512) for n in range(16)))
    for heat in heats(replace(disturbed, disturbed=calm)):
        assert heat.low is not None
        assert heat.high is not None
        assert heat.high - heat.low == pytest.approx(0.01)
        assert 0.0 <= heat.low < heat.high <= 1.0


def test_a_hundred_thousand_ranks_stay_small(disturbed: Result) -> None:
    known = disturbed.disturbed
    assert known is not None
    n = 98_304
    classes = tuple(
        RankClass(n // 6144, i * 16, i // 384, i % 384, 7 * 10**9 - i, 3 * 10**9 + i, ("random=1%:1.2",) * (i % 7 == 0))
        for i in range(6144)
    )
    huge = replace(known, rank_classes=classes, class_runs=tuple((i, 16) for i in range(6144)), critical_path=())
    text = page_of(prediction_document(replace(disturbed, disturbed=huge, n_gpus=n)))
    assert len(text) < 800_000


def test_limits_read_largest_first_in_two_groups() -> None:
    limits = [Limit(what, share, 1.0) for what, share in (("pipeline bubble", 0.2), ("exposed dp (scale-out)", 0.3),
              ("recomputation", 0.25), ("gemm", 0.5), ("attention", 0.6))]  # fmt: skip
    tables = {view.title: view for view in limit_views(limits)}
    assert {title: [row[0] for row in view.rows] for title, view in tables.items()} == {
        "What limits it: overheads": ["exposed DP (scale-out)", "recomputation", "pipeline bubble"],
        "What limits it: the work itself": ["attention", "GEMM"],
    }
    assert list(limit_views([])) == []


def test_the_collective_of_all_ranks_is_named_by_what_it_is_for() -> None:
    assert label_of("exposed world (scale-out)") == "exposed gradient norm"
    assert label_of("all_reduce world (scale-up)") == "all reduce gradient norm"
    assert label_of("world_model") == "world model"


@pytest.mark.parametrize(("change", "text"), [(0.05, "+5.0 %"), (-0.05, "−5.0 %"), (0.0, "0.0 %"), (-1e-6, "0.0 %")])
def test_signs_say_what_they_mean(change: float, text: str) -> None:
    assert text_of(Number(change, "change")) == text
