"""A traced step by class of op: the classes sum to the step, and each is what the trace was made with."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from windtunnel.errors import UserError
from windtunnel.faces.report.comparison.compare import TraceComparison, answer
from windtunnel.faces.report.comparison.views import trace_document
from windtunnel.faces.report.draw.console import print_document
from windtunnel.faces.report.run_folder import save
from windtunnel.questions import read
from windtunnel.questions.asked.saved import Compare
from windtunnel.studies.measured_run.traced import read_traced
from windtunnel.studies.predict import answer as predicted
from windtunnel.studies.traces.by_class import _Covered, typical

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)
GEMM, NCCL = "nvjet_hsh_128x256_gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
# Name, stream, begin, length, launch (all in microseconds of the step); a step begins each 1000.
KERNELS = (
    (GEMM, 7, 0, 300, -20),
    ("flash_fwd_kernel", 7, 300, 200, -10),
    (NCCL, 20, 400, 250, -5),
    (GEMM, 7, 800, 100, 720),
)
CLASSES = {
    "gemm": 400e-6,
    "attention": 200e-6,
    "all-reduce": 150e-6,
    "data loader": 40e-6,
    "host": 110e-6,
    "idle": 100e-6,
}


@given(INTERVALS, INTERVALS)
def test_own_time_is_what_nobody_before_had(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    covered, ticks = _Covered(), set[int]()
    for group in (first, second):
        spans = sorted((begin, begin + length) for begin, length in group)
        own = covered.own(np.array([a for a, _ in spans], np.int64), np.array([b for _, b in spans], np.int64))
        for (begin, end), taken in zip(spans, own.tolist(), strict=True):
            fresh = set(range(begin, end)) - ticks
            assert taken == len(fresh)
            ticks |= fresh
    gaps = {at for low, high in covered.gaps(0, 100) for at in range(low, high)}
    assert gaps == set(range(100)) - ticks


def events() -> Iterator[dict[str, object]]:
    number = 0
    for step in range(4):
        base = 10_000 + 1000 * step
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "ts": base - 50,
            "dur": 1000,
            "pid": 1,
            "tid": 1,
        }
        loader = {"name": "enumerate(DataLoader)#_Iter.__next__", "ts": base + 660, "dur": 40, "pid": 1, "tid": 1}
        yield {"ph": "X", "cat": "user_annotation", **loader}
        for name, stream, begin, length, launch in KERNELS:
            number += 1
            args = {"correlation": number, "stream": stream, "device": 0}
            yield {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "ts": base + begin,
                "dur": length,
                "pid": 0,
                "tid": stream,
                "args": args,
            }
            call = {"name": "cudaLaunchKernel", "ts": base + launch - 4, "dur": 4, "args": {"correlation": number}}
            yield {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, **call}


def written(folder: Path, rank: int = 0) -> Path:
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"traceEvents": list(events()), "distributedInfo": {"rank": rank, "world_size": 2}}))
    return path


def nsys(folder: Path) -> Path:
    path = folder / "report.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, shortName)")
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId)")
    base.execute("CREATE TABLE NVTX_EVENTS (start, end, text, textId)")
    names: dict[str, int] = {}
    for one in events():
        begin, end = round(float(str(one["ts"])) * 1000), round((float(str(one["ts"])) + float(str(one["dur"]))) * 1000)
        args = one.get("args", {})
        assert isinstance(args, dict)
        if one["cat"] == "kernel":
            name = names.setdefault(str(one["name"]), len(names))
            row = (begin, end, 0, args["stream"], args["correlation"], name)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", row)
        elif one["cat"] == "cuda_runtime":
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?)", (begin, end, args["correlation"]))
        else:
            text = str(one["name"]).replace("ProfilerStep#", "iteration ")
            base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL)", (begin, end, text))
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(at, name) for name, at in names.items()])
    base.commit()
    base.close()
    return path


def test_every_instant_is_of_one_class(tmp_path: Path) -> None:
    for path in (written(tmp_path), nsys(tmp_path)):
        steps = read_traced([path])[0]
        assert [one.step for one in steps] == [0, 1, 2, 3]
        for one in steps[:-1]:
            assert one.length_s == pytest.approx(1000e-6)
            assert dict(one.seconds) == pytest.approx(CLASSES)
        assert steps[-1].length_s == pytest.approx(900e-6)  # to its last op
        assert typical(steps)["gemm"] == pytest.approx(CLASSES["gemm"])
        assert steps[0].longest["all-reduce"] == NCCL


def test_ranks_are_apart_and_one_twice_is_an_error(tmp_path: Path) -> None:
    assert set(read_traced([written(tmp_path, 0), written(tmp_path, 1)])) == {0, 1}
    with pytest.raises(UserError, match="rank 0"):
        read_traced([written(tmp_path, 0), written(tmp_path, 0)])


def test_a_damaged_report_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4000)
    with pytest.raises(UserError, match="damaged"):
        read_traced([path])
    empty = tmp_path / "empty.sqlite"
    connection = sqlite3.connect(empty)
    connection.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1")  # a view is not read
    connection.commit()
    connection.close()
    with pytest.raises(UserError, match="no GPU kernels"):
        read_traced([empty])


def test_a_run_against_a_trace_is_class_by_class(tmp_path: Path) -> None:
    asked = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:16"}
    result = predicted(read({**asked, "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096}}))
    folder = save(result, tmp_path)
    paths = [str(written(tmp_path, 0)), str(written(tmp_path, 1))]
    found = answer(Compare(run=str(folder), against=paths[0], more=(paths[1],)))
    assert isinstance(found, TraceComparison)
    assert found.predicted_s == pytest.approx(result.step_time_s)
    assert found.measured_s == pytest.approx(1000e-6)
    document = found.to_dict()
    classes = {one["name"]: one for one in document["classes"]}
    assert classes["gemm"]["measured_s"] == pytest.approx(CLASSES["gemm"])
    assert classes["exposed communication"]["measured_s"] == pytest.approx(CLASSES["all-reduce"])
    assert sum(one["difference_s"] for one in document["classes"]) == pytest.approx(1000e-6 - result.step_time_s)
    assert {(step["rank"], step["step"]) for step in document["steps"]} == {(r, s) for r in (0, 1) for s in range(4)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_console_shows_steps_and_what_is_idle(ranks: int, tmp_path: Path) -> None:
    asked = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:16"}
    folder = save(predicted(read({**asked, "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096}})), tmp_path)
    paths = [str(written(tmp_path, rank)) for rank in range(ranks)]
    found = answer(Compare(run=str(folder), against=paths[0], more=tuple(paths[1:])))
    assert isinstance(found, TraceComparison)
    console = Console(width=200, record=True, file=io.StringIO())
    print_document(trace_document(found), console)
    shown = console.export_text()
    for word in ("host", "idle", *(("step 1", "step 3") if ranks == 1 else ("rank 0", "rank 1"))):
        assert word in shown


STEP = " iteration {}/ 100 | elapsed time per iteration (ms): 2000.0 | global batch size: 8 |\n"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.sh slurm.out", "windtunnel diagnose train.sh --cluster GPU:16 --log slurm.out"),
        ("slurm.out train.sh", "windtunnel diagnose train.sh --cluster GPU:16 --log slurm.out"),
        ("slurm.out slurm.out", "windtunnel diagnose LAUNCH_FILE --cluster GPU:16 --log slurm.out"),
        ("train.sh trace.json", "windtunnel diagnose train.sh --cluster GPU:N --trace trace.json"),
        ("train.sh train.sh", "windtunnel predict train.sh --cluster GPU:N"),
    ],
)
def test_files_that_are_no_runs_are_met_by_the_command_that_reads_them(
    words: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("torchrun pretrain_gpt.py --num-layers 32\n")
    Path("slurm.out").write_text("world size: 16\n" + "".join(STEP.format(at) for at in range(9)))
    Path("trace.json").write_text(json.dumps({"traceEvents": list(events())}))
    run, against = words.split()
    with pytest.raises(UserError) as error:
        answer(Compare(run=run, against=against))
    assert f"`{command}`" in str(error.value)


def test_a_log_beside_a_run_is_diagnosed_with_the_words_of_that_run(tmp_path: Path) -> None:
    asked = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:16"}
    result = predicted(read({**asked, "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096}}))
    log = tmp_path / "slurm.out"
    log.write_text("".join(STEP.format(at) for at in range(9)))
    with pytest.raises(UserError) as error:
        answer(Compare(run=str(save(result, tmp_path)), against=str(log)))
    assert "`windtunnel diagnose llama-3-8b --cluster h100-sxm:16 --tp 2" in str(error.value)
    assert f"--log {log}`" in str(error.value)
