from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from measured_rows import LLAMA_8B, row, text_of, write_table

from windtunnel.errors import InputFileError, UserError
from windtunnel.evidence.accuracy import Case, case_of
from windtunnel.evidence.accuracy.table import COLUMNS, REQUIRED, Row, read_table, read_tables


def refused(path: Path) -> str:
    with pytest.raises(InputFileError) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def read_or_message(path: Path) -> tuple[Row, ...] | str:
    try:
        return read_table(path)
    except UserError as error:
        return str(error)


def test_reads_every_kind_of_cell(tmp_path: Path) -> None:
    found = row(tmp_path, micro_batch="2.0", peak_mem_gib="50.2", zero_stage="0", experts="")
    assert (found.hidden, found.micro_batch, found.peak_mem_gib, found.zero_stage) == (4096, 2, 50.2, 0)
    assert found.experts is None
    assert found.line == 2


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_required_column_is_named(tmp_path: Path, column: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text_of([{k: v for k, v in LLAMA_8B.items() if k != column}], [c for c in COLUMNS if c != column]))
    assert f"required column {column!r} is missing" in refused(path)


def test_a_misspelt_optional_column_is_not_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text_of([LLAMA_8B]).replace("micro_batch", "micro_bacth"))
    assert "did you mean 'micro_batch'?" in refused(path)


def test_columns_of_other_people_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text_of([{**LLAMA_8B, "weather": "fine"}], (*COLUMNS, "weather")))
    assert len(read_table(path)) == 1


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("tp", "two", "'two' is not a number"),
        ("tp", "1.5", "'1.5' is not a whole number"),
        ("tp", "0", "'0' is out of range"),
        ("hidden", "-4096", "'-4096' is out of range"),
        ("layers", "1e400", "'1e400' is not a number"),
        ("step_time_s", "nan", "'nan' is not a number"),
        ("step_time_s", "0", "'0' is out of range"),
        ("spec_level", "D", "'D' is not A, B or C"),
        ("date", "June 2026", "'June 2026' is no date"),
        ("date", "06/2026", "'06/2026' is no date"),
    ],
)
def test_a_bad_cell_is_named_with_its_place(tmp_path: Path, column: str, cell: str, words: str) -> None:
    path = write_table(tmp_path / "t.csv", [LLAMA_8B, {**LLAMA_8B, "id": "run-2", column: cell}])
    message = refused(path)
    assert f"line 3, column {column}: {words}" in message


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("n_gpus", "1,024", 1024),
        ("tokens_per_s_per_gpu", "12,345.5", 12345.5),
        ("seq_len", "8k", 8192),
        ("cp", "-", None),
        ("micro_batch", "n/a", None),
        ("sp", "yes", 1),
        ("overlap_tp", "False", 0),
        ("zero_stage", "ZeRO-3", 3),
        ("zero_stage", "FSDP2", 3),
        ("zero_stage", "distributed optimizer", 1),
        ("gated_mlp", "SwiGLU", 1),
        ("experts", "0", None),
    ],
)
def test_a_number_in_other_peoples_words(tmp_path: Path, column: str, cell: str, value: float | None) -> None:
    path = write_table(tmp_path / "t.csv", [{**LLAMA_8B, column: cell}])
    assert getattr(read_table(path)[0], column) == value


@pytest.mark.parametrize(
    ("column", "cell", "name"),
    [
        ("precision", "bfloat16", "bf16"),
        ("precision", "float16", "fp16"),
        ("recompute", "AC full", "full"),
        ("gpu", "H100 SXM5 80GB", "h100-sxm"),
        ("gpu", "NVIDIA-H100-SXM5-80GB", "h100-sxm"),
        ("gpu", "A100 80GB SXM4", "a100-80gb-sxm"),
        ("gpu", "A100-80G", "a100-80gb-sxm"),
        ("gpu", "B200-SXM6-180GB", "b200-sxm"),
        ("gpu", "A800", "a800-80gb-sxm"),
        ("framework", "NeMo 26.04", "megatron"),
    ],
)
def test_words_of_other_tables_are_what_they_say(tmp_path: Path, column: str, cell: str, name: str) -> None:
    case = case_of(read_table(write_table(tmp_path / "t.csv", [{**LLAMA_8B, column: cell}]))[0])
    assert isinstance(case, Case)
    read = {"gpu": case.cluster.gpu.name, "framework": case.plan.framework}
    assert read.get(column, getattr(case.plan, column, None)) == name


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text_of([LLAMA_8B]) + "just,three,cells\n")
    assert f"line 3: has 3 fields, and the first line names {len(COLUMNS)}" in refused(path)


def test_an_id_occurs_once(tmp_path: Path) -> None:
    assert "'run-1' is already on line 2" in refused(write_table(tmp_path / "t.csv", [LLAMA_8B, LLAMA_8B]))
    a, b = write_table(tmp_path / "a.csv", [LLAMA_8B]), write_table(tmp_path / "b.csv", [LLAMA_8B])
    with pytest.raises(InputFileError, match="already in"):
        read_tables([a, b])


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"id,tp\n\xff\xfe", "not text in UTF-8"), (b'id,"open\n', "line"), (b"\x00\x01", "line")],
)
def test_files_that_are_no_tables(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    assert words in refused(path)


def test_a_header_alone_is_no_table(tmp_path: Path) -> None:
    assert "no rows" in refused(write_table(tmp_path / "t.csv", []))


def test_missing_file(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.csv")


def test_level_is_counted_where_the_table_does_not_say(tmp_path: Path) -> None:
    assert row(tmp_path, spec_level="").level == "A"
    assert row(tmp_path, spec_level="", vpp=None, recompute=None).level == "B"
    assert row(tmp_path, spec_level="", vpp=None, recompute=None, micro_batch=None, zero_stage=None).level == "C"


def test_measured_time_prefers_the_step_over_what_is_derived(tmp_path: Path) -> None:
    assert row(tmp_path, step_time_s=2.0, d_step_time_s=3.0).measured_s == 2.0
    assert row(tmp_path, step_time_s=None, d_step_time_s=3.0).measured_s == 3.0
    tokens = 32 * 8192 / 16 / 4.0  # per second and GPU for a step of four seconds
    assert row(tmp_path, step_time_s=None, tokens_per_s_per_gpu=tokens).measured_s == pytest.approx(4.0)


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_never_give_anything_but_rows_or_a_user_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.csv"
    path.write_bytes(data)
    said = read_or_message(path)
    assert said
    assert not isinstance(said, str) or "\n" not in said


@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12), max_size=8), st.text(max_size=5))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cells_give_rows_or_a_user_error(tmp_path: Path, cells: dict[str, str], tail: str) -> None:
    path = tmp_path / "fuzz.csv"
    path.write_bytes((text_of([{**LLAMA_8B, **cells}]) + tail).encode("utf-8", "surrogatepass"))
    said = read_or_message(path)
    assert str(path) in said if isinstance(said, str) else len(said) >= 1
