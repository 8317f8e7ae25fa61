"""The timeline of one replica in Chrome's trace format, which Perfetto opens: steps and runs, batch size, blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from windtunnel.files.write import write_atomically

TICKS_PER_US = 1024_000.0


def write_trace(timeline: Sequence[tuple[int, int, int, int]], path: Path) -> None:
    """`timeline`: (ticks, sequences, blocks, steps) of each event in turn; idle time is left out."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "replica 0 (busy time)"}}
    ]
    now = 0.0
    for ticks, sequences, blocks, steps in timeline:
        length = ticks / TICKS_PER_US
        name = "decode" if steps > 1 else "step"
        args = {"sequences": sequences, "steps": steps, "blocks": blocks}
        events.append({"ph": "X", "pid": 0, "tid": 0, "name": name, "ts": now, "dur": length, "args": args})
        for what, value in (("sequences", sequences), ("KV blocks", blocks)):
            events.append({"ph": "C", "pid": 0, "name": what, "ts": now, "args": {what: value}})
        now += length
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
