"""Timelines in Chrome's trace format, which Perfetto opens ("Trace Event Format", Google, 2016).

Times are microseconds with fractions.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping

Event = dict[str, object]


def bar(name: str, category: str, process: int, thread: int, start_us: float, us: float) -> Event:
    """A stretch of a thread."""
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": start_us, "dur": us}


def count(name: str, process: int, at_us: float, args: Mapping[str, int]) -> Event:
    """A value from then on."""
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": at_us, "args": dict(args)}


def names(kind: str, name: str, process: int, thread: int, place: int | None = None) -> Iterator[Event]:
    """What a process or a thread is called, and where it stands among the others."""
    args: tuple[tuple[str, dict[str, object]], ...] = ("name", {"name": name}), ("sort_index", {"sort_index": place})
    for what, own in args if place is not None else args[:1]:
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": process, "tid": thread, "args": own}


def trace_bytes(title: str, events: Iterable[Mapping[str, object]], facts: Mapping[str, object]) -> bytes:
    """The gzipped trace, the same bytes for the same events; one event a line, for ordinary text tools."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as packed:
        packed.write(_line({"displayTimeUnit": "ms", "otherData": {"title": title, **facts}})[:-1])
        packed.write(b',"traceEvents":[')
        for number, event in enumerate(events):
            packed.write((b",\n" if number else b"\n") + _line(event))
        packed.write(b"\n]}\n")
    return buffer.getvalue()


def _line(event: Mapping[str, object]) -> bytes:
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
