"""One rank of job.py, observed: its ops and communications, or events of the allocator; real or among virtual peers.

    observed.py real|virtual ops|memory OUT.json KIND [words of job.py]        (RANK and WORLD_SIZE in the environment)

`same.py` runs it both ways and compares.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOB = str(Path(__file__).with_name("job.py"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def world_of(how: str) -> Iterator[Any]:
    if how == "real":
        yield None
        return
    from windtunnel.real.capture.processes.file_mailbox import FileMailbox
    from windtunnel.real.capture.virtual_world.world import World

    box = FileMailbox(Path(os.environ["LETTERS"]), RANK) if "LETTERS" in os.environ else None
    with World(RANK, WORLD, mailbox=box, devices=("cpu",)) as world:
        yield world


def described(call: Any) -> list[Any]:
    return [call.kind, call.bytes, list(call.members), call.peer, call.tag, call.dtype, call.reduce_op]


def ops(how: str) -> dict[str, Any]:
    """Ops of the last step, and all communications of the run that carry no control messages."""
    from windtunnel.real.capture.recorder.recorder import Recorder
    from windtunnel.real.emulate.tape.record_real import Recording

    heard: list[Any] = []
    with world_of(how) as world, contextlib.ExitStack() as opening:
        if world is None:
            opening.enter_context(Recording(None, heard=heard.append))
        else:
            world.calls = heard
        recorder = opening.enter_context(Recorder(RANK, WORLD, world, device="cpu"))
        runpy.run_path(JOB, run_name="__main__")
    rows = [[op.name, op.kind, [list(spec) for spec in op.inputs], [list(spec) for spec in op.outputs]]
            for op in recorder.programs[-1].ops if op.kind != "wait"]  # fmt: skip
    return {"ops": rows, "calls": [described(call) for call in heard if not call.is_control]}


def memory(how: str) -> dict[str, Any]:
    """The allocator's log of the whole run, and the peak of its last step."""
    from windtunnel.real.emulate.clock.script_clock import optimizer_hooks
    from windtunnel.real.emulate.memory import MemoryWatch, peak_of, read_log

    watch = MemoryWatch()
    watch.start((), stack=False)
    undo = optimizer_hooks(lambda: None, lambda: watch.mark(()))
    with world_of(how):
        runpy.run_path(JOB, run_name="__main__")
    undo()
    with tempfile.TemporaryDirectory() as folder:
        log = read_log(watch.trace(Path(folder)))
    peak = peak_of(log, 0, {})
    assert peak is not None
    begun, done = log.steps[-2:]
    inside = [
        (span.begun, span.ended) for spans in log.spans.values() for span in spans if span.name.startswith("c10d::")
    ]
    rows = []
    for event in log.events:
        if begun <= event.at < done:
            by_library = any(first <= event.at <= last for first, last in inside)
            rows.append([event.bytes, "c10d" if by_library else ""])
    return peak.to_dict() | {"timeline": [], "log": rows}


def main() -> None:
    how, what, out, *words = sys.argv[1:]
    sys.argv = [JOB, *words]
    Path(out).write_text(json.dumps({"ops": ops, "memory": memory}[what](how)))


if __name__ == "__main__":
    main()
