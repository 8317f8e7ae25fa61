"""`sacct -P`: what Slurm says of its jobs. One line per job; lines of steps (`123.batch`) are counted and left out.

GPUs are `gres/gpu=` of AllocTRES or ReqTRES; times are ISO 8601 in one zone. What ran is the trace, and when it started
is kept, so that the policy `current` shows what happened. A job that failed or was cancelled does so again after as
long as it ran; one that was cancelled before it started never asks for GPUs. One that still runs holds its GPUs for as
long as it has run, and never completes; how long one that still waits will run is not known.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import numpy as np

from windtunnel.errors import InputFileError
from windtunnel.files.table import Table, read_table

GPUS = re.compile(r"gres/gpu(?::[^=,]*)?=(\d+)")
ELAPSED = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)(?:\.\d+)?")
FAILED = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED")  # Slurm's words
GOING = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING")  # when the log was written
COLUMNS = ("JobID", "Submit", "Start", "End", "Elapsed", "AllocTRES", "ReqTRES", "User", "State")
MADE = ("job", "submit_s", "start_s", "duration_s", "gpus", "user", "model", "ended")
UNKNOWN = ("", "Unknown", "None", "N/A")


def read_sacct(path: Path) -> Table:
    """The table of jobs. Raises InputFileError."""
    raw = read_table(path, delimiter="|")
    for column in ("JobID", "Submit"):
        if not raw.has(column):
            remedy = "write it with `sacct -P -X -a -o JobID,Submit,Start,End,Elapsed,AllocTRES,ReqTRES,User,State`"
            raise InputFileError(path, f"has no column {column}", remedy)
    rows = np.array([at for at, name in enumerate(raw.texts("JobID")) if "." not in name], np.int64)
    raw = raw.only(rows)
    columns = [raw.texts(key) if raw.has(key) else [""] * len(raw) for key in COLUMNS]
    rows_made = []
    for line, *texts in zip(raw.line.tolist(), *columns, strict=True):
        value = dict(zip(COLUMNS, texts, strict=True))
        submit, start, end = (_seconds(value[key], path, line, key) for key in ("Submit", "Start", "End"))
        if submit is None:
            raise InputFileError(path, f"line {line}: Submit is missing", "mend or drop that line")
        lasted = _elapsed(value["Elapsed"])
        if lasted is None and start is not None and end is not None:
            lasted = end - start
        state = value["State"].upper().split(" ")[0]  # CANCELLED by 1000
        if state in GOING and start is None:
            lasted = None  # its Elapsed of 0 is no duration
        gpus = _gpus(value["AllocTRES"]) or _gpus(value["ReqTRES"])
        other = "unfinished" if state in GOING else "failed" if state in FAILED else ""
        ended = "cancelled" if state == "CANCELLED" else other
        times = ("" if time is None else repr(time) for time in (submit, start, lasted))
        rows_made.append((value["JobID"], *times, str(gpus), value["User"], "", ended))
    made = map(list, zip(*rows_made, strict=True)) if rows_made else ([] for _ in MADE)
    return Table(str(path), dict(zip(MADE, made, strict=True)), raw.line)


def _seconds(text: str, path: Path, line: int, column: str) -> float | None:
    if text in UNKNOWN:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputFileError(path, f"line {line}: {column} = {text[:40]!r} is no time", "give ISO 8601 times") from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


def _elapsed(text: str) -> float | None:
    found = ELAPSED.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _gpus(text: str) -> int:
    plain = re.search(r"gres/gpu=(\d+)", text)
    if plain:
        return int(plain.group(1))
    return sum(int(count) for count in GPUS.findall(text))
