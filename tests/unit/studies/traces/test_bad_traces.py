"""What is wrong with a trace is said, and what is left of it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kineto_jobs
import numpy as np
import pytest
from tables import Row, job, write
from valid_graph import validate

from windtunnel.errors import InputFileError
from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Explanation


def explained(rows: list[Row], folder: Path) -> Explanation:
    return explain(read_trace([write(rows, folder / "ops.parquet")]))


def uneven(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
    return 0.1 + 0.05 * replica


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_worker_without_trace_costs_its_replica_alone(tmp_path: Path, replicas: int) -> None:
    rows = job(3, replicas, 4, seconds=uneven)
    found = explained([row for row in rows if (row["dp_rank"], row["stage"]) != (1, 2)], tmp_path)
    assert found.n_steps == 2
    assert found.n_workers == 3 * (replicas - 1)
    (note,) = found.notes
    assert note.startswith(f"1 of {replicas} incomplete replicas left out")
    assert "replica 1 lacks" in note
    assert "of stage 2 in step 7" in note


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("duration", float("nan"), "1 ops have no start or no duration"),
        ("start_ts", float("nan"), "1 ops have no start or no duration"),
        ("duration", -1.0, "1 ops end before they start"),
        ("duration", 1e300, "1 ops are years from the others"),
        ("start_ts", -1e18, "1 ops are years from the others"),
        ("start_ts", float("inf"), "1 ops have no start or no duration"),
    ],
)
def test_one_bad_row_costs_its_step_alone(tmp_path: Path, field: str, value: float, words: str) -> None:
    rows = job(2, 2, 4, (1, 2, 3), seconds=uneven)
    whole = explained([row for row in rows if row["step"] != 2], tmp_path)
    at = next(i for i, row in enumerate(rows) if row["step"] == 2 and row["optype"] == "forward-compute")
    found = explained([{**row, field: value} if i == at else row for i, row in enumerate(rows)], tmp_path)
    assert words in found.notes[0]
    assert f"in row {at}" in found.notes[0]
    assert "1 of 3 incomplete steps left out: in step 2" in found.notes[1]
    assert found.slowdown == whole.slowdown
    assert found.step_slowdown == whole.step_slowdown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [*rows, rows[0]], "replica 0 repeats"),
        (lambda rows: rows[1:], "replica 0 lacks"),
        (lambda rows: [*rows, {**rows[0], "seq_id": 99}], "which most lack"),
    ],
)
def test_steps_unlike_the_others_are_left_out(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], words: str
) -> None:
    found = explained(change(job(2, 2, 4, (1, 2, 3))), tmp_path)
    assert found.n_steps == 2
    assert words in " ".join(found.notes)


def test_clocks_that_drift_are_said(tmp_path: Path) -> None:
    rows = job(2, 2, 4, tuple(range(8)))
    for row in rows:
        row["start_ts"] += (row["stage"] == 1) * (1.0 if row["step"] % 2 else -1.0)
    notes = explained(rows, tmp_path).notes
    assert any("clocks that drift or jump" in note for note in notes)


def test_ends_that_scatter_are_no_clocks(tmp_path: Path) -> None:
    """A median of noise is not taken for an offset."""
    random = np.random.default_rng(2)
    rows = job(2, 2, 6, (0, 1))
    for row in rows:
        if row["optype"].endswith("-send"):
            row["duration"] += float(random.choice([0.0, 0.2]))
    assert not any("put right" in note for note in explained(rows, tmp_path).notes)


def test_predictions_of_ours_are_no_recordings(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "forward", "cat": "gemm", "pid": 0, "tid": 1, "ts": 0.0, "dur": 5.0}] * 40
    text = json.dumps({"otherData": {"title": "Llama \u00b7 8", "result": "ab"}, "traceEvents": events})
    for content in (text, text[:-30]):
        path = tmp_path / "trace.json"
        path.write_text(content)
        with pytest.raises(InputFileError, match="is the timeline of a prediction"):
            read_trace([path])
    path.write_text(json.dumps({"schema": "windtunnel.result/1", "traceEvents": []}))
    with pytest.raises(InputFileError, match="is an answer of windtunnel"):
        read_trace([path])


def kineto(folder: Path, change: Callable[[int, dict[str, Any]], None]) -> Explanation:
    paths = []
    for rank in kineto_jobs.job(world=2):
        document = rank.document()
        change(rank.rank, document)
        path = folder / f"rank{rank.rank}.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    return explain(read_trace(paths))


def test_ranks_of_different_jobs_are_said(tmp_path: Path) -> None:
    def other_job(rank: int, document: dict[str, Any]) -> None:
        document["distributedInfo"]["world_size"] = 2 + 6 * rank
        for event in document["traceEvents"]:
            event["ts"] += 86400e6 * rank

    notes = " ".join(kineto(tmp_path, other_job).notes)
    assert "different numbers of ranks (rank 0 is of 2, rank 1 is of 8)" in notes
    assert "may be of different runs" in notes


def test_ranks_that_recorded_different_steps_are_said(tmp_path: Path) -> None:
    def later(rank: int, document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            if rank and event["name"].startswith("ProfilerStep#"):
                event["name"] = f"ProfilerStep#{int(event['name'][13:]) + 4}"

    notes = " ".join(kineto(tmp_path, later).notes)
    assert "different steps: rank 0 has 5 to 6, rank 1 has 9 to 10" in notes


def cpu_rank(rank: int, batch_us: float) -> dict[str, Any]:
    """Two operators, the second launches an all-reduce, then one that waits for it; by hand, in microseconds."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, start: float, end: float, thread: int = 1) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": end - start})

    forward = batch_us
    add("cpu_op", "aten::linear", 0.0, forward)
    add("cpu_op", "aten::addmm", 1.0, forward - 1)  # inside the one above
    add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", forward, 2 * forward + 20)
    add("cpu_op", "c10d::allreduce_", 2 * forward, 2 * forward + 10)
    met = 2 * 300.0 + 50.0  # rank 1 arrives last
    add("user_annotation", "gloo:all_reduce", 2 * forward, met, thread=2)
    add("cpu_op", "aten::add_", met + 5, met + 25)
    info = {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    return {"distributedInfo": info, "traceEvents": events}


def test_host_operators_stand_in_where_there_is_no_gpu(tmp_path: Path) -> None:
    paths = []
    for rank, batch_us in enumerate((100.0, 300.0)):
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(cpu_rank(rank, batch_us)))
        paths.append(path)
    trace = read_trace(paths)
    found = explain(trace)
    # 300 forward, 300 backward, 50 all-reduce, 5 host, 20 add; the ideal has 200 and 200 in their place.
    assert found.measured_ns == found.replayed_ns == 675_000
    assert found.ideal_ns == 475_000
    assert found.by_worker[0].name == "rank 1"
    assert found.slowest_workers.share == pytest.approx(1.0)
    (note,) = found.notes
    assert "no GPU work in the trace" in note
    validate(trace.graph)
