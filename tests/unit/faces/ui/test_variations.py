"""Values that the page tries beside the one that was asked for, and words that a study of the page may not have."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette")

from windtunnel.errors import SpecError
from windtunnel.faces.ui.form import asked_of
from windtunnel.faces.ui.jobs import JobList
from windtunnel.faces.ui.variations import points, values_of

QUESTION = {"model": "llama-3.2-1b", "gpu": "h100-sxm", "gpus": "8", "pp": "2", "global_batch": "16", "seq_len": "1024"}


def test_the_row_of_what_was_asked_is_what_was_asked(tmp_path: Path) -> None:
    question = {**QUESTION, "slow": "gpu=0:1.2"}
    (now,) = (point for point in points("slow", question, tmp_path) if point.now)
    assert now.value == "gpu=0:1.2"
    assert now.step_time_s == asked_of(question, tmp_path).answer().step_time_s


@pytest.mark.parametrize(("field", "value"), [("zero_stage", "1"), ("schedule", "1f1b"), ("nic", "400 Gb/s")])
def test_what_was_filled_in_is_the_row_of_now(tmp_path: Path, field: str, value: str) -> None:
    assert [point.value for point in points(field, QUESTION, tmp_path) if point.now] == [value]


def test_numbers_may_be_written_with_commas(tmp_path: Path) -> None:
    assert values_of("gpus", {"gpus": "1,024"}) == values_of("gpus", {"gpus": "1024"})
    assert sum(point.now for point in points("global_batch", {**QUESTION, "global_batch": "1,6"}, tmp_path)) == 1


@pytest.mark.parametrize("word", ["--failures-out", "--requests_out", "--out=x", "--record", "--jobs_out=a.csv"])
def test_a_study_of_the_page_writes_nowhere(tmp_path: Path, word: str) -> None:
    with pytest.raises(SpecError, match="decides where answers go"):
        JobList(tmp_path).start("survive", f"llama-3-8b {word} mine")
