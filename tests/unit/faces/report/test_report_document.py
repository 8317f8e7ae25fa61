from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.faces.report.comparison.compare import compare
from windtunnel.faces.report.prediction.document import DocumentError, from_bytes, json_schema, to_bytes, to_document
from windtunnel.faces.report.run_folder import load, save
from windtunnel.faces.report.run_list import RunList
from windtunnel.physics.step.result import Result

NAMES = ["result", "faster", "infeasible", "bare", "hostile"]


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    result: Result = replace(request.getfixturevalue(name), advice=(), advice_tried=0)  # advice is not kept
    folder = save(result, tmp_path / "deep" / "runs", html=True, trace=True)
    assert folder.name == result.content_hash
    assert load(folder) == load(folder / "result.json") == result
    assert load(result.content_hash[:7], tmp_path / "deep" / "runs") == result
    assert sorted(file.name for file in folder.iterdir()) == [
        "report.html",
        "result.json",
        "spec.yaml",
        "trace.json.gz",
    ]


def test_same_result_same_bytes(result: Result, tmp_path: Path) -> None:
    first = save(result, tmp_path / "a", html=True, trace=True)
    second = save(load(first), tmp_path / "b", html=True, trace=True)
    assert first.name == second.name
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name


def test_spec_yaml_says_what_was_asked(result: Result, tmp_path: Path) -> None:
    import yaml

    assert yaml.safe_load((save(result, tmp_path) / "spec.yaml").read_text(encoding="utf-8")) == result.spec


def test_a_result_without_derived_values_is_read_too(result: Result) -> None:
    assert from_bytes(result.to_json().encode()) == replace(result, advice=(), advice_tried=0)


def _changed(result: Result, **change: object) -> bytes:
    return json.dumps({**to_document(result), **change}).encode()


def test_what_is_wrong_is_said(result: Result) -> None:
    whole = to_bytes(to_document(result))
    cases = {
        "is cut off": whole[: len(whole) // 2],
        "is not JSON": b"hello",
        "no `schema`": b'{"a": 1}',
        "newer than": _changed(result, schema="windtunnel.result/3"),
        "is not a windtunnel result": _changed(result, schema="other.thing/1"),
        "is not a windtunnel result (schema 'windtunnel.result/x')": _changed(result, schema="windtunnel.result/x"),
        "reads 1 to": _changed(result, schema="windtunnel.result/0"),
        "is an answer of `windtunnel plan`, no prediction": _changed(result, study="plan"),
        "step_time_ns": _changed(result, step_time_ns="long"),
        "stages": _changed(result, stages=[{"stage": 0}]),
        "edited or damaged": _changed(result, step_time_ns=result.step_time_ns - 1),
        "NaN": _changed(result, mfu=float("nan")),
        "too deep": b"[" * 200_000,
        "is cut off ": b"",
    }
    for problem, data in cases.items():
        with pytest.raises(DocumentError) as raised:
            from_bytes(data)
        assert problem.strip() in str(raised.value)
        assert "Traceback" not in str(raised.value)


@given(at=st.integers(0, 10**6), junk=st.binary(max_size=6))
def test_damage_never_passes_and_never_crashes(bare: Result, at: int, junk: bytes) -> None:
    whole = to_bytes(to_document(bare))
    at %= len(whole)
    damaged = whole[:at] + junk + whole[at + len(junk) + 1 :]
    with contextlib.suppress(DocumentError):
        assert from_bytes(damaged) == bare


def test_loading_names_the_file_and_the_remedy(result: Result, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = save(result, root)
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "nowhere"): "there is no such run",
        "ffffffffff": result.content_hash,
        str(tmp_path / "empty"): "holds no result.json",
        "a\0b": "a",
        "x" * 5000: "is no path",
    }
    for path, wanted in cases.items():
        with pytest.raises(InputFileError) as raised:
            load(path, root)
        assert wanted in str(raised.value)
    (folder / "result.json").write_bytes(b"{")
    with pytest.raises(InputFileError, match="is cut off"):
        load(folder)


def test_an_ambiguous_prefix_is_not_guessed(result: Result, tmp_path: Path) -> None:
    for name in ("abc000000001", "abc000000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_bytes(to_bytes(to_document(result)))
    with pytest.raises(InputFileError, match="fits 2 runs"):
        load("abc", tmp_path)
    assert load("abc000000002", tmp_path) == result


def test_a_place_that_cannot_be_written_is_said_and_nothing_left(result: Result, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InputFileError, match="cannot be written"):
        save(result, blocker)
    (tmp_path / result.content_hash / "result.json").mkdir(parents=True)
    with pytest.raises(InputFileError, match="cannot be written"):
        save(result, tmp_path)
    assert [file.name for file in (tmp_path / result.content_hash).iterdir() if file.name.startswith(".")] == []


SCHEMA_1 = Path(__file__).parent / "schema_1" / "dbe1544e4373"


def test_a_run_folder_of_schema_1_is_read_and_stays_one(result: Result, tmp_path: Path) -> None:
    old = load(SCHEMA_1)
    assert old.schema == "windtunnel.result/1"
    assert load(save(old, tmp_path)) == old
    assert not {"study", "version", "band"} & set(to_document(old))
    assert old.disturbed is not None
    assert old.disturbed.samples is not None
    assert compare(old, result).step_ns == result.step_time_ns - old.step_time_ns
    (listed,) = RunList(SCHEMA_1.parent).all()
    assert (listed.name, listed.problem, listed.step_time_s) == (SCHEMA_1.name, "", old.step_time_s)


def test_the_header_says_what_the_result_says(result: Result) -> None:
    document = to_document(result)
    head = {name: document[name] for name in ("schema", "study", "spec", "reproduce", "warnings", "provenance")}
    assert head == {**{name: getattr(result, name) for name in head if name != "study"}, "study": "predict"} | {
        "warnings": result.warnings
    }
    assert document["version"] == result.spec["version"]
    low, high = document["band"]["p5"], document["band"]["p95"]
    assert (low, high) == (result.step_time_p5_ns / 1e9, result.step_time_p95_ns / 1e9)
    assert low <= document[document["band"]["of"]] <= high


def test_schema_covers_the_document(result: Result) -> None:
    schema = json_schema()
    document = to_document(result)
    assert set(schema["properties"]) == set(document)
    assert set(schema["required"]) <= set(document)
    assert set(document) - set(schema["required"]) == {
        "advice",
        "advice_tried",
        "band_reason",
        "class_names",
        "disturbed",
        "excerpt",
        "gpu_watts",
        "gpu_watts_p5",
        "gpu_watts_p95",
        "infeasible",
        "memory_p95_bytes",
        "technique",
        "tight",
        "traffic_bytes",
    }
    json.dumps(schema)
