"""What is measured is kept at once: one line of JSON per point in a journal beside the file that is being made.

The first line says which device it belongs to. Each later line is one record, written in one piece and flushed; a line
that was cut off by a kill, or damaged since, is left out when the journal is read again, and counted.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError

_FORMAT = "windtunnel calibration journal 1"


@dataclass(frozen=True, slots=True)
class JournalContents:
    """What an earlier run left."""

    records: tuple[dict[str, object], ...] = ()
    damaged: int = 0  # lines that could not be read
    spent_s: float = field(default=0.0)  # of the budget


def journal_path(out: Path) -> Path:
    """Where the journal of `out` lies."""
    return out.with_name(f"{out.name}.journal")


def open_journal(path: Path, identity: dict[str, object]) -> tuple[Journal, JournalContents]:
    """The journal at `path`, begun anew or gone on with.

    Raises:
        InputFileError: it cannot be written, or belongs to another device or software.
    """
    earlier, usable_bytes = _read(path, identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(file, usable_bytes)
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be written", "give --out a place to write") from error
    journal = Journal(path, file)
    if not usable_bytes:
        journal.append({"journal": _FORMAT, **identity})
    return journal, earlier


@dataclass(slots=True)
class Journal:
    """An open journal: records go to its end."""

    path: Path
    file: int

    def append(self, record: dict[str, object]) -> None:
        """Write one record in one piece."""
        data = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        try:
            os.write(self.file, data)
            os.fsync(self.file)
        except OSError as error:
            raise InputFileError(self.path, error.strerror or "cannot be written", "make room on its disk") from error

    def close(self, remove: bool = False) -> None:
        """Close it; `remove` it when everything in it has gone into the file."""
        os.close(self.file)
        if remove:
            self.path.unlink(missing_ok=True)


def _read(path: Path, identity: dict[str, object]) -> tuple[JournalContents, int]:
    """What is readable, and how many bytes of the file to keep: all up to the last whole line, or none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return JournalContents(), 0
    except OSError as error:
        raise InputFileError(path, error.strerror or "cannot be read", "remove it, or give another --out") from error
    whole = data.rfind(b"\n") + 1
    records: list[dict[str, Any]] = []
    damaged = int(whole < len(data))
    for line in data[:whole].splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            damaged += 1
    if not records or records[0].get("journal") != _FORMAT:
        if not data:
            return JournalContents(), 0
        remedy = "its first line is damaged; remove it to start again, or give another --out"
        raise InputFileError(path, "is no journal of a calibration", remedy)
    for name, value in identity.items():
        if records[0].get(name) != value:
            problem = f"was begun with {name} {records[0].get(name)!r}, and this is {value!r}"
            raise InputFileError(path, problem, "remove it to start again, or give another --out")
    spent = [record["spent_s"] for record in records[1:] if isinstance(record.get("spent_s"), (int, float))]
    return JournalContents(tuple(records[1:]), damaged, max(spent, default=0.0)), whole
