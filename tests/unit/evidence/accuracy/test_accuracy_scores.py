from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured_rows import LLAMA_8B, always, outcome, result, row, write_table

from windtunnel.errors import InputFileError, LayoutError, SpecError
from windtunnel.evidence.accuracy.anchor import anchored
from windtunnel.evidence.accuracy.constants import fitted_constants
from windtunnel.evidence.accuracy.outcome import Outcome, outcome_of
from windtunnel.evidence.accuracy.ranking import rankings
from windtunnel.evidence.accuracy.report import with_guesses
from windtunnel.evidence.accuracy.run import run_validation
from windtunnel.evidence.accuracy.score import _ranks, feasibility, memory_scores, ordering, score
from windtunnel.faces.report.accuracy.views import accuracy_document
from windtunnel.faces.report.draw.markdown import markdown_of
from windtunnel.studies.measured_run.anchoring import SAME, WEIGHTS


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run measured at `measured` seconds and predicted at `predicted`."""
    count = iter(range(10_000))

    def build(measured: float | None, predicted: float | None, status: str = "ok", **changes: Any) -> Outcome:
        changes = {"id": f"r{next(count)}", "step_time_s": measured, **changes}
        return outcome(row(tmp_path, **changes), predicted, status)

    return build


def test_score_is_about_sizes_and_signs(run: Any) -> None:
    found = score("s", [run(10, 11), run(10, 8), run(10, 10), run(10, None, "skipped")])
    assert (found.rows, found.priced, found.skipped) == (4, 3, 1)
    assert found.mean_abs == pytest.approx(0.1)
    assert found.median_abs == pytest.approx(0.1)
    assert found.bias == pytest.approx(-1 / 30)
    assert (found.worst, found.worst_id) == (pytest.approx(-0.2), "r1")
    assert found.inside_band == pytest.approx(2 / 3)  # 8 +- 10 % does not reach 10


def test_an_empty_group_has_no_error_and_no_nan(run: Any) -> None:
    found = score("s", [run(10, None, "skipped")])
    assert found.mean_abs is found.bias is found.worst is found.inside_band is None


def test_a_row_called_infeasible_is_scored_and_counted(run: Any) -> None:
    found = score("s", [run(10, 12, "infeasible")])
    assert (found.priced, found.infeasible, found.mean_abs) == (1, 1, pytest.approx(0.2))


def test_crashed_runs_are_judged_by_feasibility_alone(run: Any) -> None:
    crash = {"value_kind": "crashed or OOM", "step_time_s": None}
    group = [
        run(None, 3, "infeasible", **crash),
        run(None, 3, "ok", **crash),
        run(None, None, "skipped", **crash),
        run(10, 10, "infeasible"),
        run(10, 10),
    ]
    (found,) = feasibility(group)
    assert (found.crashed, found.crashed_called, found.ran, found.false_alarms) == (2, 1, 2, 1)
    assert (found.recall, found.false_alarm_share) == (0.5, 0.5)
    assert score("s", group).rows == 2


def test_sources_without_crashes_have_no_feasibility_to_judge(run: Any) -> None:
    assert feasibility([run(10, 10)]) == ()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_ranks_sum_as_ranks_do(values: list[float]) -> None:
    ranks = _ranks(values)
    assert sum(ranks) == pytest.approx(len(values) * (len(values) + 1) / 2)
    for i, j in zip(range(len(values)), range(1, len(values)), strict=False):
        assert (ranks[i] < ranks[j]) == (values[i] < values[j])


def test_ordering_is_one_for_any_monotone_error(run: Any) -> None:
    found = ordering("all", [run(t, t**2) for t in (1.0, 2.0, 3.0, 5.0)])
    assert found is not None
    assert found.spearman == pytest.approx(1.0)
    assert ordering("few", [run(1, 1), run(2, 2)]) is None


def test_the_guess_is_exact_where_one_rate_is_all_there_is(tmp_path: Path) -> None:
    def measured(seconds: float, **changes: Any) -> Outcome:
        return outcome_of(row(tmp_path, step_time_s=seconds, **changes), always(2.0))

    half = {"global_batch": 16, "grad_accum": 2}
    exact = score("s", with_guesses([measured(2.0), measured(1.0, **half)]))
    assert exact.guess_mean_abs == pytest.approx(0.0, abs=1e-12)
    # Two rates, 1 and 2: the median is 1.5 of the slower one's.
    off = score("s", with_guesses([measured(2.0), measured(1.0)]))
    assert off.guess_mean_abs == pytest.approx((1 / 3 + 1 / 3) / 2)


def test_anchor_takes_nine_tenths_of_a_common_factor_out_of_the_same_plan(run: Any) -> None:
    group = [run(10 * scale, 7 * scale, n_gpus=16 // scale, dp=8 // scale, grad_accum=4 * scale) for scale in (1, 2, 4)]
    found = anchored(group)
    assert [one.is_anchor for one in found] == [False, False, True]  # the fewest GPUs
    scored = score("s", found)
    assert scored.rows == 2
    assert scored.mean_abs == pytest.approx(1 - 0.7**0.1)
    for before, after in zip(group[:2], found[:2], strict=True):  # of the band's half widths the share of the same plan
        for end in ("p5_s", "p95_s"):
            half_widths = [math.log(getattr(one, end) / one.step_time_s) for one in (before, after)]
            assert half_widths[1] == pytest.approx(math.sqrt(1 - WEIGHTS[SAME] ** 2) * half_widths[0])


def test_anchor_keeps_precisions_and_models_apart_and_trusts_other_layouts_less(run: Any) -> None:
    alone = [run(10, 5), run(10, 8, precision="fp8"), run(10, 20, model="other")]
    assert anchored(alone) == alone  # no run of the same job: nothing to be scaled by, and each is scored
    pairs = [*alone, run(20, 5, n_gpus=32, dp=16), run(20, 8, n_gpus=32, dp=16, precision="fp8"), run(9, 9, tp=4, dp=4)]
    factors = [one.anchor_factor for one in anchored(pairs)]
    assert factors == [2.0, 1.25, None, pytest.approx(2.0**0.9), pytest.approx(1.25**0.9), pytest.approx(2.0**0.25)]


def test_a_run_that_fills_its_memory_anchors_nothing(run: Any) -> None:
    pairs = [run(10, 5, "infeasible"), run(20, 5, n_gpus=32, dp=16)]
    assert [one.anchor_factor for one in anchored(pairs)] == [2.0, None]


def test_ranking_regret_is_of_measured_times(run: Any) -> None:
    # Predicted fastest is the run measured at 11; the best measured is 10.
    layouts = [(10, 5.0, 1), (11, 4.0, 2), (14, 6.0, 4), (20, 9.0, 8)]
    group = [run(m, p, micro_batch=size, grad_accum=32 // 8 // size or 1, global_batch=None) for m, p, size in layouts]
    assert rankings(group) == ()  # a job is known by its batch, among others
    group = [run(m, p, tp=t, dp=16 // t, grad_accum=32 * t // 16) for m, p, t in layouts]
    (found,) = rankings(group)
    (choice,) = found.groups
    assert choice.regret == pytest.approx(0.1)
    assert found.median_regret == pytest.approx(0.1)
    assert found.share_close == 0.0


def test_choosing_what_crashed_is_infinite_regret(run: Any) -> None:
    group = [run(t, t, tp=t, dp=16 // t, grad_accum=2 * t) for t in (1, 2, 4, 8)]
    group.append(run(None, 0.5, tp=16, dp=1, grad_accum=32, value_kind="crashed or OOM"))
    (found,) = rankings(group)
    assert found.groups[0].regret is None
    assert found.median_regret is None


def test_a_layout_that_fills_the_device_is_not_chosen(run: Any) -> None:
    """As `plan`, which proposes none."""
    group = [run(t, t, tp=t, dp=16 // t, grad_accum=2 * t) for t in (1, 2, 4, 8)]
    crashed = run(None, 0.5, tp=16, dp=1, grad_accum=32, value_kind="crashed or OOM")
    (found,) = rankings([*group, replace(crashed, full=True)])
    assert found.groups[0].regret == 0.0


def test_repetitions_of_one_layout_are_no_choice(run: Any) -> None:
    assert rankings([run(t, t) for t in (1.0, 2.0, 3.0, 4.0)]) == ()


def test_memory_is_held_against_the_sources_own_definition(tmp_path: Path) -> None:
    def found(**changes: Any) -> Outcome:
        return outcome_of(row(tmp_path, peak_mem_gib=10.0, **changes), always(2.0, stages=3))

    pipelined = {"tp": 1, "pp": 2, "dp": 8, "sp": 0}
    assert found(**pipelined).peak_mem_gib == pytest.approx(13.0)  # reserved, of the fullest stage
    assert found(framework="nanotron", **pipelined).peak_mem_gib == pytest.approx(11.0)  # of the first stage
    allocated = found(value_kind="peak memory is torch peak allocation", **pipelined)
    assert allocated.peak_mem_gib == pytest.approx(12.0)
    (scored,) = memory_scores([allocated])
    assert scored.definition == "allocated"
    assert scored.mean_abs == pytest.approx(0.2)
    assert dict(scored.other_definitions) == {"reserved": pytest.approx(0.3), "device": pytest.approx(0.4)}


def test_a_sweep_reports_its_fastest_and_its_whole_range(tmp_path: Path) -> None:
    def predict(model: Any, cluster: Any, plan: Any) -> Any:
        return result({1: 2.0, 2: 3.0, 4: 7.0}[plan.micro_batch])

    found = outcome_of(row(tmp_path, micro_batch=None, grad_accum=None), predict)
    assert found.swept == ("micro_batch",)
    assert (found.step_time_s, found.p5_s, found.p95_s) == (2.0, pytest.approx(1.8), pytest.approx(7.7))


def test_a_layout_error_is_a_verdict_and_a_spec_error_is_not(tmp_path: Path) -> None:
    def refuses(error: Exception) -> Any:
        def predict(*_: Any) -> Any:
            raise error

        return predict

    one = row(tmp_path)
    assert outcome_of(one, refuses(LayoutError("heads", "fewer"))).status == "infeasible"
    assert outcome_of(one, refuses(SpecError("precision", "nvfp4", "no"))).status == "skipped"


ROWS = [
    LLAMA_8B,
    {**LLAMA_8B, "id": "lora", "gpu": "H47"},
    {**LLAMA_8B, "id": "open", "spec_level": "B", "recompute": ""},
    {**LLAMA_8B, "id": "other", "source": "another, with a comma"},
]


def test_every_row_of_the_table_has_its_line(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", ROWS)
    report = run_validation(table, level="A", source="somebody", predict=always(2.5))
    path = tmp_path / "rows.csv"
    report.write_rows(path)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["id", "step_time_s", "p5_s", "p95_s", "peak_mem_gib", "status", "reason", "band_reason"]
    assert [line["id"] for line in lines] == ["run-1", "lora", "open", "other"]
    assert [line["status"] for line in lines] == ["ok", "skipped", "skipped", "skipped"]
    assert lines[0]["step_time_s"] == "2.5"
    assert all(line["reason"] for line in lines[1:])
    with pytest.raises(InputFileError):
        report.write_rows(table / "folder.csv")


def test_levels_are_scored_apart(tmp_path: Path) -> None:
    report = run_validation(write_table(tmp_path / "t.csv", ROWS), predict=always(2.5))
    assert [level for level, _ in report.by_source] == ["A", "B"]
    assert dict(report.by_source)["A"][1].priced == 1
    assert dict(report.by_source)["B"][0].mean_abs == pytest.approx(0.25)


def test_the_report_is_json_without_nan(tmp_path: Path) -> None:
    report = run_validation(write_table(tmp_path / "t.csv", ROWS), predict=always(2.5), anchor="smallest")
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert len(json.loads(text)["rows"]) == len(ROWS)


@pytest.mark.parametrize("wrong", [{"level": "Z"}, {"anchor": "biggest"}, {"source": "nobody"}])
def test_what_is_asked_for_must_exist(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        run_validation(write_table(tmp_path / "t.csv", ROWS), predict=always(2.5), **wrong)


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    table = write_table(tmp_path / "t.csv", ROWS)
    run_validation(table, predict=always(2.5), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 4) for n in (1, 2, 3, 4)]


def test_the_page_is_the_same_for_the_same_report(tmp_path: Path) -> None:
    report = run_validation(write_table(tmp_path / "t.csv", ROWS), predict=always(2.5))
    text = markdown_of(accuracy_document(report))
    assert text == markdown_of(accuracy_document(report))
    for line in (
        "| source | another, with a comma | somebody's benchmark |",
        "| rows | 1 | 2 |",
        "| skipped | 0 | 1 |",
    ):
        assert line in text
    assert "| mean | 25.0 % | 25.0 % |" in text
    assert "github:somebody/benchmark" in text
    assert "unknown GPU or cluster 'H47'" in text
    assert "nan" not in text.lower().replace("nanotron", "").split()


def test_the_page_shows_a_leave_one_out_table_that_lies_beside_the_measurements(tmp_path: Path) -> None:
    report = run_validation(write_table(tmp_path / "t.csv", ROWS), predict=always(2.5))
    assert "Leave one source out" not in markdown_of(accuracy_document(report))
    (tmp_path / "leave_one_source_out.csv").write_text("source,rows,mean\nsomebody's benchmark,1,7.0 %\n")
    assert "| somebody's benchmark | 1 | 7.0 % |" in markdown_of(accuracy_document(report))


def test_every_shipped_constant_is_listed_with_a_finite_name() -> None:
    files = {fitted_constant.file: fitted_constant for fitted_constant in fitted_constants()}
    training = files["windtunnel/physics/cost/calibration/training.yaml"]
    names = {constant.name for constant in training.constants}
    assert any(name.startswith("generations.hopper") for name in names)
    assert len(names) == len(training.constants)
    assert all(constant.value for file in files.values() for constant in file.constants)
