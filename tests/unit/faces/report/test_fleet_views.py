"""A fleet as views: policies in one unit, jobs with what was held when they came, and names that stay text."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.draw.page import page_of
from windtunnel.faces.report.fleet import Fleet, fleet_document
from windtunnel.faces.report.fleet_verdict import best_of
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.outcome import Outcome, aggregates
from windtunnel.views import Curve, Headline, Lanes, Table


def _outcome() -> Outcome:
    submit, gpus = np.array([0.0, 5.0]), np.array([8, 8])
    never, none = np.full(2, np.nan), ("", "")
    jobs = Jobs(
        "t", ("a", "<b>"), np.arange(2), submit, gpus, np.array([100.0, 30.0]), never, never, never, never, none, none
    )
    return Outcome(
        jobs, "fifo", "exact", np.array([0.0, 100.0]), np.array([100.0, 130.0]), np.zeros(2, np.int64),
        np.array([800.0, 240.0]), np.zeros(2, np.int8),
    )  # fmt: skip


def _fleet(gpus: int = 8) -> Fleet:
    outcome = _outcome()
    return Fleet("t", "c", gpus, [aggregates(outcome, gpus)], [outcome])


def test_a_job_says_its_times_and_what_was_held_when_it_came() -> None:
    tables = {view.title: view for view in fleet_document(_fleet()).details if isinstance(view, Table)}
    (second, first) = tables["These jobs under fifo"].rows
    assert second == ("<b>", 8.0, 5.0, 95.0, 100.0, 130.0, "8 of 8 GPUs were held when it came")
    assert first[-1] == "it did not wait"
    wide = {view.title: view for view in fleet_document(_fleet(16)).details if isinstance(view, Table)}
    assert str(wide["These jobs under fifo"].rows[0][-1]).startswith("8 GPUs were free")


def test_gpus_in_use_and_jobs_that_wait_are_drawn_over_time() -> None:
    curves = {view.title: view for view in fleet_document(_fleet(16)).details if isinstance(view, Curve)}
    use, queue = curves["GPUs in use"].series[0], curves["Jobs that wait"].series[0]
    assert set(use.y[:-1]) == {0.5}
    assert {y for x, y in zip(queue.x, queue.y, strict=True) if 5.5 < x < 99.5} == {1.0}
    assert {y for x, y in zip(queue.x, queue.y, strict=True) if x > 100.5} == {0.0}


def verdict_of(*figures: tuple[str, float, float | None], held: float = 0.5) -> str:
    """The first line, of policies with their mean wait in hours and its error against the log's."""
    rows = [
        {
            "policy": name, "jobs": 2, "jct_mean_s": 3600 * (10 + wait), "queueing_delay_mean_s": 3600 * wait,
            "utilisation": held, "log_wait_error": error, "log_start_error_p50_s": None if error is None else abs(error)
        }
        for name, wait, error in figures
    ]  # fmt: skip
    return next(v.verdict for v in fleet_document(Fleet("log", "h100:8", 8, rows)).views if isinstance(v, Headline))


def test_the_first_line_says_whether_a_log_bears_advice() -> None:
    near = verdict_of(("current", 2.0, None), ("slurm", 2.2, 0.1), ("easy", 1.0, -0.5))
    assert near.startswith("easy is best of 2: 11.00 h mean JCT, slurm 12.20 h (1.11 x);")
    assert near.endswith("as it was, 12.00 h.")  # what happened is no policy that could be chosen
    far = verdict_of(("current", 2.0, None), ("slurm", 1.0, -0.5), ("easy", 1.02, -0.49))
    assert "are alike" in far
    assert far.endswith("(nearest: easy, mean wait -49%): no advice yet.")
    short = verdict_of(("current", 0.01, None), ("slurm", 0.0, -1.0))
    assert "no advice" not in short  # nobody waits, whoever schedules
    assert "of another cluster" in verdict_of(("current", 2.0, None), ("slurm", 2.1, 0.05), held=1.2)


def test_a_wait_far_beyond_the_logs_is_a_factor() -> None:
    """It was +34197 %."""
    assert verdict_of(("current", 0.01, None), ("fifo", 3.0, 341.97)).endswith(
        "mean wait 343 x the log's): no advice yet."
    )
    rows = [{"policy": str(error), "jobs": 2, "jct_mean_s": 9.0, "log_wait_error": error} for error in (341.97, 0.5)]
    file = io.StringIO()
    print_document(fleet_document(Fleet("log", "h100:8", 8, rows)), Console(file=file, width=100))
    lines = [line for line in file.getvalue().splitlines() if line.startswith("mean wait against the log's")]
    assert lines[-1].split()[-4:] == ["343.0", "x", "50.0", "%"]


def test_a_lane_is_no_place_and_has_no_name() -> None:
    (lanes,) = [view for view in fleet_document(_fleet()).details if isinstance(view, Lanes)]
    assert {lane.name for lane in lanes.lanes} == {""}


def test_names_of_jobs_are_never_markup() -> None:
    text = page_of(fleet_document(_fleet()))
    assert "&lt;b&gt;" in text
    assert "<b>:" not in text
    assert ">8</td>" in text


def test_a_row_of_times_has_one_unit_and_the_best_policy_is_named() -> None:
    figures = [{"policy": name, "jobs": 2, "jct_mean_s": value} for name, value in (("fifo", 11_000.0), ("srtf", 60.0))]
    file = io.StringIO()
    document = fleet_document(Fleet("jobs.csv", "h100:8", 8, figures))
    print_document(document, Console(file=file, width=100))
    (row,) = [line for line in file.getvalue().splitlines() if line.startswith("mean JCT") and "with" not in line]
    assert row.split() == ["mean", "JCT", "3.056", "h", "0.017", "h"]
    verdict = next(view for view in document.views if isinstance(view, Headline))
    assert verdict.verdict == "srtf is best of 2: 60.00 s mean JCT, fifo 3.056 h (183.33 x)."


def test_a_mean_of_nothing_has_no_ratio() -> None:
    figures = [{"policy": name, "jobs": 1, "jct_mean_s": value} for name, value in (("fifo", 60.0), ("srtf", 0.0))]
    views = fleet_document(Fleet("jobs.csv", "h100:8", 8, figures)).views
    verdict = next(view.verdict for view in views if isinstance(view, Headline))
    assert verdict.startswith("srtf is best of 2")
    assert " x)" not in verdict


def test_a_policy_that_could_not_run_all_jobs_is_not_called_the_best() -> None:
    whole = aggregates(_outcome(), 8)
    short = {**whole, "policy": "slurm", "jct_mean_s": 1.0, "dropped_jobs": 1}
    other = {**whole, "policy": "easy", "jct_mean_s": 2.0 * float(whole["jct_mean_s"] or 0.0)}
    answer = Fleet("t", "c", 8, [whole, short, other])
    assert best_of(answer.figures) is whole
    document = fleet_document(answer)
    assert document.subtitle == "8 GPUs; not every policy could run every job"
    verdict = next(view for view in document.views if isinstance(view, Headline)).verdict
    assert verdict.startswith("fifo is best of 2")
    assert verdict.endswith("not compared, with fewer jobs: slurm.")
