"""The timeline excerpt as Chrome trace JSON, gzipped: open it at ui.perfetto.dev or chrome://tracing.

One process per pipeline stage, one thread per stream, one complete event (`X`) per op, and one counter (`C`) of
allocated memory per stage. The last thread of a stage is no timeline: it lays the parts of the breakdown end to end, so
its events of one category sum to that part and it ends with the step, also where the timeline is only an excerpt.
Times are microseconds with fractions, as the format wants; the excerpt's integer nanoseconds survive exactly. Format:
"Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from windtunnel.faces.report.prediction.categories import label_of, label_on_lane, time_categories
from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.files.write import write_atomically
from windtunnel.physics.step.result import Result
from windtunnel.units import format_many

SUMS = "sums of the whole step"
_STREAM_ORDER = ("compute", "layers", "tp", "cp", "ep", "pp", "dp", "host")
_US = 1000


def streams_of(result: Result) -> dict[int, list[str]]:
    """Streams of the excerpt by stage, compute first, in the order in which lanes are drawn."""
    rank = {name: i for i, name in enumerate(_STREAM_ORDER)}
    streams: dict[int, set[str]] = {}
    for interval in result.excerpt:
        streams.setdefault(interval.stage, set()).add(interval.stream)
    return {
        stage: sorted(streams[stage], key=lambda name: (rank.get(name, len(rank)), name)) for stage in sorted(streams)
    }


def trace_events(result: Result) -> Iterator[dict[str, object]]:
    """Metadata first, then ops and memory by stage in order of time."""
    streams = streams_of(result)
    ranks = {stage.stage: stage.ranks for stage in result.stages}
    lanes = {(stage, name): i + 1 for stage, names in streams.items() for i, name in enumerate(names)}
    sums = {stage.stage: 1 + len(streams.get(stage.stage, ())) for stage in result.stages if stage.breakdown_ns}
    for stage in sorted({*streams, *sums, *(memory.stage for memory in result.memory)}):
        name = result.class_name(stage) + (f" ({format_many(ranks[stage], 'GPU')})" if stage in ranks else "")
        threads = {stream: lanes[stage, stream] for stream in streams.get(stage, ())}
        threads |= {SUMS: sums[stage]} if stage in sums else {}
        yield from _metadata("process", name, stage, stage, 0)
        for stream, lane in threads.items():
            yield from _metadata("thread", stream, lane, stage, lane)
    ordered = sorted(
        result.excerpt, key=lambda op: (op.stage, lanes[op.stage, op.stream], op.start_ns, -op.end_ns, op.label)
    )
    for op in ordered:
        lane = lanes[op.stage, op.stream]
        yield _event(op.label, label_on_lane(op.category), op.stage, lane, op.start_ns, op.end_ns - op.start_ns)
    for report in result.stages:
        now = 0
        for key in time_categories(report.breakdown_ns):
            yield _event(label_of(key), label_of(key), report.stage, sums[report.stage], now, report.breakdown_ns[key])
            now += report.breakdown_ns[key]
    for memory in sorted(result.memory, key=lambda memory: memory.stage):
        for time_ns, allocated in sorted(memory.timeline):
            at = {"ph": "C", "name": "allocated memory", "pid": memory.stage, "tid": 0, "ts": time_ns / _US}
            yield {**at, "args": {"bytes": allocated}}


def trace_bytes(result: Result) -> bytes:
    """The gzipped trace; the same result gives the same bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as packed:
        head = {"displayTimeUnit": "ms", "otherData": {"title": title(result), "result": result.content_hash}}
        # One event per line: a trace can be read and compared with ordinary text tools.
        packed.write(_line(head)[:-1] + b',"traceEvents":[')
        for i, event in enumerate(trace_events(result)):
            packed.write((b",\n" if i else b"\n") + _line(event))
        packed.write(b"\n]}\n")
    return buffer.getvalue()


def write_trace(result: Result, path: Path | str) -> None:
    """Write the gzipped trace at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), trace_bytes(result))


def _event(name: str, category: str, pid: int, tid: int, start_ns: int, ns: int) -> dict[str, object]:
    when = {"ts": start_ns / _US, "dur": ns / _US}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **when}


def _metadata(kind: str, name: str, place: int, pid: int, tid: int) -> Iterator[dict[str, object]]:
    for what, args in (("name", {"name": name}), ("sort_index", {"sort_index": place})):
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": args}


def _line(event: Mapping[str, object]) -> bytes:
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
