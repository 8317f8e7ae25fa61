"""Which reader takes a file: by its name and by what it begins with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import GZIP, MIB, gunzip, path_of, read_bytes
from windtunnel.files.document import read_json
from windtunnel.studies.measured_run.collectives import (
    is_inspector,
    is_pickle,
    run_of_flight_recorder,
    run_of_inspector,
)
from windtunnel.studies.measured_run.exports import is_event_file, run_of_events, run_of_table, run_of_trainer_state
from windtunnel.studies.measured_run.logs import run_of_text
from windtunnel.studies.measured_run.run import MeasuredRun

LOG_BYTES_MOST = 512 * MIB
FILES_MOST = 10_000  # looked at in a folder
GIVE = "give a training log, an export of W&B or TensorBoard, or a dump of NCCL Inspector or the flight recorder"


def read_run(paths: Sequence[str | Path]) -> MeasuredRun:
    """What the files of one run say together; step times are those of the first that has any. Raises UserError."""
    if not paths:
        raise SpecError("log", None, GIVE)
    runs = [_read(file) for path in paths for file in _files_of(path_of(path, GIVE))]
    first = next((run for run in runs if run.steps), runs[0])
    merged = first
    for run in runs:
        if run is not first:
            merged = replace(
                merged,
                allocated_bytes={**run.allocated_bytes, **merged.allocated_bytes},
                reserved_bytes={**run.reserved_bytes, **merged.reserved_bytes},
                ranks_spread={**run.ranks_spread, **merged.ranks_spread},
                arguments={**run.arguments, **merged.arguments},
                collectives=(*merged.collectives, *run.collectives),
                notes=(*merged.notes, *(f"{run.source}: {note}" for note in run.notes)),
                not_understood=(*merged.not_understood, *run.not_understood),
            )
    return merged


def _files_of(path: Path) -> list[Path]:
    """The file, or the event files of a folder that TensorBoard reads."""
    if not path.is_dir():
        return [path]
    try:
        events = [file for file in sorted(islice(path.rglob("*"), FILES_MOST)) if is_event_file(file)]
    except OSError as error:
        raise InputFileError(path, f"cannot be searched ({error.strerror})", "name a folder of event files") from None
    if not events:
        raise InputFileError(path, "is a folder without event files of TensorBoard", f"name a file, as {path / 'FILE'}")
    return events


def _read(path: Path) -> MeasuredRun:
    source = str(path)
    if is_event_file(path):
        return run_of_events(path)
    if path.suffix.lower() in (".csv", ".jsonl", ".ndjson", ".parquet") and not _says_inspector(path):
        return run_of_table(path)
    content = read_bytes(path, GIVE, LOG_BYTES_MOST)
    if is_pickle(content):
        return run_of_flight_recorder([path])
    if content[:2] == GZIP:
        content = gunzip(content, path, GIVE, LOG_BYTES_MOST)
    if b"\0" in content[:4096]:
        raise InputFileError(path, "is no text", GIVE)
    text = content.decode("utf-8", "replace")
    if is_inspector(text):
        return run_of_inspector(text, source)
    if path.suffix.lower() == ".json" or text.lstrip()[:1] == "{":
        return _of_json(path, text)
    return run_of_text(text, source)


def _says_inspector(path: Path) -> bool:
    if path.suffix.lower() in (".csv", ".parquet"):
        return False
    return is_inspector(read_bytes(path, GIVE, LOG_BYTES_MOST)[:8192].decode("utf-8", "replace"))


def _of_json(path: Path, text: str) -> MeasuredRun:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return run_of_text(text, str(path))  # several documents, as DLLogger writes them, or a cut one
    document = read_json(path, GIVE, LOG_BYTES_MOST)
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        return run_of_trainer_state(document, str(path))
    if isinstance(document, dict) and isinstance(document.get("entries"), list):
        return run_of_flight_recorder([path])
    if isinstance(document, dict) and "traceEvents" in document:
        raise InputFileError(path, "is a trace, no log", "give it with --trace")
    return run_of_text(text, str(path))
