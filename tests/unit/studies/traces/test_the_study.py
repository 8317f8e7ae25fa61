"""Operation tables against the study's definitions, written out a second time in `by_definition`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_definition import Study
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import job, with_idle_sends, write

from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Part

COLLECTIVES = ("params-all-gather", "grads-reduce-scatter", "layernorm-grads-all-reduce", "separate-grads-all-reduce")


def slowdowns(parts: tuple[Part, ...]) -> dict[str, float]:
    return {part.name: part.slowdown for part in parts}


def agree(rows: list[dict[str, Any]], folder: Path, dsp: int = 1, ranks: bool = False) -> None:
    """The product finds what the definitions say."""
    n_replicas = max(row["dp_rank"] for row in rows) + 1
    n_stages = max(row["stage"] for row in rows) + 1

    def rank(replica: int, stage: int) -> int:
        return (stage * n_replicas + replica) * dsp if ranks else replica * n_stages + stage

    if ranks:
        rows = [{**row, "rank": rank(row["dp_rank"], row["stage"])} for row in rows]
    study, found = Study(rows, dsp), explain(read_trace([write(rows, folder / "ops.parquet")]))
    assert not [note for note in found.notes if "% of the measured time" not in note]
    close = {"rel": 1e-6}
    assert found.slowdown == pytest.approx(study.slowdown(), **close)
    assert list(found.step_slowdown.values()) == pytest.approx(study.per_step(), **close)
    assert slowdowns(found.by_replica) == pytest.approx(study.by_replica(), **close)
    assert slowdowns(found.by_stage) == pytest.approx(study.by_stage(), **close)
    assert slowdowns(found.by_kind) == pytest.approx(study.by_kind(), **close)
    if study.slowdown() > 1.001:
        assert found.slowest_workers.share == pytest.approx(study.slowest_share(rank), rel=1e-3, abs=1e-4)
        if found.last_stage is not None:
            share = study.share(lambda op: op[2] == n_stages - 1)
            assert found.last_stage.share == pytest.approx(share, rel=1e-3, abs=1e-4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
    st.sampled_from(["none", "overlap", "late"]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_any_layout_agrees_with_the_definitions(
    tmp_path: Path, n_stages: int, n_replicas: int, n_rounds: int, n_chunks: int, data: str, ranks: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    n_chunks = n_chunks if n_stages > 1 else 1
    rows = job(
        n_stages,
        n_replicas,
        n_rounds * n_stages,
        (3, 8),
        lambda *_: float(random.uniform(0.05, 0.5)),
        n_chunks=n_chunks,
        overlap=data == "overlap" and n_replicas > 1,
        scatters_late=data == "late" and n_replicas > 1,
    )
    rows = with_idle_sends(rows, random) if random.random() < 0.5 else rows
    for row in rows:
        if row["optype"] in COLLECTIVES:
            row["duration"] += random.uniform(0.0, 0.02)
    random.shuffle(rows)
    agree(rows, tmp_path, ranks=ranks)


def test_one_replica_that_shards_its_sequences_still_scatters(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = job(2, 1, 4, (0, 1), lambda *_: float(random.uniform(0.1, 0.3)), overlap=True)
    agree(rows, tmp_path, dsp=2, ranks=True)


def test_the_first_receive_of_an_interleaved_pipeline_may_be_missing(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    rows = job(2, 2, 4, (0, 1), lambda *_: float(random.uniform(0.1, 0.3)), n_chunks=2)
    lost = ("forward-recv", 0)
    rows = [row for row in rows if (row["optype"], row["stage"]) != lost or row["seq_id"] > 0]
    for row in rows:
        row["seq_id"] -= (row["optype"], row["stage"]) == lost
    agree(rows, tmp_path)


def test_of_equally_slow_workers_those_of_lowest_rank_count(tmp_path: Path) -> None:
    """Ranks go stage by stage in the study's jobs, so the tie is broken another way than by replica."""

    def seconds(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
        return 0.3 if replica in (5, 6) else 0.1

    agree(job(2, 20, 2, (0,), seconds), tmp_path, ranks=True)
    found = explain(read_trace([tmp_path / "ops.parquet"]))
    scores = list(found.worker_slowdown.items())

    def rank(name: str) -> int:
        _, replica, _, stage = name.split()
        return int(stage) * 20 + int(replica)

    assert scores == sorted(scores, key=lambda item: (-item[1], rank(item[0])))
    even = explain(
        read_trace([write([{**row, "rank": -row["dp_rank"]} for row in job(1, 9, 1)], tmp_path / "e.parquet")])
    )
    assert next(iter(even.worker_slowdown)) == "replica 8 stage 0"


@pytest.mark.parametrize("columns", [("gmc",), ("mc",), ("mb_id",), ("mc", "gmc", "mb_id", "rank")])
@pytest.mark.parametrize("n_chunks", [1, 2])
def test_columns_that_may_be_missing_change_no_figure(tmp_path: Path, columns: tuple[str, ...], n_chunks: int) -> None:
    if n_chunks == 2 and {"mc", "gmc"} <= set(columns):
        pytest.skip("chunks cannot be known then")
    random = np.random.default_rng(8)
    overlap = n_chunks == 1 or "mc" not in columns  # gathers and scatters name their chunk in this column alone
    rows = job(2, 2, 4, (0, 1), lambda *_: float(random.uniform(0.1, 0.3)), n_chunks=n_chunks, overlap=overlap)
    whole = explain(read_trace([write(rows, tmp_path / "ops.parquet")]))
    for gone in ({}, {"mc": None}):
        empty = {name: value for name, value in gone.items() if name in columns}
        less = [{**{k: v for k, v in row.items() if k not in columns}, **empty} for row in rows]
        found = explain(read_trace([write(less, tmp_path / "ops.parquet")]))
        assert json.dumps(found.to_dict()["by_kind"]) == json.dumps(whole.to_dict()["by_kind"])
        assert found.slowdown == whole.slowdown


def test_numbers_written_as_floats_and_names_in_capitals_are_read(tmp_path: Path) -> None:
    rows = job(2, 2, 4)
    other = [
        {
            **row,
            "mc": float(row["mc"]),
            "seq_id": float(row["seq_id"]),
            "optype": row["optype"].upper().replace("-", "_"),
        }
        for row in rows
    ]
    found = [explain(read_trace([write(which, tmp_path / "ops.parquet")])).to_dict() for which in (rows, other)]
    assert found[0] == found[1]


def test_tensor_parallel_ranks_share_a_worker(tmp_path: Path) -> None:
    rows = job(2, 2, 4, seconds=lambda kind, step, replica, stage, micro: 0.1 + 0.1 * (replica == 1))
    both = [{**row, "rank": (row["dp_rank"] * 2 + row["stage"]) * 2 + tp} for row in rows for tp in range(2)]
    one = explain(read_trace([write(rows, tmp_path / "ops.parquet")]))
    found = explain(read_trace([write(both, tmp_path / "ops.parquet")]))
    assert found.slowdown == one.slowdown
    (note,) = found.notes
    assert note.startswith("4 ranks share replica and stage with another")


def test_nanoseconds_are_no_loss_that_has_shares(tmp_path: Path) -> None:
    rows = job(seconds=lambda kind, step, replica, stage, micro: 0.1 + 4e-9 * replica)
    found = explain(read_trace([write(rows, tmp_path / "ops.parquet")]))
    assert 1.0 < found.slowdown < 1.0 + 1e-6
    assert {part.share for part in (*found.by_worker, *found.by_kind)} == {None}


def test_rounding_to_nanoseconds_makes_no_part_dearer(tmp_path: Path) -> None:
    """Three of four micro-batches are 1 ns longer: their mean, rounded up, would make the ideal 1 ns longer."""
    rows = job(1, 1, 4, seconds=lambda kind, step, replica, stage, micro: 1e-3 + 1e-9 * (micro > 0))
    found = explain(read_trace([write(rows, tmp_path / "ops.parquet")]))
    assert min(part.saved_ns for part in found.by_kind) >= 0
    assert found.slowdown >= 1.0
