"""Traces of a run, Kineto's or Nsight's, as the steps of each rank by class of op.

A report of Nsight Systems is read as `nsys export --type sqlite` writes it: kernels, copies, launches, NVTX ranges.
Steps are NVTX ranges that are called step or iteration with a number; where there are none, all is step 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import path_of
from windtunnel.files.sqlite import Tables, is_sqlite, open_tables
from windtunnel.physics.graph.program import OpKind
from windtunnel.process import no_garbage_collection
from windtunnel.studies.traces.by_class import StepTime, step_times
from windtunnel.studies.traces.kernel_kinds import IS_COMMUNICATION, collective_kind, kernel_kind
from windtunnel.studies.traces.kineto.events import Steps
from windtunnel.studies.traces.kineto.file import read_json_trace
from windtunnel.studies.traces.kineto.rank import kineto_ops, loading_of, rank_of
from windtunnel.studies.traces.rank_ops import RankOps, rank_of_file

GIVE = "give Kineto traces (.json, .json.gz), one a rank, or what `nsys export --type sqlite` writes"
KERNELS, COPIES, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME"
STEP = re.compile(r"(?i)^\W*(?:train(?:ing)?[ _])?(?:step|iter(?:ation)?)[ _#:]*(\d{1,9})\b")
LOADER = re.compile(r"(?i)data[ _-]?load|batch[ _-]generator|get_batch|__next__")


def read_traced(paths: Sequence[str | Path]) -> dict[int, list[StepTime]]:
    """The steps of each rank. Raises UserError."""
    if not paths:
        raise SpecError("trace", None, GIVE)
    by_rank: dict[int, list[StepTime]] = {}
    seen: dict[int, RankOps] = {}
    with no_garbage_collection():
        for number, trace_path in enumerate(paths):
            path = path_of(trace_path, GIVE)
            if not path.is_file():
                raise InputFileError(path, "is missing or no file", GIVE)
            if is_sqlite(path):
                ops, loading = rank_of_nsys(path, rank_of_file(path, None, number, seen))
            else:
                trace = read_json_trace(path)
                if not trace.is_kineto:
                    raise InputFileError(path, "is a Chakra trace: it has no times of idle streams", GIVE)
                ops = kineto_ops(trace, rank_of_file(path, rank_of(trace), number, seen))
                loading = loading_of(trace)
            steps = step_times(ops, loading)
            if not steps:
                raise InputFileError(path, "holds no work of a training step", GIVE)
            seen[ops.rank], by_rank[ops.rank] = ops, steps
    return by_rank


def rank_of_nsys(path: Path, rank: int) -> tuple[RankOps, list[tuple[int, int]]]:
    """The ops of a report, and when its host was in the data loader. Raises InputFileError."""
    ops = RankOps(rank=rank, path=str(path))
    with open_tables(path) as tables:
        if KERNELS not in tables.names:
            raise InputFileError(path, "holds no GPU kernels", "record with `nsys profile --trace=cuda,nvtx`")
        names = dict(tables.rows("StringIds", ("id", "value"), "id")) if "StringIds" in tables.names else {}
        steps, loading = _ranges(tables, names)
        calls = _calls(tables)
        host = ops.stream_of("host")
        streams: dict[tuple[int, int], int] = {}
        columns = ("start", "end", "deviceId", "streamId", "correlationId", "shortName")
        work = [(*row[:5], str(names.get(row[5], row[5])), False) for row in tables.rows(KERNELS, columns, "start")]
        if COPIES in tables.names:
            work += [(*row, "memory copy", True) for row in tables.rows(COPIES, columns[:5], "start")]
    devices = {device for _, _, device, _, _, _, _ in work}
    for begin, end, device, stream, correlation, name, copies in sorted(work, key=lambda row: (row[0], row[1])):
        if (device, stream) not in streams:
            streams[device, stream] = ops.stream_of(f"gpu {device} stream {stream}")
        call = calls.get(correlation)
        step = steps.at(begin if call is None else call[0])
        is_message = not copies and IS_COMMUNICATION.match(name) is not None
        category = "memory copies" if copies else collective_kind(name) if is_message else kernel_kind(name)
        kind = OpKind.COLLECTIVE if is_message else OpKind.COMPUTE
        if is_message and "sendrecv" in name.lower():
            category = "send"
        op = ops.add(kind, streams[device, stream], begin, max(0, end - begin), name, category, None, step)
        if call is not None:
            launch = ops.add(OpKind.HOST, host, call[0], max(0, call[1] - call[0]), "launch", "host", None, step)
            ops.waits.append((op, launch))
    if len(devices) > 1:
        ops.notes.append(f"{len(devices)} GPUs in one report are taken as one rank: export one a file")
    return ops, loading


def _ranges(tables: Tables, names: dict[int, str]) -> tuple[Steps, list[tuple[int, int]]]:
    if "NVTX_EVENTS" not in tables.names:
        return Steps([], []), []
    has_id = "textId" in tables.columns("NVTX_EVENTS")
    columns = ("start", "end", "text", "textId") if has_id else ("start", "end", "text")
    steps: list[tuple[int, int]] = []
    loading = []
    for begin, end, text, *other in tables.rows("NVTX_EVENTS", columns, "start"):
        name = str(text if text is not None else names.get(other[0] if other else -1, ""))
        numbered = STEP.match(name)
        if numbered:
            steps.append((begin, int(numbered[1])))
        elif end is not None and LOADER.search(name):
            loading.append((begin, end))
    return Steps([begin for begin, _ in steps], [number for _, number in steps]), loading


def _calls(tables: Tables) -> dict[int, tuple[int, int]]:
    if CALLS not in tables.names:
        return {}
    rows = tables.rows(CALLS, ("correlationId", "start", "end"), "start")
    return {correlation: (begin, end) for correlation, begin, end in rows}
