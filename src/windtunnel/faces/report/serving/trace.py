"""The timeline of one replica in Chrome's trace format, which Perfetto opens: steps and runs, batch size, blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from windtunnel.files import trace
from windtunnel.files.write import write_atomically

TICKS_PER_US = 1024_000.0


def write_trace(timeline: Sequence[tuple[int, int, int, int]], path: Path) -> None:
    """`timeline`: (ticks, sequences, blocks, steps) of each event in turn; idle time is left out."""
    events = list(trace.names("process", "replica 0 (busy time)", 0, 0))
    now = 0.0
    for ticks, sequences, blocks, steps in timeline:
        length = ticks / TICKS_PER_US
        args = {"sequences": sequences, "steps": steps, "blocks": blocks}
        events.append(trace.bar("decode" if steps > 1 else "step", "", 0, 0, now, length) | {"args": args})
        for what, value in (("sequences", sequences), ("KV blocks", blocks)):
            events.append(trace.count(what, 0, now, {what: value}))
        now += length
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
