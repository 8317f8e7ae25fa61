"""What a sweep has done so far: one line a row, appended and flushed. A torn last line is as if it were not there.

A line is with the system when `add` returns, so a killed process loses none; it is on disk a second later, so a machine
that loses power loses what a second did.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from windtunnel.errors import InputFileError

SYNC_S = 1.0


def read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """Rows by key. Reading stops at the first line that is not whole."""
    found: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return found
    for line in path.read_bytes().split(b"\n")[:-1]:  # behind the last newline is nothing, or a torn line
        try:
            row = json.loads(line)
            found[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            break
    return found


class Journal:
    """Appends rows. Whatever a kill left behind the last whole line is cut off first.

    Raises InputFileError where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = path.read_bytes() if path.exists() else b""
            self._file = path.open("ab")
            self._file.truncate(kept.rfind(b"\n") + 1)
        except OSError as error:
            raise InputFileError(
                path, error.strerror or "cannot be written", "give a path that can be written"
            ) from None
        self._synced_s = monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._file.close()

    def add(self, row: dict[str, Any]) -> None:
        """One row."""
        self._file.write(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        if monotonic() - self._synced_s > SYNC_S:
            os.fsync(self._file.fileno())
            self._synced_s = monotonic()
