"""Sweeps: every point once, whatever dies; the same study gives the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.faces.cli import main
from windtunnel.faces.cli.output import show
from windtunnel.faces.report.sweeps import table_document
from windtunnel.questions.changing import nested
from windtunnel.questions.fields import fields_of
from windtunnel.questions.registry import QUESTIONS, question_class
from windtunnel.studies.sweeps import sweep
from windtunnel.studies.sweeps.journal import Journal, read_journal
from windtunnel.studies.sweeps.points import NO_INPUTS, point_of, read_study
from windtunnel.studies.sweeps.run_points import run_points
from windtunnel.studies.sweeps.table import best_at_each

GRID = {"verb": "predict", "grid": {"a": list(range(8)), "b.c": [1.5, 2.5]}}
CALLED = "swept_functions:double"


def test_a_row_for_every_point(tmp_path: Path) -> None:
    outcome = sweep(GRID, out=tmp_path / "t.parquet", executor="serial", function=CALLED)
    rows = pq.read_table(outcome.path).to_pylist()
    assert list(rows[0]) == ["key", "status", "reason", "a", "b.c", "twice"]
    assert [(row["a"], row["b.c"], row["twice"]) for row in rows] == [
        (a, c, 2 * a + c) for a in range(8) for c in (1.5, 2.5)
    ]
    assert outcome.by_status == {"ok": 16}
    assert not (tmp_path / "t.parquet.journal").exists()


def test_executors_give_the_same_bytes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        made = [
            sweep(GRID, out=tmp_path / f"{number}.parquet", executor=one, jobs=2, function=CALLED).path.read_bytes()
            for number, one in enumerate(("serial", "processes", threads))
        ]
    assert made[0] == made[1] == made[2]


def test_a_script_without_a_main_guard_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import windtunnel\nopen('times', 'a').write('once\\n')\n"
        "job = {'model': 'llama-3.2-1b', 'cluster': 'h100-sxm:8', 'plan.global_batch': 16, 'plan.seq_len': 512}\n"
        "grid = {'plan.tp': [1, 2]}\n"
        "found = windtunnel.sweep({'verb': 'predict', 'fixed': job, 'grid': grid}, out='s.parquet', jobs=1)\n"
        "assert found.by_status == {'ok': 2}, found\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "times").read_text() == "once\n"


def test_failures_and_dead_workers_are_rows(tmp_path: Path) -> None:
    study = {"grid": {"a": [1, -1, 2, -2, 3]}}
    outcome = sweep(study, out=tmp_path / "t.parquet", jobs=2, function="swept_functions:moody")
    rows = {row["a"]: row for row in pq.read_table(outcome.path).to_pylist()}
    assert {a: row["status"] for a, row in rows.items()} == {1: "ok", 2: "ok", 3: "ok", -1: "failed", -2: "died"}
    assert "ValueError: below zero" in rows[-1]["reason"]
    assert outcome.reasons == {"failed": rows[-1]["reason"], "died": rows[-2]["reason"]}


def test_a_row_of_plans_has_the_first_plan(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = {"model": "llama-3.2-1b", "cluster": "h100-sxm:8", "tp": 8, "pp": 1, "cp": 1, "micro_batch": 1, "top": 1}
    (row,) = run_points("windtunnel:plan", [{**fixed, "global_batch": 8, "seq_len": 512}])
    assert row["status"] == "ok"
    assert row["outputs"]["n_gpus"] == 8
    assert row["outputs"]["step_time_s"] > 0
    assert row["outputs"]["reproduce"].startswith("windtunnel predict llama-3.2-1b")
    show(table_document([{"n_gpus": 8, "tokens_per_s": 85593.2}, {"n_gpus": 16, "tokens_per_s": 1703123.4}], "x"))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:]] == [
        "tokens_per_s",
        "85,593",
        "1,703,123",
    ]


def test_a_torn_line_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'{"key":"a","status":"ok"}\n{"key":"b","sta')
    assert list(read_journal(path)) == ["a"]
    with Journal(path) as log:
        log.add({"key": "c"})
    assert list(read_journal(path)) == ["a", "c"]


def test_one_process_at_a_time_writes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.studies.sweeps.journal.HELD_S", 0.1)
    out = tmp_path / "t.parquet"
    with Journal(out.with_name("t.parquet.journal")) as log:
        log.add({"key": "a"})
        with pytest.raises(InputFileError, match="is being written by another process"):
            sweep(GRID, out=out, executor="serial", function=CALLED)
    assert sweep(GRID, out=out, executor="serial", function=CALLED).ran == 16


def test_killed_and_resumed_is_the_same_file(tmp_path: Path) -> None:
    study = {"grid": {"a": list(range(60))}}
    whole = sweep(study, out=tmp_path / "whole.parquet", executor="serial", function=CALLED).path.read_bytes()
    out = tmp_path / "killed.parquet"
    code = (
        "from windtunnel.studies.sweeps import sweep;"
        f"sweep({study!r}, out={str(out)!r}, executor='serial', function='swept_functions:slow_double')"
    )
    journal = out.with_name("killed.parquet.journal")
    for least in (5, 25):
        process = subprocess.Popen([sys.executable, "-c", code])
        until = time.monotonic() + 60
        while len(read_journal(journal)) < least and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = len(read_journal(journal))
    assert 25 <= before < 60
    outcome = sweep(study, out=out, executor="serial", function=CALLED)
    assert outcome.ran == 60 - before
    assert out.read_bytes() == whole


def test_a_study_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    for study in ({"grud": {}}, {"verb": "predict"}, {"grid": {"a": 1}}, {"verb": "nonsense", "list": [{"a": 1}]}):
        with pytest.raises(UserError):
            sweep(study, out=tmp_path / "t.parquet", executor="serial")


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("door", ["python", "command line"])
def test_a_study_is_data_it_runs_no_program_and_writes_no_file(tmp_path: Path, door: str) -> None:
    """SECURITY.md. Each study did so once: by `sweep` as its verb, or by a function that writes."""
    prediction = {"model": "gpt2", "cluster": "h100-sxm:1", "plan.global_batch": 1, "plan.seq_len": 128}
    table, victim = str(tmp_path / "inner.parquet"), str(tmp_path / "victim")
    command = {"verb": "x", "list": [{"command": f"touch {tmp_path}/ran"}]}
    nested_sweep = {"executor": "serial", "out": table}
    studies = [
        {"verb": "sweep", "fixed": {**nested_sweep, "study": command, "function": "os:system"}, "list": [{}]},
        {"verb": "sweep", "fixed": {**nested_sweep, "study": {"list": [prediction]}, "out": victim}, "list": [{}]},
        {"verb": "runs delete", "list": [{"names": ["x"], "yes": True}]},
        {"verb": "calibrate", "list": [{"out": victim, "budget_s": 1.0}]},
        {"verb": "save_result", "list": [{"result": "x", "root": victim}]},
        {"verb": "os:system", "list": [{"command": f"touch {tmp_path}/ran"}]},
        {"verb": "predict", "function": "os:system", "list": [prediction]},
        {"verb": "predict", "executor": "ray", "list": [prediction]},
        *({"fixed": {name: victim}, "list": [prediction]} for name in ("out", "function", "executor", "out.x")),
        {"list": [{**prediction, "out": victim}]},
        {"fixed": prediction, "optuna": {"trials": 1, "over": {"function": ["os:system"]}}},
        {"fixed": prediction, "random": {"count": 1, "over": {"executor": ["ray"]}}},
    ]
    (tmp_path / "victim").write_text("precious")
    for study in studies:
        (tmp_path / "study.yaml").write_text(json.dumps(study))
        before = files_under(tmp_path)
        if door == "python":
            with pytest.raises(UserError, match=r"verb of a study|field of a study|leave it out"):
                sweep(study, out=tmp_path / "o.parquet", executor="serial")
        else:
            words = [
                "sweep",
                str(tmp_path / "study.yaml"),
                "--executor",
                "serial",
                "--out",
                str(tmp_path / "o.parquet"),
            ]
            assert main(words) == 2
        assert files_under(tmp_path) == before


def test_the_verbs_of_studies_only_answer_and_take_no_file_to_write() -> None:
    for verb, one in QUESTIONS.items():
        takes = {field.path for field in fields_of(question_class(verb))}
        assert not one.pure or not {*NO_INPUTS, "path", "root", "report", "html"} & takes
    for verb in ("run", "capture", "calibrate device", "runs delete", "serve listen", "predict_with"):
        with pytest.raises(UserError, match="verb of a study"):
            sweep({"verb": verb, "list": [{"model": "gpt2"}]}, executor="serial")


def test_a_table_is_not_called_by_another_form(tmp_path: Path) -> None:
    """Parquet in a file called x.csv was written without a word."""
    with pytest.raises(InputFileError, match=r"x\.csv: .* in Parquet; give a name that ends in \.parquet"):
        sweep(GRID, out=tmp_path / "x.csv", executor="serial", function=CALLED)
    assert not list(tmp_path.iterdir())


def test_a_large_file_that_a_point_names_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "holes.parquet"
    with large.open("wb") as file:
        file.truncate(20 << 30)
    tracemalloc.start()
    begun = time.process_time()
    first = point_of("fleet", {"trace": str(large)}, "1")
    assert time.process_time() - begun < 1
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    os.utime(large, (1, 1))
    assert point_of("fleet", {"trace": str(large)}, "1").key != first.key


def test_a_finished_table_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_run(*words: object) -> None:
        raise AssertionError("a point ran")

    words = {"model": "llama-3.2-1b", "cluster": "h100-sxm:8", "plan.global_batch": 8, "plan.seq_len": 512}
    out = tmp_path / "t.parquet"
    studies = (
        {"fixed": words, "grid": {"plan.tp": [1, 3]}},
        {"fixed": words, "optuna": {"trials": 3, "over": {"plan.tp": [1, 2, 4]}}},
    )
    for study in studies if find_spec("optuna") else studies[:1]:
        first = sweep(study, out=out, executor="serial")
        made = out.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(import_module("windtunnel.studies.sweeps.sweep"), "rows_of", must_not_run)
            patch.setattr(import_module("windtunnel.studies.sweeps.run_points"), "run_points", must_not_run)
            again = sweep(study, out=out, executor="serial")
        assert first.ran == first.points > again.ran == 0
        assert (again.by_status, again.best, out.read_bytes()) == (first.by_status, first.best, made)
    wider = sweep({"fixed": words, "grid": {"plan.tp": [1, 2, 3]}}, out=out, executor="serial")
    assert wider.ran == wider.points == 3


def test_a_file_that_has_changed_is_another_point(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    keys = []
    for text in ("1", "22", "1"):
        path.write_text(text)
        keys.append(point_of("predict", {"model": str(path)}, "").key)
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]
    assert point_of("predict", {"model": str(path)}, "").key != point_of("predict", {"model": "llama-3-8b"}, "").key


def test_points_do_not_write_into_each_other() -> None:
    shared = {"seq_len": 2048}
    points = [{"plan": shared, "plan.tp": 8}, {"plan": shared, "plan.pp": 2}, {"plan": shared}]
    assert [nested(one)["plan"] for one in points] == [{**shared, "tp": 8}, {**shared, "pp": 2}, shared]
    assert shared == {"seq_len": 2048}


def test_a_key_changes_with_what_is_in_a_folder_or_a_file_however_deep(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    asked = [{"model": str(folder)}, {"plan": {"files": [str(folder / "config.json")]}}]
    before = [point_of("predict", one, "1").key for one in asked]
    assert before == [point_of("predict", one, "1").key for one in asked]
    (folder / "config.json").write_text('{"layers": 4}')
    assert all(point_of("predict", one, "1").key != key for one, key in zip(asked, before, strict=True))


@pytest.mark.parametrize(
    "study",
    [
        {"fixed": 3},
        {"grid": [1, 2]},
        {"grid": {1: [2]}},
        {"grid": {"a": 5}},
        {"list": 5},
        {"list": [3]},
        {"random": 5},
        {"random": {"count": "x", "over": {"a": [1]}}},
        {"random": {"count": 1, "over": {"a": {"low": 8, "high": 1}}}},
        {"random": {"count": 1, "over": {"a": {"low": float("nan"), "high": 1.0}}}},
        {"random": {"count": 1, "over": {"a": []}}},
        {"optuna": {"trials": "many", "over": {"a": [1]}}},
        {"optuna": {"trials": 2, "over": {"a": {"low": 1}}}},
    ],
    ids=str,
)
def test_a_study_that_cannot_be_names_its_field(study: dict[str, object]) -> None:
    (field,) = study
    with pytest.raises(SpecError, match=field):
        read_study(study, "1")


def test_a_look_into_a_table_says_which_inputs_gave_the_best(tmp_path: Path) -> None:
    study = {"fixed": {"b": {"c": 2.5}}, "grid": {"a": [3, 1]}}
    table = sweep(study, out=tmp_path / "t.parquet", executor="serial", function=CALLED).path
    assert best_at_each(table, "twice_vs_a") == [{"a": 1, "twice": 4.5}, {"a": 3, "twice": 8.5}]
    assert best_at_each(table, "a_vs_status") == [{"status": "ok", "a": 1}, {"status": "ok", "a": 3}]  # best first
    rows = best_at_each(table, "twice_vs_status")
    assert rows[0] == {"status": "ok", "twice": 4.5, "a": 1}
    pq.write_table(pq.read_table(table).replace_schema_metadata(None), table)
    with pytest.raises(InputFileError, match="a table that `windtunnel sweep` wrote"):
        best_at_each(table, "twice_vs_status")


def test_a_sweep_of_a_fleet_has_its_figures(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,gpus,duration_s\na,0,8,100\nb,0,8,50\n")
    study = {
        "verb": "fleet",
        "fixed": {"trace": str(trace), "cluster": "v100:8"},
        "grid": {"policy": ["fifo", "sjf", "none such"], "seed": [0, 1]},
    }
    sweep(study, out=tmp_path / "t.parquet", executor="serial")
    rows = {(row["policy"], row["seed"]): row for row in pq.read_table(tmp_path / "t.parquet").to_pylist()}
    assert rows["fifo", 0]["mean_jct_s"] == rows["fifo", 1]["mean_jct_s"] == 125.0
    assert rows["sjf", 0]["mean_jct_s"] == 100.0
    assert rows["none such", 0]["status"] == "refused"


def test_an_input_that_a_verb_does_not_take_is_named() -> None:
    (row,) = run_points("windtunnel:fleet", [{"trace": "t.csv", "cluster": "v100:8", "policy": "fifo"}])
    assert row["status"] == "refused"
    assert "'policy': inputs are trace, cluster, policies, " in row["reason"]
    asked = {"model": "llama-3.2-1b", "cluster": "h100-sxm:1", "plan.global_batch": 1, "plan.seq_len": 64}
    (row,) = run_points("question:predict", [{**asked, "plan.tpp": 2}])
    assert row["status"] == "refused"
    assert "did you mean plan.pp" in row["reason"] or "did you mean plan.tp" in row["reason"]
    (row, flat) = run_points("question:predict", [{**asked, "plan.tp": 1}, {**asked, "tp": 1}])
    assert row == flat
    assert row["status"] == "ok"


def test_an_answer_without_figures_is_a_row() -> None:
    (row,) = run_points("windtunnel:parse_cluster", [{"spec": "h100-sxm:8"}])
    assert row["status"] == "ok"
    assert row["outputs"]["n_gpus"] == 8


def test_a_study_of_too_many_points_is_refused_before_they_are_made() -> None:
    grid = {f"x{number}": list(range(100)) for number in range(8)}
    with pytest.raises(SpecError, match="10,000,000,000,000,000 points"):
        read_study({"grid": grid}, "1")
    with pytest.raises(SpecError, match="2,000,000 points"):
        read_study({"random": {"count": 2_000_000, "over": {"x": [1, 2]}}}, "1")


@pytest.mark.parametrize("asked", [{"executor": "nowhere"}, {"executor": 5}, {"function": "nowhere:no"}])
def test_a_sweep_that_is_refused_leaves_nothing(tmp_path: Path, asked: dict) -> None:
    fixed = {"model": "llama-3-8b", "cluster": "h100-sxm:8", "plan": {"global_batch": 8, "seq_len": 512}}
    with pytest.raises(UserError):
        sweep({"fixed": fixed, "grid": {"plan.tp": [4, 8]}}, out=tmp_path / "sweep.parquet", **asked)
    assert list(tmp_path.iterdir()) == []
