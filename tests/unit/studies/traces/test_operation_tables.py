from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import job, write
from valid_graph import validate

from windtunnel.errors import InputFileError, UserError
from windtunnel.physics.engine.replay import replay
from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain, ideal_durations
from windtunnel.studies.traces.stragglers.explanation import Explanation, Part

# The study's traces (trace-*.parquet with result-*.json, ms-*.json and mw-*.json; github.com/ByteDance-Seed/
# StragglerAnalysis) are not ours to ship: they are read where somebody has put them.
BESIDE = Path(__file__).parents[5] / "shared" / "data" / "stragglers"
TRACES = sorted(Path(os.environ.get("WINDTUNNEL_STRAGGLERS", BESIDE)).glob("trace-*.parquet"))


def explained(rows: list[dict[str, Any]], folder: Path) -> Explanation:
    return explain(read_trace([write(rows, folder / "ops.parquet")]))


def answered_or_refused(path: Path) -> None:
    try:
        found = explain(read_trace([path]), [str(path)])
    except UserError as error:
        message = str(error)
    else:
        message = str(path)
        assert 0 < found.slowdown < float("inf")
    assert str(path) in message


def by_name(parts: tuple[Part, ...]) -> dict[str, Part]:
    return {part.name: part for part in parts}


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.stem)
def test_the_published_answers(trace: Path) -> None:
    name = trace.stem.removeprefix("trace-")
    result, ms, mw = (
        json.loads((trace.parent / f"{kind}-{name}.json").read_text(encoding="utf-8"))
        for kind in ("result", "ms", "mw")
    )
    found = explain(read_trace([trace]))
    assert found.slowdown == pytest.approx(result["blocking_slowdown"], rel=1e-4)
    assert found.measured_ns / 1e9 == pytest.approx(np.mean(list(result["step_t_base"].values())), rel=1e-4)
    for parts, key in (
        (found.by_replica, "blocking_decompose_by_dp_rank"),
        (found.by_stage, "blocking_decompose_by_stage"),
        (found.by_kind, "blocking_decompose_by_optype"),
    ):
        ours = {part.name: part.slowdown for part in parts}
        assert ours == pytest.approx(result[key], rel=1e-4)
        assert next(iter(ours)) == next(iter(result[key])), "another one is blamed"
    steps = {str(step): value for step, value in found.step_slowdown.items()}
    assert steps == pytest.approx(result["blocking_step_slowdown"], rel=1e-4)
    assert found.last_stage is not None
    assert found.last_stage.share == pytest.approx(ms["Ms"], rel=1e-3, abs=1e-3)
    assert found.slowest_workers.share == pytest.approx(mw["Mw"], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("n_stages", "n_replicas", "n_micro"), [(1, 1, 1), (1, 3, 2), (2, 1, 5), (4, 2, 4), (5, 1, 3)])
def test_a_job_without_stragglers_replays_to_itself(
    tmp_path: Path, n_stages: int, n_replicas: int, n_micro: int
) -> None:
    found = explained(job(n_stages, n_replicas, n_micro), tmp_path)
    assert found.replayed_ns == pytest.approx(found.measured_ns, rel=1e-6)
    assert found.slowdown == pytest.approx(1.0, abs=1e-6)
    assert "Hardly anything" in found.verdict
    assert not found.notes


