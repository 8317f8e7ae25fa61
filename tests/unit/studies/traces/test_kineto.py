from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import kineto_jobs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from valid_graph import validate

from windtunnel.errors import InputFileError, UserError
from windtunnel.physics.engine.replay import replay
from windtunnel.studies.traces.read import read_trace
from windtunnel.studies.traces.stragglers.counterfactuals import explain
from windtunnel.studies.traces.stragglers.explanation import Explanation
from windtunnel.studies.traces.trace import Trace


def traced(ranks: list[kineto_jobs.Rank], folder: Path, packed: bool = False) -> Trace:
    return read_trace(kineto_jobs.write(ranks, folder, packed))


def explained(ranks: list[kineto_jobs.Rank], folder: Path) -> Explanation:
    return explain(traced(ranks, folder))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_replay_repeats_the_recording_to_the_microsecond(tmp_path: Path, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, 4))
    factor = st.floats(0.01, 5)
    ranks = kineto_jobs.job(
        world,
        data.draw(st.integers(1, 4)),
        slow={r: data.draw(factor) for r in range(world)},
        clock_us={r: data.draw(st.floats(-2e6, 2e6)) for r in range(world)},
        has_numbers=data.draw(st.booleans()),
        steps=data.draw(st.integers(1, 3)),
    )
    trace = traced(ranks, tmp_path, packed=data.draw(st.booleans()))
    validate(trace.graph)
    found = replay(trace.graph, trace.duration_ns).makespan_ns / 1000
    # The annotations of steps begin before the first call, by one microsecond.
    assert found == pytest.approx(kineto_jobs.end_us(ranks) - 1.0, abs=0.5)
    assert trace.measured_ns[0] / 1000 == pytest.approx(found, abs=0.5)


def test_a_slow_rank_is_found_and_mending_it_gives_everything_back(tmp_path: Path) -> None:
    found = explained(kineto_jobs.job(slow={2: 1.5}), tmp_path)
    even = explained(kineto_jobs.job(slow=dict.fromkeys(range(4), 1.125)), tmp_path)
    assert next(iter(found.worker_slowdown)) == "rank 2"
    assert found.ideal_ns == pytest.approx(even.replayed_ns, rel=1e-4)  # the mean of 1, 1, 1 and 1.5
    assert found.slowest_workers.share == pytest.approx(1.0, abs=0.05)
    assert found.verdict.startswith("A slow worker is to blame: rank 2")
    assert found.by_kind[0].name == "gemm"
    assert not found.notes


@pytest.mark.parametrize("change", ["clock", "numbers"])
def test_clock_and_missing_numbers_change_no_figure(tmp_path: Path, change: str) -> None:
    right = explained(kineto_jobs.job(slow={1: 1.3}), tmp_path)
    other = (
        kineto_jobs.job(slow={1: 1.3}, clock_us={3: 1e6})
        if change == "clock"
        else kineto_jobs.job(slow={1: 1.3}, has_numbers=False)
    )
    found = explained(other, tmp_path)
    assert found.slowdown == pytest.approx(right.slowdown, rel=1e-6)
    assert [("+1.000 s off" in note) for note in found.notes] == ([True] if change == "clock" else [])


def test_one_rank_is_compared_with_its_other_steps(tmp_path: Path) -> None:
    found = explained(kineto_jobs.job(world=1, steps=3), tmp_path)
    assert found.slowdown == pytest.approx(1.0)
    assert "One rank" in found.verdict
    assert "gemm" in found.verdict
    assert [one.step for one in found.rank_steps] == [5, 6, 7]
    for one in found.rank_steps:
        assert sum(one.seconds.values()) > 0.0
    alone = explained(kineto_jobs.job(world=1, steps=1), tmp_path)
    assert "One rank" in alone.verdict


def test_waits_for_events_that_the_trace_does_not_name_are_counted(tmp_path: Path) -> None:
    found = explained(kineto_jobs.job(has_events=False), tmp_path)
    assert any("24 stream waits for an event that the trace does not name" in note for note in found.notes)
    assert any("% of the measured time" in note for note in found.notes)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    found = explained(kineto_jobs.job(world=4)[1:], tmp_path)
    assert found.n_workers == 3
    assert any(note.startswith("1 ranks take part") and "first rank 0" in note for note in found.notes)


