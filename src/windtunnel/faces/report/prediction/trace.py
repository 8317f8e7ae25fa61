"""The timeline excerpt as Chrome trace JSON, gzipped: open it at ui.perfetto.dev or chrome://tracing.

One process per pipeline stage, one thread per stream, one complete event (`X`) per op, and one counter (`C`) of
allocated memory per stage. The last thread of a stage is no timeline: it lays the parts of the breakdown end to end, so
its events of one category sum to that part and it ends with the step, also where the timeline is only an excerpt.
Times are microseconds with fractions; the excerpt's integer nanoseconds survive exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from windtunnel.faces.report.prediction.categories import label_of, label_on_lane, time_categories
from windtunnel.faces.report.prediction.spec_words import title
from windtunnel.files import trace as files
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
        yield from files.names("process", name, stage, 0, stage)
        for stream, lane in threads.items():
            yield from files.names("thread", stream, stage, lane, lane)
    ordered = sorted(
        result.excerpt, key=lambda op: (op.stage, lanes[op.stage, op.stream], op.start_ns, -op.end_ns, op.label)
    )
    for op in ordered:
        lane = lanes[op.stage, op.stream]
        when = op.start_ns / _US, (op.end_ns - op.start_ns) / _US
        yield files.bar(op.label, label_on_lane(op.category), op.stage, lane, *when)
    for report in result.stages:
        now = 0
        for key in time_categories(report.breakdown_ns):
            ns, label = report.breakdown_ns[key], label_of(key)
            yield files.bar(label, label, report.stage, sums[report.stage], now / _US, ns / _US)
            now += ns
    for memory in sorted(result.memory, key=lambda memory: memory.stage):
        for time_ns, allocated in sorted(memory.timeline):
            yield files.count("allocated memory", memory.stage, time_ns / _US, {"bytes": allocated})


def trace_bytes(result: Result) -> bytes:
    """The gzipped trace; the same result gives the same bytes."""
    return files.trace_bytes(title(result), trace_events(result), {"result": result.content_hash})


def write_trace(result: Result, path: Path | str) -> None:
    """Write the gzipped trace at `path`. Raises InputFileError when it cannot be written."""
    write_atomically(Path(path), trace_bytes(result))
