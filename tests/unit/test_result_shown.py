"""What a result gives to a notebook: tables whose rows sum to the step, a page, a picture; and verbs as functions."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import windtunnel
from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.physics.step.result import Result
from windtunnel.views.text import text_of

PLAN = {"tp": 2, "pp": 2, "global_batch": 16, "seq_len": 2048}


@pytest.fixture(scope="module")
def result() -> Result:
    return windtunnel.predict("llama-3-8b", "h100-sxm:16", PLAN)


def test_an_excerpt_that_nobody_has_read_is_the_same_in_every_copy() -> None:
    plan = PLAN | {"global_batch": 24}
    fresh = windtunnel.predict("llama-3-8b", "h100-sxm:16", plan)
    sent = pickle.loads(pickle.dumps(fresh))
    assert sent == fresh
    assert sent.excerpt == fresh.excerpt == dataclasses.replace(fresh, warnings=()).excerpt
    assert isinstance(fresh.excerpt, tuple)
    assert fresh.excerpt
    assert Result.from_dict(fresh.to_dict()) == fresh
    assert dataclasses.replace(fresh, excerpt=()).excerpt == ()


def test_rows_of_a_class_sum_to_its_step_and_its_memory(result: Result) -> None:
    time, memory = result.to_table().to_pylist(), result.to_table("memory").to_pylist()
    for stage in result.stages:
        rows = [row for row in time if row["rank_class"] == stage.stage]
        assert sum(row["time_ns"] for row in rows) == result.step_time_ns
        assert sum(row["share"] for row in rows) == pytest.approx(1.0)
        assert {row["layers"] for row in rows} == {stage.layers}
    for held in result.memory:
        sizes = {row["category"]: row["size_bytes"] for row in memory if row["rank_class"] == held.stage}
        assert sizes == dict(held.categories)
    timeline = result.to_table("timeline")
    assert timeline.num_rows == len(result.excerpt)
    assert timeline["end_ns"].to_pylist() == [op.end_ns for op in result.excerpt]
    with pytest.raises(SpecError, match="time, memory, timeline"):
        result.to_table("ops")  # type: ignore[arg-type]


def test_a_table_without_rows_has_its_columns(result: Result) -> None:
    empty = dataclasses.replace(result, excerpt=()).to_table("timeline")
    assert empty.num_rows == 0
    assert empty.column_names == result.to_table("timeline").column_names


def test_a_data_frame_is_the_table_or_one_clear_error(result: Result) -> None:
    if find_spec("pandas") is None:
        with pytest.raises(UserError, match="pip install pandas"):
            result.to_dataframe()
    else:
        assert result.to_dataframe().to_dict("records") == result.to_table().to_pylist()


def test_a_notebook_shows_the_figures_and_runs_nothing(result: Result) -> None:
    named = dataclasses.replace(result, warnings=("<script>alert(1)</script>",))
    shown = named._repr_html_()
    assert text_of(result.step_time_s, "s") in shown
    assert text_of(result.mfu, "share") in shown
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


def test_a_result_writes_its_report(result: Result, tmp_path: Path) -> None:
    result.report(tmp_path / "own.html")
    windtunnel.write_report(result, tmp_path / "public.html")
    assert (tmp_path / "own.html").read_bytes() == (tmp_path / "public.html").read_bytes()
    with pytest.raises(InputFileError):
        result.report(tmp_path / "own.html" / "below a file.html")


def test_whatif_is_the_prediction_with_the_change(result: Result) -> None:
    slower = windtunnel.whatif(result, "cluster.nic=100Gb/s", "plan.tp=4", slow=("gpu=3:1.3",))
    assert slower.spec["plan"]["tp"] == 4
    assert slower.disturbed is not None
    mended = windtunnel.whatif(slower, "slow.none")
    assert mended.disturbed is None
    assert mended.step_time_ns < slower.step_time_ns
    comparison = windtunnel.compare(result, mended)
    assert comparison.step_ns == mended.step_time_ns - result.step_time_ns
    with pytest.raises(UserError, match="nothing is different"):
        windtunnel.whatif(result)


def test_what_is_no_keyword_and_no_result_is_said(result: Result) -> None:
    plan = {"global_batch": 64, "seq_len": 4096}
    with pytest.raises(SpecError, match="tp = 4: is no keyword: fields of the plan go into its mapping"):
        windtunnel.predict("llama-3-8b", "h100-sxm:64", plan, tp=4)  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="b = 'last': give a Result"):
        windtunnel.compare(result, "last")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": [0, 99]}, "--ranks = 99"),
        ({"ranks": "0-x"}, "--ranks = '0-x'"),
        ({"device": "gpu"}, "--device = 'gpu'"),
        ({"representatives": "some"}, "--representatives = 'some'"),
        ({"answers": {"loss": "big"}}, "--answer = 'loss=big'"),
        ({"cluster": "h100-sxm:8"}, "--world-size 16 clashes"),
    ],
)
def test_capture_takes_the_options_of_its_verb(options: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UserError, match=re.escape(said)):
        windtunnel.capture(tmp_path / "train.py", **{"world_size": 16, "out": tmp_path / "kept", **options})  # type: ignore[arg-type]


def test_explain_takes_paths_and_says_what_is_wrong_with_them(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="is missing"):
        windtunnel.explain(str(tmp_path / "trace.parquet"))
    with pytest.raises(SpecError):
        windtunnel.explain()


def test_functions_keep_their_name_beside_the_packages_of_their_verbs() -> None:
    code = (
        "import windtunnel, windtunnel.real.calibrate, windtunnel.real.capture\n"
        "assert callable(windtunnel.calibrate) and callable(windtunnel.capture)\n"
        "try: windtunnel.calibrate('x', budget_s=0)\n"
        "except windtunnel.SpecError as error: print(error)\n"
        "try: windtunnel.capture()\n"
        "except windtunnel.SpecError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "--budget" in done.stdout
    assert "name the script to run" in done.stdout
