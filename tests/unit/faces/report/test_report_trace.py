from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.faces.report.prediction.categories import label_of
from windtunnel.faces.report.prediction.trace import SUMS, trace_bytes, write_trace
from windtunnel.files.write import check_timeline
from windtunnel.physics.step.result import Result


@pytest.fixture(scope="module")
def events(result: Result) -> list[dict]:
    return json.loads(gzip.decompress(trace_bytes(result)))["traceEvents"]


def _lanes(events: list[dict]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_every_op_is_there_once_with_its_times(result: Result, events: list[dict]) -> None:
    lanes = _lanes(events)
    ops = [event for event in events if event["ph"] == "X" and lanes[event["pid"], event["tid"]] != SUMS]
    found = sorted((op["pid"], op["name"], round(op["ts"] * 1000), round((op["ts"] + op["dur"]) * 1000)) for op in ops)
    assert found == sorted((op.stage, op.label, op.start_ns, op.end_ns) for op in result.excerpt)


def test_the_sums_of_each_stage_are_its_breakdown_and_end_with_the_step(result: Result, events: list[dict]) -> None:
    lanes = _lanes(events)
    for stage in result.stages:
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == stage.stage and lanes[e["pid"], e["tid"]] == SUMS]
        assert {e["cat"]: round(e["dur"] * 1000) for e in mine} == {
            label_of(k): v for k, v in stage.breakdown_ns.items()
        }
        assert max(round((e["ts"] + e["dur"]) * 1000) for e in mine) == result.step_time_ns


def test_time_never_runs_backwards_in_a_lane(events: list[dict]) -> None:
    last: dict[tuple, float] = defaultdict(float)
    for event in events:
        if event["ph"] in "XC":
            lane = (event["ph"], event["pid"], event["tid"])
            assert event["ts"] >= last[lane]
            assert event.get("dur", 0) >= 0
            last[lane] = event["ts"]


def test_lanes_are_named_and_ordered(events: list[dict]) -> None:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(names)
    assert names[0, 1] == "compute"
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes[0] == "stage 0 (512 GPUs)"


def test_memory_is_a_counter(result: Result, events: list[dict]) -> None:
    counters = [event for event in events if event["ph"] == "C"]
    assert len(counters) == sum(len(stage.timeline) for stage in result.memory)
    assert (
        max(event["args"]["bytes"] for event in counters if event["pid"] == 0) == result.memory[0].peak_allocated_bytes
    )


def test_bytes_do_not_depend_on_when_or_in_which_order(result: Result, tmp_path: Path) -> None:
    from dataclasses import replace

    write_trace(result, tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").read_bytes() == trace_bytes(result)
    events = json.loads(gzip.decompress(trace_bytes(replace(result, excerpt=result.excerpt[::-1]))))["traceEvents"]
    assert events == json.loads(gzip.decompress(trace_bytes(result)))["traceEvents"]


def test_nothing_to_draw_is_a_trace_too(bare: Result) -> None:
    assert json.loads(gzip.decompress(trace_bytes(bare)))["traceEvents"] == []


@pytest.mark.parametrize("content", [b"job,gpus\n", b"\x89HDF"])
def test_a_file_of_the_users_is_not_written_over_by_a_timeline(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jobs.csv").write_bytes(content)
    with pytest.raises(InputFileError, match=r"no timeline.*give a timeline a name of its own"):
        check_timeline(tmp_path / "jobs.csv")


def test_a_timeline_is_written_over_by_the_next(result: Result, tmp_path: Path) -> None:
    for content in (b"", trace_bytes(result), b'{"traceEvents": []}'):
        (tmp_path / "t.json").write_bytes(content)
        check_timeline(tmp_path / "t.json")