@pytest.mark.parametrize("has_numbers", [True, False])
def test_unmatched_collectives_are_counted_with_an_example(tmp_path: Path, has_numbers: bool) -> None:
    ranks = kineto_jobs.job(has_numbers=has_numbers)
    nccl = [event for event in ranks[1].events if event["name"].startswith("nccl")]
    ranks[1].events.remove(nccl[3])
    notes = " ".join(explained(ranks, tmp_path).notes)
    if has_numbers:
        assert "3 collectives miss a partner, first 'ncclDevKernel" in notes
        assert "rank 1 has no number 3" in notes
    else:
        assert "47 collectives without sequence number on ranks that do not have as many" in notes


def test_collectives_that_disagree_do_not_meet(tmp_path: Path) -> None:
    ranks = kineto_jobs.job()
    nccl = [event for event in ranks[1].events if event["name"].startswith("nccl")]
    nccl[2]["args"]["Collective name"] = "broadcast"
    assert any("4 collectives disagree" in note for note in explained(ranks, tmp_path).notes)


def send_receive(folder: Path, n: int = 3, lost: int = 0, numbers: bool = False) -> Explanation:
    """Rank 0 computes 100 us and sends, rank 1 receives and computes 300 us; `lost` receives are not recorded."""
    files: list[list[dict[str, Any]]] = [[], []]
    for k in range(n):
        for rank, name in ((0, "send"), (1, "recv")):
            if rank == 1 and k >= n - lost:
                continue
            start = 1000.0 + 400 * k
            args = {
                **{"Collective name": name, "Process Group Name": "pp", "Src Rank": 0, "Dst Rank": 1},
                **{"stream": 20, "device": rank, "correlation": -1, "In msg nelems": 8, "dtype": "Float"},
                **({"Seq": k} if numbers else {}),
            }
            busy = {"stream": 20, "device": rank, "correlation": -1}
            taken = 100.0 if rank == 0 else 300.0
            begin = start - 100 if rank == 0 else start + 10
            files[rank].append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "gemm",
                    "pid": 0,
                    "tid": 0,
                    "ts": begin,
                    "dur": taken,
                    "args": busy,
                }
            )
            files[rank].append(
                {
                    **{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "pid": 0, "tid": 0},
                    **{"ts": start, "dur": 10.0, "args": args},
                }
            )
    paths = []
    for rank, events in enumerate(files):
        path = folder / f"pp{rank}.json"
        path.write_text(json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
        paths.append(path)
    return explain(read_trace(paths))


def test_sends_meet_receives_and_make_stages(tmp_path: Path) -> None:
    found = send_receive(tmp_path)
    assert {part.name for part in found.by_stage} == {"0", "1"}
    assert {"send", "receive", "gemm"} == {part.name for part in found.by_kind}
    # Stage 1 works 300 us per micro-batch after the first send: 110 + 3 x 310 us less the last transfer.
    assert found.replayed_ns == 110_000 + 300_000 + 2 * 310_000


def test_sends_without_receive_are_said(tmp_path: Path) -> None:
    assert any("5 sends and receives without partner" in note for note in send_receive(tmp_path, lost=1).notes)
    assert not any("partner" in note for note in send_receive(tmp_path, numbers=True).notes)


def test_communicators_whose_ranks_are_not_listed_are_checked_by_size(tmp_path: Path) -> None:
    ranks = kineto_jobs.job(world=3)
    for rank in ranks:
        for event in rank.events:
            if "Process Group Ranks" in event["args"]:
                event["args"]["Process Group Ranks"] = "[0, ..., 2]"
    assert not explained(ranks, tmp_path).notes
    (note,) = explained(ranks[:2], tmp_path).notes
    assert note.startswith("1 communicators have members without trace here")
    assert "2 of 3 ranks" in note


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("share", [0.9, 0.5])
def test_a_file_that_was_cut_off_is_used_up_to_there(tmp_path: Path, packed: bool, share: float) -> None:
    text = json.dumps(kineto_jobs.job(world=1)[0].document()).encode()
    content = gzip.compress(text) if packed else text
    path = tmp_path / "rank0.json"
    path.write_bytes(content[: int(len(content) * share)])
    trace = read_trace([path])
    assert any("cut off or damaged: the" in note for note in trace.notes)
    assert 0 < trace.graph.n_ops < traced(kineto_jobs.job(world=1), tmp_path).graph.n_ops


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"not json", "is no JSON"),
        (b'{"a": 1}', "has neither 'traceEvents'"),
        (b'{"traceEvents": []}', "holds no op"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op"', "damaged before its first event"),
        (b"\x1f\x8b garbage", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=words):
        read_trace([path])


def test_two_files_of_one_rank_and_a_folder_are_refused(tmp_path: Path) -> None:
    (path,) = kineto_jobs.write(kineto_jobs.job(world=1), tmp_path)
    copy = tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(InputFileError, match="is of rank 0, as is"):
        read_trace([path, copy])
    for paths in ([path, path], [tmp_path], [tmp_path / "none.json"], []):
        with pytest.raises(UserError):
            read_trace(paths)


STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([1, "a"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damaged_event_gives_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    ranks = kineto_jobs.job(world=2, layers=2, steps=1, slow={1: 1.5})
    paths = []
    for rank in ranks:
        document: Any = rank.document()
        for _ in range(data.draw(st.integers(0, 4))):
            events = document["traceEvents"]
            at = data.draw(st.integers(0, len(events) - 1))
            inner = (
                data.draw(st.booleans()) and isinstance(events[at], dict) and isinstance(events[at].get("args"), dict)
            )
            target = events[at]["args"] if inner else events[at]
            if isinstance(target, dict) and target:
                target[data.draw(st.sampled_from(sorted(target)))] = data.draw(STRANGE)
            else:
                events[at] = data.draw(STRANGE)
        if data.draw(st.integers(0, 9)) == 0:
            document["distributedInfo"] = data.draw(STRANGE)
        text = json.dumps(document)
        path = tmp_path / f"rank{rank.rank}.json"
        path.write_text(text[: data.draw(st.sampled_from([len(text), len(text) // 2]))])
        paths.append(path)
    try:
        found = explain(read_trace(paths), [str(path) for path in paths])
    except UserError as error:
        message = str(error)
    else:
        message = str(tmp_path)
        assert np.isfinite(found.slowdown)
        assert found.slowdown > 0
        json.dumps(found.to_dict(), allow_nan=False)
    assert str(tmp_path) in message


def test_times_in_quotes_are_times_on_a_host_too(tmp_path: Path) -> None:
    def read(quoted: bool) -> Trace:
        def item(name: str, cat: str, start_us: float, taken_us: float) -> dict[str, Any]:
            times = (str(start_us), str(taken_us)) if quoted else (start_us, taken_us)
            return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": times[0], "dur": times[1]}

        events = [
            item("ProfilerStep#7", "user_annotation", 5.0, 40.0),
            item("aten::mm", "cpu_op", 10.0, 10.0),
            item("ProfilerStep#8", "user_annotation", 50.0, 40.0),
            item("aten::mm", "cpu_op", 60.0, 12.5),
        ]
        path = tmp_path / f"{quoted}.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return read_trace([path])

    plain, quoted = read(False), read(True)
    assert quoted.duration_ns.tolist() == plain.duration_ns.tolist()
    assert len(set(plain.peers.tolist())) < plain.graph.n_ops  # the two products are peers, one in each step
    assert quoted.peers.tolist() == plain.peers.tolist()


def test_a_step_whose_number_is_none_is_no_step(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": start, "dur": 10.0}
        for name, cat, start in (("ProfilerStep#²", "user_annotation", 0.0), ("aten::mm", "cpu_op", 1.0))
    ]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert read_trace([path]).duration_ns.max() == 10_000


def test_a_sync_record_of_no_call_is_not_taken_for_one_of_every_such_call(tmp_path: Path) -> None:
    def item(name: str, cat: str, start_us: float, taken_us: float, **args: Any) -> dict[str, Any]:
        times = {"ts": start_us, "dur": taken_us}
        return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "args": args, **times}

    def waits(*records: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
        events = [
            item("cudaLaunchKernel", "cuda_runtime", 0.0, 2.0, correlation=1),
            item("gemm", "kernel", 4.0, 50.0, stream=20, device=0, correlation=1),
            item("cudaLaunchKernel", "cuda_runtime", 3.0, 2.0, correlation=2),
            item("gemm", "kernel", 6.0, 30.0, stream=7, device=0, correlation=2),
            item("cudaStreamSynchronize", "cuda_runtime", 6.0, 31.0),
        ]
        path = tmp_path / f"{len(records)}.json"
        path.write_text(json.dumps({"traceEvents": [*events, *records]}))
        trace = read_trace([path])
        return trace.graph.dep_ptr.tolist(), trace.graph.dep_idx.tolist(), trace.duration_ns.tolist()

    assert waits() == waits(item("Stream Synchronize", "cuda_sync", 6.0, 0.0, stream=20))