def test_one_slow_worker_is_found_and_mending_it_gives_everything_back(tmp_path: Path) -> None:
    def seconds(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
        return 0.3 if (replica, stage) == (2, 1) else 0.1

    found = explained(job(3, 40, 4, seconds=seconds), tmp_path)
    assert found.by_replica[0].name == "2"
    assert found.by_stage[0].name == "1"
    assert next(iter(found.worker_slowdown)) == "replica 2 stage 1"
    assert found.slowest_workers.share == pytest.approx(1.0, abs=0.02)
    assert found.verdict.startswith("A slow worker is to blame: replica 2 stage 1")
    assert "Stage" not in found.verdict  # one slow worker makes no stage heavy, though mending the stage mends it
    assert by_name(found.by_replica)["3"].slowdown == pytest.approx(1.0)


def test_a_slow_last_stage_is_found(tmp_path: Path) -> None:
    def seconds(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
        return 0.2 if stage == 3 else 0.1

    found = explained(job(4, 2, 8, seconds=seconds), tmp_path)
    assert found.by_stage[0].name == "3"
    assert found.last_stage is not None
    assert (found.last_stage.share or 0) > 0.9
    assert "Stage 3" in found.verdict


def test_unequal_micro_batches_are_found(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    length = {(r, m): random.uniform(0.05, 0.3) for r in range(6) for m in range(6)}
    rows = job(2, 6, 6, seconds=lambda kind, step, replica, stage, micro: length[replica, micro])
    found = explained(rows, tmp_path)
    assert found.slowdown > 1.1
    assert found.forward_backward_correlation == pytest.approx(1.0, abs=1e-6)
    assert "unequal work" in found.verdict


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.booleans(), st.integers(0, 2**32))
def test_the_replay_is_the_measured_time_and_the_ideal_keeps_the_work(
    tmp_path: Path, n_stages: int, n_replicas: int, n_rounds: int, n_chunks: int, overlap: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    n_chunks = n_chunks if n_stages > 1 else 1
    rows = job(
        n_stages,
        n_replicas,
        n_rounds * n_stages,
        (0,),
        lambda *_: float(random.uniform(0.01, 1.0)),
        n_chunks=n_chunks,
        overlap=overlap,
    )
    trace = read_trace([write(rows, tmp_path / "ops.parquet")])
    assert not trace.notes
    found = replay(trace.graph, trace.duration_ns).makespan_ns
    assert found == pytest.approx(int(trace.measured_ns[0]), rel=1e-6)
    validate(trace.graph)
    ideal = ideal_durations(trace)
    computes = ~trace.is_communication
    for peers in np.unique(trace.peers[computes]):
        mine = trace.peers == peers
        assert ideal[mine].sum() == pytest.approx(
            trace.duration_ns[mine].sum(), abs=int(mine.sum())
        )  # the mean keeps work


def test_the_same_table_in_another_order_gives_the_same_answer(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    rows = job(3, 2, 4, seconds=lambda *_: float(random.uniform(0.1, 0.2)))
    first = explained(rows, tmp_path).to_dict()
    random.shuffle(rows)
    assert explained(rows, tmp_path).to_dict() == first


def test_clocks_that_differ_by_a_second_are_put_right_and_it_is_said(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    taken = {(r, s): random.uniform(0.1, 0.2) for r in range(3) for s in range(3)}

    def seconds(kind: str, step: int, replica: int, stage: int, micro: int) -> float:
        return taken[replica, stage]

    right = explained(job(3, 3, 4, seconds=seconds), tmp_path)
    skewed = explained(
        job(3, 3, 4, seconds=seconds, clock_s=lambda replica, stage: 1.0 if (replica, stage) == (1, 2) else 0.0),
        tmp_path,
    )
    assert skewed.slowdown == pytest.approx(right.slowdown, rel=1e-3)
    assert skewed.measured_ns == pytest.approx(right.measured_ns, rel=1e-3)
    (note,) = skewed.notes
    assert "replica 1 stage 2 was +1.000 s off" in note


def test_a_cut_off_table_says_which_steps_are_left_out(tmp_path: Path) -> None:
    rows = job(3, 2, 4, steps=(1, 2, 3))
    whole = explained(job(3, 2, 4, steps=(1, 2)), tmp_path)
    found = explained(rows[:-5], tmp_path)
    assert found.n_steps == 2
    assert found.slowdown == whole.slowdown
    (note,) = found.notes
    assert note.startswith("1 of 3 incomplete steps left out: in step 3 replica 0 lacks optimizer-clip")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [r for r in rows if r["dp_rank"] != 0], "no op of replica 0"),
        (lambda rows: [*rows, {**rows[0], "optype": "coffee"}], "unknown kind left out, such as 'coffee'"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, change: Any, words: str) -> None:
    assert any(words in note for note in explained(change(job()), tmp_path).notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [r for r in rows if r["stage"] != 1], "no op of stage 1"),
        (lambda rows: [r for r in rows if r["optype"] != "optimizer"], "no 'optimizer' op"),
        (lambda rows: [{k: v for k, v in r.items() if k != "start_ts"} for r in rows], "no column 'start_ts'"),
        (lambda rows: [{**r, "duration": float("nan")} for r in rows], "no duration"),
        (lambda rows: [{**r, "duration": -1.0} for r in rows], "before they start"),
        (lambda rows: [{**r, "duration": 1e300} for r in rows], "spans"),
        (lambda rows: [{**r, "start_ts": r["start_ts"] * 1e9} for r in rows], "spans"),
        (lambda rows: [{**r, "seq_id": r["seq_id"] - 1} for r in rows], "column 'seq_id' goes from -1"),
        (lambda rows: [{**r, "stage": "first"} for r in rows], "column 'stage' holds"),
        (lambda rows: [r for r in rows if (r["optype"], r["stage"]) != ("forward-recv", 1)], "for 4 of"),
        (lambda rows: [r for r in rows if (r["optype"], r["stage"]) != ("forward-send", 0)], "which receives 4"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_reason(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(InputFileError, match=words):
        explained(change(job()), tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damaged_file_gives_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    path = write(job(2, 2, 2, (1,)), tmp_path / "ops.parquet")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.sampled_from([len(content), len(content) // 2, 3, 0]))]
    path.write_bytes(bytes(content))
    answered_or_refused(path)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damaged_table_gives_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    rows = job(2, 2, 3, (1, 2))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(rows) - 1))
        match data.draw(st.integers(0, 4)):
            case 0:
                rows.pop(at)
            case 1:
                rows.append(dict(rows[at]))
            case 2:
                field = data.draw(st.sampled_from(["dp_rank", "stage", "step", "seq_id", "mc", "gmc", "mb_id"]))
                rows[at] = {**rows[at], field: data.draw(st.integers(-3, 5))}
            case 3:
                rows[at] = {**rows[at], "start_ts": data.draw(st.floats(-1e3, 1e3))}
            case _:
                kind = data.draw(st.sampled_from(sorted({row["optype"] for row in rows})))
                rows = [row for row in rows if row["optype"] != kind] or rows
    answered_or_refused(write(rows, tmp_path / "ops.parquet"))
